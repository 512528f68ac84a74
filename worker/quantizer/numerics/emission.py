"""How floats, block formats and what else DequantizeLinear cannot restore are written into a graph: standard ONNX
operators alone, never a custom one.

Weights are stored as elements and scales and restored by Cast, Gather and Mul, which the runtime folds into float32
constants when it loads the model. They are not written as DequantizeLinear, although onnxruntime has it with blocks,
with float8 and with 2 bits: behind quantized activations onnxruntime takes it for a per-channel 8-bit one and fails,
and behind float activations it makes a MatMulNBits of it, which rounds the activations to 8 bits.

Activations pass a Cast pair (float16, bfloat16) or a local function of the model (functions.py).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from ml_dtypes import bfloat16

from worker.quantizer.graph.rewriting import axis_length
from worker.quantizer.graph.values import Names, name_of
from worker.quantizer.numerics.blocks import BlockGrid
from worker.quantizer.numerics.functions import DOMAIN, block_function, float8_function
from worker.quantizer.numerics.granularity import PerBlock
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.numerics.minifloat import FloatGrid
from worker.quantizer.numerics.storage import onnx_integers

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


def weight_nodes(names: Names, stem: str, values: np.ndarray, grid: FloatGrid | BlockGrid) -> Written:
    """A weight as stored elements and the nodes that restore it.

    Args:
        names: names in use; those taken are added.
        stem: the weight's name, which the new names begin with.
        values: float32, finite. What a float type cannot reach saturates.
        grid: what they are rounded to.

    Raises:
        ValueError: a value is not finite and the type has blocks.
    """
    part = _Part(names, stem)
    if isinstance(grid, BlockGrid):
        restored = _restored_blocks(part, values, grid)
    else:
        scale = grid.spread_scale(values.shape)
        elements = grid.form.encode(values if scale is None else values / scale)
        restored = part.cast(part.initializer("quantized", elements), "Cast")
        if scale is not None:
            restored = part.node("Mul", [restored, part.initializer("scale", scale)], "Mul")
    restored.shape = ir.Shape(values.shape)
    return Written(part.nodes, part.initializers, restored, [])


def _restored_blocks(part: _Part, values: np.ndarray, grid: BlockGrid) -> ir.Value:
    axis = grid.axis % values.ndim
    elements, scales = grid.form.decompose(values, axis)
    restored = part.cast(part.initializer("quantized", elements), "Cast")
    # bfloat16 holds each of the powers of two in half the room
    scale_of = part.cast(part.initializer("scale", scales.astype(bfloat16)), "scale_Cast")
    if scales.shape[axis] > 1:
        positions = np.arange(values.shape[axis], dtype=np.int32) // grid.form.scale_block_size
        scale_of = part.node("Gather", [scale_of, part.initializer("block", positions)], "scale_Gather", axis=axis)
    return part.node("Mul", [restored, scale_of], "Mul")


def integer_nodes(names: Names, stem: str, integers: np.ndarray, grid: IntegerGrid) -> Written:
    """An integer weight, restored without DequantizeLinear.

    Args:
        names: names in use; those taken are added.
        stem: the weight's name, which the new names begin with.
        integers: as ``grid`` holds them in memory.
        grid: of the weight.
    """
    part, blocks, shape = _Part(names, stem), grid.granularity, integers.shape
    positions: ir.Value | None = None
    if isinstance(blocks, PerBlock):
        positions = part.initializer("block", np.arange(shape[blocks.axis], dtype=np.int32) // blocks.size)

    def spread(role: str, array: np.ndarray) -> ir.Value:
        if positions is None or not isinstance(blocks, PerBlock):
            return part.initializer(role, grid.spread(array, shape))
        stored = part.initializer(role, array.astype(np.float32))
        return part.node("Gather", [stored, positions], f"{role}_Gather", axis=blocks.axis)

    restored = part.cast(part.initializer("quantized", onnx_integers(integers, grid.dtype)), "Cast")
    if grid.zero_point.any():
        restored = part.node("Sub", [restored, spread("zero_point", grid.zero_point)], "Sub")
    restored = part.node("Mul", [restored, spread("scale", grid.scale)], "Mul")
    restored.shape = ir.Shape(shape)
    return Written(part.nodes, part.initializers, restored, [])


def activation_nodes(names: Names, value: ir.Value, grid: FloatGrid | BlockGrid, opset: int) -> Written:
    """Quantize and dequantize one activation tensor; what the type cannot reach saturates.

    Args:
        names: names in use; those taken are added.
        value: the tensor, float32; its shape need not be known.
        grid: what it is rounded to, with one scale if any.
        opset: of the model.

    Raises:
        EngineError: the opset is too low for the type.
    """
    part = _Part(names, name_of(value))
    functions: list[ir.Function] = []
    if isinstance(grid, BlockGrid):
        functions.append(block_function(grid.form, grid.axis, axis_length(value, grid.axis), opset))
        restored = part.call(functions[0], [value])
    elif grid.scale is not None:
        functions.append(float8_function(grid.form, opset))
        restored = part.call(functions[0], [value, part.initializer("scale", np.asarray(grid.scale, np.float32))])
    else:
        # Cast would let what the type cannot reach overflow to infinity
        limit = np.float32(grid.form.maximum)
        limits = [part.initializer("lowest", -limit), part.initializer("largest", limit)]
        held = part.node("Clip", [value, *limits], "Clip")
        small = part.cast(held, f"to_{grid.dtype}", ir.DataType.from_numpy(grid.form.storage))
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
