"""Whether two models differ in a metric by more than chance, for those who judge drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from service.contracts.distributions import mcnemar
from worker.quantizer.evaluation.certainty.contributions import Contributions, DenseSums, Hits, quotients
from worker.quantizer.evaluation.certainty.resampling import Spread, spread_of

# A difference that chance makes of two equal models less often than this is none of chance.
_CHANCE = 0.05


@dataclass(frozen=True)
class PairedFacts:
    """What it takes to compare a model's value of a metric with another model's.

    Attributes:
        right: of a share of samples: "1" for each that is right, "0" for the others; None: it is another metric.
        value: of any other metric, over all samples.
        without: the same with one group of samples left out at a time.
        samples: how many there are.
    """

    right: str | None
    value: float = 0.0
    without: tuple[float, ...] = ()
    samples: int = 0


class Evidence:
    """What a model's value of a metric rests on. Nothing is computed before it is compared, or kept as a document.

    Args:
        facts: if they are known already.
        found: what each sample adds to the metric, else; not to be changed any more.
    """

    def __init__(self, facts: PairedFacts | None = None, *, found: Contributions | None = None) -> None:
        self._facts, self._found = facts, found

    @staticmethod
    def of(found: Contributions | None) -> Evidence | None:
        """From what each sample adds to the metric; None if it does not tell."""
        return None if found is None else Evidence(found=found)

    @staticmethod
    def of_means(values: Sequence[float]) -> Evidence:
        """Of a mean of values, each on samples of its own."""
        sums = DenseSums(lambda found: quotients(found[:, 0], found[:, 1]))
        sums.add(np.stack([np.array(values, np.float64), np.ones(len(values))], axis=1), samples=len(values))
        return Evidence(found=sums)

    @staticmethod
    def from_document(document: Mapping[str, Any] | None) -> Evidence | None:
        """The inverse of ``document_of``, after a way through JSON."""
        return (
            None if document is None else Evidence(PairedFacts(**{**document, "without": tuple(document["without"])}))
        )

    @property
    def facts(self) -> PairedFacts | None:
        """Found out at the first time; None if nobody can tell, as from fewer than three samples."""
        if self._found is not None:
            self._facts, self._found = _facts_of(self._found), None
        return self._facts


def document_of(evidence: Evidence | None) -> dict[str, Any] | None:
    """The facts for a checkpoint; None if there are none."""
    facts = None if evidence is None else evidence.facts
    return None if facts is None else asdict(facts)


def surely_differ(one: Evidence | None, other: Evidence | None) -> bool:
    """True if two models differ by more than chance would make of two equal ones, measured on the same samples.

    Of a share of samples McNemar's test says so, of other metrics Student's t over samples left out in turn, both
    two-sided at 5 %.
    """
    mine, its = None if one is None else one.facts, None if other is None else other.facts
    if mine is None or its is None or (mine.right is None) != (its.right is None):
        return False
    if mine.right is not None and its.right is not None:
        if len(mine.right) != len(its.right):
            return False
        pairs = list(zip(mine.right, its.right, strict=True))
        return mcnemar(pairs.count(("1", "0")), pairs.count(("0", "1"))) < _CHANCE
    if len(mine.without) != len(its.without):
        return False
    p_value = (_spread(mine) - _spread(its)).p_value
    return p_value is not None and p_value < _CHANCE


def _facts_of(found: Contributions) -> PairedFacts | None:
    if isinstance(found, Hits) and found.of_samples:
        return PairedFacts("".join("1" if hit else "0" for hit in found.right.tolist()))
    spread = spread_of(found, draw=False)
    return None if spread is None else PairedFacts(None, spread.value, tuple(spread.without.tolist()), spread.samples)


def _spread(facts: PairedFacts) -> Spread:
    return Spread(facts.value, np.array(facts.without), None, facts.samples)
