"""From the files of a runner to what a transition takes: everything durable first, visible only with the row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from service.contracts.errors import EngineError, ResourceLimitError
from service.contracts.model import MADE_DATA, MADE_MODEL, ModelSummary
from service.contracts.runner import DatasetResult, InspectionResult, ModelResult, QuantizeResult
from service.jobs.outcome import MadeModel, NewArtifact, NewModelFile, QuantizeOutcome
from service.jobs.outcome import Outcome as JobOutcome
from service.storage import FileStore, StoredFile
from worker.materials import plain_name
from worker.outcome import Result

REPORT_FILE = "report.json"


def publish(result: Result, output: Path, store: FileStore, *, extra_bytes: int | None = None) -> JobOutcome:
    """Put the files of a result into the store.

    Args:
        result: what the runner said.
        output: folder that it wrote into.
        store: where files go for good.
        extra_bytes: what files beside model and report may take; None: no limit.

    Raises:
        EngineError: a file of the runner is not there, or is not the one that it told of.
        ResourceLimitError: they take more than they may.
        OSError: the disk refused.
    """
    if isinstance(result, ModelResult):
        return _publish_model(result, output, store)
    if isinstance(result, DatasetResult):
        if result.summary.thumbnails is not None:
            _stored(output, result.summary.thumbnails.file, result.summary.thumbnails.sha256, store)
        return result.summary
    if isinstance(result, InspectionResult):
        return result.inspection
    _check_size([_written(output, file.file) for file in result.files], extra_bytes)
    return _publish_quantized(result, output, store)


def _publish_model(result: ModelResult, output: Path, store: FileStore) -> ModelSummary | MadeModel:
    if not result.files:
        return result.summary
    if tuple(file.file for file in result.files) not in ((MADE_MODEL,), (MADE_MODEL, MADE_DATA)):
        raise EngineError(f"The runner made {', '.join(file.file for file in result.files)}, which is no model.")
    stored = [(file.file, _stored(output, file.file, file.sha256, store)) for file in result.files]
    return MadeModel(result.summary, tuple(NewModelFile(name, one.sha256, one.size_bytes) for name, one in stored))


def _publish_quantized(result: QuantizeResult, output: Path, store: FileStore) -> QuantizeOutcome:
    stored = _stored(output, result.model_file, result.report.manifest.output_sha256, store)
    others = [(file, _stored(output, file.file, file.sha256, store)) for file in result.files]
    report = output / REPORT_FILE
    report.write_text(json.dumps(result.report.to_json_dict(), indent=2) + "\n")
    stored_report = store.put_file(report)
    return QuantizeOutcome(
        report=result.report,
        artifacts=(
            NewArtifact("model", "model.onnx", "application/octet-stream", stored.sha256, stored.size_bytes),
            NewArtifact("report", REPORT_FILE, "application/json", stored_report.sha256, stored_report.size_bytes),
            *(
                NewArtifact(file.kind, file.file, file.media_type, found.sha256, found.size_bytes)
                for file, found in others
            ),
        ),
    )


def _stored(output: Path, name: str, sha256: str, store: FileStore) -> StoredFile:
    """The runner's file in the store, if it has the bytes that the runner told of."""
    stored = store.put_file(_written(output, name))
    if stored.sha256 != sha256:
        raise EngineError(f"The runner's file {name} has sha256 {stored.sha256}; it told of {sha256}.")
    return stored


def _written(output: Path, name: str) -> Path:
    path = output / plain_name(name)
    if path.is_symlink() or not path.is_file():
        raise EngineError(f"The runner reported {name}, which is not there.")
    return path


def _check_size(files: Sequence[Path], limit_bytes: int | None) -> None:
    size_bytes = sum(path.stat().st_size for path in files)
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise ResourceLimitError(
            f"The files beside the model take {size_bytes} bytes; {limit_bytes} are allowed.",
            hint="Ask for fewer candidates or analyses in one job, or raise QUANTMILL_EXTRA_BYTES.",
            resource="disk",
        )
