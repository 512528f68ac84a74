"""What a reader has to know before the figures, and what would help."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from service.contracts.base import Contract

Severity = Literal["critical", "warning", "info"]


class Finding(Contract):
    """Something about the model or the data that the figures alone do not tell."""

    code: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable; docs/findings.md lists all.")
    severity: Severity = Field(description="critical: figures or model are not to be used before it is mended.")
    message: str = Field(description="What was found, with its figures.")
    hint: str | None = Field(default=None, description="What to do next.")
    where: dict[str, str | int | float] = Field(
        default_factory=dict, description="Where: input, output, metric, dataset, node."
    )
    undermines_verdict: bool = Field(
        default=False, description="True if no statement about accuracy can be made: such clauses are undecided."
    )


class CausePlace(Contract):
    """A node where a cause of error is at work."""

    node: str = Field(description="Name in the prepared graph; empty: the whole network.")
    error_percent: float = Field(ge=0, le=100, description="Part of all error that comes from here, about.")
    fact: str = Field(description="What was found there, with its figures.")


class Cause(Contract):
    """What the error of the quantized model comes from.

    Parts are estimates: error beside signal in the mean over the channels of each weight and activation by itself, in
    parts of the sum of all.
    """

    kind: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable; docs/advice.md lists all.")
    message: str = Field(description="What it is, in words.")
    error_percent: float = Field(ge=0, le=100, description="Part of all error, about.")
    places: tuple[CausePlace, ...] = Field(description="Where, the worst first.")
    places_left_out: int = Field(default=0, ge=0, description="Further places, which are not told.")


class AdviceFigure(Contract):
    """What a piece of advice did where it was tried."""

    metric: str = Field(description="Name of a metric, or sqnr_db.")
    unit: str
    before: float | None = Field(description="Of the quantized model of this report.")
    after: float | None = Field(description="Of the model quantized with the advice.")
    samples: int = Field(ge=1)
    seconds: float = Field(ge=0, description="That the trial took.")


class Advice(Contract):
    """What would help, as a fragment of a config."""

    code: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", description="Stable.")
    because: str = Field(description="The facts that it follows from, with their figures.")
    message: str = Field(description="What to do, in one sentence.")
    config: dict[str, Any] = Field(
        description="JSON merge patch (RFC 7396) of the report's ``manifest.config``; empty: no config helps."
    )
    nodes: tuple[str, ...] = Field(default=(), description="That it is about; empty: the whole network.")
    status: Literal["tried", "untried"]
    helped: bool | None = Field(default=None, description="Of what was tried: whether it did.")
    figure: AdviceFigure | None = Field(default=None, description="Of what was tried.")
