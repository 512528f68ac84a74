"""Feeds metrics with arrays, in batches, as the evaluation does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import TensorInfo
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.metrics import Metrics, MetricSet

Arrays = Mapping[str, np.ndarray]


def spec_of(*metrics: dict[str, Any]) -> EvaluationSpec:
    return EvaluationSpec.model_validate({"metrics": list(metrics)})


def infos(outputs: Arrays) -> list[TensorInfo]:
    return [TensorInfo(name=name, dtype=array.dtype.name, shape=None) for name, array in outputs.items()]


def measured(
    metrics: Sequence[dict[str, Any]],
    outputs: Arrays,
    labels: np.ndarray | None = None,
    *,
    arrays: Arrays | None = None,
    reference: Arrays | None = None,
    batch: int = 7,
    axis: Mapping[str, int] | None = None,
) -> MetricSet:
    """The metrics of a model that returns ``outputs``; ``axis`` names those whose samples do not lie along axis 0."""
    at = {name: (axis or {}).get(name, 0) for name in outputs}
    samples = next(iter(outputs.values())).shape[next(iter(at.values()))]
    data = ArrayDataset({"x": np.zeros((samples, 1), np.float32), **(arrays or {})}, labels)
    bound = Metrics(spec_of(*metrics), infos(outputs))
    bound.check(data)
    found = bound.start()
    inputs = [TensorInfo(name="x", dtype="float32", shape=("n", 1))]
    for part in data.batches(inputs, batch, arrays=bound.arrays):
        taken = part.numbers
        cut = {name: array.take(taken, axis=at[name]) for name, array in outputs.items()}
        twin = None if reference is None else {name: array[taken] for name, array in reference.items()}
        found.update(part, cut, twin)
    return found


def value(metric: dict[str, Any], *arguments: Any, **options: Any) -> float:
    """The value of one metric."""
    found = measured([metric], *arguments, **options)
    assert list(found.values) == [next(iter(found.values))], found.undefined
    return next(iter(found.values.values()))
