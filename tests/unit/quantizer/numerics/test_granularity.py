"""What shares a scale, against one element after the other."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from worker.quantizer.numerics.granularity import PER_TENSOR, Granularity, PerAxis, PerBlock

SHAPES = [(7,), (3, 8), (4, 5, 6), (2, 9, 1, 3)]
CASES = [
    (shape, granularity)
    for shape in SHAPES
    for granularity in (
        PER_TENSOR,
        *(PerAxis(axis) for axis in range(-len(shape), len(shape))),
        *(PerBlock(axis, size) for axis in range(-len(shape), len(shape)) for size in (2, 3, 16)),
    )
]


def scale_of(index: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """Index of the scale of the element at ``index``."""
    if granularity == PER_TENSOR:
        return ()
    axis = granularity.axis % len(index)
    if isinstance(granularity, PerAxis):
        return (index[axis],)
    return tuple(k // granularity.size if dim == axis else k for dim, k in enumerate(index))


@pytest.mark.parametrize(("shape", "granularity"), CASES)
def test_every_element_meets_its_scale(shape: tuple[int, ...], granularity: Granularity) -> None:
    scales = np.arange(np.prod(granularity.scale_shape(shape), dtype=int)).reshape(granularity.scale_shape(shape))
    spread = np.broadcast_to(granularity.spread(scales, shape), shape)
    for index in np.ndindex(shape):
        assert spread[index] == scales[scale_of(index, granularity)]
    np.testing.assert_array_equal(granularity.gathered(spread), scales)


@pytest.mark.parametrize(("shape", "granularity"), CASES)
def test_rows_hold_what_shares_a_scale_in_the_order_of_the_scales(
    shape: tuple[int, ...], granularity: Granularity
) -> None:
    array = 1 + np.arange(np.prod(shape)).reshape(shape)
    shared = defaultdict(list)
    for index in np.ndindex(shape):
        shared[scale_of(index, granularity)].append(array[index])
    rows = granularity.rows(array)
    assert rows.shape[0] == len(shared)
    for row, key in zip(rows, np.ndindex(granularity.scale_shape(shape)), strict=True):
        assert sorted(row[row > 0]) == sorted(shared[key])


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_blocks_are_joined_again(axis: int) -> None:
    array = np.arange(4 * 5 * 6).reshape(4, 5, 6)
    granularity = PerBlock(axis, 4)
    np.testing.assert_array_equal(granularity.joined(granularity.blocks(array), array.shape), array)
