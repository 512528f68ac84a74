"""Parses request bodies in separate threads, so that the event loop is not blocked.

A document within its bounds takes up to a tenth of a second to validate; meanwhile other requests are served.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from email.message import Message
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError

from service.contracts.errors import FieldProblem
from service.contracts.validation import field_problems
from service.deps import BEARER, get_app, get_principal
from service.idempotency.requests import RepeatableBody

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ThreadedBodyRoute(APIRoute):
    """A route whose body FastAPI finds validated already: an instance passes its own validation as it is."""

    def get_route_handler(self) -> Handler:
        """Of FastAPI, which calls it once."""
        handle, model = super().get_route_handler(), body_model(self)
        if model is None:
            return handle

        async def handler(request: Request) -> Response:
            if _is_json(request):
                app = await get_app(request)
                await get_principal(request, app, await BEARER(request))  # strangers are given no work
                data = await request.body()
                record = await app.checks.run(lambda: _record(model, data))
                if record is not None:
                    request._json = record
            return await handle(request)

        return handler


class InvalidBodyError(RequestValidationError):
    """The body is valid JSON but does not match the route's schema; ``problems`` list the errors."""

    def __init__(self, problems: tuple[FieldProblem, ...]) -> None:
        super().__init__([])
        self.problems = problems


def _record(model: type[BaseModel], data: bytes) -> BaseModel | None:
    """The validated body; None for what FastAPI refuses itself, which takes it no time."""
    if not data:
        return None
    try:
        document = json.loads(data)
    except json.JSONDecodeError as error:
        told = f"not valid JSON: {error.msg} at character {error.pos}"
        raise InvalidBodyError((FieldProblem(pointer="", code="json-invalid", message=told),)) from None
    except (UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(document, dict | list):
        return None
    try:
        record = model.model_validate(document)
    except ValidationError as error:
        raise InvalidBodyError(field_problems(error, model)) from None
    if isinstance(record, RepeatableBody):
        record._sent = document
    return record


def body_model(route: object) -> type[BaseModel] | None:
    """The record that a route takes as its body, if any."""
    field = getattr(route, "body_field", None)
    annotation = getattr(getattr(field, "field_info", None), "annotation", None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _is_json(request: Request) -> bool:
    """As FastAPI decides it."""
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    return message.get_content_maintype() == "application" and (subtype == "json" or subtype.endswith("+json"))
