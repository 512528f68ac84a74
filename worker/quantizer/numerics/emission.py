"""How floats and block formats are written into a graph: standard ONNX operators alone, never a custom one.

Weights are stored as elements and scales and restored by Cast, Gather and Mul, which the runtime folds into float32
constants when it loads the model. They are not written as DequantizeLinear, although onnxruntime has it with blocks and
with float8: behind quantized activations onnxruntime takes it for a per-channel integer one and fails, and behind float
activations it makes a MatMulNBits of it, which rounds the activations to 8 bits.

Activations pass a Cast pair (float16, bfloat16) or a local function of the model (functions.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from ml_dtypes import bfloat16

from worker.quantizer.graph.values import Names, name_of
from worker.quantizer.numerics.blocks import BLOCK_FORMATS
from worker.quantizer.numerics.functions import DOMAIN, block_function, float8_function, lowest_opset
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.numerics.minifloat import BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2, FLOAT16, Minifloat

FLOATS: dict[str, Minifloat] = {each.name: each for each in (FLOAT16, BFLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2)}
_BFLOAT16_OPSET = 13
# Lowest one that knows local functions and 8-bit floats.
IR_VERSION = 9


class Written(NamedTuple):
    """What has to go into the model.

    Attributes:
        nodes: in order; none is in a graph yet.
        initializers: to be registered.
        output: what readers of the original tensor read instead: float32, same shape.
        functions: local functions that the nodes call, to be added with ``add_functions``.
    """

    nodes: list[ir.Node]
    initializers: list[ir.Value]
    output: ir.Value
    functions: list[ir.Function]


def required_opset(dtype: str) -> int:
    """Lowest opset of the default domain that can hold weights and activations of ``dtype``."""
    if dtype in ("float16", "bfloat16"):
        return _BFLOAT16_OPSET
    return lowest_opset(BLOCK_FORMATS[dtype].element if dtype in BLOCK_FORMATS else FLOATS[dtype])


def float8_scale(peak: np.ndarray, dtype: str) -> np.ndarray:
    """The scale that brings ``peak``, the largest magnitude(s), to the type's largest value.

    Args:
        peak: float32 >= 0, shape [] or [channels].
        dtype: float8_e4m3fn or float8_e5m2.

    Returns:
        float32 > 0, same shape; 1 where the peak is too small to be told from 0.
    """
    scale = np.asarray(peak, np.float64) / FLOATS[dtype].maximum
    usable: np.ndarray = np.where(scale < np.finfo(np.float32).tiny, 1.0, scale).astype(np.float32)
    return usable


def fake(values: np.ndarray, dtype: str, axis: int | None, scale: np.ndarray | None = None) -> np.ndarray:
    """``values`` as ``dtype`` represents them: float32, same shape, what the written weights hold.

    Args:
        values: float32, finite.
        dtype: a float or block type.
        axis: block axis; for float8, the channel axis of ``scale``; else unused.
        scale: float8 only, as in ``weight_nodes``.

    Raises:
        ValueError: a value is not finite and the type has blocks.
    """
    if dtype in BLOCK_FORMATS:
        return BLOCK_FORMATS[dtype].fake(values, _needed(axis))
    if scale is None:
        return FLOATS[dtype].fake(values)
    spread = _along(scale, values.ndim, axis)
    represented: np.ndarray = FLOATS[dtype].fake(values / spread) * spread
    return represented


def weight_nodes(
    names: Names, stem: str, values: np.ndarray, dtype: str, axis: int | None, scale: np.ndarray | None = None
) -> Written:
    """A weight as stored elements and the nodes that restore it.

    Args:
        names: names in use; those taken are added.
        stem: the weight's name, which the new names begin with.
        values: float32, finite.
        dtype: a float or block type. float16 and float8 saturate.
        axis: block axis (the one that is summed over); for float8, the channel axis of ``scale`` or None.
        scale: float8 only: float32 > 0, shape [] or [channels].

    Raises:
        ValueError: a value is not finite and the type has blocks; or scale or axis is missing.
    """
    part = _Part(names, stem)
    if dtype in BLOCK_FORMATS:
        block, axis = BLOCK_FORMATS[dtype], _needed(axis) % values.ndim
        elements, scales = block.decompose(values, axis)
        restored = part.cast(part.initializer("quantized", elements), "Cast")
        # bfloat16 holds each of the powers of two in half the room
        scale_of = part.cast(part.initializer("scale", scales.astype(bfloat16)), "scale_Cast")
        if scales.shape[axis] > 1:
            positions = np.arange(values.shape[axis], dtype=np.int32) // block.scale_block_size
            scale_of = part.node("Gather", [scale_of, part.initializer("block", positions)], "scale_Gather", axis=axis)
        restored = part.node("Mul", [restored, scale_of], "Mul")
    elif dtype.startswith("float8"):
        if scale is None:
            raise ValueError(f"{dtype} weights need a scale")
        spread = _along(scale, values.ndim, axis)
        elements = FLOATS[dtype].encode(values / spread)
        restored = part.cast(part.initializer("quantized", elements), "Cast")
        restored = part.node("Mul", [restored, part.initializer("scale", spread)], "Mul")
    else:
        restored = part.cast(part.initializer("quantized", FLOATS[dtype].encode(values)), "Cast")
    restored.shape = ir.Shape(values.shape)
    return Written(part.nodes, part.initializers, restored, [])


def blocked_integer_nodes(names: Names, stem: str, integers: np.ndarray, grid: IntegerGrid) -> Written:
    """8-bit integers with scales per block, restored without DequantizeLinear.

    Args:
        names: names in use; those taken are added.
        stem: the weight's name, which the new names begin with.
        integers: as ``grid`` stores them.
        grid: with ``axis`` and ``block_size``.

    Raises:
        ValueError: the grid has no blocks.
    """
    if grid.block_size is None:
        raise ValueError("the grid has no blocks")
    part, axis = _Part(names, stem), _needed(grid.axis)
    positions = part.initializer("block", np.arange(integers.shape[axis], dtype=np.int32) // grid.block_size)
    restored = part.cast(part.initializer("quantized", integers), "Cast")
    if grid.zero_point.any():
        zero = part.initializer("zero_point", grid.zero_point.astype(np.float32))
        zero = part.node("Gather", [zero, positions], "zero_point_Gather", axis=axis)
        restored = part.node("Sub", [restored, zero], "Sub")
    scale = part.node("Gather", [part.initializer("scale", grid.scale), positions], "scale_Gather", axis=axis)
    restored = part.node("Mul", [restored, scale], "Mul")
    restored.shape = ir.Shape(integers.shape)
    return Written(part.nodes, part.initializers, restored, [])


def activation_nodes(
    names: Names,
    value: ir.Value,
    dtype: str,
    axis: int | None,
    opset: int,
    scale: np.ndarray | None = None,
    *,
    saturate: bool = False,
) -> Written:
    """Quantize and dequantize one activation tensor.

    Args:
        names: names in use; those taken are added.
        value: the tensor, float32; its shape need not be known.
        dtype: a float or block type.
        axis: block axis (the one that the reading operator sums over).
        opset: of the model.
        scale: float8 only: float32 > 0, shape [].
        saturate: hold float16 and bfloat16 at their largest value instead of letting them overflow to infinity, for one
            Clip more. The other types saturate in any case.

    Raises:
        EngineError: the opset is too low for the type.
        ValueError: scale or axis is missing.
    """
    part = _Part(names, name_of(value))
    functions: list[ir.Function] = []
    if dtype in BLOCK_FORMATS:
        axis = _needed(axis)
        functions.append(block_function(BLOCK_FORMATS[dtype], axis, _length(value, axis), opset))
        restored = part.call(functions[0], [value])
    elif dtype.startswith("float8"):
        if scale is None:
            raise ValueError(f"{dtype} activations need a scale")
        functions.append(float8_function(FLOATS[dtype], opset))
        restored = part.call(functions[0], [value, part.initializer("scale", np.asarray(scale, np.float32))])
    else:
        small = value
        if saturate:
            limit = np.float32(FLOATS[dtype].maximum)
            limits = [part.initializer("lowest", -limit), part.initializer("largest", limit)]
            small = part.node("Clip", [value, *limits], "Clip")
        small = part.cast(small, f"to_{dtype}", ir.DataType.from_numpy(FLOATS[dtype].storage))
        restored = part.cast(small, "to_float32")
    restored.shape = value.shape
    return Written(part.nodes, part.initializers, restored, functions)


def add_functions(model: ir.Model, functions: list[ir.Function]) -> None:
    """Add local functions to ``model``, each once, and import their domain."""
    for function in functions:
        model.functions.setdefault(function.identifier(), function)
        model.graph.opset_imports[DOMAIN] = 1


class _Part:
    """Nodes and initializers whose names begin with the same stem."""

    def __init__(self, names: Names, stem: str) -> None:
        self._names, self._stem = names, stem
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []

    def initializer(self, role: str, array: np.ndarray | np.generic) -> ir.Value:
        name = self._names.free(f"{self._stem}_{role}")
        stored = np.asarray(array)
        value = ir.Value(name=name, const_value=ir.tensor(stored, name=name))
        value.dtype, value.shape = ir.DataType.from_numpy(stored.dtype), ir.Shape(stored.shape)
        self.initializers.append(value)
        return value

    def node(self, op_type: str, inputs: list[ir.Value], role: str, *, domain: str = "", **attributes: int) -> ir.Value:
        """Append a node; its output, float32."""
        name = self._names.free(f"{self._stem}_{role}")
        node = ir.node(op_type, inputs, attributes=attributes, domain=domain, name=name)
        node.outputs[0].name = self._names.free(f"{self._stem}_{role}_Output")
        node.outputs[0].dtype = ir.DataType.FLOAT
        self.nodes.append(node)
        return node.outputs[0]

    def cast(self, value: ir.Value, role: str, to: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        output = self.node("Cast", [value], role, to=to.value)
        output.dtype, output.shape = to, value.shape
        return output

    def call(self, function: ir.Function, inputs: list[ir.Value]) -> ir.Value:
        return self.node(function.name, inputs, function.name, domain=function.domain)


def _needed(axis: int | None) -> int:
    if axis is None:
        raise ValueError("a block format needs the axis along which blocks run")
    return axis


def _along(scale: np.ndarray, rank: int, axis: int | None) -> np.ndarray:
    """``scale`` [] or [channels], shaped so that it broadcasts against a tensor of ``rank``."""
    scale = np.asarray(scale, np.float32)
    if scale.ndim == 0 or axis is None:
        return scale
    return scale.reshape([-1 if k == axis % rank else 1 for k in range(rank)])


def _length(value: ir.Value, axis: int) -> int | None:
    """The number of elements along ``axis``, if it is known."""
    if value.shape is None or not -len(value.shape) <= axis < len(value.shape):
        return None
    found = value.shape[axis]
    return found if isinstance(found, int) else None
