"""What a metric looks like to those who feed it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from worker.quantizer.evaluation.contributions import Contributions

Array = np.ndarray[Any, Any]
Arrays = Mapping[str, Array]

# Rows are worked on in parts, so that float64 copies stay small.
_PART_ELEMENTS = 1 << 20


class UnfitError(Exception):
    """An output or an array that a metric cannot take.

    Args:
        place: key of the output or the array, see ``MetricBase.output_refs``.
        message: what is wrong with it.
    """

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place
        self.message = message


@dataclass(frozen=True)
class MetricBatch:
    """One batch, as a metric sees it: everything by the place in the metric that names it."""

    outputs: Arrays  # of the measured model, without samples that fill up
    labels: Arrays  # arrays of the dataset, as stored
    samples: int  # how many there are
    reference: Arrays = field(default_factory=dict)  # the same outputs of the float model


class Meter(ABC):
    """Measures one metric on one model, batch by batch."""

    # Why there is no value, where the reason is more than that nothing was measured.
    undefined: str | None = None
    # What each sample adds to the value, where that is summed up.
    _sums: Contributions | None = None

    @abstractmethod
    def update(self, seen: MetricBatch) -> None:
        """Take in one batch.

        Raises:
            UnfitError: an output or an array does not fit the metric.
        """

    @abstractmethod
    def value(self) -> float | None:
        """The value over all batches; None if it is undefined."""

    def details(self) -> dict[str, float]:
        """Figures behind the value, such as one per class."""
        return {}

    @property
    def contributions(self) -> Contributions | None:
        """What each sample adds to the value; None if nobody can tell."""
        return self._sums

    def check(self, labels: Arrays) -> None:  # noqa: B027 - most take any labels
        """Look at labels alone, after a first batch, so that bad ones are found before any work is done.

        Raises:
            UnfitError: a label that no output can meet.
        """


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without axes of length one, the first excepted."""
    return (*shape[:1], *(axis for axis in shape[1:] if axis != 1))


def fitted(labels: Array, shape: tuple[int, ...], place: str, what: str) -> Array:
    """Labels in ``shape``, from which they may differ by axes of length one.

    Raises:
        UnfitError: at ``place``, if they differ by more.
    """
    if squeezed(labels.shape) != squeezed(shape):
        raise UnfitError(place, f"labels have shape {list(labels.shape)}, but {what} {list(shape)}")
    return labels.reshape(shape)


def by_sample(values: Array, samples: int) -> Array:
    """Values as [samples, ...], or as [1, ...] where their first axis is not that of samples."""
    whole = values.ndim and samples and len(values) == samples
    return values.reshape(samples, -1) if whole else values.reshape(1, -1)


def parts(rows: int, width: int) -> Iterator[slice]:
    """Slices that cut ``rows`` of ``width`` elements into small parts."""
    step = max(1, _PART_ELEMENTS // max(1, width))
    for start in range(0, rows, step):
        yield slice(start, start + step)


def finite(value: float) -> float | None:
    """The value, or None for NaN and Inf."""
    return value if math.isfinite(value) else None
