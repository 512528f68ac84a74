"""The forecast of a run: estimate from graph, data and config, scaled by the model's earlier runs.

Of runs by the same recipe the median is taken; where there are none, that of all runs of the model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from pydantic import BaseModel, Field

from service.estimates.prior import Prior

Basis = Literal["graph", "timed", "history"]
# Standard deviations of the logarithms of seconds, memory and size (docs/benchmarks.md).
_SPREAD: dict[Basis, tuple[float, float, float]] = {
    "graph": (0.6, 0.3, 0.15),
    "timed": (0.4, 0.25, 0.1),
    "history": (0.25, 0.12, 0.05),
}
# Earlier runs of a model that are looked at.
OF_MODEL = 20
# Of a normal distribution, 80 % lie within; and memory is told so that it is rarely too little.
_RANGE_DEVIATIONS, _MEMORY_DEVIATIONS = 1.28, 1.3
# Whatever was found, an estimate is not so many times as much, or as little.
_MOST_TIMES = 12.0


@dataclass(frozen=True)
class PastRun:
    """A run that has succeeded."""

    recipe: str  # by which config, as a key
    prior: Prior  # what it should have taken
    seconds: float  # from its start to its end
    memory_bytes: float  # at its highest
    size_bytes: float  # of the quantized model


@dataclass(frozen=True)
class ExpectedCost:
    """What a run will take: expected, lowest and highest of each."""

    seconds: tuple[float, float, float]  # from its start to its end
    memory_bytes: tuple[float, float, float]  # at its highest; the expected one leaves room
    size_bytes: tuple[float, float, float]  # of the quantized model
    basis: Basis  # what it is based on
    runs: int  # earlier ones that went into it


def forecast(prior: Prior, recipe: str, own: Sequence[PastRun]) -> ExpectedCost:
    """What a run will take.

    Args:
        prior: what it should take.
        recipe: by which config, as a key.
        own: earlier runs of the same model.
    """
    same = [run for run in own if run.recipe == recipe]
    runs = same or own
    memory_times = _times([(run.memory_bytes, run.prior.memory_bytes) for run in runs])
    if not same:
        # less by another recipe, such as one that holds no inputs of layers, says nothing of this one
        memory_times = max(memory_times, 1.0)
    basis: Basis = "history" if own else "timed" if prior.timed else "graph"
    of_seconds, of_memory, of_size = _SPREAD[basis]
    memory_bytes = prior.memory_bytes * memory_times * math.exp(_MEMORY_DEVIATIONS * of_memory)
    return ExpectedCost(
        seconds=_range(prior.seconds * _times([(run.seconds, run.prior.seconds) for run in runs]), of_seconds),
        memory_bytes=_range(memory_bytes, of_memory),
        size_bytes=_range(prior.size_bytes * _times([(run.size_bytes, run.prior.size_bytes) for run in runs]), of_size),
        basis=basis,
        runs=len(runs),
    )


def _times(taken_and_told: Sequence[tuple[float, float]]) -> float:
    """How many times what they should have runs took, in the median; 1 without any."""
    if not taken_and_told:
        return 1.0
    times = median(max(taken, 1e-9) / max(told, 1e-9) for taken, told in taken_and_told)
    return min(max(times, 1 / _MOST_TIMES), _MOST_TIMES)


def _range(expected: float, sigma: float) -> tuple[float, float, float]:
    factor = math.exp(_RANGE_DEVIATIONS * sigma)
    return expected, expected / factor, expected * factor


# Estimates as seen over HTTP.


class SecondsRange(BaseModel):
    """A range in seconds; the actual value is between ``low`` and ``high`` in eight of ten cases."""

    expected: float
    low: float
    high: float


class BytesRange(BaseModel):
    """A range in bytes; the actual value is between ``low`` and ``high`` in eight of ten cases."""

    expected: int
    low: int
    high: int


class Estimate(BaseModel):
    """Estimated time, memory and size of a job, as of its creation."""

    seconds: SecondsRange = Field(description="Seconds from the start of the first attempt to the end of the job.")
    peak_memory_bytes: BytesRange = Field(
        description="Peak memory of the job's process. The expected value includes a margin: less memory is rarely "
        "sufficient."
    )
    size_bytes: BytesRange | None = Field(
        description="Size of the quantized model; null for an evaluation, which creates none."
    )
    basis: Literal["graph", "timed", "history"] = Field(
        description="Basis of the estimate. history: earlier jobs with this model. timed: a forward pass, timed "
        "when the model was validated. graph: only the model's operators and shapes."
    )
    runs: int = Field(description="Number of earlier jobs with this model that the estimate is based on.")
