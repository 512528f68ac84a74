"""What each sample says of a metric, against the metric made anew without it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from worker.quantizer.evaluation.by_sample import metric_columns
from worker.quantizer.evaluation.certainty.contributions import CountSums, DenseSums, Hits, quotients

RANDOM = np.random.default_rng(3)


def dense(values: Any, value_of: Any) -> DenseSums:
    found = DenseSums(value_of)
    for start in range(0, len(values), 7):
        found.add(values[start : start + 7], samples=len(values[start : start + 7]))
    return found


def test_of_a_mean_they_are_the_samples_own_values() -> None:
    losses = RANDOM.exponential(size=50)
    mean = dense(np.stack([losses, np.ones(50)], axis=1), lambda sums: quotients(sums[:, 0], sums[:, 1]))
    assert metric_columns({"loss": mean}, 50)["loss"] == pytest.approx(losses)
    hits = Hits()
    hits.add(np.array([[1.0, 1], [0, 1], [1, 1], [1, 1]]), samples=4)
    assert metric_columns({"top1": hits}, 4)["top1"] == pytest.approx([100, 0, 100, 100])


def test_of_a_root_they_are_what_the_sample_moves_it_by() -> None:
    squares = RANDOM.exponential(size=40)
    root = dense(np.stack([squares, np.ones(40)], axis=1), lambda sums: np.sqrt(quotients(sums[:, 0], sums[:, 1])))
    whole = np.sqrt(squares.mean())
    left_out = [np.sqrt(np.delete(squares, k).mean()) for k in range(40)]
    assert metric_columns({"rmse": root}, 40)["rmse"] == pytest.approx([40 * whole - 39 * f for f in left_out])


def test_what_does_not_tell_samples_apart_has_none() -> None:
    batches = DenseSums(lambda sums: sums[:, 0])
    batches.add(np.ones((1, 1)), samples=8)
    counts = CountSums(lambda sums: sums[:, 0])
    counts.add(np.arange(8), np.zeros(8, np.int64), np.ones(8), size=8, samples=8)
    one_alone = dense(np.array([[1.0, 1.0], [0, 0], [0, 0]]), lambda sums: quotients(sums[:, 0], sums[:, 1]))
    found = metric_columns({"by_batch": batches, "counts": counts, "undefined": one_alone}, 8)
    assert set(found) == {"counts"}
    assert metric_columns({"undefined": one_alone}, 3) == {}
