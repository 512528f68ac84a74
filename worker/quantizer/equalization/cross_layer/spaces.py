"""Channels that can only be scaled together.

Every channel of every tensor is a variable; operators that add, join or pass on channels tie variables together. What
is tied shares one scale; variable 0 stands for channels whose scale is 1 and stays 1.
"""

from __future__ import annotations

import numpy as np

PINNED = 0


class Spaces:
    """Variables and what ties them together."""

    def __init__(self) -> None:
        self._count = 1
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def fresh(self, count: int) -> np.ndarray:
        """``count`` new variables, int64 [count]."""
        made = np.arange(self._count, self._count + count, dtype=np.int64)
        self._count += count
        return made

    def tie(self, one: np.ndarray, other: np.ndarray) -> None:
        """Tie variables pairwise; the arrays broadcast."""
        first, second = np.broadcast_arrays(one, other)
        differ = first != second
        self._pairs.append((first[differ], second[differ]))

    def pin(self, variables: np.ndarray) -> None:
        """Fix the scale of these variables at 1."""
        self.tie(np.unique(variables), np.asarray(PINNED))

    def resolve(self) -> np.ndarray:
        """The group of every variable, int64 [variables]: numbered from 0, group 0 is pinned."""
        ones = [one for one, _ in self._pairs]
        others = [other for _, other in self._pairs]
        labels = components(self._count, np.concatenate([*ones, []]), np.concatenate([*others, []]))
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def components(count: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The smallest member of each member's connected component, int64 [count].

    Args:
        count: members are 0 .. count - 1.
        one: first ends of the edges, any integral values.
        other: second ends.
    """
    one, other = one.astype(np.int64), other.astype(np.int64)
    labels = np.arange(count, dtype=np.int64)
    while True:
        before = labels.copy()
        lowest = np.minimum(labels[one], labels[other])
        # hooking the roots, not the members, halves the depth of every tree in each round
        np.minimum.at(labels, labels[one], lowest)
        np.minimum.at(labels, labels[other], lowest)
        labels = labels[labels]
        labels = labels[labels]
        if np.array_equal(labels, before):
            return labels
