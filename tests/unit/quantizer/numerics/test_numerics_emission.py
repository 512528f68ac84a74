"""The ONNX form of floats and block formats, run by onnxruntime, against ``fake`` bit for bit."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from functools import cache
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

from service.contracts.dtypes import BLOCK_DTYPES, FLOAT_DTYPES, INTEGER_DTYPES, ActivationDtype, WeightDtype
from service.contracts.errors import EngineError
from tests.unit.quantizer.toolbox import make_model, normal, rng, run_onnx
from worker.quantizer.graph.values import Names
from worker.quantizer.numerics.blocks import BLOCK_FORMATS
from worker.quantizer.numerics.emission import (
    FLOATS,
    Written,
    activation_nodes,
    add_functions,
    fake,
    float8_scale,
    required_ir_version,
    required_opset,
    weight_nodes,
)
from worker.quantizer.numerics.execution import EXECUTION
from worker.quantizer.numerics.functions import DOMAIN

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
ALL = (*FLOAT_DTYPES, *BLOCK_DTYPES)
NEWEST_OPSET = 24
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual = st.floats(-100, 100, width=32)
SCALE = np.float32(0.0371)


def model_of(value: ir.Value, written: Written, opset: int, ir_version: int = 10) -> onnx.ModelProto:
    """x -> the written nodes -> y."""
    identity = ir.node("Identity", [written.output], name="end")
    identity.outputs[0].name, identity.outputs[0].dtype = "y", ir.DataType.FLOAT
    identity.outputs[0].shape = value.shape
    graph = ir.Graph(
        [value],
        [identity.outputs[0]],
        nodes=[*written.nodes, identity],
        initializers=written.initializers,
        opset_imports={"": opset},
        name="g",
    )
    model = ir.Model(graph, ir_version=ir_version)
    add_functions(model, written.functions)
    return ir.to_proto(model)


def activation_model(
    dtype: str, axis: int, shape: tuple[int | str, ...], opset: int, *, saturate: bool = False
) -> onnx.ModelProto:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    names = Names(ir.Graph([], [], nodes=[], name="g"))
    scale = SCALE if dtype in FLOAT8 else None
    written = activation_nodes(names, value, dtype, axis, opset, scale, saturate=saturate)
    assert written.output.dtype == ir.DataType.FLOAT
    return model_of(value, written, opset, required_ir_version(dtype))


@cache
def session(dtype: str, axis: int, shape: tuple[int | str, ...], opset: int, optimized: bool) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = activation_model(dtype, axis, shape, opset)
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(
    dtype: str,
    axis: int,
    values: np.ndarray,
    *,
    shape: tuple[int | str, ...] | None = None,
    opset: int = NEWEST_OPSET,
    optimized: bool = True,
) -> np.ndarray:
    dims = shape or tuple(f"d{k}" for k in range(values.ndim))
    result: np.ndarray = session(dtype, axis, dims, opset, optimized).run(None, {"x": values})[0]
    return result


def expected(dtype: str, values: np.ndarray, axis: int) -> np.ndarray:
    """What the activation form stands for: 16-bit floats overflow as Cast does."""
    with np.errstate(over="ignore"):
        if dtype in FLOAT8:
            return FLOATS[dtype].fake(values / SCALE) * SCALE
        return (
            BLOCK_FORMATS[dtype].fake(values, axis)
            if dtype in BLOCK_DTYPES
            else FLOATS[dtype].fake(values, saturate=False)
        )


def wild(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Finite float32 of every exponent, subnormals included."""
    bits = rng(seed).integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(bits), bits, np.float32(1))


@pytest.mark.parametrize("dtype", ALL)
@given(values=hnp.arrays(np.float32, (2, 35, 3), elements=st.one_of(usual, finite)))
def test_activations_are_fake_bit_for_bit(dtype: str, values: np.ndarray) -> None:
    np.testing.assert_array_equal(run(dtype, 1, values), expected(dtype, values, 1))


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("dtype", ALL)
def test_every_axis_with_and_without_the_runtimes_optimizations(dtype: str, axis: int, optimized: bool) -> None:
    for values in (normal(33, 35, 37, seed=1), wild((33, 35, 37), 2)):
        np.testing.assert_array_equal(run(dtype, axis, values, optimized=optimized), expected(dtype, values, axis))


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
@pytest.mark.parametrize("length", [1, 3, 8, 16, 31, 32, 33, 64])
def test_a_length_known_in_advance_changes_nothing(dtype: str, length: int) -> None:
    values = wild((5, length, 3), 3)
    known = run(dtype, 1, values, shape=("N", length, "M"))
    np.testing.assert_array_equal(known, run(dtype, 1, values))
    np.testing.assert_array_equal(known, expected(dtype, values, 1))


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(40,), (2, 3, 40, 2, 2), (1, 1), (0, 40)])
def test_any_rank_and_an_empty_batch(dtype: str, shape: tuple[int, ...]) -> None:
    axis = len(shape) // 2
    values = wild(shape, 4)
    np.testing.assert_array_equal(run(dtype, axis, values), expected(dtype, values, axis))


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
def test_the_exponent_is_exact_at_and_around_every_power_of_two(dtype: str) -> None:
    powers = np.exp2(np.arange(-149.0, 128.0)).astype(np.float32)
    peaks = np.concatenate([powers, np.nextafter(powers, np.float32(0)), np.nextafter(powers, np.float32(np.inf))])
    values = peaks[:, None] * np.linspace(-0.99, 1, 32, dtype=np.float32)
    np.testing.assert_array_equal(run(dtype, 1, values), expected(dtype, values, 1))


@pytest.mark.parametrize("dtype", ALL)
def test_the_lowest_opset_is_enough_and_the_one_below_is_refused(dtype: str) -> None:
    opset = required_opset(dtype)
    values = normal(3, 40, seed=5)
    np.testing.assert_array_equal(run(dtype, 1, values, opset=opset), expected(dtype, values, 1))
    if dtype not in ("float16", "bfloat16"):
        with pytest.raises(EngineError, match=f"need opset {opset}"):
            activation_model(dtype, 1, ("N", 40), opset - 1)


@pytest.mark.parametrize("dtype", ALL)
def test_only_standard_operators(dtype: str) -> None:
    model = activation_model(dtype, 1, ("N", "C"), NEWEST_OPSET)
    functions = {(function.domain, function.name) for function in model.functions}
    assert {node.domain for function in model.functions for node in function.node} <= {""}
    for node in model.graph.node:
        assert node.domain == "" or (node.domain, node.op_type) in functions
    assert len(functions) == (0 if dtype in ("float16", "bfloat16") else 1)


@pytest.mark.parametrize("dtype", BLOCK_DTYPES)
def test_nan_and_infinity_do_not_come_out_as_numbers(dtype: str) -> None:
    values = normal(2, 40, seed=6)
    values[0, 3], values[1, 35] = np.nan, np.inf
    found = run(dtype, 1, values)
    assert np.isnan(found[0, 3])
    assert np.isnan(found[1, 35])


FLUSHING = """
import sys
import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.add_session_config_entry("session.set_denormal_as_zero", "1")
values = np.load(sys.argv[1])
for path in sys.argv[2:]:
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    np.save(path + ".npy", session.run(None, {"x": values})[0])
"""


def test_blocks_of_zeros_stay_zero_where_the_runtime_flushes_subnormals(tmp_path: Path) -> None:
    """A scale as small as the formats' smallest would be flushed to 0, and 0 / 0 is NaN.

    The first session of a process decides for its thread, hence another process.
    """
    values = np.concatenate([np.zeros((2, 40), np.float32), normal(2, 40, seed=14)])
    np.save(tmp_path / "x.npy", values)
    for dtype in BLOCK_DTYPES:
        onnx.save(activation_model(dtype, 1, ("N", "C"), NEWEST_OPSET), tmp_path / dtype)
    paths = [str(tmp_path / dtype) for dtype in BLOCK_DTYPES]
    subprocess.run([sys.executable, "-c", FLUSHING, str(tmp_path / "x.npy"), *paths], check=True, timeout=120)
    for dtype in BLOCK_DTYPES:
        np.testing.assert_array_equal(np.load(tmp_path / f"{dtype}.npy"), expected(dtype, values, 1), err_msg=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_floats_saturate_only_if_asked_to(dtype: str) -> None:
    values = np.array([[1e30, -3.4e38, 1.5, np.finfo(np.float32).max]], np.float32)
    held = run_onnx(activation_model(dtype, 1, ("N", 4), 17, saturate=True), {"x": values})["y"]
    np.testing.assert_array_equal(held, FLOATS[dtype].fake(values))
    assert np.isfinite(held).all()
    assert np.isinf(run(dtype, 1, values)).any()


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_is_what_quantize_linear_and_dequantize_linear_do(dtype: str) -> None:
    values = normal(64, 64, seed=7, scale=9.0)
    zero = onnx.helper.make_tensor("z", getattr(onnx.TensorProto, dtype.replace("_", "").upper()), [], [0.0])
    model = make_model(
        "(float[N,M] x) => (float[N,M] y) { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
        {"s": SCALE},
        opset=19,
        ir_version=9,
    )
    model.graph.initializer.append(zero)
    np.testing.assert_array_equal(run(dtype, 1, values), run_onnx(model, {"x": values}, optimized=False)["y"])


def test_functions_are_added_once_and_shared() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(["N", 40]))
    model = ir.Model(ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="g"), ir_version=10)
    names = Names(model.graph)
    first, second = (activation_nodes(names, x, "bfp16", 1, 21) for _ in range(2))
    add_functions(model, first.functions)
    add_functions(model, second.functions)
    assert len(model.functions) == 1
    assert model.graph.opset_imports[DOMAIN] == 1
    made = [part.output.name for part in (first, second)]
    assert len(set(made)) == 2


# ------------------------------------------------------------------------------------------------------- weights


def weight_model(
    text: str, dtype: str, weight: np.ndarray, axis: int, scale: np.ndarray | None, scale_axis: int | None
) -> onnx.ModelProto:
    """The network ``text`` with the written weight in the place of ``w``."""
    model = ir.from_proto(make_model(text, opset=21, ir_version=10))
    graph = model.graph
    written = weight_nodes(Names(graph), "w", weight, dtype, axis if scale is None else scale_axis, scale)
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


def weight_case(dtype: str, op: str) -> tuple[np.ndarray, int, np.ndarray | None, int | None]:
    weight = normal(*WEIGHTS[op], seed=8, scale=0.1)
    if dtype not in FLOAT8:
        return weight, AXES[op], None, None
    channel = 1 - AXES[op]
    others = tuple(k for k in range(weight.ndim) if k != channel)
    return weight, AXES[op], float8_scale(np.abs(weight).max(axis=others), dtype), channel


def feeds(op: str) -> dict[str, np.ndarray]:
    return {"x": normal(4, 70, 6, 6, seed=9) if op == "Conv" else normal(4, 70, seed=9)}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ALL)
def test_a_written_weight_computes_as_its_fake_in_float32(dtype: str, op: str, tmp_path: Path) -> None:
    weight, axis, scale, scale_axis = weight_case(dtype, op)
    represented = fake(weight, dtype, axis if scale is None else scale_axis, scale)
    assert 0 < np.abs(represented - weight).max() < 0.1
    plain = run_onnx(make_model(OPERATORS[op], {"w": represented}, opset=21, ir_version=10), feeds(op))["y"]
    model = weight_model(OPERATORS[op], dtype, weight, axis, scale, scale_axis)
    np.testing.assert_array_equal(run_onnx(model, feeds(op))["y"], plain)
    assert set(optimized_operators(model, tmp_path)) == {op.removesuffix("Transposed")}, "the weight folds at load"


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("dtype", ALL)
def test_a_written_weight_stands_behind_integer_activations(dtype: str, op: str) -> None:
    """onnxruntime must not take the weight for an integer one."""
    weight, axis, scale, scale_axis = weight_case(dtype, op)
    represented = fake(weight, dtype, axis if scale is None else scale_axis, scale)
    grid = {"s": np.float32(0.05), "z": np.uint8(128)}
    plain = make_model(QUANTIZED[op], {"w": represented, **grid}, opset=21, ir_version=10)
    model = weight_model(QUANTIZED[op], dtype, weight, axis, scale, scale_axis)
    for name, array in grid.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    np.testing.assert_array_equal(run_onnx(model, feeds(op))["y"], run_onnx(plain, feeds(op))["y"])


@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("shape", [(1,), (3, 1, 3, 3), (5, 3), (2, 129, 2)])
def test_the_stored_weight_is_fake_bit_for_bit_and_no_larger_than_it_must_be(
    dtype: str, shape: tuple[int, ...]
) -> None:
    weight = wild(shape, 10)
    axis = min(1, len(shape) - 1)
    scale = float8_scale(np.abs(weight).max(), dtype) if dtype in FLOAT8 else None
    names = Names(ir.Graph([], [], nodes=[], name="g"))
    written = weight_nodes(names, "w", weight, dtype, axis, scale)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    proto = model_of(x, written, 21)
    with np.errstate(over="ignore"):
        wanted = fake(weight, dtype, axis, scale)
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
    scale = float8_scale(peaks, dtype)
    assert scale.dtype == np.float32
    assert (scale[[2, 4]] == 1).all()
    reached = FLOATS[dtype].fake(peaks / scale)
    assert (reached[[0, 1, 3]] == FLOATS[dtype].maximum).all()


def test_missing_axis_or_scale() -> None:
    weight = normal(4, 4)
    names = Names(ir.Graph([], [], nodes=[], name="g"))
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([4, 4]))
    with pytest.raises(ValueError, match="axis"):
        weight_nodes(names, "w", weight, "bfp16", None)
    with pytest.raises(ValueError, match="axis"):
        activation_nodes(names, x, "bfp16", None, 21)
    with pytest.raises(ValueError, match="scale"):
        weight_nodes(names, "w", weight, "float8_e5m2", None)
    with pytest.raises(ValueError, match="scale"):
        activation_nodes(names, x, "float8_e5m2", None, 21)


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
    scale = np.float32(0.05) if dtype in FLOAT8 else None
    written = weight_nodes(names, "w", weight, dtype, None if scale is not None else 0, scale)
    for value in written.initializers:
        graph.register_initializer(value)
    graph.insert_before(matmul, written.nodes)
    matmul.replace_input_with(1, written.output)
    for value, reader in ((graph.inputs[0], matmul), (matmul.outputs[0], relu), (relu.outputs[0], None)):
        part = activation_nodes(names, value, dtype, 1, 21, SCALE if dtype in FLOAT8 else None)
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
    return ir.to_proto(model), fake(weight, dtype, None if scale is not None else 0, scale)


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


def test_the_table_of_executions_names_every_type() -> None:
    assert set(EXECUTION) == set(get_args(ActivationDtype)) | set(get_args(WeightDtype))
    for dtype in ALL:
        assert EXECUTION[dtype].kind == "simulated"
    assert all(each.reason.endswith(".") for each in EXECUTION.values())


@pytest.mark.parametrize("dtype", INTEGER_DTYPES)
def test_the_table_of_executions_is_what_the_runtime_does_with_integers(dtype: str, tmp_path: Path) -> None:
    activation = "uint8" if dtype.endswith("int4") else dtype
    element = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}.get(dtype) or np.dtype(dtype)
    model = make_model(
        "(float[N,40] x) => (float[N,24] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
        "v = DequantizeLinear(w, s, k) m = MatMul(d, v) p = QuantizeLinear(m, s, z) y = DequantizeLinear(p, s, z) }",
        {"s": np.float32(0.1), "z": np.zeros((), activation)},
        opset=21,
        ir_version=10,
    )
    for name, shape in (("w", (40, 24)), ("k", ())):
        stored = ir.tensor(np.ones(shape).astype(element), name=name)
        model.graph.initializer.append(ir.to_proto(stored))
    operators = optimized_operators(model, tmp_path)
    found = "integer kernels" if "QLinearMatMul" in operators else "simulated"
    assert EXECUTION[dtype].kind == found
