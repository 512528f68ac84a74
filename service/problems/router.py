"""HTTP face of the catalog; open to all, since problems point to it."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from service.problems.catalog import ProblemType, problem_types

router = APIRouter(tags=["service"])


class ProblemList(BaseModel):
    """Every problem type."""

    items: list[ProblemType]


@router.get("/v1/problems")
def list_problems() -> ProblemList:
    """Every error code, with its title and status. Codes are stable: programs may rely on them."""
    return ProblemList(items=problem_types())
