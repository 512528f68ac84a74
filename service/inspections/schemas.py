"""Inspections as seen over HTTP, and their errors."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.contracts.errors import Problem, QuantmillError
from service.contracts.graph_view import Inspection
from service.jobs.schemas import WithConfig
from service.resources import ResourceNotFoundError


class InspectionCreate(WithConfig):
    """What to inspect a model for; ``target`` in the query takes the place of the config's."""


class InspectionLinks(BaseModel):
    """Where to go from an inspection."""

    self: str
    job: str


class InspectionOut(BaseModel):
    """What a config would make of a model."""

    id: str
    model_id: str
    job_id: str
    status: Literal["running", "ready", "failed"]
    config: dict[str, Any] = Field(description="The resolved QuantizationConfig.")
    result: Inspection | None = Field(description="Node by node, once ready.")
    problem: Problem | None = Field(description="Why it failed.")
    created_at: datetime
    updated_at: datetime
    links: InspectionLinks


class InspectionNotFoundError(
    ResourceNotFoundError,
    word="inspection",
    code="inspection-not-found",
    title="No such inspection",
    listed="Create one with POST /v1/models/{model_id}/inspect.",
):
    """There is no such inspection (or it belongs to somebody else)."""


class UnknownTargetError(QuantmillError, code="unknown-target", title="No such target", status=422):
    """There is no such target."""
