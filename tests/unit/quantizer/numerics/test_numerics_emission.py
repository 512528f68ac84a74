"""The ONNX form of activations and weights, run by onnxruntime, against ``fake`` bit for bit; what runs on integers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph

from service.contracts.errors import EngineError
from service.contracts.specs import (
    BLOCK_DTYPES,
    NUMBER_TYPES,
    ActivationDtype,
    WeightDtype,
    has_integer_kernels,
    is_integer,
)
from tests.support.each import each
from tests.unit.quantizer.numerics.forms import (
    ALL,
    FLOAT8,
    activation_model,
    expected,
    finite,
    model_of,
    rounded_grid,
    run,
    usual,
    wild,
)
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.graph.values import Names
from worker.quantizer.numerics.blocks import FLOATS, BlockGrid, FloatGrid
from worker.quantizer.numerics.emission import weight_nodes
from worker.quantizer.numerics.integer import memory_type, onnx_integers, onnx_type


@pytest.mark.parametrize("dtype", ALL)
@given(values=hnp.arrays(np.float32, (2, 35, 3), elements=st.one_of(usual, finite)))
def test_activations_are_fake_bit_for_bit(dtype: str, values: np.ndarray) -> None:
    np.testing.assert_array_equal(run(dtype, 1, values), expected(dtype, values, 1))


@each("optimized", [True, False])
@each("axis", [0, 1, 2, -1, -2])
@pytest.mark.parametrize("dtype", ALL)
def test_every_axis_with_and_without_the_runtimes_optimizations(dtype: str, axis: int, optimized: bool) -> None:
    for values in (normal(9, 35, 33, seed=1), wild((33, 9, 35), 2)):
        np.testing.assert_array_equal(run(dtype, axis, values, optimized=optimized), expected(dtype, values, axis))


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
@each("length", [1, 3, 8, 16, 31, 32, 33, 64])
def test_a_length_known_in_advance_changes_nothing(dtype: str, length: int) -> None:
    values = wild((5, length, 3), 3)
    known = run(dtype, 1, values, shape=("N", length, "M"))
    np.testing.assert_array_equal(known, run(dtype, 1, values))
    np.testing.assert_array_equal(known, expected(dtype, values, 1))


@pytest.mark.parametrize("dtype", ALL)
@each("shape", [(40,), (2, 3, 40, 2, 2), (1, 1), (0, 40)])
def test_any_rank_and_an_empty_batch(dtype: str, shape: tuple[int, ...]) -> None:
    axis, values = len(shape) // 2, wild(shape, 4)
    np.testing.assert_array_equal(run(dtype, axis, values), expected(dtype, values, axis))


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
def test_the_exponent_is_exact_at_and_around_every_power_of_two_and_nan_stays_nan(dtype: str) -> None:
    powers = np.exp2(np.arange(-149.0, 128.0)).astype(np.float32)
    peaks = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
    values = peaks[:, None] * np.linspace(-0.99, 1, 32, dtype=np.float32)
    np.testing.assert_array_equal(run(dtype, 1, values), expected(dtype, values, 1))
    values = normal(2, 40, seed=6)
    values[0, 3], values[1, 35] = np.nan, np.inf
    assert np.isnan(run(dtype, 1, values)[[0, 1], [3, 35]]).all()


@pytest.mark.parametrize("dtype", ALL)
def test_the_lowest_opset_is_enough_and_the_one_below_is_refused(dtype: str) -> None:
    opset = NUMBER_TYPES[dtype].opset
    values = normal(3, 40, seed=5)
    np.testing.assert_array_equal(run(dtype, 1, values, opset=opset), expected(dtype, values, 1))
    if dtype not in ("float16", "bfloat16"):
        with pytest.raises(EngineError, match=f"need opset {opset}"):
            activation_model(dtype, 1, ("N", 40), opset - 1)


def weight_model(text: str, weight: np.ndarray, grid: FloatGrid | BlockGrid) -> onnx.ModelProto:
    """The network ``text`` with the written weight in the place of ``w``."""
    model = ir.from_proto(make_model(text, opset=21, ir_version=10))
    graph = model.graph
    written = weight_nodes(Names(graph), "w", weight, grid)
    for value in written.initializers:
        graph.register_initializer(value)
    reader = next(node for node in graph if any(value is not None and value.name == "w" for value in node.inputs))
    graph.insert_before(graph[0], written.nodes)
    reader.replace_input_with(1, written.output)
    assert tuple(written.output.shape or ()) == weight.shape
    assert not written.functions
    return ir.to_proto(model)


_X = {**dict.fromkeys(("MatMul", "Gemm", "GemmTransposed"), "float[N,70] x"), "Conv": "float[N,70,6,6] x"}
_CALL = {"MatMul": "MatMul(x, w)", "Gemm": "Gemm(x, w)", "GemmTransposed": "Gemm<transB=1>(x, w)", "Conv": "Conv(x, w)"}
OPERATORS = {op: f"({_X[op]}) => (float y) {{ y = {call} }}" for op, call in _CALL.items()}
QUANTIZED = {
    op: f"({_X[op]}) => (float y) {{ q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = "
    f"{call.replace('(x', '(d')} p = QuantizeLinear(m, s, z) y = DequantizeLinear(p, s, z) }}"
    for op, call in _CALL.items()
}
AXES = {"MatMul": 0, "Gemm": 0, "GemmTransposed": 1, "Conv": 1}
WEIGHTS = {"MatMul": (70, 12), "Gemm": (70, 12), "GemmTransposed": (12, 70), "Conv": (12, 70, 3, 3)}


def weight_case(dtype: str, op: str) -> tuple[np.ndarray, FloatGrid | BlockGrid]:
    weight = normal(*WEIGHTS[op], seed=8, scale=0.1)
    if dtype not in FLOAT8:
        return weight, rounded_grid(dtype, AXES[op])
    channel = 1 - AXES[op]
    others = tuple(k for k in range(weight.ndim) if k != channel)
    return weight, rounded_grid(dtype, AXES[op], FLOATS[dtype].scale_for(np.abs(weight).max(axis=others)), channel)


def feeds_of(op: str) -> dict[str, np.ndarray]:
    return {"x": normal(4, 70, 6, 6, seed=9) if op == "Conv" else normal(4, 70, seed=9)}


@each("op", OPERATORS)
@pytest.mark.parametrize("dtype", ALL)
def test_a_written_weight_computes_as_its_fake_in_float32(dtype: str, op: str, tmp_path: Path) -> None:
    weight, form = weight_case(dtype, op)
    represented = form.fake(weight)
    assert 0 < np.abs(represented - weight).max() < 0.1
    plain = run_onnx(make_model(OPERATORS[op], {"w": represented}, opset=21, ir_version=10), feeds_of(op))["y"]
    model = weight_model(OPERATORS[op], weight, form)
    np.testing.assert_array_equal(run_onnx(model, feeds_of(op))["y"], plain)
    assert set(optimized_operators(model, tmp_path)) == {op.removesuffix("Transposed")}, "the weight folds at load"


@each("op", OPERATORS)
@pytest.mark.parametrize("dtype", ALL)
def test_a_written_weight_stands_behind_integer_activations(dtype: str, op: str) -> None:
    weight, form = weight_case(dtype, op)
    represented = form.fake(weight)
    grid = {"s": np.float32(0.05), "z": np.uint8(128)}
    plain = make_model(QUANTIZED[op], {"w": represented, **grid}, opset=21, ir_version=10)
    model = weight_model(QUANTIZED[op], weight, form)
    for name, array in grid.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    np.testing.assert_array_equal(run_onnx(model, feeds_of(op))["y"], run_onnx(plain, feeds_of(op))["y"])


@pytest.mark.parametrize("dtype", ALL)
@each("shape", [(1,), (3, 1, 3, 3), (5, 3), (2, 129, 2)])
def test_the_stored_weight_is_fake_bit_for_bit_and_no_larger_than_it_must_be(
    dtype: str, shape: tuple[int, ...]
) -> None:
    weight = wild(shape, 10)
    axis = min(1, len(shape) - 1)
    form = rounded_grid(dtype, axis, FLOATS[dtype].scale_for(np.abs(weight).max()) if dtype in FLOAT8 else None)
    names = Names(ir.Graph([], [], nodes=[], name="g"))
    written = weight_nodes(names, "w", weight, form)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    proto = model_of(x, written, 21)
    with np.errstate(over="ignore"):
        wanted = form.fake(weight)
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    for optimized in (True, False):
        stored = run_onnx(proto, {"x": np.zeros(1, np.float32)}, optimized=optimized)["y"]
        np.testing.assert_array_equal(stored, wanted)
    assert written.initializers[0].const_value is not None
    stored_bytes = written.initializers[0].const_value.nbytes
    assert stored_bytes == weight.size * (2 if dtype in ("float16", "bfloat16") else 1)


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_scale_brings_the_peak_to_the_largest_value(dtype: str) -> None:
    peaks = np.array([3.0, 1e-30, 0.0, np.finfo(np.float32).max, 1e-45], np.float32)
    scale = FLOATS[dtype].scale_for(peaks)
    assert scale.dtype == np.float32
    assert (scale[[2, 4]] == 1).all()
    reached = FLOATS[dtype].fake(peaks / scale)
    assert (reached[[0, 1, 3]] == FLOATS[dtype].maximum).all()


def optimized_operators(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


INTEGERS = [dtype for dtype in get_args(WeightDtype) if is_integer(dtype)]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_limits_and_storage_are_those_of_onnx(dtype: str) -> None:
    element = onnx_type(dtype).numpy()
    held = ml_dtypes.iinfo(element)
    known = NUMBER_TYPES[dtype]
    assert (known.limits, known.bits) == ((held.min, held.max), onnx_type(dtype).bitwidth)
    stored = onnx_integers(np.arange(held.min, held.max + 1).astype(memory_type(dtype)), dtype)
    assert stored.dtype == element
    np.testing.assert_array_equal(stored.astype(np.int64), np.arange(held.min, held.max + 1))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_table_says_what_the_runtime_does_with_integers(dtype: str, tmp_path: Path) -> None:
    activation = dtype if dtype in get_args(ActivationDtype) else "uint8"
    opset = NUMBER_TYPES[dtype].opset
    model = make_model(
        "(float[N,40] x) => (float[N,24] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        "v = DequantizeLinear(w, s, k) m = MatMul(d, v) p = QuantizeLinear(m, s, z) y = DequantizeLinear(p, s, z) }",
        {"s": np.float32(0.1), "z": np.zeros((), activation)},
        opset=opset,
        ir_version=10,
    )
    for name, shape in (("w", (40, 24)), ("k", ())):
        stored = ir.tensor(np.ones(shape).astype(onnx_type(dtype).numpy()), name=name)
        model.graph.initializer.append(ir.to_proto(stored))
    onnx.checker.check_model(model, full_check=True)
    if NUMBER_TYPES[dtype].cast_only:
        with pytest.raises(InvalidGraph, match=f"tensor\\({dtype}\\)"):
            optimized_operators(model, tmp_path)
        return
    assert has_integer_kernels(dtype) == ("QLinearMatMul" in optimized_operators(model, tmp_path))
