"""How near one model's output is to another's, over batches; as metrics against the float model.

SQNR = 10 log10(sum x^2 / sum (x - x~)^2) in dB, x float and x~ quantized; 200 dB stands for identical.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from service.contracts.metrics import FidelityMetric
from worker.quantizer.evaluation.contributions import DenseSums, Hits, quotients
from worker.quantizer.evaluation.metrics.base import Array, Meter, MetricBatch, UnfitError, by_sample, finite, parts

IDENTICAL_DB = 200.0
# What scores with NaN decide for.
_UNDECIDED = -1
_SUM_TOLERANCE = 1e-3


class Distance:
    """SQNR, PSNR, cosine and L2 between a float tensor and its quantized twin, over all batches."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0
        self._twin = 0.0
        self._dot = 0.0
        self._peak = 0.0
        self._count = 0

    def update(self, reference: np.ndarray, twin: np.ndarray) -> bool:
        """Take in one batch of one shape; False if it holds no floats."""
        if reference.dtype.kind != "f":
            return False
        x = reference.astype(np.float64, copy=False).reshape(-1)
        y = twin.astype(np.float64, copy=False).reshape(-1)
        self._signal += float(x @ x)
        self._twin += float(y @ y)
        self._dot += float(x @ y)
        difference = x - y
        self._noise += float(difference @ difference)
        self._peak = max(self._peak, float(x.max(initial=0.0)), -float(x.min(initial=0.0)))
        self._count += x.size
        return True

    @property
    def peak(self) -> float:
        """Largest |x|."""
        return self._peak

    @property
    def is_undefined(self) -> bool:
        """True if a value was NaN or Inf."""
        return not math.isfinite(self._signal + self._noise)

    @property
    def sqnr_db(self) -> float | None:
        """In dB; None before the first value or if not finite."""
        return self._figure(sqnr_of)

    @property
    def relative_noise(self) -> float:
        """Sum (x - x~)^2 / sum x^2; the numerator alone where x is all zero; 10^20 (-200 dB) if not finite."""
        if self.is_undefined:
            return math.pow(10.0, IDENTICAL_DB / 10.0)
        return self._noise / self._signal if self._signal else self._noise

    @property
    def psnr_db(self) -> float | None:
        """10 log10(max |x|^2 / mean (x - x~)^2) in dB; None before the first value or if not finite."""
        return self._figure(lambda sums: psnr_of(sums, self._peak))

    @property
    def l2(self) -> float | None:
        """||x - x~|| / ||x||; None before the first value, if not finite, or if x is all zero and x~ is not."""
        return self._figure(l2_of)

    @property
    def cosine(self) -> float | None:
        """In [-1, 1], 0 where x~ alone is all zero; None where x is, or either is not finite."""
        return self._figure(cosine_of)

    def _figure(self, of: Callable[[np.ndarray], np.ndarray]) -> float | None:
        """Of the power sums over all batches; None where undefined."""
        if not self._count or self.is_undefined:
            return None
        return finite(float(of(np.array([[self._signal, self._noise, self._twin, self._dot, self._count]]))[0]))


def power_sums(reference: np.ndarray, twin: np.ndarray, samples: int) -> np.ndarray:
    """What each sample adds to a distance: sums of x^2, (x - x~)^2, x~^2, x x~ and 1, float64 [samples, 5].

    One row where the first axis is not that of samples.
    """
    x, y = (by_sample(array.astype(np.float64, copy=False), samples) for array in (reference, twin))
    pairs = ((x, x), (x - y, x - y), (y, y), (x, y))
    columns = [np.einsum("ij,ij->i", a, b) for a, b in pairs]
    return np.stack([*columns, np.full(len(x), float(x.shape[1]))], axis=1)


def sqnr_of(sums: np.ndarray) -> np.ndarray:
    """SQNR in dB of power sums [set, 5]; NaN if not finite."""
    return _over_noise_db(sums[:, 0], sums[:, 1])


def psnr_of(sums: np.ndarray, peak: float) -> np.ndarray:
    """PSNR in dB of power sums [set, 5], by the peak of all samples."""
    return _over_noise_db(peak**2 * sums[:, 4], sums[:, 1])


def cosine_of(sums: np.ndarray) -> np.ndarray:
    """Cosine of power sums [set, 5]; NaN where x is all zero."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.clip(sums[:, 3] / np.sqrt(sums[:, 0] * sums[:, 2]), -1.0, 1.0)
    wiped_out = np.where((sums[:, 2] == 0.0) & (sums[:, 0] > 0.0), 0.0, found)
    same: np.ndarray = np.where(sums[:, 1] == 0.0, 1.0, wiped_out)
    return same


def l2_of(sums: np.ndarray) -> np.ndarray:
    """||x - x~|| / ||x|| of power sums [set, 5]; NaN where x alone is all zero."""
    found: np.ndarray = np.where(sums[:, 1] == 0.0, 0.0, np.sqrt(quotients(sums[:, 1], sums[:, 0])))
    return found


def _over_noise_db(power: np.ndarray, noise: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.clip(10.0 * np.log10(power / noise), -IDENTICAL_DB, IDENTICAL_DB)
    same: np.ndarray = np.where(noise == 0.0, IDENTICAL_DB, found)
    return same


class Distances:
    """The distances of all outputs of floats, by name."""

    def __init__(self) -> None:
        self.of: dict[str, Distance] = {}

    def update(self, pairs: Iterable[tuple[str, np.ndarray, np.ndarray]]) -> None:
        """Take in one batch: name, float and quantized output of the same shape."""
        for name, reference, twin in pairs:
            if reference.dtype.kind == "f":
                self.of.setdefault(name, Distance()).update(reference, twin)

    @property
    def worst_db(self) -> float | None:
        """SQNR of the worst output in dB; None if there is none, or one is not finite."""
        figures = [distance.sqnr_db for distance in self.of.values()]
        known = [figure for figure in figures if figure is not None]
        return min(known) if known and len(known) == len(figures) else None


class AgreementRate:
    """Share of positions where two outputs decide alike: equal arg max over the classes, or equal integers."""

    def __init__(self) -> None:
        self.hits = Hits()
        self._of_floats = False

    def update(self, reference: np.ndarray, twin: np.ndarray, samples: int | None = None) -> bool:
        """Take in one batch of outputs of the same shape; False if they decide nothing.

        Args:
            reference: of the float model.
            twin: of the other one.
            samples: there are in it; None: as many as the first axis is long.
        """
        x, y = decisions(reference), decisions(twin)
        if x is None or y is None:
            return False
        samples = samples if samples is not None else (len(x) if x.ndim else 1)
        equal = by_sample((x == y) & (x != _UNDECIDED) if reference.dtype.kind == "f" else x == y, samples)
        columns = np.stack([equal.sum(axis=1), np.full(len(equal), equal.shape[1])], axis=1)
        self.hits.add(columns.astype(np.uint8) if equal.shape[1] == 1 else columns, samples=samples)
        self._of_floats = reference.dtype.kind == "f"
        return True

    def only_integers(self) -> bool:
        """Forget what was taken for class scores and, as is known now, is none; False if it was not so taken."""
        if self._of_floats:
            self.hits = Hits()
        return self._of_floats

    @property
    def percent(self) -> float | None:
        """In percent; None where the output decides nothing."""
        value = self.hits.value
        return value if math.isfinite(value) else None


def decisions(output: np.ndarray) -> np.ndarray | None:
    """Arg max over the class axis of float scores (-1 with NaN), integers and booleans as they are; else None."""
    if output.dtype.kind in "iub":
        return output
    scores = class_scores(output)
    if scores is None:
        return None
    axis = 1 if scores.ndim > 3 else -1  # maps are [n, class, height, width]
    winners: np.ndarray = scores.argmax(axis=axis)
    undefined = np.isnan(scores).any(axis=axis)
    return np.where(undefined, _UNDECIDED, winners) if undefined.any() else winners


def class_scores(output: np.ndarray) -> np.ndarray | None:
    """Float output with classes on the last axis ([n, c, 1, 1] loses its ones); None if there is but one class."""
    if output.dtype.kind != "f" or output.ndim < 2:
        return None
    while output.ndim > 2 and output.shape[-1] == 1:
        output = output[..., 0]
    return output if output.shape[-1] > 1 else None


class Divergence:
    """Mean Kullback-Leibler divergence of the soft-maxed rows, sum p log(p / p~), in nats."""

    def __init__(self) -> None:
        self.sums = DenseSums(lambda sums: np.maximum(quotients(sums[:, 0], sums[:, 1]), 0.0))

    def update(self, reference: np.ndarray, twin: np.ndarray, samples: int | None = None) -> bool:
        """Take in one batch of outputs of the same shape, of so many samples; False if they hold no class scores."""
        x, y = class_scores(reference), class_scores(twin)
        if x is None or y is None:
            return False
        if x.ndim > 3:
            x, y = np.moveaxis(x, 1, -1), np.moveaxis(y, 1, -1)
        shape, samples = x.shape[:-1], len(x) if samples is None else samples
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        found = np.empty(len(x))
        for part in parts(*x.shape):
            log_p, log_q = log_softmax(x[part]), log_softmax(y[part])
            found[part] = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
        rows = by_sample(found.reshape(shape), samples)
        self.sums.add(np.stack([rows.sum(axis=1), np.full(len(rows), rows.shape[1])], axis=1), samples=samples)
        return True

    @property
    def nats(self) -> float | None:
        """None before the first row or if not finite."""
        value = self.sums.value
        return value if math.isfinite(value) else None


def log_softmax(rows: np.ndarray) -> np.ndarray:
    """Along the last axis, [..., class], in float64."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    logarithms: np.ndarray = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return logarithms


def are_probabilities(rows: np.ndarray) -> bool:
    """True if no value of [rows, class] is negative and every row sums up to 1, within a thousandth."""
    return bool(rows.min() >= 0.0) and bool(np.all(np.abs(rows.sum(axis=1) - 1.0) < _SUM_TOLERANCE))


# By kind: what measures, and its property that is the value.
_FIGURES: dict[str, tuple[type[Distance | Divergence | AgreementRate], str]] = {
    "sqnr": (Distance, "sqnr_db"),
    "psnr": (Distance, "psnr_db"),
    "cosine": (Distance, "cosine"),
    "l2": (Distance, "l2"),
    "kl": (Divergence, "nats"),
    "agreement": (AgreementRate, "percent"),
}
# The same from power sums.
_OF_SUMS = {"sqnr_db": sqnr_of, "cosine": cosine_of, "l2": l2_of}
_UNFIT = {
    Distance: "its values are not floats",
    Divergence: "it contains no class scores",
    AgreementRate: "it decides nothing",
}


class FidelityMeter(Meter):
    """Compares pairs of outputs of one shape."""

    def __init__(self, metric: FidelityMetric) -> None:
        made, self._property = _FIGURES[str(type(metric).model_fields["kind"].default)]
        self._measure = made()
        self._powers = DenseSums(self._of_powers)
        self._pairs = 0

    def update(self, seen: MetricBatch) -> None:
        """Take in one batch."""
        reference, twin = seen.reference["output"], seen.outputs["output"]
        if reference.shape != twin.shape:
            self.undefined = f"the output is {list(twin.shape)}, the float model's {list(reference.shape)}"
            return
        if isinstance(self._measure, Distance):
            fits = self._measure.update(reference, twin)
            if fits:
                self._powers.add(power_sums(reference, twin, seen.samples), samples=seen.samples)
        else:
            fits = self._measure.update(reference, twin, seen.samples)
        if not fits:
            raise UnfitError("output", f"{_UNFIT[type(self._measure)]}: {reference.dtype}{list(reference.shape)}")
        self._pairs += 1

    @property
    def contributions(self) -> DenseSums:
        """Power sums, divergences or equal decisions by sample."""
        if isinstance(self._measure, Distance):
            return self._powers
        return self._measure.hits if isinstance(self._measure, AgreementRate) else self._measure.sums

    def _of_powers(self, sums: Array) -> Array:
        if isinstance(self._measure, Distance) and self._property == "psnr_db":
            return psnr_of(sums, self._measure.peak)
        return _OF_SUMS[self._property](sums)

    def value(self) -> float | None:
        """None if a batch could not be compared."""
        if self.undefined is not None or not self._pairs:
            return None
        found: float | None = getattr(self._measure, self._property)
        if found is None:
            self.undefined = "the outputs contain NaN or Inf, or are all zero"
        return found
