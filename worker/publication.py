"""Publishes a runner's files: all are durable first, and become visible with the row."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from service.contracts.dataset import DatasetSummary
from service.contracts.errors import EngineError, ResourceLimitError
from service.contracts.model import MADE_DATA, MADE_MODEL, ModelSummary
from service.contracts.runner import (
    DATA_KIND,
    DatasetResult,
    EvaluateResult,
    InspectionResult,
    ModelResult,
    QuantizeResult,
)
from service.files import repository as stored_files
from service.jobs.outcome import EvaluateOutcome, MadeModel, NewArtifact, NewModelFile, QuantizeOutcome
from service.jobs.outcome import Outcome as JobOutcome
from service.storage import Store, StoredFile
from worker.materials import plain_name
from worker.outcome import Result

REPORT_FILE = "report.json"
_BINARY = "application/octet-stream"
# Puts a file of the runner, by its name and sha256, into the store.
Put = Callable[[str, str], StoredFile]


def publish(
    result: Result,
    output: Path,
    store: Store,
    *,
    extra_bytes: int | None = None,
    check: Callable[[], None] = lambda: None,
) -> JobOutcome:
    """Put the files of a result into the store.

    Args:
        result: what the runner said.
        output: folder that it wrote into.
        store: where files go for good.
        extra_bytes: what files beside model and report may take; None: no limit.
        check: called every now and then; what it raises ends the publication.

    Raises:
        StorageAwayError: the store is not there.
        EngineError: a file of the runner is not there, or is not the one that it told of.
        ResourceLimitError: they take more than they may.
        OSError: the disk refused.
    """
    store.check_there()
    if output.is_symlink():
        raise EngineError("The runner replaced its folder by a link.")
    put = partial(_stored, output, store, check)
    if isinstance(result, ModelResult):
        return _publish_model(result, put)
    if isinstance(result, DatasetResult):
        if result.summary.thumbnails is not None:
            put(result.summary.thumbnails.file, result.summary.thumbnails.sha256)
        return result.summary
    if isinstance(result, InspectionResult):
        return result.inspection
    _check_size([_written(output, file.file) for file in result.files], extra_bytes)
    report = output / REPORT_FILE
    _write_new(report, json.dumps(result.report.to_json_dict(), indent=2) + "\n")
    stored_report = store.put_file(report, check=check)
    if isinstance(result, EvaluateResult):
        return EvaluateOutcome(result.report, tuple(_beside_model(result, put, stored_report)))
    return _publish_quantized(result, put, stored_report)


def name_published(session: Session, store: Store, published: JobOutcome) -> None:
    """In the transaction that makes rows of what was published: its files are there, and stay.

    Raises:
        StoredFileMissingError: storing was so long ago that they have been collected.
    """
    digests: list[str] = []
    if isinstance(published, QuantizeOutcome | EvaluateOutcome):
        digests = [artifact.sha256 for artifact in published.artifacts]
    elif isinstance(published, MadeModel):
        digests = [file.sha256 for file in published.files]
    elif isinstance(published, DatasetSummary) and published.thumbnails is not None:
        digests = [published.thumbnails.sha256]
    stored_files.name_files(session, store, digests)
    stored_files.clear_damaged(session, digests)


def _publish_model(result: ModelResult, put: Put) -> ModelSummary | MadeModel:
    if not result.files:
        return result.summary
    if tuple(file.file for file in result.files) not in ((MADE_MODEL,), (MADE_MODEL, MADE_DATA)):
        raise EngineError(f"The runner created {', '.join(file.file for file in result.files)}, which is not a model.")
    stored = [(file.file, put(file.file, file.sha256)) for file in result.files]
    return MadeModel(result.summary, tuple(NewModelFile(name, one.sha256, one.size_bytes) for name, one in stored))


def _publish_quantized(result: QuantizeResult, put: Put, stored_report: StoredFile) -> QuantizeOutcome:
    manifest, data = result.report.manifest, result.data
    if manifest.output_data_sha256 != (None if data is None else data.sha256):
        raise EngineError("The runner's report does not list the external data file of its model.")
    files = [("model", "model.onnx", put(result.model_file, manifest.output_sha256))]
    if data is not None:
        files.append((DATA_KIND, data.file, put(data.file, data.sha256)))
    model = [NewArtifact(kind, name, _BINARY, one.sha256, one.size_bytes) for kind, name, one in files]
    return QuantizeOutcome(result.report, (*model, *_beside_model(result, put, stored_report)))


def _beside_model(
    result: QuantizeResult | EvaluateResult, put: Put, stored_report: StoredFile
) -> Iterator[NewArtifact]:
    """The report, then all other files."""
    yield NewArtifact("report", REPORT_FILE, "application/json", stored_report.sha256, stored_report.size_bytes)
    for file in result.files:
        found = put(file.file, file.sha256)
        yield NewArtifact(file.kind, file.file, file.media_type, found.sha256, found.size_bytes)


def _stored(output: Path, store: Store, check: Callable[[], None], name: str, sha256: str) -> StoredFile:
    """The runner's file in the store, if it has the bytes that the runner told of."""
    stored = store.put_file(_written(output, name), check=check)
    if stored.sha256 != sha256:
        raise EngineError(f"The runner's file {name} has sha256 {stored.sha256}, but it reported {sha256}.")
    return stored


def _written(output: Path, name: str) -> Path:
    """The runner's file, if it is one and nothing else: no link to a file of others, under which name ever.

    Raises:
        EngineError: it is not there, or something else is.
    """
    path = output / plain_name(name)
    try:
        state = path.lstat()
    except OSError:
        state = None
    if output.is_symlink() or state is None or not stat.S_ISREG(state.st_mode):
        raise EngineError(f"The runner reported {name}, which does not exist.")
    if state.st_nlink != 1:
        raise EngineError(f"The runner reported {name}, which has another hard link.")
    return path


def _write_new(path: Path, text: str) -> None:
    """Write a file of our own into the runner's folder, in place of whatever lies there, and never through a link.

    Raises:
        OSError: the disk refused, or a folder lies there.
    """
    path.unlink(missing_ok=True)
    with path.open("x") as stream:  # exclusively: a link that appears meanwhile is not followed
        stream.write(text)


def _check_size(files: Sequence[Path], limit_bytes: int | None) -> None:
    size_bytes = sum(path.stat().st_size for path in files)
    if limit_bytes is not None and size_bytes > limit_bytes:
        raise ResourceLimitError(
            f"The files in addition to the model have {size_bytes} bytes; the maximum is {limit_bytes}.",
            hint="Request fewer candidates or analyses in one job, or raise QUANTMILL_EXTRA_BYTES.",
            resource="disk",
        )
