"""Streaming figures over batches of model outputs.

SQNR = 10 log10(sum x^2 / sum (x - x~)^2) in dB, x float and x~ quantized; 200 dB stands for identical.
"""

from __future__ import annotations

import math

import numpy as np

IDENTICAL_DB = 200.0


class Distance:
    """SQNR and cosine between a float tensor and its quantized twin, over all batches."""

    def __init__(self) -> None:
        self._signal = 0.0
        self._noise = 0.0
        self._twin = 0.0
        self._dot = 0.0
        self._count = 0

    def update(self, reference: np.ndarray, twin: np.ndarray) -> None:
        """Take in one batch: both float, same shape."""
        x = reference.astype(np.float64, copy=False).reshape(-1)
        y = twin.astype(np.float64, copy=False).reshape(-1)
        self._signal += float(x @ x)
        self._twin += float(y @ y)
        self._dot += float(x @ y)
        difference = x - y
        self._noise += float(difference @ difference)
        self._count += x.size

    @property
    def is_undefined(self) -> bool:
        """True if a value was NaN or Inf."""
        return not math.isfinite(self._signal + self._noise)

    @property
    def sqnr_db(self) -> float | None:
        """In dB; None before the first value or if not finite."""
        if not self._count or not math.isfinite(self._signal + self._noise):
            return None
        if self._noise == 0.0:
            return IDENTICAL_DB
        if self._signal == 0.0:
            return -IDENTICAL_DB
        return min(IDENTICAL_DB, 10.0 * math.log10(self._signal / self._noise))

    @property
    def cosine(self) -> float | None:
        """In [-1, 1]; None where either tensor is all zero or not finite."""
        if self._noise == 0.0 and self._count:
            return 1.0
        product = self._signal * self._twin
        if not math.isfinite(product) or product == 0.0:
            return None
        return max(-1.0, min(1.0, self._dot / math.sqrt(product)))


class Agreement:
    """Share of positions where two outputs decide alike: equal arg max over the classes, or equal integers."""

    def __init__(self) -> None:
        self._equal = 0
        self._total = 0

    def update(self, reference: np.ndarray, twin: np.ndarray) -> None:
        """Take in one batch of outputs of the same shape."""
        x, y = decisions(reference), decisions(twin)
        if x is None or y is None:
            return
        self._equal += int((x == y).sum())
        self._total += x.size

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


class Accuracy:
    """top1 and top5 of class scores against labels; top1 alone for a model that returns class numbers.

    A label is in the top k if fewer than k classes rank before it: those that score higher, and of those that score
    the same the ones with a smaller number (as arg max decides).
    """

    def __init__(self) -> None:
        self._hits = {1: 0, 5: 0}
        self._total = 0
        self._has_top5 = False

    def update(self, output: np.ndarray, labels: np.ndarray) -> bool:
        """Take in one batch; False if the output is no classification of the labels."""
        if output.dtype.kind in "iu" and output.size == labels.size:
            self._hits[1] += int((output.reshape(-1) == labels).sum())
        else:
            scores = class_scores(output)
            if scores is None or scores.ndim != 2 or scores.shape[0] != labels.size or labels.max() >= scores.shape[1]:
                return False
            own = np.take_along_axis(scores, labels[:, None], axis=1)
            before = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, None]))
            rank = before.sum(axis=1)
            for k in self._hits:
                self._hits[k] += int((rank < k).sum())
            self._has_top5 = scores.shape[1] > 5
        self._total += labels.size
        return True

    @property
    def metrics(self) -> dict[str, float]:
        """In percent: top1, and top5 where there are more than five classes."""
        if not self._total:
            return {}
        found = {"top1": 100.0 * self._hits[1] / self._total}
        if self._has_top5:
            found["top5"] = 100.0 * self._hits[5] / self._total
        return found
