"""What was tried in the place of a quantized model that was too slow, and what is returned."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.report.statistics import Interval
from service.contracts.report.verdict import GateClause

FallbackKind = Literal["planned", "reduced", "float"]


class RegionFigures(Contract):
    """Quantized nodes whose Q/DQ pairs were taken off to see what they cost."""

    kind: str = Field(description="What its nodes do: convolution, elementwise ...; or region, of all kinds.")
    nodes: tuple[str, ...]
    ratio: float | None = Field(
        default=None, description="Latency of the model without its pairs over that of the model with them."
    )
    ratio_interval: Interval | None = None
    outcome: Literal["taken_off", "kept", "untried"] = Field(
        description="taken_off: the model without its pairs is faster by the whole interval, also beside all others."
    )
    why: str | None = Field(default=None, description="Why it was not tried.")


class FallbackCandidate(Contract):
    """A model that might be returned."""

    kind: FallbackKind = Field(description="As planned, with fewer Q/DQ pairs, or the float model.")
    nodes_taken_off: int = Field(ge=0, description="Quantized nodes of the plan that are in float in it.")
    size_bytes: int
    latency_ratio: float = Field(description="Over the float model's; of that itself 1.")
    latency_interval: Interval | None = Field(default=None, description="None for the float model.")
    gate: tuple[GateClause, ...] = Field(
        default=(), description="All conditions but those of latency, with the goal and the bytes of a search."
    )
    holds: bool | None = Field(description="Whether all of those hold; null: not measured for want of time.")
    chosen: bool = False


class Fallback(Contract):
    """Why another model than the planned one was looked for, what was tried, and what is returned."""

    because: str = Field(description="The condition that the planned model broke, with its figures.")
    reason: str = Field(description="Why the chosen one was.")
    candidates: tuple[FallbackCandidate, ...] = Field(description="The planned model, reduced ones, the float model.")
    regions: tuple[RegionFigures, ...] = Field(default=(), description="In the order in which they were tried.")
    why_no_regions: str | None = Field(default=None, description="Why pairs were not taken off region by region.")
    seconds: float = Field(ge=0)

    @property
    def chosen(self) -> FallbackCandidate:
        """The one that is returned."""
        return next(candidate for candidate in self.candidates if candidate.chosen)
