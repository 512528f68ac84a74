"""What the samples that a figure was measured on can carry: intervals, and samples that changed sides."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from service.contracts.base import Contract


class Interval(Contract):
    """Where a figure lies with ``confidence``, in the figure's own unit."""

    low: float
    high: float
    confidence: float = Field(default=0.95, gt=0, lt=1)
    method: Literal["wilson", "mcnemar", "bootstrap", "order_statistics", "student", "rule_of_three"] = Field(
        description="How it was found: Wilson's score interval of a share, the paired difference of two shares, a "
        "seeded bootstrap by sample, order statistics of repeated runs, Student's t over parts of the samples, or the "
        "rule of three where no sample differs."
    )
    samples: int = Field(ge=1, description="Independent samples, or runs, that it rests on.")


class Flips(Contract):
    """Samples that one model gets right and the other one wrong; all others speak for neither model."""

    lost: int = Field(ge=0, description="Right in the float model, wrong in the quantized one.")
    won: int = Field(ge=0, description="Wrong in the float model, right in the quantized one.")
    confident: int | None = Field(
        default=None,
        ge=0,
        description="Lost ones that the float model gave at least 90 % of its probability; null: not known.",
    )
