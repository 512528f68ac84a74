"""Models that hold one written tensor, and what they have to give."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import strategies as st

from service.contracts.specs import BLOCK_DTYPES, FLOAT_DTYPES
from tests.unit.quantizer.toolbox import rng
from worker.quantizer.graph.values import Names
from worker.quantizer.numerics.blocks import BLOCK_FORMATS, FLOATS, BlockGrid, FloatGrid
from worker.quantizer.numerics.emission import IR_VERSION, Written, activation_nodes, add_functions
from worker.quantizer.numerics.integer import PER_TENSOR, PerAxis

FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
ALL = (*FLOAT_DTYPES, *BLOCK_DTYPES)
NEWEST_OPSET = 24
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
usual = st.floats(-100, 100, width=32)
SCALE = np.float32(0.0371)


def rounded_grid(
    dtype: str, axis: int, scale: np.ndarray | None = None, channel: int | None = None
) -> FloatGrid | BlockGrid:
    """Blocks along ``axis``, or 8-bit floats with ``scale``, one for each index of ``channel`` if that is given."""
    if dtype in BLOCK_DTYPES:
        return BlockGrid(dtype, axis)
    return FloatGrid(dtype, scale, PER_TENSOR if channel is None else PerAxis(channel))


def activation_grid(dtype: str, axis: int) -> FloatGrid | BlockGrid:
    return rounded_grid(dtype, axis, np.asarray(SCALE) if dtype in FLOAT8 else None)


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


def activation_model(dtype: str, axis: int, shape: tuple[int | str, ...], opset: int) -> onnx.ModelProto:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    names = Names(ir.Graph([], [], nodes=[], name="g"))
    written = activation_nodes(names, value, activation_grid(dtype, axis), opset)
    assert written.output.dtype == ir.DataType.FLOAT
    return model_of(value, written, opset, IR_VERSION)


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
    """What the activation form stands for."""
    with np.errstate(over="ignore"):
        if dtype in FLOAT8:
            return FLOATS[dtype].fake(values / SCALE) * SCALE
        return BLOCK_FORMATS[dtype].fake(values, axis) if dtype in BLOCK_DTYPES else FLOATS[dtype].fake(values)


def wild(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Finite float32 of every exponent, subnormals included."""
    bits = rng(seed).integers(0, 2**32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.where(np.isfinite(bits), bits, np.float32(1))
