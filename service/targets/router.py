"""HTTP routes of targets."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel

from service.deps import PrincipalDep
from service.http import problems
from service.targets import catalog
from service.targets.catalog import TargetOut

router = APIRouter(prefix="/v1/targets", tags=["targets"])


class TargetList(BaseModel):
    """All targets."""

    items: list[TargetOut]


@router.get("")
def list_targets(_: PrincipalDep) -> TargetList:
    """List all targets, with the rules that a config may change."""
    return TargetList(items=catalog.targets())


@router.get("/{name}", responses=problems(catalog.TargetNotFoundError))
def get_target(name: str, _: PrincipalDep) -> TargetOut:
    """Get a target."""
    return catalog.named(name)
