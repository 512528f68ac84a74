"""Order statistics of a stream: the outermost values, kept exactly and without the rest."""

from __future__ import annotations

import math

import numpy as np


class Tail:
    """The k-th largest value of a stream whose length is known in advance, k = floor(share * length) + 1.

    Only values above a threshold are kept. The threshold is the k-th largest value seen so far; the final k-th
    largest can only be at or above it, so nothing that counts is ever dropped and the answer is exact. Beyond
    ``capacity`` distinct kept values are rounded to fewer significant bits (relative error at most 2^-11, then
    coarser), so memory stays bounded.

    Args:
        share: of the values that may lie above the answer.
        lower: look at the k-th smallest instead.
        capacity: distinct values kept.
    """

    def __init__(self, share: float, *, lower: bool = False, capacity: int = 1 << 16) -> None:
        self._share = share
        self._sign = np.float32(-1 if lower else 1)
        self._capacity = capacity
        self._values = np.empty(0, np.float32)  # ascending, distinct
        self._counts = np.empty(0, np.int64)
        self._threshold = np.float32(-np.inf)
        self._pending: list[np.ndarray] = []
        self._pending_count = 0

    def update(self, values: np.ndarray, extreme: np.float32, expected_length: int) -> None:
        """Take in one batch.

        Args:
            values: float32 [n].
            extreme: largest of ``values`` (smallest for a lower tail): most batches need no second look.
            expected_length: length of the whole stream as far as known; must not shrink from call to call.
        """
        if self._sign * extreme <= self._threshold:
            return
        k = self._rank(expected_length)
        if self._threshold == -np.inf and values.size > 4 * k:
            # First batch: everything below its own k-th largest is out of the question.
            split = values.size - k if self._sign > 0 else k - 1
            self._threshold = np.nextafter(self._sign * np.partition(values, split)[split], np.float32(-np.inf))
        kept = values[values > self._threshold] if self._sign > 0 else -values[values < -self._threshold]
        if not kept.size:
            return
        self._pending.append(kept)
        self._pending_count += kept.size
        if self._pending_count > max(2 * k, 4096):
            self._compact(k)

    def _rank(self, length: int) -> int:
        return int(self._share * length) + 1

    def _compact(self, k: int) -> None:
        if self._pending:
            fresh, counts = np.unique(np.concatenate(self._pending), return_counts=True)
            self._values, self._counts = _merge(self._values, self._counts, fresh, counts)
            self._pending, self._pending_count = [], 0
        above = np.cumsum(self._counts[::-1])[::-1]  # how many values are at least this large
        if above.size and above[0] >= k:
            first = int(np.searchsorted(-above, -k, side="right")) - 1
            self._values, self._counts = self._values[first:], self._counts[first:]
            self._threshold = self._values[0]
        bits = 12
        while self._values.size > self._capacity:
            rounded = (self._values.view(np.uint32) >> bits << bits).view(np.float32)
            fresh, inverse = np.unique(rounded, return_inverse=True)
            self._values, self._counts = fresh, np.bincount(inverse, weights=self._counts).astype(np.int64)
            bits += 2

    def result(self, length: int, share: float | None = None) -> float:
        """The k-th largest (smallest) of ``length`` values, or the innermost kept one if fewer were kept.

        Args:
            length: values seen.
            share: at most the constructor's, which is the default.

        Returns:
            -inf (inf) if none was kept: nothing was seen, or nothing but that.
        """
        self._compact(self._rank(length))
        if not self._values.size:
            return float(-self._sign) * math.inf
        k = self._rank(length) if share is None else int(share * length) + 1
        above = np.cumsum(self._counts[::-1])[::-1]
        reached = np.flatnonzero(above >= k)
        return float(self._sign * self._values[reached[-1] if reached.size else 0])

    def beyond(self, length: int) -> tuple[np.ndarray, np.ndarray, float]:
        """The values strictly above (below) the k-th largest (smallest).

        Returns:
            distinct values float32 [m], how often each was seen int64 [m], and the k-th largest (smallest) value.
        """
        bound = self.result(length)
        outside = self._values > self._sign * np.float32(bound)
        return self._sign * self._values[outside], self._counts[outside], bound


def _merge(
    values: np.ndarray, counts: np.ndarray, more_values: np.ndarray, more_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    merged, inverse = np.unique(np.concatenate([values, more_values]), return_inverse=True)
    return merged, np.bincount(inverse, weights=np.concatenate([counts, more_counts])).astype(np.int64)
