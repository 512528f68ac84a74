"""HTTP routes of the error catalog; public, since errors link to it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from fastapi import APIRouter
from pydantic import BaseModel, Field

# what nothing else in this process may have loaded
import service.client
import service.client.errors
import service.contracts.command_errors
import service.egress.errors  # noqa: F401
from service.contracts.errors import QuantmillError

# The catalog of error codes, read off the error tree: over HTTP, as a job's error, and from client and commands.


class ProblemType(BaseModel):
    """A type of error."""

    type: str = Field(description="Value of ``type`` in problem objects.")
    code: str
    title: str
    status: int
    description: str


def problem_types() -> list[ProblemType]:
    """Every problem type of the loaded error tree, by code."""
    found: dict[str, ProblemType] = {}
    for kind in _tree(QuantmillError):
        if kind.__module__.partition(".")[0] != "service" or "code" not in vars(kind):
            continue
        found[kind.code] = ProblemType(
            type=f"/v1/problems#{kind.code}",
            code=kind.code,
            title=kind.title,
            status=kind.status,
            description=inspect.cleandoc(kind.__doc__ or kind.title).partition("\n\n")[0],
        )
    return [found[code] for code in sorted(found)]


def _tree(root: type[QuantmillError]) -> Iterator[type[QuantmillError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


router = APIRouter(tags=["service"])


class ProblemList(BaseModel):
    """All error types."""

    items: list[ProblemType]


@router.get("/v1/problems")
def list_problems() -> ProblemList:
    """List every error code with its title and status. Codes are stable, so programs can rely on them."""
    return ProblemList(items=problem_types())
