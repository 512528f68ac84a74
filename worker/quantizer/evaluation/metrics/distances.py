"""How near one model's output is to another's, over batches.

SQNR = 10 log10(sum x^2 / sum (x - x~)^2) in dB, x float and x~ quantized; 200 dB stands for identical.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from worker.quantizer.evaluation.metrics.base import parts

IDENTICAL_DB = 200.0


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
    def is_undefined(self) -> bool:
        """True if a value was NaN or Inf."""
        return not math.isfinite(self._signal + self._noise)

    @property
    def sqnr_db(self) -> float | None:
        """In dB; None before the first value or if not finite."""
        return self._over_noise_db(self._signal)

    @property
    def relative_noise(self) -> float:
        """Sum (x - x~)^2 / sum x^2; the numerator alone where x is all zero; 10^20 (-200 dB) if not finite."""
        if self.is_undefined:
            return math.pow(10.0, IDENTICAL_DB / 10.0)
        return self._noise / self._signal if self._signal else self._noise

    @property
    def psnr_db(self) -> float | None:
        """10 log10(max |x|^2 / mean (x - x~)^2) in dB; None before the first value or if not finite."""
        return self._over_noise_db(self._peak**2 * self._count)

    def _over_noise_db(self, power: float) -> float | None:
        if not self._count or self.is_undefined:
            return None
        if self._noise == 0.0:
            return IDENTICAL_DB
        return min(IDENTICAL_DB, 10.0 * math.log10(power / self._noise)) if power else -IDENTICAL_DB

    @property
    def l2(self) -> float | None:
        """||x - x~|| / ||x||; None before the first value, if not finite, or if x is all zero and x~ is not."""
        if not self._count or self.is_undefined:
            return None
        if self._noise == 0.0:
            return 0.0
        return math.sqrt(self._noise / self._signal) if self._signal else None

    @property
    def cosine(self) -> float | None:
        """In [-1, 1], 0 where x~ alone is all zero; None where x is, or either is not finite."""
        if self._noise == 0.0 and self._count:
            return 1.0
        product = self._signal * self._twin
        if not math.isfinite(product) or self._signal == 0.0:
            return None
        return max(-1.0, min(1.0, self._dot / math.sqrt(product))) if product else 0.0


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


class Agreement:
    """Share of positions where two outputs decide alike: equal arg max over the classes, or equal integers."""

    def __init__(self) -> None:
        self._equal = 0
        self._total = 0

    def update(self, reference: np.ndarray, twin: np.ndarray) -> bool:
        """Take in one batch of outputs of the same shape; False if they decide nothing."""
        x, y = decisions(reference), decisions(twin)
        if x is None or y is None:
            return False
        self._equal += int((x == y).sum())
        self._total += x.size
        return True

    @property
    def percent(self) -> float | None:
        """In percent; None where the output decides nothing."""
        return 100.0 * self._equal / self._total if self._total else None


def decisions(output: np.ndarray) -> np.ndarray | None:
    """Arg max over the class axis of float scores, integers and booleans as they are; None for anything else."""
    if output.dtype.kind in "iub":
        return output
    scores = class_scores(output)
    if scores is None:
        return None
    winners: np.ndarray = scores.argmax(axis=1 if scores.ndim > 3 else -1)  # maps are [n, class, height, width]
    return winners


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
        self._sum = 0.0
        self._rows = 0

    def update(self, reference: np.ndarray, twin: np.ndarray) -> bool:
        """Take in one batch of outputs of the same shape; False if they hold no class scores."""
        x, y = class_scores(reference), class_scores(twin)
        if x is None or y is None:
            return False
        if x.ndim > 3:
            x, y = np.moveaxis(x, 1, -1), np.moveaxis(y, 1, -1)
        x, y = x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1])
        for part in parts(*x.shape):
            log_p, log_q = log_softmax(x[part]), log_softmax(y[part])
            self._sum += float((np.exp(log_p) * (log_p - log_q)).sum())
        self._rows += len(x)
        return True

    @property
    def nats(self) -> float | None:
        """None before the first row or if not finite."""
        return max(0.0, self._sum / self._rows) if self._rows and math.isfinite(self._sum) else None


def log_softmax(rows: np.ndarray) -> np.ndarray:
    """Of each row [rows, class], in float64."""
    wide = rows.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    logarithms: np.ndarray = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return logarithms
