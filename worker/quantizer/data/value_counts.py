"""How often classes and values occur: the range of an array's values and their histogram, in bounded memory.

Arrays come block by block. Bins are powers of two wide and begin at multiples of their width. Where the range grows,
the width doubles and neighbours become one bin; so what is told does not depend on how the values came in blocks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from service.contracts.dataset import LARGEST_CLASSES, MAX_BINS, MAX_CLASSES, ClassCounts, ValueProfile
from worker.quantizer.data.stored import Array

# Up to so many values all are counted; of more, about so many of each block.
_ALL, _OF_A_BLOCK = 1 << 20, 1 << 16
# Exponents of the narrowest bins. Narrower ones would tell apart floats that are next to nothing, or no integers.
_NARROWEST, _NARROWEST_OF_INTEGERS = -1000, 0
_MANTISSA_BITS = 53
_MOST_SHIFT = 63


class ValueCounter:
    """Takes in one array.

    ``minimum`` and ``maximum`` are exact; the mean and the histogram are of every value of an array of up to 2**20, and
    of every n-th of a larger one, where n is a prime that does not divide the elements of a sample: so no channel and
    no column is left out.

    Args:
        dtype: of the array, numeric.
        values: in the whole array.
        block_values: of a block at most, but for blocks of one sample.
        sample_values: of a sample.
    """

    def __init__(self, dtype: np.dtype[np.generic], values: int, block_values: int, sample_values: int) -> None:
        self.stride = stride(values, max(block_values, sample_values), sample_values)
        self._narrowest = _NARROWEST_OF_INTEGERS if dtype.kind in "biu" else _NARROWEST
        self._low, self._high = math.inf, -math.inf
        self._seen = self._counted = 0
        self._mean = 0.0
        self._bins = Bins(self._narrowest)
        self._pending: list[Array] = []
        self._pending_values = 0

    def add(self, block: Array) -> None:
        """Take in the next values, finite, of any shape."""
        if not block.size:
            return
        low, high = extremes(block)
        self._low, self._high = min(self._low, low), max(self._high, high)
        taken = block.reshape(-1)[-self._seen % self.stride :: self.stride].astype(np.float64)
        self._seen += block.size
        self._pending.append(taken)
        self._pending_values += taken.size
        if self._pending_values >= _OF_A_BLOCK:
            self._count()

    def profile(self) -> ValueProfile | None:
        """What has been found; None without a value."""
        if not self._seen:
            return None
        self._count()
        low, high = self._bins.edges
        return ValueProfile(
            minimum=self._low,
            maximum=self._high,
            mean=self._mean,
            values=self._seen,
            counted=self._counted,
            low=low,
            high=high,
            counts=tuple(self._bins.counts.tolist()),
        )

    def _count(self) -> None:
        values = np.concatenate(self._pending) if self._pending else np.empty(0)
        self._pending, self._pending_values = [], 0
        self._bins.cover(self._low, self._high)
        if not values.size:
            return
        self._bins.add(values)
        total = self._counted + values.size
        # divided first, as the sum of large values would overflow; by a rounding it still may
        with np.errstate(over="ignore"):
            mean = self._mean * (self._counted / total) + float((values / total).sum())
        self._mean = min(max(mean, self._low), self._high)
        self._counted = total


class Bins:
    """At most MAX_BINS bins, 2**exponent wide.

    Args:
        narrowest: least exponent of the width.
    """

    def __init__(self, narrowest: int) -> None:
        self.exponent = narrowest
        self.first = 0
        self.counts: np.ndarray[tuple[int], np.dtype[np.int64]] = np.zeros(0, np.int64)

    def cover(self, low: float, high: float) -> None:
        """Make room for values from ``low`` to ``high``, within which all earlier ones lie."""
        exponent = max(self.exponent, _exponent(low, high, self.exponent))
        first, last = _numbers(np.array([low, high]), exponent).tolist()
        counts = np.zeros(last - first + 1, np.int64)
        shift = min(exponent - self.exponent, _MOST_SHIFT)
        old = (np.arange(self.first, self.first + len(self.counts), dtype=np.int64) >> shift) - first
        np.add.at(counts, old, self.counts)
        self.exponent, self.first, self.counts = exponent, first, counts

    def add(self, values: Array) -> None:
        """Count values, float64 [n], that the bins cover."""
        self.counts += np.bincount(_numbers(values, self.exponent) - self.first, minlength=len(self.counts))

    @property
    def edges(self) -> tuple[float, float]:
        """Left edge of the first bin and right edge of the last one; within what a float holds."""
        numbers = np.array([self.first, self.first + len(self.counts)], np.float64)
        most = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            low, high = np.clip(np.ldexp(numbers, self.exponent), -most, most).tolist()
        return low, high


def stride(values: int, block_values: int, sample_values: int) -> int:
    """Every which value of an array is counted."""
    if values <= _ALL:
        return 1
    found = max(2, -(-min(values, block_values) // _OF_A_BLOCK))
    while not _is_prime(found) or sample_values % found == 0:
        found += 1
    return found


def _is_prime(number: int) -> bool:
    return all(number % k for k in range(2, math.isqrt(number) + 1))


def _exponent(low: float, high: float, least: int) -> int:
    """The least exponent of the width, from ``least`` on, with which MAX_BINS bins cover a range."""
    magnitude = max(abs(low), abs(high))
    half = high / 2 - low / 2  # the whole may be more than a float holds
    exponent = max(least, math.frexp(magnitude)[1] - _MANTISSA_BITS)
    if half > 0:
        exponent = max(exponent, math.frexp(half)[1] - int(math.log2(MAX_BINS)))
    ends = np.array([low, high])
    while np.diff(_numbers(ends, exponent))[0] >= MAX_BINS:
        exponent += 1
    return exponent


def _numbers(values: Array, exponent: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Number of each value's bin on a grid that begins at 0: int64 [n]."""
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = np.floor(values * math.ldexp(1.0, -exponent)).astype(np.int64)
    found[(found == 0) & (values < 0)] = -1  # so small that the product is -0
    return found


# Class numbers up to so many times the samples are counted in a table, which is no larger than they, others by sorting.
_SPARSE = 1
_SMALL_TABLE = 1 << 16


def count_classes(labels: np.ndarray[Any, np.dtype[np.int64]]) -> ClassCounts:
    """Count exactly.

    Args:
        labels: class numbers int64 [samples], 0 or more, at least one.
    """
    numbers, counts = _counted(labels)
    told = np.arange(len(numbers))
    if len(numbers) > MAX_CLASSES:
        told = np.argsort(-counts, kind="stable")[:LARGEST_CLASSES]
    return ClassCounts(
        distinct=len(numbers),
        fewest=int(counts.min()),
        most=int(counts.max()),
        numbers=tuple(numbers[told].tolist()),
        counts=tuple(counts[told].tolist()),
    )


def _counted(labels: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The numbers that occur, ascending, and how often each does."""
    if int(labels.max()) > _SPARSE * len(labels) + _SMALL_TABLE:
        return np.unique(labels, return_counts=True)
    table = np.bincount(labels)
    numbers = np.flatnonzero(table)
    return numbers, table[numbers]


def extremes(block: Array) -> tuple[float, float]:
    """Least and greatest value, as 64-bit floats.

    Args:
        block: not empty, finite; bool, integers, or floats up to 64 bits, bfloat16 among them.
    """
    if block.dtype.kind in "biu":
        return float(block.min()), float(block.max())
    return _extremes_of_floats(block)


def _extremes_of_floats(block: Array) -> tuple[float, float]:
    """Bits without a sign grow with the value; with a sign, which makes them the larger ones, they grow as it falls."""
    values = np.ascontiguousarray(block)
    unsigned = values.view(f"u{block.dtype.itemsize}")
    signed = values.view(f"i{block.dtype.itemsize}")
    greatest = signed.max()  # of those without a sign, if there are any
    largest = unsigned.max()  # of those with a sign, if there are any
    low = largest if largest.view(signed.dtype) < 0 else unsigned.min()
    high = greatest if greatest >= 0 else signed.min()
    found = np.array([low.view(signed.dtype), high.view(signed.dtype)]).view(block.dtype).astype(np.float64) + 0.0
    return float(found[0]), float(found[1])  # where adding 0 has made -0 a 0
