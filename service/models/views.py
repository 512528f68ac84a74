"""What models look like from outside."""

from __future__ import annotations

from service.contracts.errors import Problem
from service.contracts.model import ModelSummary
from service.idempotency.answers import Answer
from service.jobs.schemas import Waiting
from service.models.schemas import ModelFileOut, ModelOut, SelfLinks
from service.names.service import row_etag
from service.tables import Model


def model_in_list(model: Model) -> ModelOut:
    """The model as lists tell of it: without what grows with its graph, which is not so much as read."""
    return _shown(model, None if model.outline is None else ModelSummary.model_validate(model.outline).outline())


def model_out(model: Model) -> ModelOut:
    """The model as it is shown."""
    return _shown(model, None if model.summary is None else ModelSummary.model_validate(model.summary))


def _shown(model: Model, summary: ModelSummary | None) -> ModelOut:
    return ModelOut(
        id=model.id,
        name=model.name,
        version=model.version,
        format=model.format,
        status=model.status,
        tags=model.tags,
        description=model.description,
        summary=summary,
        problems=[Problem.model_validate(problem) for problem in model.problems or []],
        waiting=None if model.waiting is None else Waiting.model_validate(model.waiting),
        files=[ModelFileOut(path=file.path, size_bytes=file.size_bytes, sha256=file.sha256) for file in model.files],
        skeleton_model_id=model.skeleton_model_id,
        created_at=model.created_at,
        updated_at=model.updated_at,
        links=SelfLinks(self=f"/v1/models/{model.id}"),
    )


def created(model: Model) -> Answer:
    """The answer to the request that made it."""
    headers = {"Location": f"/v1/models/{model.id}", "Retry-After": "1", "ETag": row_etag(model)}
    return Answer(201, model_out(model).model_dump(mode="json"), headers)
