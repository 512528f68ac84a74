"""The ONNX form of weights and whole networks, run by onnxruntime, against ``fake``; what runs on integers."""

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
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidGraph

from service.contracts.dtypes import (
    NUMBER_TYPES,
    ActivationDtype,
    BiasDtype,
    WeightDtype,
    has_integer_kernels,
    is_integer,
)
from tests.support.each import each
from tests.unit.quantizer.numerics.forms import ALL, FLOAT8, activation_grid, expected, model_of, rounded_grid, wild
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.graph.values import Names
from worker.quantizer.numerics.blocks import BlockGrid
from worker.quantizer.numerics.emission import activation_nodes, add_functions, weight_nodes
from worker.quantizer.numerics.minifloat import FLOATS, FloatGrid
from worker.quantizer.numerics.storage import memory_type, onnx_integers, onnx_type


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


_X = {
    "MatMul": "float[N,70] x",
    "Gemm": "float[N,70] x",
    "GemmTransposed": "float[N,70] x",
    "Conv": "float[N,70,6,6] x",
}
_CALL = {
    "MatMul": "MatMul(x, w)",
    "Gemm": "Gemm(x, w)",
    "GemmTransposed": "Gemm<transB=1>(x, w)",
    "Conv": "Conv(x, w)",
}
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


def feeds(op: str) -> dict[str, np.ndarray]:
    return {"x": normal(4, 70, 6, 6, seed=9) if op == "Conv" else normal(4, 70, seed=9)}


@each("op", OPERATORS)
@pytest.mark.parametrize("dtype", ALL)
def test_a_written_weight_computes_as_its_fake_in_float32(dtype: str, op: str, tmp_path: Path) -> None:
    weight, form = weight_case(dtype, op)
    represented = form.fake(weight)
    assert 0 < np.abs(represented - weight).max() < 0.1
    plain = run_onnx(make_model(OPERATORS[op], {"w": represented}, opset=21, ir_version=10), feeds(op))["y"]
    model = weight_model(OPERATORS[op], weight, form)
    np.testing.assert_array_equal(run_onnx(model, feeds(op))["y"], plain)
    assert set(optimized_operators(model, tmp_path)) == {op.removesuffix("Transposed")}, "the weight folds at load"


@each("op", OPERATORS)
@pytest.mark.parametrize("dtype", ALL)
def test_a_written_weight_stands_behind_integer_activations(dtype: str, op: str) -> None:
    """onnxruntime must not take the weight for an integer one."""
    weight, form = weight_case(dtype, op)
    represented = form.fake(weight)
    grid = {"s": np.float32(0.05), "z": np.uint8(128)}
    plain = make_model(QUANTIZED[op], {"w": represented, **grid}, opset=21, ir_version=10)
    model = weight_model(QUANTIZED[op], weight, form)
    for name, array in grid.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    np.testing.assert_array_equal(run_onnx(model, feeds(op))["y"], run_onnx(plain, feeds(op))["y"])


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


# ----------------------------------------------------------------------------------------------------- execution


def optimized_operators(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return Counter(node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node)


def network(dtype: str) -> tuple[onnx.ModelProto, np.ndarray]:
    """x -> quantized -> MatMul -> quantized -> Relu -> quantized, and the weight as represented."""
    model = ir.from_proto(
        make_model("(float[N,40] x) => (float[N,24] y) { m = MatMul(x, w) y = Relu(m) }", opset=21, ir_version=10)
    )
    graph = model.graph
    matmul, relu = graph[0], graph[1]
    names = Names(graph)
    weight = normal(40, 24, seed=12, scale=0.2)
    form = rounded_grid(dtype, 0, np.asarray(0.05, np.float32) if dtype in FLOAT8 else None)
    written = weight_nodes(names, "w", weight, form)
    for value in written.initializers:
        graph.register_initializer(value)
    graph.insert_before(matmul, written.nodes)
    matmul.replace_input_with(1, written.output)
    for value, reader in ((graph.inputs[0], matmul), (matmul.outputs[0], relu), (relu.outputs[0], None)):
        part = activation_nodes(names, value, activation_grid(dtype, 1), 21)
        for initializer in part.initializers:
            graph.register_initializer(initializer)
        add_functions(model, part.functions)
        graph.insert_before(matmul, part.nodes) if reader is matmul else graph.insert_after(
            value.producer(), part.nodes
        )
        if reader is None:
            graph.outputs[0] = part.output
        else:
            reader.replace_input_with(0, part.output)
    return ir.to_proto(model), form.fake(weight)


@pytest.mark.parametrize("dtype", ALL)
def test_a_network_keeps_its_rounding_under_the_runtimes_optimizations(dtype: str, tmp_path: Path) -> None:
    model, weight = network(dtype)
    x = normal(6, 40, seed=13)
    found = next(iter(run_onnx(model, {"x": x}).values()))
    product = expected(dtype, x, 1) @ weight
    wanted = expected(dtype, np.maximum(expected(dtype, product, 1), 0), 1)
    # the order in which MatMul adds may move a value over a rounding boundary
    assert (found == wanted).mean() > 0.97
    np.testing.assert_allclose(found, wanted, atol=0.6 * np.abs(wanted).max())
    operators = optimized_operators(model, tmp_path)
    assert not [op for op in operators if op.startswith(("QLinear", "QGemm", "MatMulNBits", "MatMulInteger"))]
    if dtype in ("float16", "bfloat16"):
        assert operators["Cast"] == 6


INTEGERS = [dtype for dtype in get_args(WeightDtype) if is_integer(dtype)]


def test_the_table_holds_the_types_that_configs_name() -> None:
    named = {*get_args(ActivationDtype), *get_args(WeightDtype), *get_args(BiasDtype)}
    assert set(NUMBER_TYPES) == named
    assert not any(has_integer_kernels(dtype) for dtype in ALL)


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
    """At the lowest opset of the type, and with the kernels that the table tells of."""
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
