"""Reads what a quantized model's file says of its making, and holds it against a report."""

from __future__ import annotations

import mmap
from pathlib import Path

from service.contracts.base import VERSION
from service.contracts.provenance import Provenance
from service.contracts.report import Report
from worker.quantizer.intake.complexity import model_metadata, not_onnx
from worker.quantizer.intake.loading import file_sha256


def read_provenance(path: Path) -> Provenance | None:
    """What the model says; None if it says nothing, as a float model does. Its weights are not read.

    Raises:
        NotOnnxError: no ONNX file.
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        if path.stat().st_size == 0:
            raise not_onnx()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return Provenance.of_entries(model_metadata(data))


def provenance_faults(path: Path, report: Report) -> tuple[str, ...]:
    """In words, whatever keeps ``report`` from being that of the model; empty if it is.

    A manifest whose digest is not that of its content was changed after it was written. That is looked at where this
    very version has written it: another one may know other fields.

    Raises:
        NotOnnxError: no ONNX file.
        OSError: it cannot be read.
    """
    manifest, told = report.manifest, read_provenance(path)
    faults = [] if told is None else list(told.differences(manifest))
    same_fields = manifest.engine_version == VERSION
    if same_fields and manifest.manifest_sha256 not in (None, manifest.with_digests().manifest_sha256):
        faults.append("the report's manifest is not the one that its manifest_sha256 was taken of")
    sha256 = file_sha256(path)
    if sha256 != manifest.output_sha256:
        faults.append(f"the model's sha256 is {sha256}; the report describes {manifest.output_sha256}")
    return tuple(faults)
