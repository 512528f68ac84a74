"""Statistics of a tensor by the index of one axis: what is known of each of its channels."""

from __future__ import annotations

import math

import numpy as np

_LONG_ROW = 1024


class ChannelExtremes:
    """Smallest and largest value per index of ``axis``, float32 [channels] each. NaN anywhere stays NaN."""

    def __init__(self, axis: int = -1) -> None:
        self._axis = axis
        self._extremes: tuple[np.ndarray, np.ndarray] | None = None

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch with that axis."""
        axis = self._axis % values.ndim
        if axis == values.ndim - 1:
            rows = values.reshape(-1, values.shape[-1])
            low, high = rows.min(axis=0), rows.max(axis=0)
        else:
            cube = values.reshape(math.prod(values.shape[:axis]), values.shape[axis], -1)
            # along long rows numpy is fastest, across short ones
            first, then = (2, 0) if cube.shape[2] >= _LONG_ROW else (0, 1)
            low, high = cube.min(axis=first).min(axis=then), cube.max(axis=first).max(axis=then)
        if self._extremes is not None:
            low, high = np.minimum(low, self._extremes[0]), np.maximum(high, self._extremes[1])
        self._extremes = low, high

    def result(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Minima and maxima over everything seen; None if nothing was seen."""
        return self._extremes


class RowSample:
    """A bounded sample of a tensor's rows, a row being what one index of all axes but the last gives.

    Kept are the rows whose numbers have the smallest hashes: no period of the tensor (tokens of a sample, say) comes
    through, and the sample does not depend on how the stream was cut into batches.

    Args:
        rows: as many are kept, if there are so many.
        elements: fewer are kept if they would be more values than this.
        fewest: so many are kept in any case.
    """

    def __init__(self, *, rows: int = 1024, elements: int = 1 << 20, fewest: int = 64) -> None:
        self._most, self._elements, self._fewest = rows, elements, fewest
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []  # hashes, numbers of samples, rows
        self._capacity = rows
        self._largest: np.uint64 | None = None  # hash beyond which no row can be among the smallest
        self._kept = self._seen_rows = self._seen_samples = 0

    def update(self, values: np.ndarray, samples: int) -> None:
        """Take in one batch of ``samples`` samples, rank 1 or more."""
        rows = values.reshape(-1, values.shape[-1])
        self._capacity = max(self._fewest, min(self._most, self._elements // max(rows.shape[1], 1)))
        hashes = _hashes(self._seen_rows, len(rows))
        chosen = np.arange(len(rows)) if self._largest is None else np.flatnonzero(hashes <= self._largest)
        if chosen.size:
            numbers = self._seen_samples + chosen * max(samples, 1) // len(rows)
            self._parts.append((hashes[chosen], numbers, rows[chosen].astype(np.float32)))
            self._kept += chosen.size
        self._seen_rows += len(rows)
        self._seen_samples += samples
        if self._kept > 2 * self._capacity:
            self._thin()

    def _thin(self) -> None:
        """Keep the ``capacity`` smallest hashes, in the order of the rows."""
        hashes, numbers, rows = (np.concatenate(part) for part in zip(*self._parts, strict=True))
        if hashes.size > self._capacity:
            self._largest = np.partition(hashes, self._capacity - 1)[self._capacity - 1]
            kept = hashes <= self._largest
            hashes, numbers, rows = hashes[kept], numbers[kept], rows[kept]
        self._parts, self._kept = [(hashes, numbers, rows)], hashes.size

    def result(self, *, first_sample: int = 0) -> np.ndarray | None:
        """Float32 [rows, channels] of the samples from number ``first_sample`` on; None if there are none."""
        if not self._parts:
            return None
        self._thin()
        _, numbers, rows = self._parts[0]
        chosen = rows[numbers >= first_sample]
        return chosen if chosen.size else None


def _hashes(first: int, count: int) -> np.ndarray:
    """Uint64 [count]: numbers ``first`` ... mixed by the finalizer of SplitMix64 (Steele et al. 2014)."""
    mixed = (np.arange(first, first + count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
