"""API schemas and errors of inspections."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.contracts.errors import Problem, QuantmillError
from service.contracts.graph_view import Inspection
from service.jobs.schemas import WithConfig
from service.resources import ResourceNotFoundError


class InspectionCreate(WithConfig):
    """Config to inspect a model with; ``target`` in the query overrides the config's target."""


class InspectionLinks(BaseModel):
    """Related URLs of an inspection."""

    self: str
    job: str


class InspectionOut(BaseModel):
    """Result of applying a config to a model, without data."""

    id: str
    model_id: str
    job_id: str
    status: Literal["running", "ready", "failed"]
    config: dict[str, Any] = Field(description="The resolved QuantizationConfig.")
    result: Inspection | None = Field(description="Result for each node; null until the inspection is ready.")
    problem: Problem | None = Field(description="Error that the inspection failed with; null unless it has failed.")
    created_at: datetime
    updated_at: datetime
    links: InspectionLinks


class InspectionNotFoundError(
    ResourceNotFoundError,
    word="inspection",
    code="inspection-not-found",
    title="Inspection not found",
    listed="Create one with POST /v1/models/{model_id}/inspect.",
):
    """The inspection does not exist or belongs to another tenant."""


class UnknownTargetError(QuantmillError, code="unknown-target", title="Unknown target", status=422):
    """The target does not exist."""
