"""Metrics of predicted numbers against targets."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from service.contracts.metrics.kinds import MAE, RMSE, RegressionMetric
from worker.quantizer.evaluation.contributions import DenseSums, Remade, quotients
from worker.quantizer.evaluation.metrics.base import Array, Meter, MetricBatch, UnfitError, by_sample, finite, fitted

_Each = Callable[[Array], Array]


def _numbers(seen: MetricBatch) -> tuple[Array, Array]:
    """Output and targets, float64 of one shape."""
    output = seen.outputs["output"]
    if output.dtype.kind not in "fiub":
        raise UnfitError("output", f"it contains {output.dtype}, not numbers")
    targets = fitted(seen.labels["labels"], output.shape, "labels", "the output is")
    return output.astype(np.float64), targets.astype(np.float64)


def _rows(seen: MetricBatch) -> tuple[Array, Array]:
    """The same as [samples, column]."""
    output, targets = _numbers(seen)
    if not output.ndim or not len(output):
        raise UnfitError("output", "it has no axis of samples")
    return output.reshape(len(output), -1), targets.reshape(len(output), -1)


# By kind: what an error adds, and what is made of the mean of that.
_ERRORS: dict[str, tuple[_Each, _Each]] = {"rmse": (np.square, np.sqrt), "mae": (np.abs, np.positive)}


class MeanError(Meter):
    """Root of the mean square error, or mean absolute error."""

    def __init__(self, metric: RMSE | MAE) -> None:
        self._loss, of_mean = _ERRORS[metric.kind]
        self._sums: DenseSums = DenseSums(lambda sums: of_mean(quotients(sums[:, 0], sums[:, 1])))

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        output, targets = _numbers(seen)
        losses = by_sample(self._loss(output - targets), seen.samples)
        columns = [losses.sum(axis=1), np.full(len(losses), losses.shape[1])]
        self._sums.add(np.stack(columns, axis=1), samples=seen.samples)

    def value(self) -> float | None:
        """In the target's unit."""
        found = finite(self._sums.value)
        if found is None:
            self.undefined = "the output contains NaN or Inf" if self._sums.units else "there are no values"
        return found


class Correlation(Meter):
    """Pearson's correlation, column by column; moments are merged as in Chan, Golub and LeVeque 1979."""

    NO_VALUE = "a column of the output or of the targets is constant, or not finite"

    def __init__(self, metric: RegressionMetric) -> None:
        self._count = 0
        self._means: tuple[Array, Array] | None = None
        self._moments: tuple[Array, Array, Array] | None = None
        self._residual: Array | float = 0.0
        # What each sample adds to the moments about the means of the first batch, so that their sums are not large.
        self._sums: DenseSums = DenseSums(self._of_sums)
        self._centers: tuple[Array, Array] | None = None

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        x, y = _rows(seen)
        self.add(x, y)
        if self._centers is None:
            self._centers = x.mean(axis=0), y.mean(axis=0)
        u, v = x - self._centers[0], y - self._centers[1]
        columns = np.stack([u, v, u * u, v * v, u * v, np.square(x - y)], axis=1)
        self._sums.add(np.pad(columns.reshape(len(x), -1), ((0, 0), (1, 0)), constant_values=1.0), samples=len(x))

    def _of_sums(self, sums: Array) -> Array:
        """Mean over the columns."""
        count, (u, v, uu, vv, uv, residual) = sums[:, :1], sums[:, 1:].reshape(len(sums), 6, -1).transpose(1, 0, 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            moments = uu - u * u / count, vv - v * v / count, uv - u * v / count
            found: Array = self._of_moments(*moments, residual).mean(axis=1)
        return found

    @staticmethod
    def _of_moments(xx: Array, yy: Array, xy: Array, residual: Array) -> Array:
        """Of moments about the mean; NaN or Inf where one of the first two is 0."""
        found: Array = np.clip(xy / np.sqrt(xx * yy), -1.0, 1.0)
        return found

    def add(self, x: Array, y: Array) -> None:
        """Take in rows [samples, column] of both."""
        count, mean_x, mean_y = len(x), x.mean(axis=0), y.mean(axis=0)
        u, v = x - mean_x, y - mean_y
        if self._means is not None and mean_x.shape != self._means[0].shape:
            raise UnfitError("output", "the number of its values per sample changes from batch to batch")
        self._residual = self._residual + np.square(x - y).sum(axis=0)
        moments = ((u * u).sum(axis=0), (v * v).sum(axis=0), (u * v).sum(axis=0))
        if self._means is None or self._moments is None:
            self._count, self._means, self._moments = count, (mean_x, mean_y), moments
            return
        total = self._count + count
        dx, dy = mean_x - self._means[0], mean_y - self._means[1]
        weight = self._count * count / total
        a, b, c = self._moments
        self._moments = (
            a + moments[0] + dx * dx * weight,
            b + moments[1] + dy * dy * weight,
            c + moments[2] + dx * dy * weight,
        )
        self._means = (self._means[0] + dx * count / total, self._means[1] + dy * count / total)
        self._count = total

    def value(self) -> float | None:
        """Mean over the columns; None if one has no value."""
        found = self._columns()
        if found is None:
            self.undefined = self.undefined or "there are no values"
            return None
        if not np.isfinite(found).all():
            self.undefined = self.NO_VALUE
            return None
        return float(found.mean())

    def details(self) -> dict[str, float]:
        """By column, if there are several."""
        found = self._columns()
        if found is None or len(found) == 1:
            return {}
        return {f"column {k}": float(value) for k, value in enumerate(found) if np.isfinite(value)}

    def _columns(self) -> Array | None:
        if self._moments is None:
            return None
        a, b, c = self._moments
        with np.errstate(divide="ignore", invalid="ignore"):
            return self._of_moments(a, b, c, np.asarray(self._residual))


class Determination(Correlation):
    """Coefficient of determination, column by column."""

    NO_VALUE = "a column of the targets is constant, or one of the output is not finite"

    @staticmethod
    def _of_moments(xx: Array, yy: Array, xy: Array, residual: Array) -> Array:
        """Of moments about the mean; NaN or Inf where the second is 0."""
        return 1.0 - residual / yy


class RankCorrelation(Meter):
    """Pearson's correlation of ranks; every value has to be kept, as a rank depends on all of them."""

    def __init__(self, metric: RegressionMetric) -> None:
        self._metric = metric
        self._output: list[Array] = []
        self._targets: list[Array] = []

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        output, targets = _rows(seen)
        if self._output and output.shape[1] != self._output[0].shape[1]:
            raise UnfitError("output", "the number of its values per sample changes from batch to batch")
        self._output.append(output)
        self._targets.append(targets)

    def value(self) -> float | None:
        """Mean over the columns, in [-1, 1]; None if one has no correlation."""
        whole = self._whole()
        if whole is None:
            return None
        found = whole.value()
        self.undefined = whole.undefined
        return found

    def details(self) -> dict[str, float]:
        """By column, if there are several."""
        whole = self._whole()
        return {} if whole is None else whole.details()

    @property
    def contributions(self) -> Remade:
        """Made anew from the values that are kept."""
        output, targets = (np.concatenate(blocks or [np.zeros((0, 1))]) for blocks in (self._output, self._targets))

        def without(left_out: Array) -> float:
            value = self._correlation(output[~left_out], targets[~left_out]).value()
            return np.nan if value is None else value

        return Remade(len(output), without)

    def _whole(self) -> Correlation | None:
        if not self._output:
            self.undefined = "there are no values"
            return None
        output = np.concatenate(self._output)
        if not np.isfinite(output).all():
            self.undefined = "the output contains NaN or Inf"
            return None
        return self._correlation(output, np.concatenate(self._targets))

    def _correlation(self, output: Array, targets: Array) -> Correlation:
        """Of the ranks of rows [samples, column]."""
        found = Correlation(self._metric)
        found.add(average_ranks(output), average_ranks(targets))
        return found


def average_ranks(values: Array) -> Array:
    """Ranks from 1 on, column by column; equal values share the mean of theirs."""
    ranked = np.empty(values.shape, np.float64)
    for k in range(values.shape[1]):
        _, inverse, counts = np.unique(values[:, k], return_inverse=True, return_counts=True)
        last = np.cumsum(counts)
        ranked[:, k] = (last - (counts - 1) / 2)[inverse.reshape(-1)]
    return ranked
