"""The OpenAPI document: as FastAPI makes it, with problems as what goes wrong."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from service.contracts.errors import Problem
from service.errors import PROBLEM_MEDIA_TYPE
from service.problems.catalog import problem_types

DESCRIPTION = """
A quantization service: a float ONNX model and data go in, a quantized model, an accuracy report and a verdict come out.

Upload files, make a model and datasets of them, submit a job, follow its events, fetch report and model.
Every failure is an `application/problem+json` with a stable `code`; `/v1/problems` lists them all.
"""

# Declared for every endpoint; takes the place of FastAPI's own 422.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Problem, "description": "The request cannot be served as it is"},
    "5XX": {"model": Problem, "description": "The service cannot serve it right now"},
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
    for operations in document["paths"].values():
        for operation in operations.values():
            for status in ("4XX", "5XX"):
                content = operation["responses"].get(status, {}).get("content", {})
                if "application/json" in content:
                    content[PROBLEM_MEDIA_TYPE] = content.pop("application/json")
