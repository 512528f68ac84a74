"""The OpenAPI document: as FastAPI makes it, with problems as what goes wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI

from service.artifacts.schemas import ArtifactNotFoundError
from service.contracts.errors import InvalidRequestError, Problem, QuantmillError
from service.datasets.schemas import DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError
from service.errors import PROBLEM_MEDIA_TYPE, DatabaseUnavailableError
from service.http import PROBLEM_CODES, describe
from service.idempotency.answers import IDEMPOTENCY_HEADER, IdempotencyInFlightError, IdempotencyKeyReuseError
from service.inspections.schemas import InspectionNotFoundError
from service.jobs.errors import JobNotFoundError
from service.keys.schemas import KeyNeededError
from service.limits import BodyTooLargeError
from service.models.schemas import ModelNotFoundError, ModelNotReadyError, ModelRejectedError
from service.pagination import InvalidCursorError
from service.problems.router import problem_types
from service.schedules.schemas import RunNotFoundError, ScheduleNotFoundError
from service.uploads.schemas import UploadNotFoundError
from service.webhooks.schemas import DeliveryNotFoundError, WebhookNotFoundError

DESCRIPTION = """
Quantmill is a quantization service: it converts a float ONNX model into a quantized model and returns an accuracy
report and a verdict.

Upload files, create a model and datasets from them, submit a job, follow its events, and download the report and the
quantized model. Every error is an `application/problem+json` with a stable `code`; `/v1/problems` lists all codes.
Configuration keys: [/docs/config.md](/docs/config.md). Supported keys of AMD Quark configs:
[/docs/quark.md](/docs/quark.md). Metrics: [/docs/metrics.md](/docs/metrics.md).
"""

_BY_PARAMETER: dict[tuple[str, str], tuple[type[QuantmillError], ...]] = {
    ("path", "upload_id"): (UploadNotFoundError,),
    ("path", "model_id"): (ModelNotFoundError, ModelNotReadyError, ModelRejectedError),
    ("path", "dataset_id"): (DatasetNotFoundError, DatasetNotReadyError, DatasetRejectedError),
    ("path", "inspection_id"): (InspectionNotFoundError,),
    ("path", "job_id"): (JobNotFoundError,),
    ("path", "artifact_id"): (ArtifactNotFoundError,),
    ("path", "schedule_id"): (ScheduleNotFoundError,),
    ("path", "run_id"): (RunNotFoundError,),
    ("path", "webhook_id"): (WebhookNotFoundError,),
    ("path", "delivery_id"): (DeliveryNotFoundError,),
    ("query", "cursor"): (InvalidCursorError,),
    ("header", IDEMPOTENCY_HEADER): (IdempotencyKeyReuseError, IdempotencyInFlightError),
}
# Declared for every endpoint, for what the concrete responses leave open; takes the place of FastAPI's own 422.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request is not valid or not allowed"},
    "5XX": {"model": Problem, "description": "The service cannot process the request at the moment"},
}


def install(app: FastAPI) -> None:
    """Have the app serve the document made here."""
    original = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = original()
            _name_problems(document)
            document["x-problem-types"] = [problem.model_dump() for problem in problem_types()]
        assert app.openapi_schema is not None  # noqa: S101 - original() sets it
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _name_problems(document: dict[str, Any]) -> None:
    titles = {problem.code: problem.title for problem in problem_types()}
    for operations in document["paths"].values():
        for operation in operations.values():
            responses = operation["responses"]
            for kind in _common(operation):
                codes = responses.setdefault(str(kind.status), {}).setdefault(PROBLEM_CODES, [])
                codes += [kind.code] if kind.code not in codes else []
            for status, response in responses.items():
                if PROBLEM_CODES in response:
                    response[PROBLEM_CODES].sort()
                    response["description"] = describe({code: titles[code] for code in response[PROBLEM_CODES]})
                if PROBLEM_CODES in response or status in ("4XX", "5XX"):
                    response["content"] = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            operation["responses"] = dict(sorted(responses.items()))


def _common(operation: dict[str, Any]) -> Iterator[type[QuantmillError]]:
    """What an operation may answer because of its key, parameters and body."""
    if "security" in operation:
        yield KeyNeededError
        yield DatabaseUnavailableError
    parameters = operation.get("parameters", [])
    for parameter in parameters:
        yield from _BY_PARAMETER.get((parameter["in"], parameter["name"]), ())
    takes_json = "application/json" in operation.get("requestBody", {}).get("content", {})
    if takes_json or any(parameter["in"] != "path" for parameter in parameters):
        yield InvalidRequestError
    if takes_json:
        yield BodyTooLargeError
