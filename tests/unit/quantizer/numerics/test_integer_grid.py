"""Integer grids against onnxruntime: its quantizer's formula and its QuantizeLinear / DequantizeLinear operators."""

from __future__ import annotations

from collections import defaultdict
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

from service.contracts.specs import WeightDtype, is_integer
from tests.support.each import each
from tests.unit.quantizer.toolbox import make_model, normal, rng, run_onnx
from worker.quantizer.numerics import integer
from worker.quantizer.numerics.integer import (
    PER_TENSOR,
    Granularity,
    IntegerGrid,
    PerAxis,
    PerBlock,
    grid_for_range,
    snap_scale,
)

TYPES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8, "int32": TensorProto.INT32}
INTEGERS = [dtype for dtype in get_args(WeightDtype) if is_integer(dtype)]
GRIDS = [("uint8", False), ("uint8", True), ("int8", False), ("int8", True)]
# Beyond, a scale is so much smaller than onnxruntime's that every integer is a finite float32.
HELD = float(np.float32(3e38))
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


def grid(low: float, high: float, dtype: str, symmetric: bool) -> IntegerGrid:
    scale, zero_point = grid_for_range(np.float32(low), np.float32(high), dtype, symmetric=symmetric)
    return IntegerGrid(dtype, scale, zero_point, symmetric=symmetric)


def ort_grid(low: float, high: float, dtype: str, symmetric: bool) -> tuple[np.ndarray, np.ndarray]:
    qmin, qmax = get_qmin_qmax_for_qType(TYPES[dtype], symmetric=symmetric)
    zero_point, scale = compute_scale_zp(np.float32(low), np.float32(high), qmin, qmax, symmetric)
    return scale, zero_point


def by_onnxruntime(op_type: str, taken: str, made: str, values: np.ndarray, found: IntegerGrid) -> np.ndarray:
    text = f"({taken}[{len(values)}] x) => ({made}[{len(values)}] y) {{ y = {op_type}(x, s, z) }}"
    model = make_model(text, {"s": found.scale, "z": found.zero_point})
    return run_onnx(model, {"x": values}, optimized=False)["y"]


@pytest.mark.parametrize(("dtype", "symmetric"), GRIDS)
@given(ranges=hnp.arrays(np.float32, (5, 2), elements=st.floats(-HELD, HELD, width=32)))
def test_the_grid_of_every_channel_equals_onnxruntimes(dtype: str, symmetric: bool, ranges: np.ndarray) -> None:
    low, high = ranges.min(axis=1), ranges.max(axis=1)
    scale, zero_point = grid_for_range(low, high, dtype, symmetric=symmetric)
    assert (scale.dtype, zero_point.dtype) == (np.float32, np.dtype(dtype))
    for k in range(len(ranges)):
        theirs = ort_grid(low[k], high[k], dtype, symmetric)
        assert scale[k] == theirs[0]
        if max(float(high[k]), 0.0) - min(float(low[k]), 0.0) >= 1e-34:  # where the range is nil any zero point will do
            assert zero_point[k] == theirs[1]


@each("kind", ["power_of_two", "int16", "float16"])
def test_snapped_scales_are_the_nearest_of_their_kind(kind: str) -> None:
    allowed = {
        "power_of_two": np.exp2(np.arange(-126.0, 128.0)),
        "int16": np.outer(np.arange(1.0, 2**15), np.exp2(-np.arange(17.0))).ravel(),
        "float16": np.arange(1, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64),
    }[kind]
    measure = np.log2 if kind == "power_of_two" else np.asarray
    exponents = np.concatenate([rng(1).uniform(-140, 140, 20), rng(2).uniform(-20, 14, 20), [-3.51, -3.49, 2.49, 2.51]])
    for wanted in np.exp2(exponents):
        found = float(snap_scale(np.asarray(wanted), kind))
        assert found in allowed
        least = np.abs(measure(allowed) - measure(wanted)).min()
        assert np.abs(measure(found) - measure(wanted)) == pytest.approx(least, rel=1e-9, abs=1e-12)


@each(("dtype", "symmetric"), GRIDS)
def test_the_ends_of_float32(dtype: str, symmetric: bool) -> None:
    for range_ in ((0.0, 0.0), (-0.0, 0.0), (1e-44, 3e-42), (-1e-41, 1e-45)):
        found = grid(*range_, dtype, symmetric)
        assert found.scale == 1.0, "a range of nothing gives a usable grid"
        assert found.dequantize(found.quantize(np.zeros(3, np.float32))).tolist() == [0.0, 0.0, 0.0]
    biggest = np.finfo(np.float32).max
    found = grid(-biggest, biggest, dtype, symmetric)
    assert np.isfinite(found.scale)
    values = np.array([-biggest / 2, 0, biggest / 2], np.float32)
    assert found.dequantize(found.quantize(values)) == pytest.approx(values.tolist(), rel=0.01)
    assert tuple(found.quantize(np.array([-np.inf, np.inf], np.float32))) == found.limits


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@given(
    values=hnp.arrays(np.float32, 40, elements=finite),
    steps=hnp.arrays(np.float32, 40, elements=st.floats(-300, 300, width=16)),
    scale=st.floats(2.0**-100, 2.0**100, width=32),
    zero_point=st.integers(0, 255),
)
def test_quantize_and_dequantize_are_what_the_operators_do(
    dtype: str, values: np.ndarray, steps: np.ndarray, scale: float, zero_point: int
) -> None:
    """Ties too: x / scale is a half in float32 for many x whose exact quotient is not."""
    shift = 0 if dtype == "uint8" else 128
    found = IntegerGrid(dtype, np.float32(scale), np.asarray(zero_point - shift, dtype))
    halves = ((np.floor(steps) + np.float32(0.5)) * np.float32(scale)).astype(np.float32)
    for given_values in (values, halves):
        theirs = by_onnxruntime("QuantizeLinear", "float", dtype, given_values, found)
        np.testing.assert_array_equal(found.quantize(given_values), theirs)
    integers = (np.arange(256) - shift).astype(dtype)
    theirs = by_onnxruntime("DequantizeLinear", dtype, "float", integers, found)
    np.testing.assert_array_equal(found.dequantize(integers), theirs)


@given(values=hnp.arrays(np.float64, 30, elements=st.floats(-(2**29), 2**29)))
def test_int32_keeps_what_float32_cannot_hold_and_symmetric_int8_never_uses_the_lowest(values: np.ndarray) -> None:
    found = IntegerGrid("int32", np.float32(1.0), np.asarray(0, np.int32))
    np.testing.assert_array_equal(found.quantize(values), np.rint(values).astype(np.int32))
    lowest = grid(-1.0, 0.5, "int8", True).quantize(np.array([-1.0, -1.01, -5.0], np.float32))
    assert lowest.tolist() == [-127, -127, -127]


@each("granularity", [PER_TENSOR, PerAxis(1), PerBlock(-1, 4)])
@each("dtype", [*INTEGERS, "int32"])
@each("symmetric", [True, False])
def test_fake_is_quantize_and_dequantize_bit_for_bit(dtype: str, granularity: Granularity, symmetric: bool) -> None:
    values = normal(5, 6, 7, seed=2, scale=3.0)
    values[0, 0, :3] = 0.0, -0.0, 1e30
    steps = normal(*granularity.scale_shape(values.shape), seed=3)
    peak = np.abs(np.asarray(steps, np.float32)) + np.float32(0.1)
    scale, zero = grid_for_range(-0.4 * peak, peak, dtype, symmetric=symmetric or dtype == "int32")
    found = IntegerGrid(dtype, scale, zero, granularity, symmetric)
    restored = found.dequantize(found.quantize(values))
    assert restored.dtype == found.fake(values).dtype == np.float32
    np.testing.assert_array_equal(found.fake(values).view(np.int32), restored.view(np.int32))


@each(
    ("granularity", "most"),
    [(PER_TENSOR, 9), (PerAxis(0), 1), (PerAxis(-1), 40), (PerBlock(0, 4), 9), (PerBlock(-1, 7), 40)],
)
def test_what_is_worked_on_in_pieces_is_the_same(
    granularity: Granularity, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = np.random.default_rng(3)
    values = drawn.normal(size=(10, 11)).astype(np.float32)
    shape = granularity.scale_shape(values.shape)
    scale, zero = drawn.uniform(0.01, 0.02, shape), drawn.integers(-9, 9, shape)
    found = IntegerGrid("int8", scale.astype(np.float32), zero.astype(np.int8), granularity)
    whole = found.quantize(values), found.dequantize(found.quantize(values)), found.fake(values)
    with monkeypatch.context() as patched:
        patched.setattr(integer, "_PIECE_ELEMENTS", most)
        assert len(list(found.parts(values.shape))) > 1
        parts = found.quantize(values), found.dequantize(found.quantize(values)), found.fake(values)
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


SHAPES = [(7,), (3, 8), (4, 5, 6), (2, 9, 1, 3)]
CASES = [
    (shape, granularity)
    for shape in SHAPES
    for granularity in (
        PER_TENSOR,
        *(PerAxis(axis) for axis in range(-1, len(shape))),
        *(PerBlock(axis, size) for axis in range(-1, len(shape)) for size in (3, 16)),
    )
]


def scale_of(index: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    if granularity == PER_TENSOR:
        return ()
    axis = granularity.axis % len(index)
    if isinstance(granularity, PerAxis):
        return (index[axis],)
    return tuple(k // granularity.size if dim == axis else k for dim, k in enumerate(index))


@each(("shape", "granularity"), CASES)
def test_every_element_meets_its_scale_and_rows_hold_what_shares_one(
    shape: tuple[int, ...], granularity: Granularity
) -> None:
    scales = np.arange(np.prod(granularity.scale_shape(shape), dtype=int)).reshape(granularity.scale_shape(shape))
    spread = np.broadcast_to(granularity.spread(scales, shape), shape)
    array = 1 + np.arange(np.prod(shape)).reshape(shape)
    shared = defaultdict(list)
    for index in np.ndindex(shape):
        assert spread[index] == scales[scale_of(index, granularity)]
        shared[scale_of(index, granularity)].append(array[index])
    np.testing.assert_array_equal(granularity.gathered(spread), scales)
    if isinstance(granularity, PerBlock):
        np.testing.assert_array_equal(granularity.joined(granularity.blocks(array), shape), array)
    rows = granularity.rows(array)
    assert rows.shape[0] == len(shared)
    for row, key in zip(rows, np.ndindex(granularity.scale_shape(shape)), strict=True):
        assert sorted(row[row > 0]) == sorted(shared[key])
