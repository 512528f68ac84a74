"""From the files of a runner to what a transition takes: everything durable first, visible only with the row."""

from __future__ import annotations

import json
from pathlib import Path

from service.contracts.errors import EngineError
from service.contracts.runner import DatasetResult, InspectionResult, ModelResult, QuantizeResult
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.jobs.outcome import Outcome as JobOutcome
from service.storage import FileStore
from worker.materials import plain_name
from worker.outcome import Result

REPORT_FILE = "report.json"


def publish(result: Result, output: Path, store: FileStore) -> JobOutcome:
    """Put the files of a result into the store.

    Args:
        result: what the runner said.
        output: folder that it wrote into.
        store: where files go for good.

    Raises:
        EngineError: the runner's file is not there, or is not the one that its report describes.
        OSError: the disk refused.
    """
    if isinstance(result, ModelResult | DatasetResult):
        return result.summary
    if isinstance(result, InspectionResult):
        return result.inspection
    return _publish_quantized(result, output, store)


def _publish_quantized(result: QuantizeResult, output: Path, store: FileStore) -> QuantizeOutcome:
    model = output / plain_name(result.model_file)
    if model.is_symlink() or not model.is_file():
        raise EngineError(f"The runner reported {result.model_file}, which is not there.")
    stored = store.put_file(model)
    wanted = result.report.manifest.output_sha256
    if stored.sha256 != wanted:
        raise EngineError(f"The runner's model has sha256 {stored.sha256}; its report says {wanted}.")
    report = output / REPORT_FILE
    report.write_text(json.dumps(result.report.to_json_dict(), indent=2) + "\n")
    stored_report = store.put_file(report)
    return QuantizeOutcome(
        report=result.report,
        artifacts=(
            NewArtifact("model", "model.onnx", "application/octet-stream", stored.sha256, stored.size_bytes),
            NewArtifact("report", REPORT_FILE, "application/json", stored_report.sha256, stored_report.size_bytes),
        ),
    )
