"""Is a float model better than guessing? From its decisions, against what independent ones would hit.

Decisions that do not depend on the samples hit a label as often as they would one of permuted labels: with d_i the set
of the k classes decided for sample i and f_c the share of class c among the labels, the expected share of hits is
mean_i sum_{c in d_i} f_c. For k = 1 that is the chance agreement of Cohen's kappa (1960). It takes classes of unequal
size into account: a model that always names the most frequent class is no better than guessing, whatever its accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array

# Chance of an alarm about a model that guesses nothing, and of silence about one that does.
SIGNIFICANCE = 0.01
# A useful model gets at least this share of what guessing leaves over.
_USEFUL = 0.5
# Where even this share is ruled out there is no need to look at more samples.
_WEAK = 0.1
_FEWEST = 10

AT_CHANCE = declare(
    "float-metric-at-chance",
    "critical",
    "{metric} of the float model is {value:.2f} % on {samples} samples; decisions that know nothing of them reach "
    "{chance:.2f} %",
    hint="The quantized model can only be compared with a float model that works on this data: check preprocessing, "
    "labels and the order of the classes. No statement about accuracy is made.",
    undermines_verdict=True,
)
NO_SKILL = declare(
    "float-metric-without-skill",
    "critical",
    "{metric} of the float model is {value:g} on {samples} samples; {chance:g} takes no model at all",
    hint="Check preprocessing, targets and the metric's output: the float model has to work on this data first. No "
    "statement about accuracy is made.",
    undermines_verdict=True,
)
LABELS_SHIFTED = declare(
    "labels-shifted",
    "critical",
    "the float model is right on {value:.2f} % of {samples} samples with the labels as they are, and on "
    "{shifted:.2f} % with {step:+d} added to each",
    hint="Class numbers start at 0, in the order of the model's outputs: store the labels with {step:+d} added.",
    undermines_verdict=True,
)


@dataclass(frozen=True)
class Hits:
    """Decisions beside labels.

    Attributes:
        count: samples.
        hits: of them right.
        expected: share of hits that independent decisions would have.
    """

    count: int
    hits: int
    expected: float

    @property
    def percent(self) -> float:
        """Share of hits."""
        return 100.0 * self.hits / self.count

    @property
    def shows_skill(self) -> bool:
        """True if guessing hardly hits so often."""
        return tail_at_least(self.hits, self.count, self.expected) < SIGNIFICANCE

    @property
    def is_chance(self) -> bool:
        """True if the hits do not exceed guessing, and there are enough samples that a useful model's would."""
        return self.count >= _FEWEST and not self.shows_skill and self._excludes(_USEFUL)

    @property
    def is_clear(self) -> bool:
        """True if more samples would hardly change the answer."""
        return self.shows_skill or (self.is_chance and self._excludes(_WEAK))

    def _excludes(self, skill: float) -> bool:
        """True if a model that gets this share of what guessing leaves over would hardly hit so seldom."""
        return tail_at_most(self.hits, self.count, self.expected + skill * (1.0 - self.expected)) < SIGNIFICANCE


def hits_of(decided: Array, labels: Array) -> Hits:
    """Count hits, and those to expect of independent decisions.

    Args:
        decided: the k best classes of each sample, int64 [samples, k].
        labels: class numbers int64 [samples]; of one class alone every share is known, and 1 / classes is expected.
    """
    found, counts = np.unique(labels, return_counts=True)
    place = np.minimum(np.searchsorted(found, decided), len(found) - 1)
    known = np.where(found[place] == decided, counts[place] / len(labels), 0.0)
    hit = (decided == labels[:, None]).any(axis=1)
    return Hits(len(labels), int(hit.sum()), min(1.0, float(known.sum(axis=1).mean())))


def best_classes(scores: Array, rank: int) -> Array:
    """The ``rank`` classes of the highest scores, ties to the smaller number: int64 [rows, rank]; -1 for NaN."""
    order = np.argsort(-scores, axis=1, kind="stable")[:, :rank]
    order[np.isnan(scores).any(axis=1)] = -1
    return order.astype(np.int64)


def guessed_share(labels: Array, classes: int | None, rank: int) -> float:
    """Share of hits of naming always the ``rank`` most frequent classes; at least that of naming any."""
    shares = np.sort(np.unique(labels, return_counts=True)[1] / len(labels))[::-1]
    evenly = 0.0 if classes is None else min(1.0, rank / classes)
    return max(evenly, min(1.0, float(shares[:rank].sum())))


def tail_at_least(hits: int, count: int, share: float) -> float:
    """P(X >= hits) of X ~ Binomial(count, share)."""
    if hits <= 0:
        return 1.0
    return _sum(range(hits, count + 1), count, share)


def tail_at_most(hits: int, count: int, share: float) -> float:
    """P(X <= hits) of X ~ Binomial(count, share)."""
    return 1.0 if hits >= count else _sum(range(hits + 1), count, share)


def _sum(values: Sequence[int], count: int, share: float) -> float:
    if share <= 0.0 or share >= 1.0:
        return 1.0 if (0 if share <= 0.0 else count) in values else 0.0
    yes, no = math.log(share), math.log1p(-share)
    whole = math.lgamma(count + 1)
    terms = (
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(count - k + 1) + k * yes + (count - k) * no) for k in values
    )
    return min(1.0, math.fsum(terms))
