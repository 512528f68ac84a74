"""Samples per class."""

from __future__ import annotations

from typing import Any

import numpy as np

from service.contracts.data_profile import LARGEST_CLASSES, MAX_CLASSES, ClassCounts

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
