"""Every failure leaves the service as an RFC 9457 problem."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from sqlalchemy.exc import InterfaceError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from service.bodies import InvalidBodyError, body_model
from service.contracts.base import below
from service.contracts.command_errors import HttpError, TransientError
from service.contracts.errors import FieldProblem, InvalidConfigError, InvalidRequestError, QuantmillError
from service.contracts.validation import field_problems
from service.contracts.validation_words import message_of
from service.deps import get_app
from service.limits import BodyTooLargeError
from service.middleware import REQUEST_ID_HEADER, security_headers
from service.schema import SchemaAheadError, SchemaBehindError, require_current
from service.storage import StorageFullError

PROBLEM_MEDIA_TYPE = "application/problem+json"
_CONFIG_POINTERS = ("/config", "/template/config")  # of a job, and of a schedule
_WHOLE_BODY = ""
_METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
# never seen by a client; the status that proxies write into their logs for this
_CLIENT_CLOSED_REQUEST = 499
# What only a page is asked for by; programs ask for anything, or for JSON.
_HTML = "text/html"
_API = "/v1/"
log = logging.getLogger(__name__)
ErrorPage = Callable[[Request, QuantmillError], Response]


class RouteNotFoundError(QuantmillError, code="route-not-found", title="No such endpoint", status=404):
    """No endpoint has this path."""


class MethodNotAllowedError(
    QuantmillError, code="method-not-allowed", title="The method is not allowed here", status=405
):
    """The endpoint does not know this method."""


class MalformedRequestError(QuantmillError, code="malformed-request", title="The request cannot be read", status=400):
    """The request cannot be read at all."""


class DatabaseUnavailableError(TransientError, code="database-unavailable", title="The database cannot be reached"):
    """The database does not answer; nothing was stored."""

    retry_after_seconds = 2


class RequestStalledError(
    QuantmillError, code="request-stalled", title="The request did not arrive in time", status=408
):
    """The body of the request did not arrive in time."""


_BY_STATUS: dict[int, tuple[type[QuantmillError], str]] = {
    404: (RouteNotFoundError, "/docs lists the endpoints."),
    405: (MethodNotAllowedError, "The Allow header lists the methods."),
    408: (RequestStalledError, "Send the whole body at once."),
    413: (BodyTooLargeError, "Upload files with POST /v1/uploads, which streams them to disk."),
}


def install(app: FastAPI, error_page: ErrorPage) -> None:
    """Register the handlers.

    Args:
        app: whose errors they are.
        error_page: draws an error for somebody who looks at a page.
    """
    app.state.error_page = error_page
    handlers: dict[Any, Any] = {
        QuantmillError: _on_quantmill_error,
        RequestValidationError: _on_validation_error,
        ClientDisconnect: _on_client_gone,
        HTTPException: _on_http_exception,
        OperationalError: _on_database_error,
        InterfaceError: _on_database_error,
        ProgrammingError: _on_refused_statement,
        PoolTimeoutError: _on_database_error,
        OSError: _on_os_error,
        Exception: _on_anything,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def problem_response(request: Request, error: QuantmillError, headers: dict[str, str] | None = None) -> Response:
    """The answer for an error."""
    request_id: str | None = getattr(request.state, "request_id", None)
    problem = error.problem(instance=request.url.path, request_id=request_id)
    own = error.headers() if isinstance(error, HttpError) else {}
    return Response(
        problem.model_dump_json(exclude_none=True),
        status_code=problem.status,
        media_type=PROBLEM_MEDIA_TYPE,
        headers={**security_headers(), "Cache-Control": "no-store", **_identity(request), **own, **(headers or {})},
    )


def _identity(request: Request) -> dict[str, str]:
    request_id: str | None = getattr(request.state, "request_id", None)
    return {} if request_id is None else {REQUEST_ID_HEADER: request_id}


def answer(request: Request, error: QuantmillError, headers: dict[str, str] | None = None) -> Response:
    """A page for a browser that asks for one, beside the API; else the problem."""
    if request.url.path.startswith(_API) or _HTML not in request.headers.get("accept", ""):
        return problem_response(request, error, headers)
    shown: Response = request.app.state.error_page(request, error)
    # what the middleware adds is missing where the application itself has failed
    given = {**security_headers(page=True), **_identity(request), **shown.headers, **(headers or {})}
    shown.headers.update(given)
    return shown


def told_path(request: Request) -> str:
    """For the log: a token in a path lets in whoever reads it."""
    path, token = request.url.path, request.scope.get("path_params", {}).get("token")
    return path.replace(token, "***") if token else path


async def _on_quantmill_error(request: Request, error: QuantmillError) -> Response:
    if error.status >= 500:
        log.error("request.failed %s %s: %s: %s", request.method, told_path(request), error.code, error.detail)
    return answer(request, error)


async def _on_client_gone(request: Request, _: ClientDisconnect) -> Response:
    # nobody is there to read an answer, and it is no fault of the service
    log.info("request.broken_off %s %s", request.method, told_path(request))
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _on_validation_error(request: Request, error: RequestValidationError) -> Response:
    problems = _problems(request, error)
    detail = "; ".join(f"{p.pointer}: {p.message}" if p.pointer else p.message for p in problems[:5])
    if problems and all(_in_config(problem.pointer) for problem in problems):
        hint = "The schema is at /docs, under QuantizationConfig."
        return answer(request, InvalidConfigError(detail, errors=problems, hint=hint))
    return answer(request, InvalidRequestError(detail, errors=problems, hint="The schema is at /docs."))


async def _on_http_exception(request: Request, error: HTTPException) -> Response:
    kind, hint = _BY_STATUS.get(error.status_code, (MalformedRequestError, "Check the request's syntax."))
    detail = {
        404: f"No endpoint has the path {request.url.path}.",
        405: f"{request.url.path} does not support {request.method}.",
    }.get(error.status_code, str(error.detail))
    pointer = _WHOLE_BODY if error.status_code in (400, 413) else None
    headers = dict(error.headers or {})
    if error.status_code == 405:
        headers["Allow"] = ", ".join(_methods(request))
    return answer(request, kind(detail, hint=hint, pointer=pointer), headers)


def _methods(request: Request) -> list[str]:
    """All methods of this path; the framework names those of the first endpoint that it finds there."""

    def taken(method: str) -> bool:
        scope = {**request.scope, "method": method}
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.routes)

    return [method for method in _METHODS if taken(method)]


async def _on_refused_statement(request: Request, error: Exception) -> Response:
    """Tables or columns may be missing; anything else is a fault of ours."""
    behind = await _schema_behind(request)
    if behind is None:
        return await _on_anything(request, error)
    log.error("schema.behind %s %s: %s", request.method, told_path(request), behind.detail)
    return answer(request, behind)


async def _schema_behind(request: Request) -> SchemaAheadError | SchemaBehindError | None:
    app = await get_app(request)
    try:
        await app.reads.run(lambda: require_current(app.database))
    except (SchemaAheadError, SchemaBehindError) as behind:
        return behind
    return None


async def _on_database_error(request: Request, error: Exception) -> Response:
    if isinstance(error, OperationalError) and getattr(error.orig, "sqlite_errorname", None) == "SQLITE_ERROR":
        # what PostgreSQL calls a programming error: there is no such table or column
        return await _on_refused_statement(request, error)
    log.error("database.unavailable %s %s: %s", request.method, told_path(request), error)
    unavailable = DatabaseUnavailableError(
        "The database does not answer or is locked.", hint="Nothing was stored; send the request again in a moment."
    )
    return answer(request, unavailable)


async def _on_os_error(request: Request, error: OSError) -> Response:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        log.error("storage.full %s %s: %s", request.method, told_path(request), error)
        full = StorageFullError("The disk of the service is full.", hint="Free some space on its storage folder.")
        return answer(request, full)
    return await _on_anything(request, error)


async def _on_anything(request: Request, error: Exception) -> Response:
    log.error("request.crashed %s %s", request.method, told_path(request), exc_info=error)
    return answer(
        request,
        QuantmillError(
            "The service failed on this request; this is a fault of the service.",
            hint="Report it with the request id.",
        ),
    )


def _problems(request: Request, error: RequestValidationError) -> tuple[FieldProblem, ...]:
    if isinstance(error, InvalidBodyError):
        return error.problems
    items = error.errors()
    model = body_model(request.scope.get("route"))
    if isinstance(error.body, bytes):
        message = "the body must be JSON, sent with Content-Type: application/json"
        return (FieldProblem(pointer="", code="json-type", message=message),)
    if (
        model is not None
        and isinstance(error.body, (dict, list))
        and all(item["loc"][:1] == ("body",) for item in items)
    ):
        try:
            model.model_validate(error.body)
        except ValidationError as again:
            return field_problems(again, model)
    return tuple(_generic_problem(item) for item in items)


def _generic_problem(item: dict[str, Any]) -> FieldProblem:
    place, *path = item["loc"]
    code, message = item["type"], message_of(item)
    if code == "json_invalid":
        detail = item.get("ctx", {}).get("error", message)
        return FieldProblem(pointer="", code="json-invalid", message=f"not JSON: {detail} at character {path[0]}")
    if place == "body" and not path:
        return FieldProblem(pointer="", code=code, message="a JSON object is required as the body")
    if place == "body":
        pointer = below("", *path)
        return FieldProblem(pointer=pointer, code=code, message=message)
    name = ".".join(map(str, path))
    where = {place: name.title() if place == "header" else name}
    return FieldProblem(pointer="", code=code, message=f"{place} parameter {name}: {message}", where=where)


def _in_config(pointer: str) -> bool:
    return any(pointer == place or pointer.startswith(f"{place}/") for place in _CONFIG_POINTERS)
