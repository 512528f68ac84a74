"""What two jobs were measured on, and their results by sample, from the store."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.artifacts import repository as artifacts
from service.comparison.pairing import Pairing, paired
from service.comparison.samples import read_decisions
from service.contracts.dataset import PreprocessingSpec
from service.contracts.report import Report
from service.deps import Desk
from service.files.serving import open_file

SAMPLES = "samples"
_MOST_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class Paired:
    """What came of pairing two jobs; without ``pairing``, ``reason`` says why there is none."""

    pairing: Pairing | None
    reason: str | None


@dataclass(frozen=True)
class Side:
    """One of two jobs.

    Attributes:
        measured_on: digest and preprocessing of the data that its report's figures are of; see ``measured_on``.
        file: digest and size in bytes of its ``samples.npz``; None: it has none.
    """

    measured_on: tuple[str, PreprocessingSpec | None] | None
    file: tuple[str, int] | None


def measured_on(report: Report) -> tuple[str, PreprocessingSpec | None] | None:
    """Digest and preprocessing of the data that a report's figures are of; None where they are of random data."""
    manifest = report.manifest
    if report.fidelity.source == "evaluation" and manifest.evaluation_sha256 is not None:
        return manifest.evaluation_sha256, manifest.evaluation_preprocessing
    if report.fidelity.source == "calibration" and manifest.calibration_sha256 is not None:
        return manifest.calibration_sha256, manifest.calibration_preprocessing
    return None


def samples_of(session: Session, tenant_id: str, job_id: str) -> tuple[str, int] | None:
    """Digest and size of a job's ``samples.npz``; None: it has none."""
    for artifact in artifacts.list_of_job(session, tenant_id, job_id):
        if artifact.kind == SAMPLES:
            return artifact.sha256, artifact.size_bytes
    return None


def pair(desk: Desk, first: Side, second: Side) -> Paired:
    """Compare what two jobs' quantized models decide; reads both files, and computes.

    Raises:
        SamplesUnreadableError: a file is not as the engine writes it.
        StoredFileMissingError, StoredFileCorruptError: the store lacks it.
    """
    if first.measured_on is None or first.measured_on != second.measured_on:
        return Paired(None, "The two were not measured on the same data.")
    if first.file is None or second.file is None:
        return Paired(None, "A job keeps no results by sample: its output gives no class per sample, or is too large.")
    if max(first.file[1], second.file[1]) > _MOST_BYTES:
        return Paired(None, f"The results by sample have more than {_MOST_BYTES} bytes.")
    decisions = []
    for sha256, size_bytes in (first.file, second.file):
        with open_file(desk.database, desk.store, sha256, size_bytes).stream as stream:
            decisions.append(read_decisions(stream.read()))
    found = paired(*decisions)
    return Paired(found, None if found is not None else "The two were not asked about the same samples.")
