"""Small floats against exact fractions, ml_dtypes and onnxruntime's Cast."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto

from tests.unit.quantizer.toolbox import make_model, run_onnx
from worker.quantizer.numerics.minifloat import (
    BFLOAT16,
    FLOAT4_E2M1,
    FLOAT6_E2M3,
    FLOAT6_E3M2,
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    FLOAT16,
    Minifloat,
    floor_log2,
)

SMALL = [FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT6_E3M2, FLOAT6_E2M3, FLOAT4_E2M1]
ALL = [FLOAT16, BFLOAT16, *SMALL]
# ONNX has no FP6; its FP4 has no kernels.
ONNX_TYPES = {
    FLOAT16: TensorProto.FLOAT16,
    BFLOAT16: TensorProto.BFLOAT16,
    FLOAT8_E4M3FN: TensorProto.FLOAT8E4M3FN,
    FLOAT8_E5M2: TensorProto.FLOAT8E5M2,
}
any_float = st.floats(width=32, allow_nan=False)
float_arrays = hnp.arrays(np.float32, 24, elements=any_float)
by_name = pytest.mark.parametrize("element", ALL, ids=lambda element: element.name)
small_by_name = pytest.mark.parametrize("element", SMALL, ids=lambda element: element.name)


@cache
def magnitudes(element: Minifloat) -> list[Fraction]:
    """Every finite value >= 0 in the order of the codes, from the fields of the format."""
    found = []
    for code in range(1 << (element.exponent_bits + element.mantissa_bits)):
        field, fraction = code >> element.mantissa_bits, code & ((1 << element.mantissa_bits) - 1)
        significand = Fraction(fraction, 1 << element.mantissa_bits) + (1 if field else 0)
        found.append(significand * Fraction(2) ** (max(field, 1) - element.bias))
    return [value for value in found if value <= element.maximum]


def nearest(value: float, grid: list[Fraction]) -> float:
    """By search in the grid; at a tie the even code wins."""
    exact = abs(Fraction(value))
    above = min(bisect_left(grid, exact), len(grid) - 1)
    below = max(above - 1, 0)
    left, right = abs(exact - grid[below]), abs(grid[above] - exact)
    code = below if left < right or (left == right and below % 2 == 0) else above
    return float(np.copysign(float(grid[code]), value))


def codes(element: Minifloat) -> np.ndarray:
    """Every bit pattern of the storage type, as its values."""
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


@small_by_name
@given(values=float_arrays, scaled=hnp.arrays(np.float32, 24, elements=st.floats(-1, 1, width=32)))
def test_rounding_is_the_search_through_all_values(element: Minifloat, values: np.ndarray, scaled: np.ndarray) -> None:
    for chosen in (values[np.isfinite(values)], scaled * np.float32(element.maximum)):
        expected = [nearest(float(value), magnitudes(element)) for value in chosen]
        np.testing.assert_array_equal(element.fake(chosen), np.array(expected, np.float32))


@by_name
@given(values=float_arrays)
def test_rounding_is_ml_dtypes_and_numpys(element: Minifloat, values: np.ndarray) -> None:
    limit = np.float32(element.maximum)
    expected = np.clip(values, -limit, limit).astype(element.storage).astype(np.float32)
    np.testing.assert_array_equal(element.fake(values), expected)


@pytest.mark.parametrize("element", ONNX_TYPES, ids=lambda element: element.name)
@given(values=float_arrays)
def test_rounding_is_onnxruntimes_cast(element: Minifloat, values: np.ndarray) -> None:
    model = make_model(
        f"(float[N] x) => (float[N] y) {{ c = Cast<to={ONNX_TYPES[element]}>(x) y = Cast<to=1>(c) }}",
        opset=19,
        ir_version=9,
    )
    limit = np.float32(element.maximum)  # Cast to float8 saturates, Cast to 16 bits overflows
    expected = run_onnx(model, {"x": np.clip(values, -limit, limit)})["y"]
    np.testing.assert_array_equal(element.fake(values), expected)


@by_name
@given(values=float_arrays)
def test_saturation_sign_and_idempotence(element: Minifloat, values: np.ndarray) -> None:
    rounded = element.fake(values)
    assert (np.abs(rounded) <= element.maximum).all()
    np.testing.assert_array_equal(np.signbit(rounded), np.signbit(values))
    np.testing.assert_array_equal(element.fake(-values), -rounded)
    np.testing.assert_array_equal(element.fake(rounded), rounded)


@by_name
def test_infinity_and_nan(element: Minifloat) -> None:
    odd = np.array([np.inf, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(element.fake(odd), np.array([element.maximum, -element.maximum, np.nan], np.float32))


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floor_log2_is_exact(value: float) -> None:
    found = int(floor_log2(np.float32(value)))
    if value == 0:
        assert found == -150
    else:
        assert Fraction(2) ** found <= abs(Fraction(value)) < Fraction(2) ** (found + 1)
