"""The manifest of a run, before there is a model and with it."""

from __future__ import annotations

import hashlib

from service.contracts.base import VERSION
from service.contracts.provenance import Provenance
from service.contracts.report import Manifest
from worker.quantizer.graph.serialized import ModelContent
from worker.quantizer.refine.case import Case
from worker.quantizer.run.identity import library_versions


def make_manifest(case: Case, threads: int, content: ModelContent | None = None) -> Manifest:
    """Everything needed to make the same bytes again.

    Args:
        case: what is quantized.
        threads: CPU threads.
        content: the quantized model; no digest but its own depend on it. None: it is not made yet.
    """
    config = case.config
    return Manifest(
        engine_version=VERSION,
        model_sha256=case.summary.sha256,
        calibration_sha256=None if case.calibration.is_random else case.calibration.summary.sha256,
        evaluation_sha256=case.evaluation.summary.sha256 if case.evaluation is not None else None,
        calibration_preprocessing=None if case.calibration.is_random else case.calibration.preprocessing,
        evaluation_preprocessing=case.evaluation.preprocessing if case.evaluation is not None else None,
        output_sha256=hashlib.sha256().hexdigest() if content is None else content.sha256,
        output_data_sha256=None if content is None else content.data_sha256,
        config=config,
        seed=config.seed,
        versions=library_versions(),
        threads=threads,
    ).with_digests()


def provenance_entries(case: Case, threads: int) -> dict[str, str]:
    """What the quantized model's file says of its making."""
    return Provenance.of(make_manifest(case, threads)).entries()
