"""The verdict and the conditions behind it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.report.statistics import Interval

Verdict = Literal["pass", "fail", "undecided", "none"]


class GateClause(Contract):
    """One condition of the gate and whether it held; ``metric`` is what max_drop, min_value and max_value judge."""

    clause: str
    metric: str | None = None
    wanted: float
    got: float | None
    holds: bool | None = Field(description="Null: the samples, or the runs, cannot tell; see ``why``.")
    interval: Interval | None = Field(default=None, description="Where ``got`` lies.")
    confidence: float | None = Field(
        default=None, description="With which it had to hold; null: ``got`` itself decided."
    )
    samples_needed: int | None = Field(
        default=None, ge=1, description="About so many samples would decide it; null: decided, or nobody knows."
    )
    why: str | None = Field(default=None, description="Why it is undecided.")
