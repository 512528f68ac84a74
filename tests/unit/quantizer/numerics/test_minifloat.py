"""Small floats and block formats against exact fractions, ml_dtypes, and a search through a block's whole grid."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from fractions import Fraction
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.unit.quantizer.toolbox import normal
from worker.quantizer.numerics.blocks import (
    BFLOAT16,
    BLOCK_FORMATS,
    FLOAT4_E2M1,
    FLOAT6_E2M3,
    FLOAT6_E3M2,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    BlockFormat,
    Minifloat,
    floor_log2,
)

SMALL = [FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT6_E3M2, FLOAT6_E2M3, FLOAT4_E2M1]
ALL = [FLOAT16, BFLOAT16, *SMALL]
any_float = st.floats(width=32, allow_nan=False)
float_arrays = hnp.arrays(np.float32, 24, elements=any_float)
by_name = pytest.mark.parametrize("element", ALL, ids=lambda element: element.name)


@cache
def magnitudes(element: Minifloat) -> list[Fraction]:
    found = []
    for code in range(1 << (element.exponent_bits + element.mantissa_bits)):
        field, fraction = code >> element.mantissa_bits, code & ((1 << element.mantissa_bits) - 1)
        significand = Fraction(fraction, 1 << element.mantissa_bits) + (1 if field else 0)
        found.append(significand * Fraction(2) ** (max(field, 1) - element.bias))
    return [value for value in found if value <= element.maximum]


def codes(element: Minifloat) -> np.ndarray:
    bits = element.exponent_bits + element.mantissa_bits + 1
    unsigned = np.uint16 if bits == 16 else np.uint8
    return np.arange(1 << bits).astype(unsigned).view(element.storage)


@by_name
def test_every_value_of_the_format_is_its_own_nearest(element: Minifloat) -> None:
    stored = codes(element)
    values = stored.astype(np.float32)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(element.fake(values[finite]), values[finite])
    again = element.encode(values[finite])
    assert again.dtype == element.storage
    assert again.tobytes() == stored[finite].tobytes()
    assert values[finite].max() == element.maximum
    if element in SMALL:
        assert sorted({abs(float(value)) for value in values[finite]}) == [float(v) for v in magnitudes(element)]


@by_name
def test_midpoints_go_to_the_even_mantissa_and_their_neighbours_to_the_nearer_value(element: Minifloat) -> None:
    values = codes(element).astype(np.float32)
    values = np.unique(values[np.isfinite(values)]).astype(np.float64)
    low, high = values[:-1], values[1:]
    middle = ((low + high) / 2).astype(np.float32)
    assert (middle.astype(np.float64) == (low + high) / 2).all()
    odd_low = element.encode(low.astype(np.float32)).view(np.uint16 if element.storage.itemsize == 2 else np.uint8) & 1
    np.testing.assert_array_equal(element.fake(middle), np.where(odd_low == 1, high, low).astype(np.float32))
    np.testing.assert_array_equal(element.fake(np.nextafter(middle, np.float32(-np.inf))), low.astype(np.float32))
    np.testing.assert_array_equal(element.fake(np.nextafter(middle, np.float32(np.inf))), high.astype(np.float32))


@by_name
@given(values=float_arrays, shares=hnp.arrays(np.float32, 24, elements=st.floats(-1, 1, width=32)))
def test_rounding_is_ml_dtypes_and_numpys(element: Minifloat, values: np.ndarray, shares: np.ndarray) -> None:
    limit = np.float32(element.maximum)
    for chosen in (values, shares * limit):
        expected = np.clip(chosen, -limit, limit).astype(element.storage).astype(np.float32)
        np.testing.assert_array_equal(element.fake(chosen), expected)


@by_name
def test_infinity_nan_and_signs(element: Minifloat) -> None:
    odd = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, -1e-44], np.float32)
    found = element.fake(odd)
    np.testing.assert_array_equal(found[:3], np.array([element.maximum, -element.maximum, np.nan], np.float32))
    np.testing.assert_array_equal(np.signbit(found[3:]), np.signbit(odd[3:]))


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floor_log2_is_exact(value: float) -> None:
    found = int(floor_log2(np.float32(value)))
    if value == 0:
        assert found == -150
    else:
        assert Fraction(2) ** found <= abs(Fraction(value)) < Fraction(2) ** (found + 1)


# name: block size, largest exponent of an element, lowest shared exponent, all magnitudes in the order of the codes
INTEGER = {"bfp16": (8, 127, 6, -127), "mx4": (16, 3, 1, -126), "mx6": (16, 15, 3, -126), "mx9": (16, 127, 6, -126)}
SPEC: dict[str, tuple[int, int, int, list[Fraction]]] = {
    name: (size, 0, lowest, [Fraction(k, 2**bits) for k in range(limit + 1)])
    for name, (size, limit, bits, lowest) in INTEGER.items()
}
SPEC["mxint8"] = (32, 0, -127, [Fraction(k, 64) for k in range(128)])
for spec_name, exponent_bits, mantissa_bits, bias, largest in (
    ("mxfp8_e4m3", 4, 3, 7, 448),
    ("mxfp8_e5m2", 5, 2, 15, 57344),
    ("mxfp6_e3m2", 3, 2, 3, 28),
    ("mxfp6_e2m3", 2, 3, 1, Fraction(15, 2)),
    ("mxfp4_e2m1", 2, 1, 1, 6),
):
    grid = [
        (Fraction(k % 2**mantissa_bits, 2**mantissa_bits) + (k >= 2**mantissa_bits))
        * Fraction(2) ** (max(k >> mantissa_bits, 1) - bias)
        for k in range(2 ** (exponent_bits + mantissa_bits))
    ]
    top = {448: 8, 57344: 15, 28: 4, Fraction(15, 2): 2, 6: 2}[largest]
    SPEC[spec_name] = (32, top, -127, [value for value in grid if value <= largest])
PAIRS = ("mx4", "mx6", "mx9")

by_format = pytest.mark.parametrize("block", BLOCK_FORMATS.values(), ids=list(BLOCK_FORMATS))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual = st.floats(-100, 100, width=32)
shapes = st.sampled_from([(1,), (7,), (37,), (70,), (3, 18), (35, 2), (2, 9, 3), (2, 33, 1)])
tensors = shapes.flatmap(lambda shape: hnp.arrays(np.float32, shape, elements=st.one_of(usual, finite)))


def exponent_of(value: Fraction) -> int:
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if Fraction(2) ** found <= value else found - 1


def reference_block(name: str, values: list[float]) -> list[Fraction]:
    _, emax, lowest, magnitudes = SPEC[name]
    exact = [Fraction(value) for value in values]
    peak = max(abs(value) for value in exact)
    if not peak:
        return [Fraction(0)] * len(exact)
    shared = max(exponent_of(peak) - emax, lowest)
    represented = []
    for k, value in enumerate(exact):
        scale = Fraction(2) ** shared
        if name in PAIRS:
            pair = exact[k - k % 2 : k - k % 2 + 2]
            scale /= 2 if max(abs(each) for each in pair) < scale else 1
        allowed = [*magnitudes, Fraction(2)] if name == "mxint8" and value < 0 else magnitudes
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


@by_format
@given(values=tensors, axis=st.integers(-3, 2))
def test_fake_is_the_scalar_reference(block: BlockFormat, values: np.ndarray, axis: int) -> None:
    axis = axis % values.ndim
    represented = block.fake(values, axis)
    assert represented.dtype == np.float32
    np.testing.assert_array_equal(represented, reference(block.name, values, axis))


@by_format
def test_every_element_code_comes_back_and_every_midpoint_goes_to_the_even_code(block: BlockFormat) -> None:
    size, _, _, magnitudes = SPEC[block.name]
    codes = [float(value) for value in magnitudes]
    middles = [(low + high) / 2 for low, high in itertools.pairwise(codes)]
    even = [low if k % 2 == 0 else high for k, (low, high) in enumerate(itertools.pairwise(codes))]
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
def test_zeros_nothing_at_all_and_what_is_not_finite(block: BlockFormat) -> None:
    assert not block.fake(np.zeros((3, 40), np.float32), 1).any()
    elements, scales = block.decompose(np.zeros((3, 40), np.float32), 1)
    assert not elements.astype(np.float32).any()
    assert ((scales > 0) & (scales <= 1)).all()
    for shape in ((0, 40), (3, 0)):
        assert block.fake(np.zeros(shape, np.float32), 1).shape == shape
    for bad, work in itertools.product((np.inf, -np.inf, np.nan), (block.fake, block.decompose)):
        values = normal(4, 40)
        values[2, 7] = bad
        with pytest.raises(ValueError, match="infinity or NaN"):
            work(values, 1)


def test_the_lowest_mxint8_is_beyond_float32_at_the_largest_exponent() -> None:
    biggest = np.finfo(np.float32).max
    found = BLOCK_FORMATS["mxint8"].fake(np.array([-biggest, biggest], np.float32), 0)
    assert found.tolist() == [-np.inf, 127 * 2.0**121]
