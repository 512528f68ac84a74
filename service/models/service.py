"""Models: created from uploads, validated by an inspect job; and their views."""

from __future__ import annotations

from functools import partial

from sqlalchemy.orm import Session

from service.contracts.base import read_stored
from service.contracts.errors import Problem, Pt2NotAllowedError
from service.contracts.model import ModelSummary
from service.deps import AppState
from service.files import repository as stored_files
from service.idempotency.answers import Answer
from service.idempotency.requests import KeyedRequest
from service.idempotency.service import submit_once
from service.jobs import transitions
from service.jobs.schemas import Waiting
from service.jobs.transitions import NewJob
from service.models import repository
from service.models.schemas import ModelCreate, ModelFileOut, ModelOut, SelfLinks, is_main
from service.names import repository as names
from service.names.kinds import MODELS, require_ready
from service.names.service import created
from service.principal import Principal
from service.quarantine import suspects as quarantine
from service.tables import Job, Model, ModelFile
from service.tables.base import record_of
from service.uploads import repository as uploads
from service.uploads.service import completed

# What models look like from outside.


def model_in_list(model: Model) -> ModelOut:
    """The model as lists tell of it: without what grows with its graph, which is not so much as read."""
    return _shown(model, None if model.outline is None else read_stored(ModelSummary, model.outline).outline())


def model_out(model: Model) -> ModelOut:
    """The model as it is shown."""
    return _shown(model, None if model.summary is None else read_stored(ModelSummary, model.summary))


def _shown(model: Model, summary: ModelSummary | None) -> ModelOut:
    return record_of(
        model,
        ModelOut,
        summary=summary,
        problems=[read_stored(Problem, problem) for problem in model.problems or []],
        waiting=None if model.waiting is None else read_stored(Waiting, model.waiting),
        files=[record_of(file, ModelFileOut) for file in model.files],
        links=SelfLinks(self=f"/v1/models/{model.id}"),
    )


_ROUTE = "POST /v1/models"
_SKELETON = "/skeleton_model_id"


def create(app: AppState, by: Principal, body: ModelCreate, *, key: str | None) -> Answer:
    """Store a model in validation and its inspect job, in one transaction; with a known key, answer as then.

    Raises:
        IdempotencyKeyReuseError: the key was used for another body.
        UploadNotFoundError: a file's upload is not there.
        UploadNotCompleteError: a file's bytes are not all there.
        Pt2NotAllowedError: an archive of torch.export, where they are switched off.
        ModelNotFoundError, ModelNotReadyError, ModelRejectedError: the skeleton cannot be used.
        ModelQuarantinedError: these files have killed their runner twice.
    """
    if body.format == "pt2" and not app.settings.allow_pt2:
        raise Pt2NotAllowedError(pointer="/format")

    def store_model(skeleton_id: str | None, session: Session) -> tuple[Answer, Job]:
        skeleton = _held(session, by.tenant_id, skeleton_id)
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
        stored_files.name_files(session, app.store, [file.sha256 for file in files])
        name = body.name if body.name is not None or skeleton is None else skeleton.name
        assert name is not None  # noqa: S101 - the request has one, or a skeleton
        model = repository.create(
            session,
            by.tenant_id,
            name=name,
            format=body.format,
            files=files,
            skeleton=skeleton,
            tags=body.tags,
            description=body.description,
        )
        job = transitions.submit(
            session,
            NewJob(
                by.tenant_id,
                "inspect_model",
                model_id=model.id,
                deadline_seconds=app.settings.job_deadline_seconds,
                request_id=by.request_id,
            ),
        )
        return created(MODELS, model, model_out(model)), job

    check = partial(_skeleton_id, tenant_id=by.tenant_id, text=body.skeleton_model_id)
    return submit_once(app, by, KeyedRequest.of(_ROUTE, key, body), check, store_model)


def _skeleton_id(session: Session, tenant_id: str, text: str | None) -> str | None:
    """The id of a model that may be one; it stays ready as long as it is there."""
    if text is None:
        return None
    model = names.look_up(session, MODELS, tenant_id, text, pointer=_SKELETON)
    ready_summary(model, pointer=_SKELETON)
    return model.id


def _held(session: Session, tenant_id: str, model_id: str | None) -> Model | None:
    if model_id is None:
        return None
    names.hold(session, tenant_id, (MODELS, _SKELETON, model_id))
    return names.by_id(session, MODELS, tenant_id, model_id)


def usable(
    session: Session, tenant_id: str, model_id: str, *, pointer: str | None = None
) -> tuple[Model, ModelSummary]:
    """The model that a request names by its id or a reference, and what validation found in it.

    Raises:
        ModelNotFoundError: the tenant has no such model.
        ModelQuarantinedError: it has killed its runner twice.
        ModelNotReadyError, ModelRejectedError: it cannot be used.
    """
    model = names.look_up(session, MODELS, tenant_id, model_id, pointer=pointer)
    quarantine.refuse(session, tenant_id, quarantine.uploaded(model), pointer=pointer)
    return model, ready_summary(model, pointer=pointer or "")


def ready_summary(model: Model, *, pointer: str) -> ModelSummary:
    """What validation found in a model that may be used.

    Raises:
        ModelNotReadyError: validation has not ended.
        ModelRejectedError: it was found unusable.
    """
    require_ready(MODELS, model, pointer=pointer)
    return read_stored(ModelSummary, model.summary)
