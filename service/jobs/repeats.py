"""Requests made of jobs that were there before: the same once more, or with changes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ValidationError

from service.contracts.errors import InvalidRequestError, problem_summary
from service.contracts.validation import field_problems
from service.jobs.errors import JobNotEndedError, NotRepeatableError
from service.jobs.schemas import TERMINAL, JobCreate
from service.tables import Job

_CONFIG = "config"
_MOST_DEPTH = 64
# What of a job's row its request consisted of, but its config.
_FIELDS = (
    "model_id",
    "calibration_dataset_id",
    "evaluation_dataset_id",
    "priority",
    "device",
    "name",
    "labels",
)


def same_request(job: Job) -> JobCreate:
    """The request of a job that has ended, with the config as it was resolved then.

    Raises:
        JobNotEndedError: it is still queued or running.
        NotRepeatableError: it was no client's request, or its config is no longer accepted.
    """
    if job.state not in TERMINAL:
        raise JobNotEndedError(job.id, job.state, hint="Wait for its end, or cancel it: POST /v1/jobs/{id}/cancel.")
    document = _document(job)
    try:
        return JobCreate.model_validate(document)
    except ValidationError as error:
        told = problem_summary(field_problems(error, JobCreate))
        raise NotRepeatableError(
            f"What the job {job.id} was asked for is no longer accepted: {told}",
            hint="Clone it with what has to be changed: POST /v1/jobs/{id}/clone.",
        ) from None


def changed_request(job: Job, patch: dict[str, Any]) -> JobCreate:
    """The request of a job with changes.

    A patch with another preset begins from that preset: of the job's config nothing is left but what the patch says.

    Args:
        job: in any state.
        patch: a JSON merge patch (RFC 7396) of its request: null takes a field away.

    Raises:
        NotRepeatableError: it was no client's request.
        InvalidRequestError: what comes out is no request; its problems point into the merged one.
    """
    document = _document(job)
    config = patch.get(_CONFIG)
    if isinstance(config, dict) and {"preset", "format"} & config.keys():
        document.pop(_CONFIG)
    request = merged(document, patch)
    try:
        return JobCreate.model_validate(request)
    except ValidationError as error:
        raise no_request(error, JobCreate) from None


def no_request(error: ValidationError, model: type[BaseModel]) -> InvalidRequestError:
    """What a patch has made of a request, which is none."""
    problems = field_problems(error, model)
    return InvalidRequestError(
        problem_summary(problems), errors=problems, hint="Pointers are of the request with the patch merged in."
    )


def merged(target: Any, patch: Any, *, depth: int = 0) -> Any:
    """``patch`` merged into ``target`` by RFC 7396; neither is changed.

    Raises:
        InvalidRequestError: the patch is nested deeper than any request.
    """
    if not isinstance(patch, dict):
        return patch
    if depth > _MOST_DEPTH:
        raise InvalidRequestError(f"The patch is nested more than {_MOST_DEPTH} deep.", hint="No request is that deep.")
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value, depth=depth + 1)
    return result


def _document(job: Job) -> dict[str, Any]:
    if job.kind != "quantize":
        raise NotRepeatableError(
            f"The job {job.id} is a {job.kind} job: it belongs to an upload or an inspection.",
            hint="Repeat what it was made by.",
        )
    document = {name: getattr(job, name) for name in _FIELDS} | {_CONFIG: job.config}
    return {name: value for name, value in document.items() if value is not None}
