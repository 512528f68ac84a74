"""Requests created from earlier jobs: repeated, or with changes."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from service.contracts.errors import InvalidRequestError, problem_summary
from service.contracts.validation import field_problems
from service.jobs.errors import JobNotEndedError, NotRepeatableError
from service.jobs.schemas import TERMINAL, EvaluationCreate, JobCreate
from service.tables import Job

_CONFIG, _EVALUATION = "config", "evaluation"
_MOST_DEPTH = 64
_Request = TypeVar("_Request", JobCreate, EvaluationCreate)
# What of a job's row its request consisted of, but what stands in its config.
_IN_BOTH = ("model_id", "evaluation_dataset_id", "priority", "name", "labels")
_FIELDS = {
    JobCreate: (*_IN_BOTH, "calibration_dataset_id", "device"),
    EvaluationCreate: (*_IN_BOTH, "reference_model_id"),
}
_KINDS = {JobCreate: "quantize", EvaluationCreate: "evaluate"}
_OTHERWISE = {
    JobCreate: "Clone the job with the necessary changes with POST /v1/jobs/{id}/clone.",
    EvaluationCreate: "Create another evaluation with POST /v1/evaluations.",
}


def same_request(job: Job, request: type[_Request]) -> _Request:
    """The request of a job that has ended, with the config as it was resolved then.

    Raises:
        JobNotEndedError: it is still queued or running.
        NotRepeatableError: it was no such request, or its config is no longer accepted.
    """
    if job.state not in TERMINAL:
        raise JobNotEndedError(
            job.id, job.state, hint=f"Wait until it has ended, or cancel it with POST /v1/jobs/{job.id}/cancel."
        )
    document = _document(job, request)
    try:
        return request.model_validate(document)
    except ValidationError as error:
        told = problem_summary(field_problems(error, request))
        raise NotRepeatableError(
            f"The request of job {job.id} is no longer valid: {told}", hint=_OTHERWISE[request]
        ) from None


def changed_request(job: Job, patch: dict[str, Any], request: type[_Request]) -> _Request:
    """The request of a job with changes.

    A patch with another preset begins from that preset: of the job's config nothing is left but what the patch says.

    Args:
        job: in any state.
        patch: a JSON merge patch (RFC 7396) of its request: null takes a field away.
        request: what it was.

    Raises:
        NotRepeatableError: it was no such request.
        InvalidRequestError: what comes out is no request; its problems point into the merged one.
    """
    document = _document(job, request)
    config = patch.get(_CONFIG)
    if isinstance(config, dict) and {"preset", "format"} & config.keys():
        document.pop(_CONFIG, None)
    merged_request = merged(document, patch)
    try:
        return request.model_validate(merged_request)
    except ValidationError as error:
        problems = field_problems(error, request)
        raise InvalidRequestError(
            problem_summary(problems),
            errors=problems,
            hint="Pointers refer to the request after the patch was merged into it.",
        ) from None


def merged(target: Any, patch: Any, *, depth: int = 0) -> Any:
    """``patch`` merged into ``target`` by RFC 7396; neither is changed.

    Raises:
        InvalidRequestError: the patch is nested deeper than any request.
    """
    if not isinstance(patch, dict):
        return patch
    if depth > _MOST_DEPTH:
        raise InvalidRequestError(
            f"The patch is nested more than {_MOST_DEPTH} levels deep.",
            hint="Reduce the nesting; no valid request is nested that deep.",
        )
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value, depth=depth + 1)
    return result


def _document(job: Job, request: type[BaseModel]) -> dict[str, Any]:
    if job.kind != _KINDS[request]:
        raise NotRepeatableError(
            f"Job {job.id} is a {job.kind} job: it belongs to an upload or an inspection.",
            hint="Repeat the request that created the job.",
        )
    document = {name: getattr(job, name) for name in _FIELDS[request]}
    if request is EvaluationCreate:
        document |= {_EVALUATION: (job.config or {})[_EVALUATION]}
    else:
        document |= {_CONFIG: job.config}
    return {name: value for name, value in document.items() if value is not None}
