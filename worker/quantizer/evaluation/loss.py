"""Whether a quantized model has lost anything that matters, told without labels from few samples.

Class scores: the share of samples that are expected to be decided otherwise than by the float model. With m the float
model's margin between its best two classes and s the standard deviation of the noise of a difference of two scores, a
sample changes its decision with probability Phi(-m / s). Margins of all samples meet the noise of all samples; the
smallest fifth of the margins count as spread evenly between 0 and the largest of them. So the estimate rests on every
score of every sample, where a count of changed decisions rests on the few that have changed: 20 samples tell 1 percent
from 4. A factor common to all scores changes no decision and is no noise. Probabilities are compared by their
logarithms, as they come from differences of scores.

Sequences of class scores, [samples, steps, classes]: the share of samples in which any decision is expected to change,
1 - exp(-sum p) with p of each step. What is read from such scores, a line of text say, is wrong if one step is. Steps
where the runner-up stands beside the winner do not count: a border between two decisions that moves by a step leaves
the sequence as it is, repeats merged, which is all that a CTC decoder reads.

Other floats: the SQNR. Integers: the share that differ.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.evaluation.metrics.distances import are_probabilities, class_scores

Array = np.ndarray[Any, Any]

# Decisions that change cost at most as many points of accuracy.
LOST_DECISIONS_PERCENT = 0.5
# Calibration samples are often those of the training, of which a model is surer than of others: what is done about a
# loss counts their margins as half as wide.
MARGINS_OF_TRAINING = 2.0
# An error of a twentieth of the signal: distances between outputs, and thresholds on them, hold to a few percent.
LOST_SQNR_DB = 26.0
# Classes that compete for a decision: the noise of all others says nothing of it.
_COMPETING = 10
_ROWS_OF_BATCH, _MOST_ROWS, _ROWS = 128, 8192, 512  # that are taken of a batch, kept, and looked at in the end
_NOISES = 32  # quantiles of the noise that every step of a sequence meets
_NO_SAMPLE = -1
_LEAST_PROBABILITY = 1e-6
_ERFC = np.frompyfunc(math.erfc, 1, 1)
# The share of margins that count as spread evenly, at least so many.
_SMALLEST, _FEWEST = 0.2, 4


class DecisionNoise:
    """The noise of one output of class scores, beside the margins of the float model."""

    def __init__(self) -> None:
        self._pairs: list[Array] = []  # scores of the competing classes, float64 [2, rows, classes]: float, other
        self._owners: list[Array] = []  # sample of each row, -1 where its change would change no sequence
        self._count, self._every = 0, 1
        self._samples, self._steps = 0, 0.0  # of sequences; steps per row that is kept
        self._is_finite = True

    def update(self, expected: Array, got: Array) -> None:
        """Take in one batch of scores [..., classes]; [n, classes, height, width] for maps."""
        rows, twins = _rows(expected)[:: self._every], _rows(got)[:: self._every]
        if not len(rows):
            return
        if _is_sequence(expected):
            owners = np.where(_would_change(expected), self._samples + np.arange(len(expected))[:, None], _NO_SAMPLE)
            self._owners.append(_thinned(owners.reshape(-1))[:: self._every])
            self._samples += len(expected)
            self._steps += owners.size
        self._is_finite &= bool(np.isfinite(twins).all())
        place = min(_COMPETING, rows.shape[1]) - 1
        best = np.argpartition(-rows, place, axis=1)[:, : place + 1]
        pair = np.stack([np.take_along_axis(scores, best, axis=1) for scores in (rows, twins)]).astype(np.float64)
        if are_probabilities(rows):
            pair = np.log(np.maximum(pair, _LEAST_PROBABILITY))
        self._pairs.append(pair)
        self._count += len(rows)
        if self._count > _MOST_ROWS:
            self._pairs = [np.concatenate(self._pairs, axis=1)[:, ::2]]
            self._owners = [np.concatenate(self._owners)[::2]] if self._owners else []
            self._count, self._every = self._pairs[0].shape[1], 2 * self._every

    def changed_percent(self, narrower: float = 1.0) -> float:
        """Expected share of other decisions, with margins so many times as narrow as those seen."""
        found = self._measured(narrower)
        if isinstance(found, float):
            return found
        margins, noise = found
        step = math.ceil(len(margins) / _ROWS)
        return 100.0 * _changed(margins[::step], noise[::step])

    def changed_sequences_percent(self, narrower: float = 1.0) -> float | None:
        """Expected share of samples with another sequence of decisions; None where a sample has one decision."""
        found = self._measured(narrower)
        if not self._samples or isinstance(found, float):
            return found if self._samples else None
        margins, noise = found
        owners = np.concatenate(self._owners)
        counted = owners != _NO_SAMPLE
        typical = np.quantile(noise, (np.arange(_NOISES) + 0.5) / _NOISES)
        changes = _tails(margins[counted], typical).mean(axis=1) * (self._steps / len(owners))
        expected = np.bincount(owners[counted], weights=changes, minlength=self._samples)
        return 100.0 * float(-np.expm1(-expected).mean())

    def _measured(self, narrower: float) -> tuple[Array, Array] | float:
        """Margins, narrower than seen, and standard deviations of their noise, each [rows]; or the percentage where these say nothing."""
        if not self._pairs:
            return 0.0
        if not self._is_finite:
            return 100.0
        rows, twins = _centered(np.concatenate(self._pairs, axis=1))
        power = float(np.square(rows).sum())
        gain = float((rows * twins).sum()) / power if power else 0.0
        if gain <= 0.0:
            return 100.0
        noise = np.square(twins - gain * rows).sum(axis=1) / (rows.shape[1] - 1)
        ordered = np.sort(rows, axis=1)
        return gain / narrower * (ordered[:, -1] - ordered[:, -2]), np.sqrt(2.0 * noise)


class LossEstimate:
    """What is lost in any output of a model.

    Args:
        classes: names of the outputs that hold class scores.
        narrower: so many times as narrow as those seen are margins taken to be, where ``words`` are told.
    """

    def __init__(self, classes: Collection[str], *, narrower: float = 1.0) -> None:
        self._classes, self._narrower = frozenset(classes), narrower
        self._decisions: dict[str, DecisionNoise] = {}
        self._distances: dict[str, Distance] = {}
        self._integers: dict[str, list[float]] = {}

    def update(self, pairs: Iterable[tuple[str, Array, Array]]) -> None:
        """Take in one batch: name, float and quantized output of the same shape."""
        for name, one, other in pairs:
            if one.dtype.kind == "f" and not np.isfinite(one).all():
                continue  # of what the float model has not got nothing can be lost
            if one.dtype.kind in "iub":
                self._integers.setdefault(name, []).append(float((one != other).mean()) if one.size else 0.0)
            elif one.dtype.kind == "f" and name in self._classes and class_scores(one) is not None:
                self._decisions.setdefault(name, DecisionNoise()).update(one, other)
            elif one.dtype.kind == "f":
                self._distances.setdefault(name, Distance()).update(one, other)

    def figures(self, narrower: float = 1.0) -> dict[str, float]:
        """Expected share of other decisions in percent, by output that decides something."""
        changed = {name: 100.0 * float(np.mean(shares)) for name, shares in self._integers.items()}
        return changed | {name: found.changed_percent(narrower) for name, found in self._decisions.items()}

    def sequences(self, narrower: float = 1.0) -> dict[str, float]:
        """Expected share of samples with another sequence of decisions in percent, by output that gives sequences."""
        found = {name: noise.changed_sequences_percent(narrower) for name, noise in self._decisions.items()}
        return {name: percent for name, percent in found.items() if percent is not None}

    @property
    def words(self) -> str | None:
        """What is lost in the worst output, with its figure; None if nothing is."""
        changed, sequences = self.figures(self._narrower), self.sequences(self._narrower)
        worst = changed | sequences
        if worst and max(worst.values()) > LOST_DECISIONS_PERCENT:
            name = max(worst, key=worst.__getitem__)
            more = f", and in {sequences[name]:.1f} % of samples one or more" if name in sequences else ""
            unsure = "" if self._narrower == 1.0 else f" with margins {self._narrower:g} times as narrow as here"
            return f"{changed[name]:.1f} % of decisions at output {name!r} are expected to change{more}{unsure}"
        for name, found in self._distances.items():
            if found.is_undefined:
                return f"output {name!r} is not finite"
        figures = {name: found.sqnr_db for name, found in self._distances.items()}
        low = {name: db for name, db in figures.items() if db is not None and db < LOST_SQNR_DB}
        name = min(low, key=low.__getitem__, default="")
        return f"SQNR of output {name!r} is {low[name]:.1f} dB" if low else None


def _rows(output: Array) -> Array:
    """Some of its scores, [rows, classes]."""
    scores = _scores(output)
    if scores.ndim > 3:
        scores = np.moveaxis(scores, 1, -1)
    return _thinned(scores.reshape(-1, scores.shape[-1]))


def _scores(output: Array) -> Array:
    scores = class_scores(output)
    if scores is None:
        raise ValueError("an output without classes")
    return scores


def _thinned(rows: Array) -> Array:
    """Some of the rows of a batch."""
    return rows[:: max(math.ceil(len(rows) / _ROWS_OF_BATCH), 1)]


def _is_sequence(output: Array) -> bool:
    scores = _scores(output)
    return scores.ndim == 3 and scores.shape[1] > 1


def _would_change(output: Array) -> Array:
    """Where the runner-up in the winner's place would make another sequence, repeats merged; bool [samples, steps]."""
    scores = _scores(output)
    winner, other = np.moveaxis(np.argpartition(-scores, 1, axis=-1)[..., :2], -1, 0)
    before, behind = np.full_like(winner, -1), np.full_like(winner, -1)
    before[:, 1:], behind[:, :-1] = winner[:, :-1], winner[:, 1:]
    moves = ((before == winner) & (other == behind)) | ((behind == winner) & (other == before))
    return np.asarray(~moves)


def _centered(rows: Array) -> Array:
    centered: Array = rows - rows.mean(axis=-1, keepdims=True)
    return centered


def _changed(margins: Array, noise: Array) -> float:
    """Mean of Phi(-m / s) over all margins m and all noises s."""
    smallest = min(len(margins), max(_FEWEST, round(_SMALLEST * len(margins))))
    ordered = np.sort(margins)
    limit = float(ordered[smallest - 1])
    even = limit * (np.arange(smallest) + 0.5) / smallest
    return float(_tails(np.concatenate([even, ordered[smallest:]]), noise).mean())


def _tails(margins: Array, noise: Array) -> Array:
    """Phi(-m / s) of each margin m [margins] and each noise s [noises], 0 where that is 0."""
    ratios = margins[:, None] / np.where(noise > 0.0, noise, np.inf)[None]
    tails: Array = 0.5 * np.asarray(_ERFC(np.where(noise > 0.0, ratios, np.inf) / math.sqrt(2.0)), np.float64)
    return tails
