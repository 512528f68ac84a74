"""Labels: which channel every element of a tensor belongs to, as int64 arrays that broadcast to the tensor's shape.

Behind a convolution they are [1, C, 1, 1]: along an axis on which nothing changes an array is 1 long. Where every
channel of every tensor has a label of its own, operators that add or join channels tie labels together: what is tied
shares one factor; label 0 stands for channels whose factor is 1 and stays 1.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of

Length = int | ir.SymbolicDim
# Elements of a tensor without its batch up to which a Reshape is followed element by element.
_LARGEST_RESHAPE = 1 << 22
PINNED = 0


def varies_beside(labels: np.ndarray, axis: int) -> bool:
    """True if labels differ along another axis than ``axis``, which is not negative."""
    return any(size > 1 for k, size in enumerate(labels.shape) if k != axis)


def trimmed(labels: np.ndarray) -> np.ndarray:
    """Without leading axes of length 1."""
    while labels.ndim > 1 and labels.shape[0] == 1:
        labels = labels[0]
    return labels


def lifted(labels: np.ndarray, rank: int) -> np.ndarray:
    """With as many leading axes of length 1 as ``rank`` axes take."""
    short = trimmed(labels)
    return short.reshape([1] * (rank - short.ndim) + (list(short.shape) if rank else []))


def compact(labels: np.ndarray) -> np.ndarray:
    """With length 1 along every axis on which nothing changes."""
    for axis, length in enumerate(labels.shape):
        first = labels.take([0], axis) if length > 1 else labels
        if (labels == first).all():
            labels = first
    return labels


def fits(labels: np.ndarray, value: ir.Value) -> bool:
    """Whether the value has an element of its own for every label."""
    rank = rank_of(value)
    if rank is None or value.shape is None or labels.ndim > rank:
        return False
    lengths = list(value.shape)[rank - labels.ndim :]
    return all(wanted in (1, length) for wanted, length in zip(labels.shape, lengths, strict=True))


def reshaped(labels: np.ndarray, value: ir.Value, other: ir.Value) -> np.ndarray | None:
    """The labels of ``value`` as they lie in ``other``, which holds the same elements in the same order.

    Of both shapes the shortest tails of the same number of elements are compared, so that leading axes may be unknown;
    last axes of the same length, which may be a name, stay as they are.
    """
    if value.shape is None or other.shape is None:
        return None
    before, after = list(value.shape), list(other.shape)
    if labels.size == 1:
        return lifted(labels, len(after))
    same = 0
    while same < min(len(before), len(after)) and _is_same(before[-1 - same], after[-1 - same]):
        same += 1
    whole = lifted(labels, len(before))
    stays = whole.shape[len(before) - same :]
    count = math.prod(stays)
    moved = _rearranged(
        whole.reshape(*whole.shape[: len(before) - same], count),
        [*before[: len(before) - same], count],
        [*after[: len(after) - same], count],
    )
    if moved is None:
        return None
    spread = np.broadcast_to(moved, [*moved.shape[:-1], count])
    return compact(spread.reshape(*moved.shape[:-1], *stays))


def _is_same(one: Length, other: Length) -> bool:
    """True if both are one number, or have one name."""
    if isinstance(one, int) or isinstance(other, int):
        return one == other
    return one.value is not None and one.value == other.value


def _rearranged(labels: np.ndarray, before: list[Length], after: list[Length]) -> np.ndarray | None:
    """The same by shapes; labels of the rank of ``after``."""
    short = trimmed(labels)
    for kept in range(short.ndim, len(before) + 1):
        tail = [length for length in before[len(before) - kept :] if isinstance(length, int)]
        if len(tail) < kept or math.prod(tail) > _LARGEST_RESHAPE:
            return None
        lengths = _tail_of(after, math.prod(tail))
        if lengths is not None:
            return lifted(compact(np.broadcast_to(lifted(short, kept), tail).reshape(lengths)), len(after))
    return None


def _tail_of(shape: list[Length], elements: int) -> list[int] | None:
    """The last axes of ``shape`` that hold ``elements`` elements."""
    lengths: list[int] = []
    found = 1
    for length in reversed(shape):
        if found == elements and lengths:
            break
        if not isinstance(length, int):
            return None
        lengths.insert(0, length)
        found *= length
    return lengths if found == elements and lengths else None


class TiedLabels:
    """Labels of a graph, and what ties them together."""

    def __init__(self) -> None:
        self._count = 1
        self._pairs: list[tuple[np.ndarray, np.ndarray]] = []

    def fresh(self, count: int) -> np.ndarray:
        """``count`` new labels, int64 [count]."""
        made = np.arange(self._count, self._count + count, dtype=np.int64)
        self._count += count
        return made

    def tie(self, one: np.ndarray, other: np.ndarray) -> None:
        """Tie labels pairwise; the arrays broadcast."""
        first, second = np.broadcast_arrays(one, other)
        differ = first != second
        self._pairs.append((first[differ], second[differ]))

    def pin(self, labels: np.ndarray) -> None:
        """Fix the factor of these labels at 1."""
        self.tie(np.unique(labels), np.asarray(PINNED))

    def resolve(self) -> np.ndarray:
        """The group of every label, int64 [labels]: numbered from 0, group 0 is pinned."""
        ones = [one for one, _ in self._pairs]
        others = [other for _, other in self._pairs]
        labels = components(self._count, np.concatenate([*ones, []]), np.concatenate([*others, []]))
        return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def components(count: int, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The smallest member of each member's connected component, int64 [count].

    Members are 0 .. count - 1; ``one`` and ``other`` are the ends of the edges, any integral values.
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
