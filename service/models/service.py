"""Models: made of uploads, validated by an inspect job."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.contracts.errors import Problem, Pt2NotAllowedError
from service.contracts.model import ModelSummary
from service.deps import Desk
from service.files import repository as stored_files
from service.idempotency.answers import Answer
from service.idempotency.service import submit_once
from service.jobs import transitions
from service.models import repository
from service.models.errors import ModelNotReadyError, ModelRejectedError
from service.models.schemas import ModelCreate, is_main
from service.models.views import created
from service.pagination import Position
from service.principal import Principal
from service.quarantine import suspects as quarantine
from service.tables import Job, Model, ModelFile
from service.uploads import repository as uploads
from service.uploads.service import completed

_ROUTE = "POST /v1/models"


def create(desk: Desk, by: Principal, body: ModelCreate, *, key: str | None) -> Answer:
    """Store a model in validation and its inspect job, in one transaction; with a known key, answer as then.

    Raises:
        IdempotencyKeyReuseError: the key was used for another body.
        UploadNotFoundError: a file's upload is not there.
        UploadNotCompleteError: a file's bytes are not all there.
        Pt2NotAllowedError: an archive of torch.export, where they are switched off.
        ModelNotFoundError, ModelNotReadyError, ModelRejectedError: the skeleton cannot be used.
        ModelQuarantinedError: these files have killed their runner twice.
    """
    if body.format == "pt2" and not desk.settings.allow_pt2:
        raise Pt2NotAllowedError(pointer="/format")

    def work(session: Session) -> tuple[Answer, Job]:
        skeleton = _skeleton(session, by.tenant_id, body.skeleton_model_id)
        files = []
        for index, file in enumerate(body.files):
            pointer = f"/files/{index}/upload_id"
            stored = completed(uploads.hold(session, by.tenant_id, file.upload_id, pointer=pointer), pointer=pointer)
            files.append(
                ModelFile(
                    path=file.path, sha256=stored.sha256, size_bytes=stored.size_bytes, is_main=is_main(file.path)
                )
            )
        quarantine.refuse(session, by.tenant_id, files, pointer="/files")
        stored_files.name_files(session, desk.store, [file.sha256 for file in files])
        model = repository.create(
            session, by.tenant_id, name=body.name, format=body.format, files=files, skeleton=skeleton
        )
        job = transitions.submit(
            session,
            tenant_id=by.tenant_id,
            kind="inspect_model",
            model_id=model.id,
            deadline_seconds=desk.settings.job_deadline_seconds,
            request_id=by.request_id,
        )
        return created(model), job

    return submit_once(desk, by, _ROUTE, key, body, work)


def _skeleton(session: Session, tenant_id: str, model_id: str | None) -> Model | None:
    if model_id is None:
        return None
    pointer = "/skeleton_model_id"
    model = repository.get(session, tenant_id, model_id, pointer=pointer)
    ready_summary(model, pointer=pointer)
    return model


def get(desk: Desk, tenant_id: str, model_id: str) -> Model:
    """The model with its files.

    Raises:
        ModelNotFoundError: the tenant has no such model.
    """
    with desk.database.read() as session:
        return repository.get(session, tenant_id, model_id)


def list_page(
    desk: Desk, tenant_id: str, *, status: str | None, after: Position | None, limit: int
) -> tuple[list[Model], Position | None]:
    """One page of models, newest first, and the position to go on from."""
    with desk.database.read() as session:
        return repository.list_page(session, tenant_id, status=status, after=after, limit=limit)


def ready_summary(model: Model, *, pointer: str) -> ModelSummary:
    """What validation found in a model that may be used.

    Raises:
        ModelNotReadyError: validation has not ended.
        ModelRejectedError: it was found unusable.
    """
    if model.status == "validating":
        raise ModelNotReadyError(model.id, pointer=pointer)
    if model.status == "rejected":
        reasons = [Problem.model_validate(problem) for problem in model.problems or []]
        raise ModelRejectedError(model.id, pointer=pointer, reasons=reasons)
    return ModelSummary.model_validate(model.summary)
