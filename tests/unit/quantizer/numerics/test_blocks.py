"""Block formats against exact fractions and a search through every value of a block's grid."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from itertools import pairwise
from typing import get_args

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.contracts.dtypes import BLOCK_DTYPES, ActivationDtype, WeightDtype
from tests.unit.quantizer.toolbox import normal, rng
from worker.quantizer.numerics.blocks import BLOCK_FORMATS, BlockFormat

F = Fraction
# name: block size, largest exponent of an element, lowest shared exponent, all magnitudes in the order of the codes
INTEGER = {"bfp16": (8, 127, 6, -127), "mx4": (16, 3, 1, -126), "mx6": (16, 15, 3, -126), "mx9": (16, 127, 6, -126)}
SPEC: dict[str, tuple[int, int, int, list[Fraction]]] = {
    name: (size, 0, lowest, [F(k, 2**bits) for k in range(limit + 1)])
    for name, (size, limit, bits, lowest) in INTEGER.items()
}
SPEC["mxint8"] = (32, 0, -127, [F(k, 64) for k in range(128)])
for spec_name, exponent_bits, mantissa_bits, bias, largest in (
    ("mxfp8_e4m3", 4, 3, 7, 448),
    ("mxfp8_e5m2", 5, 2, 15, 57344),
    ("mxfp6_e3m2", 3, 2, 3, 28),
    ("mxfp6_e2m3", 2, 3, 1, F(15, 2)),
    ("mxfp4_e2m1", 2, 1, 1, 6),
):
    grid = [
        (F(k % 2**mantissa_bits, 2**mantissa_bits) + (k >= 2**mantissa_bits))
        * F(2) ** (max(k >> mantissa_bits, 1) - bias)
        for k in range(2 ** (exponent_bits + mantissa_bits))
    ]
    top = {448: 8, 57344: 15, 28: 4, F(15, 2): 2, 6: 2}[largest]
    SPEC[spec_name] = (32, top, -127, [value for value in grid if value <= largest])
PAIRS = ("mx4", "mx6", "mx9")

by_format = pytest.mark.parametrize("block", BLOCK_FORMATS.values(), ids=list(BLOCK_FORMATS))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual = st.floats(-100, 100, width=32)
shapes = st.sampled_from([(1,), (7,), (37,), (70,), (3, 18), (35, 2), (2, 9, 3), (2, 33, 1)])
tensors = shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=st.one_of(usual, finite)))


def exponent_of(value: Fraction) -> int:
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if F(2) ** found <= value else found - 1


def reference_block(name: str, values: list[float]) -> list[Fraction]:
    """One block, one value after the other."""
    _, emax, lowest, magnitudes = SPEC[name]
    exact = [F(value) for value in values]
    peak = max(abs(value) for value in exact)
    if not peak:
        return [F(0)] * len(exact)
    shared = max(exponent_of(peak) - emax, lowest)
    represented = []
    for k, value in enumerate(exact):
        scale = F(2) ** shared
        if name in PAIRS:
            pair = exact[k - k % 2 : k - k % 2 + 2]
            scale /= 2 if max(abs(each) for each in pair) < scale else 1
        allowed = [*magnitudes, F(2)] if name == "mxint8" and value < 0 else magnitudes
        ratio = abs(value) / scale
        above = min(bisect_left(allowed, ratio), len(allowed) - 1)
        below = max(above - 1, 0)
        left, right = abs(ratio - allowed[below]), abs(allowed[above] - ratio)
        code = below if left < right or (left == right and below % 2 == 0) else above
        represented.append(allowed[code] * scale * (1 if value >= 0 else -1))
    return represented


def reference(name: str, values: np.ndarray, axis: int) -> np.ndarray:
    size = SPEC[name][0]
    lines = np.moveaxis(values, axis, -1)
    result = np.empty(lines.shape, np.float32)
    for position in np.ndindex(lines.shape[:-1]):
        line = [float(value) for value in lines[position]]
        found = [
            each for start in range(0, len(line), size) for each in reference_block(name, line[start : start + size])
        ]
        with np.errstate(over="ignore"):
            result[position] = np.array([float(value) for value in found]).astype(np.float32)
    return np.moveaxis(result, -1, axis)


def restored(block: BlockFormat, elements: np.ndarray, scales: np.ndarray, axis: int) -> np.ndarray:
    spread = np.repeat(scales, block.scale_block_size, axis=axis).take(range(elements.shape[axis]), axis=axis)
    with np.errstate(over="ignore"):
        return elements.astype(np.float32) * spread


def test_the_formats_are_those_of_the_contract() -> None:
    assert tuple(BLOCK_FORMATS) == BLOCK_DTYPES
    assert set(BLOCK_FORMATS) <= set(get_args(ActivationDtype)) & set(get_args(WeightDtype))
    assert all(name == block.name for name, block in BLOCK_FORMATS.items())


@by_format
@given(values=tensors, axis=st.integers(-3, 2))
def test_fake_is_the_scalar_reference(block: BlockFormat, values: np.ndarray, axis: int) -> None:
    axis = axis % values.ndim
    represented = block.fake(values, axis)
    assert represented.dtype == np.float32
    np.testing.assert_array_equal(represented, reference(block.name, values, axis))


@by_format
def test_fake_is_the_scalar_reference_where_values_lie_within_a_few_binades(block: BlockFormat) -> None:
    values = normal(6, 70, seed=3) * np.exp2(rng(4).integers(-9, 9, (6, 70))).astype(np.float32)
    np.testing.assert_array_equal(block.fake(values, 1), reference(block.name, values, 1))


@by_format
def test_every_element_code_comes_back_and_every_midpoint_goes_to_the_even_code(block: BlockFormat) -> None:
    """Each value and midpoint stands in a block whose largest element pins the exponent."""
    size, _, _, magnitudes = SPEC[block.name]
    codes = [float(value) for value in magnitudes]
    middles = [(low + high) / 2 for low, high in pairwise(codes)]
    even = [low if k % 2 == 0 else high for k, (low, high) in enumerate(pairwise(codes))]
    for sign in (1, -1):
        rows = np.zeros((len(codes) + len(middles), size), np.float32)
        rows[:, 0] = codes[-1]
        rows[:, 1] = np.array([*codes, *middles]) * sign
        expected = np.array([*codes, *even], np.float32) * sign
        np.testing.assert_array_equal(block.fake(rows, 1)[:, 1], expected)
        assert (block.fake(rows, 1)[:, 0] == codes[-1]).all()


@by_format
@given(values=tensors, axis=st.integers(-3, 2))
def test_elements_times_scales_is_fake(block: BlockFormat, values: np.ndarray, axis: int) -> None:
    axis = axis % values.ndim
    elements, scales = block.decompose(values, axis)
    np.testing.assert_array_equal(restored(block, elements, scales, axis), block.fake(values, axis))
    assert elements.dtype == block.storage
    assert elements.shape == values.shape
    assert scales.dtype == np.float32
    length = -(-values.shape[axis] // block.scale_block_size)
    assert scales.shape == (*values.shape[:axis], length, *values.shape[axis + 1 :])
    assert (np.frexp(scales)[0] == 0.5).all()
    np.testing.assert_array_equal(scales.astype(ml_dtypes.bfloat16).astype(np.float32), scales)


@by_format
@given(values=tensors, axis=st.integers(-3, 2))
def test_idempotence_and_sign_symmetry(block: BlockFormat, values: np.ndarray, axis: int) -> None:
    axis = axis % values.ndim
    represented = block.fake(values, axis)
    elements, _ = block.decompose(values, axis)
    opposite, _ = block.decompose(-values, axis)
    if block.name == "mxint8" and min(elements.min(), opposite.min()) == -128:
        return  # -2 has no positive twin, and raises the exponent of what it is in
    np.testing.assert_array_equal(block.fake(-values, axis), -represented)
    np.testing.assert_array_equal(block.fake(represented, axis), represented)


@by_format
@given(values=tensors)
def test_the_error_is_at_most_half_a_step_of_the_largest_value_or_saturation(
    block: BlockFormat, values: np.ndarray
) -> None:
    values = values.reshape(-1)
    _, emax, lowest, magnitudes = SPEC[block.name]
    coarsest, largest = float(magnitudes[-1] - magnitudes[-2]), float(magnitudes[-1])
    for start in range(0, len(values), block.block_size):
        part = values[start : start + block.block_size].astype(np.float64)
        peak = np.abs(part).max()
        if peak == 0:
            continue
        scale = 2.0 ** max(exponent_of(F(float(peak))) - emax, lowest)
        error = np.abs(block.fake(part.astype(np.float32), 0).astype(np.float64) - part)
        if np.isfinite(error).all():  # MXINT8's -2^128 is not
            assert error.max() <= max(coarsest * scale / 2, peak - largest * scale)


@by_format
def test_blocks_run_along_the_axis_and_the_last_is_padded_with_zeros(block: BlockFormat) -> None:
    values = normal(3, 2 * block.block_size + 3, 5, seed=1)
    middle = block.fake(values, 1)
    np.testing.assert_array_equal(block.fake(values, -2), middle)
    np.testing.assert_array_equal(block.fake(np.moveaxis(values, 1, 0), 0), np.moveaxis(middle, 1, 0))
    np.testing.assert_array_equal(block.fake(np.moveaxis(values, 1, 2), -1), np.moveaxis(middle, 1, 2))
    padded = np.pad(values, ((0, 0), (0, block.block_size - 3), (0, 0)))
    np.testing.assert_array_equal(block.fake(padded, 1)[:, : values.shape[1]], middle)


@by_format
def test_zeros_and_nothing_at_all(block: BlockFormat) -> None:
    assert not block.fake(np.zeros((3, 40), np.float32), 1).any()
    elements, scales = block.decompose(np.zeros((3, 40), np.float32), 1)
    assert not elements.astype(np.float32).any()
    assert ((scales > 0) & (scales <= 1)).all()
    assert block.fake(np.zeros((0, 40), np.float32), 1).shape == (0, 40)
    assert block.fake(np.zeros((3, 0), np.float32), 1).shape == (3, 0)


@by_format
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_refused(block: BlockFormat, bad: float) -> None:
    values = normal(4, 40)
    values[2, 7] = bad
    for work in (block.fake, block.decompose):
        with pytest.raises(ValueError, match="infinity or NaN"):
            work(values, 1)


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        # exponent 5; steps 4, and 2 for the pair that stays below 32; 30 / 4 is a tie
        ("mx6", [10, 20, 30, 40], [10, 20, 32, 40]),
        ("mx9", [10, 20, 30, 40], [10, 20, 30, 40]),
        # exponent 5; steps 16 and 8: 10 -> 8, 20 / 8 is a tie -> 16; 30 -> 32, 40 / 16 is a tie -> 32
        ("mx4", [10, 20, 30, 40], [8, 16, 32, 32]),
        # 1.99 rounds to 2, which 7 bits do not hold
        ("bfp16", [1.999, 1 / 128, -3 / 128, 0.5], [127 / 64, 0, -2 / 64, 0.5]),
        ("mxint8", [-1.999, 1.999, 0.1, 0], [-2, 127 / 64, 6 / 64, 0]),
        # scale 2^(3 - 2): 15 saturates at 6 * 2; 2.5 and 3.5 on the grid of steps 1
        ("mxfp4_e2m1", [15, 2.5, 3.5, -9], [12, 2, 4, -8]),
    ],
)
def test_worked_examples(name: str, values: list[float], expected: list[float]) -> None:
    assert BLOCK_FORMATS[name].fake(np.array(values, np.float32), 0).tolist() == expected


def test_the_lowest_mxint8_is_beyond_float32_at_the_largest_exponent() -> None:
    biggest = np.finfo(np.float32).max
    found = BLOCK_FORMATS["mxint8"].fake(np.array([-biggest, biggest], np.float32), 0)
    assert found.tolist() == [-np.inf, 127 * 2.0**121]
