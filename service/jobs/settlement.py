"""Effects of a job's end on related objects, in the transaction that ends it."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from service.artifacts import repository as artifacts
from service.artifacts.naming import named
from service.contracts.dataset import DatasetSummary
from service.contracts.errors import Problem
from service.contracts.graph_view import Inspection
from service.contracts.model import ModelSummary
from service.estimates import service as estimates
from service.hand_overs import outbox as hand_overs
from service.jobs import announcing, repository
from service.jobs.outcome import EvaluateOutcome, MadeModel, Outcome, QuantizeOutcome
from service.models import repository as models
from service.repository import note_waiting, settle
from service.resources import with_pointer
from service.tables import Dataset, InspectionRow, Job, Model, ModelFile
from service.tables.jobs import USERS_KINDS


def accept(session: Session, job: Job, result: Outcome) -> None:
    """The job has succeeded: store its report and artifacts, or make its model, dataset or inspection ready.

    Raises:
        TypeError: the result is not one for this kind of job.
    """
    if isinstance(result, QuantizeOutcome) and job.kind == "quantize":
        repository.add_report(session, job, result.report)
        model_file, config = models.upload_name(session, job.model_id), result.report.manifest.config
        for artifact in result.artifacts:
            artifacts.add(session, job, named(artifact, model_file, config))
        estimates.observe(session, job, result.report.stages, result.report.quantized.size_bytes)
    elif isinstance(result, EvaluateOutcome) and job.kind == "evaluate":
        repository.add_report(session, job, result.report)
        for artifact in result.artifacts:
            artifacts.add(session, job, artifact)
        estimates.observe(session, job, result.report.stages)
    elif isinstance(result, MadeModel) and job.kind == "inspect_model" and job.model_id is not None:
        files = [
            ModelFile(path=file.path, sha256=file.sha256, size_bytes=file.size_bytes, is_main=k == 0)
            for k, file in enumerate(result.files)
        ]
        models.add_files(session, job.tenant_id, job.model_id, files)
        _settle_model(session, job, job.model_id, result.summary)
    elif isinstance(result, ModelSummary) and job.kind == "inspect_model" and job.model_id is not None:
        _settle_model(session, job, job.model_id, result)
    elif isinstance(result, DatasetSummary) and job.kind == "inspect_dataset" and job.dataset_id is not None:
        thumbnails = None if result.thumbnails is None else result.thumbnails.sha256
        values = {**_summaries(result), "thumbnails_sha256": thumbnails}
        if settle(session, Dataset, {**values, "status": "ready"}, id=job.dataset_id):
            announcing.tell_uploaded(session, job, "dataset", "ready")
    elif isinstance(result, Inspection) and job.kind == "inspect_target":
        settle(session, InspectionRow, {"status": "ready", "result": result.model_dump(mode="json")}, job_id=job.id)
    else:
        raise TypeError(f"a {job.kind} job cannot end with a {type(result).__name__}")
    if job.kind in USERS_KINDS:
        hand_overs.release(session, job)


def reject(session: Session, job: Job, problem: Problem) -> None:
    """The job has failed or was canceled: what it should have accepted must not stay in validation for ever."""
    if job.kind == "inspect_model" and job.model_id is not None:
        pointer = _file_pointer(models.find(session, job.model_id), problem)
        values = {"status": "rejected", "problems": _stored(problem, pointer)}
        if settle(session, Model, values, id=job.model_id):
            announcing.tell_uploaded(session, job, "model", "rejected", problem)
    elif job.kind == "inspect_dataset" and job.dataset_id is not None:
        values = {"status": "rejected", "problems": _stored(problem, "/upload_id")}
        if settle(session, Dataset, values, id=job.dataset_id):
            announcing.tell_uploaded(session, job, "dataset", "rejected", problem)
    elif job.kind in USERS_KINDS:
        hand_overs.abandon(session, job)
    elif job.kind == "inspect_target":
        settle(session, InspectionRow, {"status": "failed", "problem": problem.model_dump(mode="json")}, job_id=job.id)


def tell_waiting(session: Session, job: Job) -> None:
    """What keeps validation from its end is told with what it validates: nobody else asks for its job."""
    if job.kind == "inspect_model" and job.model_id is not None:
        note_waiting(session, Model, job.model_id, job.waiting)
    elif job.kind == "inspect_dataset" and job.dataset_id is not None:
        note_waiting(session, Dataset, job.dataset_id, job.waiting)


def _settle_model(session: Session, job: Job, model_id: str, found: ModelSummary) -> None:
    if settle(session, Model, {**_summaries(found), "status": "ready"}, id=model_id):
        announcing.tell_uploaded(session, job, "model", "ready")


def _summaries(found: ModelSummary | DatasetSummary) -> dict[str, Any]:
    """What validation found, whole and for lists."""
    return {"summary": found.model_dump(mode="json"), "outline": found.outline().model_dump(mode="json")}


def _stored(problem: Problem, pointer: str) -> list[dict[str, Any]]:
    return [with_pointer(problem, pointer).model_dump(mode="json")]


def _file_pointer(model: Model | None, problem: Problem) -> str:
    """The file that the problem names, else the main one, as an item of the model's ``files``."""
    files = [] if model is None else model.files
    named = [index for index, file in enumerate(files) if file.path == problem.where.get("path")]
    main = [index for index, file in enumerate(files) if file.is_main]
    return next((f"/files/{index}" for index in [*named, *main]), "/files")
