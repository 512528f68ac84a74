"""The manifest of a run, before there is a model and with it."""

from __future__ import annotations

import hashlib

from service.contracts.provenance import Provenance
from service.contracts.report import Manifest
from service.contracts.version import VERSION
from worker.quantizer.refine.case import Case
from worker.quantizer.run.identity import library_versions


def make_manifest(case: Case, threads: int, model_bytes: bytes = b"") -> Manifest:
    """Everything needed to make the same bytes again.

    Args:
        case: what is quantized.
        threads: CPU threads.
        model_bytes: the quantized model; no digest but ``output_sha256`` depends on it.
    """
    config = case.config
    return Manifest(
        engine_version=VERSION,
        model_sha256=case.summary.sha256,
        calibration_sha256=None if case.calibration.is_random else case.calibration.summary.sha256,
        evaluation_sha256=case.evaluation.summary.sha256 if case.evaluation is not None else None,
        calibration_preprocessing=None if case.calibration.is_random else case.calibration.preprocessing,
        evaluation_preprocessing=case.evaluation.preprocessing if case.evaluation is not None else None,
        output_sha256=hashlib.sha256(model_bytes).hexdigest(),
        config=config,
        seed=config.seed,
        versions=library_versions(),
        threads=threads,
    ).with_digests()


def provenance_entries(case: Case, threads: int) -> dict[str, str]:
    """What the quantized model's file says of its making."""
    return Provenance.of(make_manifest(case, threads)).entries()
