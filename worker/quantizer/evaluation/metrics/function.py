"""A metric that a caller in the same process computes by a Python function."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.contracts.metrics import FunctionMetric
from worker.quantizer.evaluation.metrics.base import Array, Meter, Seen, UnfitError, finite

# Takes the measured model's output over all samples, or the float model's and the measured one's; gives a number.
MetricFunction = Callable[..., float]


class FunctionMeter(Meter):
    """Keeps one output of all batches in memory and calls the function on the whole of it.

    What the function raises comes out as it is: it is the caller's own code, in the caller's own process.

    Args:
        metric: as declared.
        function: of the caller.
    """

    def __init__(self, metric: FunctionMetric, function: MetricFunction) -> None:
        self._metric, self._function = metric, function
        self._outputs: list[Array] = []
        self._reference: list[Array] = []
        self._found: float | None = None

    def update(self, seen: Seen) -> None:
        """Take in one batch.

        Raises:
            UnfitError: the output changes its shape from batch to batch, so that there is no whole of it.
        """
        self._found = None
        output = np.array(seen.outputs["output"])
        if self._outputs and output.shape[1:] != self._outputs[0].shape[1:]:
            raise UnfitError("output", "samples of different shapes do not make the one array that its function takes")
        self._outputs.append(output)
        if self._metric.against_float:
            self._reference.append(np.array(seen.reference["output"]))

    def value(self) -> float | None:
        """What the function returns.

        Raises:
            UnfitError: that is no number.
        """
        if self._outputs and self._found is None:
            parts = [self._reference, self._outputs] if self._metric.against_float else [self._outputs]
            got = self._function(*(_joined(batches) for batches in parts))
            try:
                self._found = float(got)
            except (TypeError, ValueError):
                told = f"its function returned {type(got).__name__}, no number"
                raise UnfitError("name", told) from None
        found = None if self._found is None else finite(self._found)
        if found is None and self._found is not None:
            self.undefined = "its function returned NaN or Inf"
        return found


def _joined(batches: list[Array]) -> Array:
    """All batches along the first axis; what has no axis of samples is stacked."""
    if batches[0].ndim == 0:
        return np.stack(batches)
    joined: Array = np.concatenate(batches)
    batches[:] = [joined]
    return joined
