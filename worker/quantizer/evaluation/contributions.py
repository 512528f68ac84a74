"""What each sample adds to a metric, so that the metric can be had for other sets of the same samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# Figures of one model, from the sums over its samples: [set, k] -> [set], NaN where undefined.
ValueOf = Callable[[Array], Array]
# What one metric may keep of all samples; beyond it neighbours are added up.
_KEPT_BYTES = 32 * 2**20
# Where fewer units than these would fit, none are kept.
_FEWEST_KEPT = 64
# Elements of one array while sets of samples are summed.
PART_ELEMENTS = 1 << 21


class Contributions(ABC):
    """A metric by units: samples, or batches where the metric does not tell samples apart.

    Attributes:
        by_sample: a unit is one sample.
    """

    by_sample = True

    @property
    @abstractmethod
    def units(self) -> int:
        """How many there are."""

    @property
    @abstractmethod
    def value(self) -> float:
        """The metric of all samples; NaN where undefined."""

    @abstractmethod
    def without(self, groups: Array) -> Array:
        """The metric with one group of units left out at a time.

        Args:
            groups: the number of each unit's group [units], from 0 on without a gap.

        Returns:
            float64 [group]; NaN where undefined.
        """


class Sums(Contributions):
    """A metric that is a function of sums over the samples.

    Args:
        value_of: the function.
    """

    def __init__(self, value_of: ValueOf) -> None:
        self.value_of = value_of

    @property
    @abstractmethod
    def total(self) -> Array:
        """Sums over all units, float64 [k]."""

    @abstractmethod
    def of(self, weights: Array) -> Array:
        """Sums [set, k] of sets that hold each unit so many times [set, unit]."""

    @abstractmethod
    def rows(self, first: int, last: int) -> Array:
        """What the units from ``first`` to before ``last`` add, float64 [units, k]."""

    @abstractmethod
    def grouped(self, groups: Array) -> Sums:
        """The same by groups of units, whose numbers are given [units]."""

    @abstractmethod
    def same_as(self, other: Sums) -> bool:
        """True if every unit adds the same to both, so that nothing tells the one metric from the other."""

    @property
    def value(self) -> float:
        """The metric of all samples; NaN where undefined."""
        return float(self.value_of(self.total[None])[0]) if self.units else math.nan

    def without(self, groups: Array) -> Array:
        """The metric with one group left out at a time; see ``Contributions.without``."""
        whole, total = self.grouped(groups), self.total
        step = max(1, PART_ELEMENTS // len(total))
        parts = [
            self.value_of(total - whole.rows(start, min(start + step, whole.units)))
            for start in range(0, whole.units, step)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)


class DenseSums(Sums):
    """Sums of a few columns that every sample adds to.

    Of very many samples neighbours are kept as their sum: units of one size, whatever the batches were, but for the
    last one, which has from half to one and a half of the samples of another. Of rows so wide that only few of them can
    be kept, nothing but the total is.
    """

    def __init__(self, value_of: ValueOf) -> None:
        super().__init__(value_of)
        self._blocks: list[Array] = []
        self._bytes = 0
        self._rows_per_unit = 1
        # rows that do not fill a unit yet: how many, and their sum
        self._held = 0
        self._held_sum: Array = np.zeros(1)
        # over all rows, once they are too wide to keep
        self._wide_sum: Array | None = None

    def add(self, columns: Array, *, samples: int) -> None:
        """Take in one batch of ``samples``: [samples, k], or [1, k] where they cannot be told apart."""
        self.by_sample &= len(columns) == samples
        if self._wide_sum is not None or columns.shape[1] * np.dtype(np.float64).itemsize * _FEWEST_KEPT > _KEPT_BYTES:
            self._forget(columns)
            return
        if self._rows_per_unit > 1:
            columns = self._filled(columns)
        if len(columns):
            self._blocks.append(columns)
            self._bytes += columns.nbytes
        if self._bytes > _KEPT_BYTES:
            self._merge()

    @property
    def matrix(self) -> Array:
        """All units [units, k]."""
        if len(self._blocks) > 1:
            self._blocks = [np.concatenate(self._blocks)]
        whole: Array = self._blocks[0] if self._blocks else np.zeros((0, len(self._held_sum)))
        if not self._held:
            return whole
        if self._stands_alone:
            return np.concatenate([whole, self._held_sum[None]])
        return np.concatenate([whole[:-1], whole[-1:] + self._held_sum])

    @property
    def units(self) -> int:
        """How many there are."""
        return sum(len(block) for block in self._blocks) + (self._held > 0 and self._stands_alone)

    @property
    def total(self) -> Array:
        """Sums over all units, float64 [k]."""
        if self._wide_sum is not None:
            return self._wide_sum
        found: Array = self.matrix.sum(axis=0, dtype=np.float64)
        return found

    @property
    def value(self) -> float:
        """The metric of all samples; NaN where undefined."""
        return super().value if self._wide_sum is None else float(self.value_of(self._wide_sum[None])[0])

    def of(self, weights: Array) -> Array:
        """Sums [set, k] of sets that hold each unit so many times [set, unit]."""
        found: Array = weights @ self.matrix.astype(np.float64, copy=False)
        return found

    def rows(self, first: int, last: int) -> Array:
        """What the units from ``first`` to before ``last`` add, float64 [units, k]."""
        return self.matrix[first:last].astype(np.float64)

    def grouped(self, groups: Array) -> DenseSums:
        """The same by groups of units, whose numbers are given [units]."""
        order = np.argsort(groups, kind="stable")
        starts = np.flatnonzero(np.diff(groups[order], prepend=-1))
        found = DenseSums(self.value_of)
        # there are no more groups than units: they need no merging
        found._blocks = [np.add.reduceat(self.matrix[order], starts, axis=0, dtype=np.float64)]
        found.by_sample = self.by_sample
        return found

    def same_as(self, other: Sums) -> bool:
        """True if every unit adds the same to both; see ``Sums.same_as``."""
        return isinstance(other, DenseSums) and self.units > 0 and np.array_equal(self.matrix, other.matrix)

    @property
    def _stands_alone(self) -> bool:
        """The rows held back are a unit of their own, rather than a part of the last one."""
        return not self._blocks or 2 * self._held >= self._rows_per_unit

    def _filled(self, columns: Array) -> Array:
        """The units that these rows fill, after those held back; the remainder is held back."""
        size = self._rows_per_unit
        needed = min(size - self._held, len(columns)) if self._held else 0
        units = []
        if needed:
            self._hold(columns[:needed])
            if self._held == size:
                units.append(self._held_sum[None])
                self._held = 0
        rest = columns[needed:]
        whole = len(rest) // size * size
        if whole:
            units.append(np.add.reduceat(rest[:whole], np.arange(0, whole, size), axis=0, dtype=np.float64))
        if whole < len(rest):
            self._hold(rest[whole:])
        return np.concatenate(units) if units else np.zeros((0, columns.shape[1]))

    def _hold(self, columns: Array) -> None:
        found = columns.sum(axis=0, dtype=np.float64)
        self._held_sum = self._held_sum + found if self._held else found
        self._held += len(columns)

    def _merge(self) -> None:
        """Make units of twice the rows, as often as it takes."""
        units = np.concatenate(self._blocks)
        held = (self._held, self._held_sum)
        before, row_bytes = self._rows_per_unit, units.shape[1] * np.dtype(np.float64).itemsize
        times = 2
        while len(units) // times * row_bytes > _KEPT_BYTES:
            times *= 2
        whole = len(units) // times * times
        merged = np.add.reduceat(units[:whole], np.arange(0, whole, times), axis=0, dtype=np.float64)
        self._blocks, self._bytes, self._rows_per_unit, self._held = [merged], merged.nbytes, before * times, 0
        if whole < len(units):
            self._hold(units[whole:])
            self._held *= before
        if held[0]:
            self._held_sum = self._held_sum + held[1] if self._held else held[1]
            self._held += held[0]

    def _forget(self, columns: Array) -> None:
        """Keep the total alone."""
        if self._wide_sum is None:
            self._wide_sum = np.zeros(columns.shape[1])
        self._wide_sum = self._wide_sum + columns.sum(axis=0, dtype=np.float64)


class Hits(DenseSums):
    """A share in percent: what each sample adds to the hits, and to what they are counted of."""

    def __init__(self) -> None:
        super().__init__(percent)

    @property
    def of_samples(self) -> bool:
        """True if every sample is right or wrong as a whole, or does not count."""
        return self.by_sample and self._rows_per_unit == 1 and int(self.matrix[:, -1].max(initial=0)) <= 1

    @property
    def right(self) -> Array:
        """Of the samples that count: which are right, bool [sample]."""
        matrix = self.matrix
        found: Array = matrix[matrix[:, 1] > 0, 0] > 0
        return found


class CountSums(Sums):
    """Counts by key, of which every sample adds to a few only, such as counts by class.

    Args:
        value_of: the function; its columns are keys.
    """

    def __init__(self, value_of: ValueOf) -> None:
        super().__init__(value_of)
        self._entries: list[tuple[Array, Array, Array]] = []
        # for sums of sets, made on demand: the order of the entries by key, the keys, and where each begins
        self._by_key: tuple[Array, Array, Array] | None = None
        self.size = 0

    def add(self, units: Array, keys: Array, counts: Array, *, size: int, samples: int) -> None:
        """Take in one batch.

        Args:
            units: of each entry, its unit within the batch [entry].
            keys: its key [entry].
            counts: what the unit adds to the sum of the key [entry].
            size: units of the batch.
            samples: of the batch.
        """
        self.by_sample &= size == samples
        self._entries.append((units + self.size, keys, counts))
        self._by_key = None
        self.size += size

    @property
    def units(self) -> int:
        """How many there are."""
        return self.size

    @property
    def total(self) -> Array:
        """Sums over all units, float64 [k]."""
        _, keys, counts = self._all()
        return np.bincount(keys, weights=counts, minlength=1)

    def of(self, weights: Array) -> Array:
        """Sums [set, k] of sets that hold each unit so many times [set, unit]."""
        units, keys, counts = self._all()
        found = np.zeros((len(weights), len(self.total)))
        if len(keys):
            if self._by_key is None:
                order = np.argsort(keys, kind="stable")
                self._by_key = (order, *np.unique(keys[order], return_index=True))
            order, known, starts = self._by_key
            step = max(1, PART_ELEMENTS // len(keys))
            for start in range(0, len(weights), step):
                chosen = weights[start : start + step, units[order]] * counts[order]
                found[start : start + step, known] = np.add.reduceat(chosen, starts, axis=1)
        return found

    def rows(self, first: int, last: int) -> Array:
        """What the units from ``first`` to before ``last`` add, float64 [units, k]."""
        units, keys, counts = self._all()
        width, chosen = len(self.total), (units >= first) & (units < last)
        places = (units[chosen] - first) * width + keys[chosen]
        found: Array = np.bincount(places, weights=counts[chosen], minlength=(last - first) * width)
        return found.reshape(last - first, width)

    def grouped(self, groups: Array) -> CountSums:
        """The same by groups of units, whose numbers are given [units]."""
        units, keys, counts = self._all()
        size = int(groups.max(initial=-1)) + 1
        found = CountSums(self.value_of)
        found.add(groups[units], keys, counts, size=size, samples=size)
        found.by_sample = self.by_sample
        return found

    def same_as(self, other: Sums) -> bool:
        """True if every unit adds the same to both; see ``Sums.same_as``."""
        if not isinstance(other, CountSums) or not self.size or self.size != other.size:
            return False
        return all(np.array_equal(mine, its) for mine, its in zip(self._all(), other._all(), strict=True))

    def _all(self) -> tuple[Array, Array, Array]:
        if not self._entries:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        if len(self._entries) > 1:
            units, keys, counts = (np.concatenate(column) for column in zip(*self._entries, strict=True))
            self._entries = [(units, keys, counts)]
        return self._entries[0]


class Remade(Contributions):
    """A metric that is no function of sums, made anew from what is kept of the samples.

    Args:
        units: how many samples there are.
        value_without: the metric without some of them: takes those left out as bool [units]; NaN where undefined.
    """

    def __init__(self, units: int, value_without: Callable[[Array], float]) -> None:
        self._units, self._value_without = units, value_without

    @property
    def units(self) -> int:
        """How many there are."""
        return self._units

    @property
    def value(self) -> float:
        """The metric of all samples; NaN where undefined."""
        return self._value_without(np.zeros(self._units, bool))

    def without(self, groups: Array) -> Array:
        """The metric with one group left out at a time; see ``Contributions.without``."""
        return np.array([self._value_without(groups == k) for k in range(int(groups.max(initial=-1)) + 1)])


def quotients(numerators: Array, denominators: Array) -> Array:
    """Element by element in float64; NaN where the denominator is 0."""
    room = np.full(np.broadcast_shapes(numerators.shape, denominators.shape), np.nan)
    found: Array = np.divide(numerators, denominators, out=room, where=denominators != 0)
    return found


def percent(sums: Array) -> Array:
    """The first column in percent of the second [set, 2]."""
    return 100.0 * quotients(sums[:, 0], sums[:, 1])
