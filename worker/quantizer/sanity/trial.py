"""Would the float model do better had the inputs been meant otherwise? A paired trial on labelled samples.

Every sample has a loss under what was given and under the alternative: minus the logarithm of its label's probability,
after one temperature for all samples that is best for that way of feeding, so that a mere scale of the scores counts
for nothing. An alternative is better if the mean difference is more than ``_SIGMAS`` standard errors and the decisions
won outnumber the lost. Alternatives that fall behind are dropped early: few samples serve to drop them, many to accuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.errors import DatasetMismatchError, EngineError, UnsupportedModelError
from service.contracts.model import TensorInfo
from worker.quantizer.data import Dataset
from worker.quantizer.evaluation.metrics.distances import are_probabilities
from worker.quantizer.runtime.session import Session
from worker.quantizer.sanity.alternatives import Alternative
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array, run_on

_SIGMAS = 4.0
# Samples of each round, and the standard errors that an alternative has to be ahead to stay.
_ROUNDS = ((8, -1.0), (16, 0.0), (64, 1.0), (256, _SIGMAS))
# Fewer accuse of nothing.
_FEWEST = 24
# Decisions won less those lost, as a share of the samples; and won per lost.
_GAIN, _RATIO = 0.02, 1.5
# From this share of right decisions on only what is subtle is tried: gross faults leave less.
WORKS = 0.75
_TEMPERATURES = np.geomspace(1 / 64, 64, 33)

FITS_BETTER = declare(
    "input-fits-better-otherwise",
    "critical",
    "input {input!r}: the float model is right on {value:.1f} % of {samples} samples as they are fed, and on "
    "{better:.1f} % of the same with {words} ({sigmas:.1f} standard errors)",
    hint="{hint}. Ranges taken from wrongly fed data do not hold for right ones.",
)


@dataclass(frozen=True)
class Better:
    """An alternative that the model does better with: share of right decisions as given and so, of how many samples."""

    alternative: Alternative
    given: float
    better: float
    samples: int
    sigmas: float


class PairedTrial:
    """The float model on a few labelled samples, as they are and otherwise.

    Args:
        session: the float model.
        picked: samples with labels.
        inputs: the model's.
        tensor: the input that is changed.
        output: position of the output with the class scores [samples, classes] or class numbers [samples].
    """

    def __init__(
        self, session: Session, picked: Dataset, inputs: Sequence[TensorInfo], tensor: TensorInfo, output: int
    ) -> None:
        self._session, self._picked, self._inputs = session, picked, inputs
        self._tensor, self._output = tensor, output
        self._given: Array | None = None

    def knows(self, scores: Array) -> None:
        """Scores of the first samples as given, if they are known already."""
        self._given = scores

    def best(self, candidates: Sequence[Alternative]) -> Better | None:
        """The alternative that is better by the most; None if none is.

        Raises:
            EngineError: the runtime failed on the data as given.
        """
        found = [better for one in candidates if (better := self._tried(one)) is not None]
        return max(found, key=lambda better: (better.better, better.sigmas), default=None)

    def _tried(self, one: Alternative) -> Better | None:
        labels = self._picked.labels
        assert labels is not None  # noqa: S101 - only labelled samples are tried
        scores: Array | None = None
        for most, ahead in _ROUNDS:
            count = min(most, len(labels))
            self._given = self._scores(self._given, count, None)
            try:
                scores = self._scores(scores, count, one.change)
            except (DatasetMismatchError, EngineError, UnsupportedModelError):
                return None  # a model that cannot run on it does no better with it
            (given, right), (loss, so_right) = (losses(s[:count], labels[:count]) for s in (self._given, scores))
            sigmas = _ahead(given - loss)
            if sigmas < ahead:
                return None
            won, lost = int((so_right & ~right).sum()), int((right & ~so_right).sum())
            wins = won - lost >= max(2.0, _GAIN * count) and won >= _RATIO * lost
            if count >= _FEWEST and sigmas >= _SIGMAS and wins:
                return Better(one, float(right.mean()), float(so_right.mean()), count, sigmas)
            if count < most:
                return None
        return None

    def _scores(self, known: Array | None, count: int, change: Callable[[Array], Array] | None) -> Array:
        """Scores of the first ``count`` samples, or more; only those not yet known are run."""
        name, start = self._tensor.name, 0 if known is None else len(known)
        if known is not None and start >= count:
            return known

        def changed(feeds: dict[str, Array]) -> dict[str, Array]:
            if change is not None:
                other = change(feeds[name].astype(np.float32, copy=False))
                feeds[name] = np.ascontiguousarray(other, feeds[name].dtype)
            return feeds

        batches = run_on(self._session, self._picked, self._inputs, start=start, limit=count, change=changed)
        return np.concatenate([*([] if known is None else [known]), *(batch[self._output] for batch in batches)])


def losses(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Loss float64 [samples] at the best temperature, and whether the decision is right, bool [samples].

    Args:
        scores: float [samples, classes], or class numbers [samples]: their loss is 0 or 1.
        labels: int64 [samples].
    """
    if scores.dtype.kind in "iub":
        right = scores.reshape(-1) == labels
        return (~right).astype(np.float64), right
    rows = scores.reshape(len(scores), -1).astype(np.float64)
    rows = np.nan_to_num(rows, nan=0.0, posinf=1e30, neginf=-1e30)
    if are_probabilities(rows):
        rows = np.log(np.maximum(rows, 1e-12))
    spread = float(rows.std(axis=1).mean()) or 1.0
    best: Array | None = None
    for temperature in _TEMPERATURES:
        found = _negative_logarithms(rows * (temperature / spread), labels)
        if best is None or found.mean() < best.mean():
            best = found
    assert best is not None  # noqa: S101 - there are temperatures
    return best, rows.argmax(axis=1) == labels


def _negative_logarithms(rows: Array, labels: Array) -> Array:
    rows = rows - rows.max(axis=1, keepdims=True)
    found: Array = np.log(np.exp(rows).sum(axis=1)) - rows[np.arange(len(rows)), labels]
    return found


def _ahead(differences: Array) -> float:
    """Mean over its standard error."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    mean = float(differences.mean())
    return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
