"""Two quantized models on the same samples: which samples changed sides, and what that says of the two."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from service.comparison.samples import Decisions
from service.contracts.shares import Pairs, mcnemar, paired_interval

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Pairing:
    """The second model against the first on the same samples.

    Attributes:
        labeled: whether right means as the label, or as the float model decides.
        counts: samples right in the first alone (lost), right in the second alone (won), and all.
        drop_percent: what the first's share of right samples is above the second's, in percent of all samples.
        interval_percent: of ``drop_percent``, by Tango's score interval of paired shares.
        p_value: chance of sides as unequal as these if neither model were better, by McNemar's exact test.
        first: what the first model decides.
        second: what the second one does.
        flipped: numbers of the samples that one alone gets right, int64 [flip], rising.
    """

    labeled: bool
    counts: Pairs
    drop_percent: float
    interval_percent: tuple[float, float]
    p_value: float
    first: Decisions
    second: Decisions
    flipped: npt.NDArray[np.int64]

    @property
    def significant(self) -> bool:
        """True if chance alone makes a difference as large in one pair of twenty or fewer."""
        return self.p_value <= 1.0 - CONFIDENCE

    def significantly_worse(self, alpha: float = 1.0 - CONFIDENCE) -> bool:
        """True if the second model is worse, and chance alone makes such a difference with ``alpha`` or less."""
        return self.drop_percent > 0 and self.p_value <= alpha


def paired(first: Decisions, second: Decisions) -> Pairing | None:
    """Compare two models; None where they were not asked about the same samples."""
    if first.labeled != second.labeled or len(first.expected) == 0:
        return None
    if not np.array_equal(first.expected, second.expected):
        return None
    before, after = first.right, second.right
    pairs = Pairs(int((before & ~after).sum()), int((~before & after).sum()), len(before))
    low, high = paired_interval(pairs, CONFIDENCE)
    return Pairing(
        labeled=first.labeled,
        counts=pairs,
        drop_percent=100.0 * (pairs.lost - pairs.won) / pairs.samples,
        interval_percent=(100.0 * low, 100.0 * high),
        p_value=mcnemar(pairs.lost, pairs.won),
        first=first,
        second=second,
        flipped=np.flatnonzero(before != after),
    )
