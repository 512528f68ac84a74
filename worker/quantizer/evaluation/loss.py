"""Whether a quantized model has lost anything that matters, told without labels from few samples.

Class scores: the share of samples that are expected to be decided otherwise than by the float model. With m the float
model's margin between its best two classes and s the standard deviation of that margin's noise, a sample changes its
decision with probability Phi(-m / s). The noise of a sample is that of differences between all scores, as much larger
as margins are noisier in the mean of many. Scores are noisier where a model is less sure: the smallest fifth of the
margins meet the noise of their samples, all others that of the others. The smallest fifth count as spread evenly
between 0 and the largest of them. So the estimate rests on every score of every sample, where a count of changed
decisions rests on the few that have changed: 20 samples tell 1 percent from 4. A factor common to all scores changes no
decision and is no noise. Probabilities are compared by their logarithms, as they come from differences of scores.

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

from service.contracts.algorithms.base import LOST_DECISIONS_PERCENT, LOST_SQNR_DB
from service.contracts.costs import spread
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.evaluation.metrics.distances import are_probabilities, class_scores

Array = np.ndarray[Any, Any]

# Classes that compete for a decision: the noise of all others says nothing of it.
_COMPETING = 10
_ROWS_OF_BATCH, _MOST_ROWS = 512, 8192  # that are taken of a batch, and kept
_NOISES = 32  # that a margin meets
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
        self._samples = self._steps = 0  # of sequences
        self._is_finite = True

    def update(self, expected: Array, got: Array) -> None:
        """Take in one batch of scores [..., classes]; [n, classes, height, width] for maps."""
        rows, twins = _rows(expected), _rows(got)
        kept = np.asarray(spread(len(rows), _ROWS_OF_BATCH), int)[:: self._every]
        if not len(kept):
            return
        if _is_sequence(expected):
            self._note_owners(rows, kept, _scores(expected).shape[1])
        rows, twins = rows[kept], twins[kept]
        self._is_finite &= bool(np.isfinite(twins).all())
        place = min(_COMPETING, rows.shape[1]) - 1
        best = np.argpartition(-rows, place, axis=1)[:, : place + 1]
        pair = np.stack([np.take_along_axis(scores, best, axis=1) for scores in (rows, twins)]).astype(np.float64)
        if are_probabilities(rows):
            pair = np.log(np.maximum(pair, _LEAST_PROBABILITY))
        self._pairs.append(pair)
        self._count += len(kept)
        if self._count > _MOST_ROWS:
            self._pairs = [np.concatenate(self._pairs, axis=1)[:, ::2]]
            self._owners = [np.concatenate(self._owners)[::2]] if self._owners else []
            self._count, self._every = self._pairs[0].shape[1], 2 * self._every

    def _note_owners(self, rows: Array, kept: Array, steps: int) -> None:
        """Samples of the kept of all rows [samples * steps, classes]."""
        moves = _moves_a_border(rows, kept, steps)
        self._owners.append(np.where(moves, _NO_SAMPLE, self._samples + kept // steps))
        self._samples += len(rows) // steps
        self._steps += len(rows)

    @property
    def changed_percent(self) -> float:
        """Expected share of other decisions."""
        return 100.0 * float(self._chances(evenly=True).mean()) if self._pairs else 0.0

    @property
    def changed_sequences_percent(self) -> float | None:
        """Expected share of samples with another sequence of decisions; None where a sample has one decision."""
        if not self._samples:
            return None
        owners, chances = np.concatenate(self._owners), self._chances(evenly=False)
        counted = owners != _NO_SAMPLE
        weights = chances[counted] * (self._steps / len(owners))
        expected = np.bincount(owners[counted], weights=weights, minlength=self._samples)
        return 100.0 * float(-np.expm1(-expected).mean())

    def _chances(self, *, evenly: bool) -> Array:
        """Chance of each row to be decided otherwise; with the smallest margins as they are, or spread ``evenly``."""
        rows, twins = _centered(np.concatenate(self._pairs, axis=1))
        power = float(np.square(rows).sum())
        gain = float((rows * twins).sum()) / power if power and self._is_finite else 0.0
        if gain <= 0.0:
            return np.ones(rows.shape[0])
        errors = twins - gain * rows
        noise = np.sqrt(2.0 * np.square(errors).sum(axis=1) / (rows.shape[1] - 1))
        winner, runner_up = np.moveaxis(np.argpartition(-rows, 1, axis=1)[:, :2], 1, 0)
        margins = gain * _between(rows, winner, runner_up)
        order, smallest = np.argsort(margins), min(len(margins), max(_FEWEST, round(_SMALLEST * len(margins))))
        if evenly:
            even = (np.arange(smallest) + 0.5) / smallest
            margins[order[:smallest]] = margins[order[smallest - 1]] * even
        wider = _between(errors, winner, runner_up)
        chances = np.zeros(len(margins))
        for part in (order[:smallest], order[smallest:]):
            chances[part] = _tails(margins[part], _excess(wider[part], noise[part]) * _typical(noise[part]))
        return chances


class LossEstimate:
    """What is lost in any output of a model.

    Args:
        classes: names of the outputs that hold class scores.
    """

    def __init__(self, classes: Collection[str]) -> None:
        self._classes = frozenset(classes)
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

    @property
    def figures(self) -> dict[str, float]:
        """Expected share of other decisions in percent, by output that decides something."""
        changed = {name: 100.0 * float(np.mean(shares)) for name, shares in self._integers.items()}
        return changed | {name: found.changed_percent for name, found in self._decisions.items()}

    @property
    def sequences(self) -> dict[str, float]:
        """Expected share of samples with another sequence of decisions in percent, by output that gives sequences."""
        found = {name: noise.changed_sequences_percent for name, noise in self._decisions.items()}
        return {name: percent for name, percent in found.items() if percent is not None}

    def words(self, lost_sqnr_db: float = LOST_SQNR_DB, lost_percent: float = LOST_DECISIONS_PERCENT) -> str | None:
        """What is lost in the worst output, with its figure; None if nothing is.

        Args:
            lost_sqnr_db: an output that decides nothing has lost something below it.
            lost_percent: others have where more decisions, or sequences of them, are expected to change.
        """
        changed, sequences = self.figures, self.sequences
        worst = changed | sequences
        if worst and max(worst.values()) > lost_percent:
            name = max(worst, key=worst.__getitem__)
            more = f", and in {sequences[name]:.1f} % of samples one or more" if name in sequences else ""
            return f"{changed[name]:.1f} % of decisions at output {name!r} are expected to change{more}"
        for name, found in self._distances.items():
            if found.is_undefined:
                return f"output {name!r} is not finite"
        figures = {name: found.sqnr_db for name, found in self._distances.items()}
        low = {name: db for name, db in figures.items() if db is not None and db < lost_sqnr_db}
        name = min(low, key=low.__getitem__, default="")
        return f"SQNR of output {name!r} is {low[name]:.1f} dB" if low else None


def _rows(output: Array) -> Array:
    """All of its scores, [rows, classes]."""
    scores = _scores(output)
    if scores.ndim > 3:
        scores = np.moveaxis(scores, 1, -1)
    rows: Array = scores.reshape(-1, scores.shape[-1])
    return rows


def _scores(output: Array) -> Array:
    scores = class_scores(output)
    if scores is None:
        raise ValueError("an output without classes")
    return scores


def _is_sequence(output: Array) -> bool:
    scores = _scores(output)
    return scores.ndim == 3 and scores.shape[1] > 1


def _moves_a_border(rows: Array, kept: Array, steps: int) -> Array:
    """Where the runner-up in the winner's place would leave the sequence as it is, repeats merged; bool [kept]."""
    winner, runner_up = np.moveaxis(np.argpartition(-rows[kept], 1, axis=1)[:, :2], 1, 0)
    step = kept % steps
    before = np.where(step > 0, rows[np.maximum(kept - 1, 0)].argmax(axis=1), -1)
    behind = np.where(step < steps - 1, rows[np.minimum(kept + 1, len(rows) - 1)].argmax(axis=1), -1)
    moves: Array = ((before == winner) & (runner_up == behind)) | ((behind == winner) & (runner_up == before))
    return moves


def _centered(rows: Array) -> Array:
    centered: Array = rows - rows.mean(axis=-1, keepdims=True)
    return centered


def _between(rows: Array, one: Array, other: Array) -> Array:
    """Difference of two columns of each row."""
    each = np.arange(len(rows))
    difference: Array = rows[each, one] - rows[each, other]
    return difference


def _excess(errors: Array, noise: Array) -> float:
    """How much wider errors of the difference that decides are than those of any two classes."""
    alive = noise > 0.0
    return float(np.sqrt(np.square(errors[alive] / noise[alive]).mean())) if alive.any() else 1.0


def _typical(noise: Array) -> Array:
    """A few of the noises, spread over all."""
    places = np.linspace(0, max(len(noise) - 1, 0), min(len(noise), _NOISES)).round().astype(int)
    found: Array = np.sort(noise)[places]
    return found


def _tails(margins: Array, noise: Array) -> Array:
    """Mean of Phi(-m / s) over the noises s [noises], for each margin m [margins]; of no noise it is 0."""
    alive = noise[noise > 0.0]
    if not len(alive):
        return np.zeros(len(margins))
    tails = 0.5 * np.asarray(_ERFC(margins[:, None] / (math.sqrt(2.0) * alive[None])), np.float64)
    mean: Array = tails.sum(axis=1) / len(noise)
    return mean
