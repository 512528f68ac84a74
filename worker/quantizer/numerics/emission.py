"""How floats, block formats and what else DequantizeLinear cannot restore are written into a graph: standard ONNX
operators alone, never a custom one.

Weights are stored as elements and scales and restored by Cast, Gather and Mul, which the runtime folds into float32
constants when it loads the model. They are not written as DequantizeLinear, although onnxruntime has it with blocks,
with float8 and with 2 bits: behind quantized activations onnxruntime takes it for a per-channel 8-bit one and fails,
and behind float activations it makes a MatMulNBits of it, which rounds the activations to 8 bits.

Activations pass a Cast pair (float16, bfloat16) or a local function of the model (functions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import numpy as np
import onnx_ir as ir
from ml_dtypes import bfloat16
from onnx_ir.tape import Tape

from service.contracts.errors import EngineError
from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.graph.rewriting import axis_length
from worker.quantizer.graph.values import Names, name_of
from worker.quantizer.numerics.blocks import (
    FLOAT8_E4M3FN,
    FLOAT8_E5M2,
    BlockFormat,
    BlockGrid,
    FixedPoint,
    FloatGrid,
    Minifloat,
)
from worker.quantizer.numerics.integer import IntegerGrid, PerBlock, onnx_integers

# Quantize-dequantize as ONNX local functions, made of standard operators alone: any runtime can run them.
#
# Each function is bit for bit what ``fake`` of its format does, for finite input. NaN stays NaN; an infinity makes its
# block NaN.

DOMAIN = "quantmill"
# The opset from which ReduceMax takes its axes as an input.
_AXES_ARE_INPUTS = 18
# Formats with an ONNX type that ONNX Cast can round to, by mantissa bits.
_CARRIERS = {each.mantissa_bits: each for each in (FLOAT8_E4M3FN, FLOAT8_E5M2)}


def block_function(block: BlockFormat, axis: int, length: int | None, opset: int) -> ir.Function:
    """The function (x) => (y): float32 ``x`` of any rank and dynamic size, as ``block`` represents it along ``axis``.

    ``axis`` may be negative; ``length`` is that of the axis, None if it is known at run time only. A known length
    spares the padding where it is a multiple of the block size or less than it.

    Raises:
        EngineError: the opset is too low for the type.
    """
    _check_opset(block.name, opset)
    unit = block.sub_block_size or 1
    size = block.block_size if length is None else min(block.block_size, -(-length // unit) * unit)
    aligned = length is not None and length % size == 0
    body = _FunctionBody(opset)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    blocks, restore = body.blocks(x, axis, size, aligned=aligned)
    y = restore(_blocks_as_represented(body, block, blocks, size))
    name = f"{block.name}_axis{axis}".replace("-", "m")
    name += f"_block{size}" if size != block.block_size else ""
    name += "_aligned" if aligned else ""
    return body.function(name, [x], y)


def float8_function(element: Minifloat, opset: int) -> ir.Function:
    """The function (x, scale) => (y): float32 ``x`` of any shape, y = scale * element.fake(x / scale).

    It is not written as QuantizeLinear and DequantizeLinear: onnxruntime takes such pairs around an operator for
    integers and puts operators in their place that do not know float8, or drops a Relu that counts.

    Raises:
        EngineError: the opset is too low for the type.
    """
    _check_opset(element.name, opset)
    body = _FunctionBody(opset)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    scale = ir.Value(name="scale", type=ir.TensorType(ir.DataType.FLOAT))
    y = body.op("Mul", body.through(body.op("Div", x, scale), element), scale)
    return body.function(element.name, [x, scale], y)


def _check_opset(name: str, opset: int) -> None:
    lowest = NUMBER_TYPES[name].opset
    if opset < lowest:
        raise EngineError(
            f"{name} activations need opset {lowest}, the model has {opset}",
            hint=f"Export the model again with opset {lowest} or later.",
            opset=opset,
        )


def _blocks_as_represented(body: _FunctionBody, block: BlockFormat, blocks: ir.Value, size: int) -> ir.Value:
    """``blocks`` [count, size, inner] as represented, in the same layout."""
    inner = body.shape(blocks, 2)
    parts = blocks
    if block.sub_block_size is not None:
        parts = body.reshape(blocks, -1, block.sub_block_size, inner)
    peak = body.peak(parts)
    if block.sub_block_size is None:
        scale = body.shared_scale(peak, block)
    else:
        pairs = body.reshape(peak, -1, size // block.sub_block_size, inner)
        shared = body.shared_scale(body.op("ReduceMax", pairs, axes=[1]), block)
        halved = body.op("Mul", shared, body.number(0.5))
        scale = body.reshape(body.op("Where", body.op("Less", pairs, shared), halved, shared), -1, 1, inner)
    represented = body.element(parts, scale, block.element)
    return represented if parts is blocks else body.reshape(represented, -1, size, inner)


class _FunctionBody:
    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._tape = Tape()

    def function(self, name: str, inputs: list[ir.Value], output: ir.Value) -> ir.Function:
        output.name = "y"
        graph = ir.Graph(inputs, [output], nodes=self._tape.nodes, opset_imports={"": self._opset})
        return ir.Function(DOMAIN, name, graph=graph, attributes=[])

    def op(self, op_type: str, *inputs: ir.Value, **attributes: int | list[int]) -> ir.Value:
        if op_type == "ReduceMax" and self._opset >= _AXES_ARE_INPUTS:
            inputs = (*inputs, self.numbers(*cast("list[int]", attributes.pop("axes"))))
        return self._tape.op(op_type, inputs, attributes)

    def number(self, value: float) -> ir.Value:
        return self._tape.op("Constant", [], {"value": ir.tensor(np.float32(value))})

    def numbers(self, *values: int) -> ir.Value:
        return self._tape.op("Constant", [], {"value": ir.tensor(np.array(values, np.int64))})

    def shape(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of one axis, int64 [1]."""
        return self.op("Shape", value, start=axis) if axis == -1 else self.op("Shape", value, start=axis, end=axis + 1)

    def reshape(self, value: ir.Value, *dims: int | ir.Value) -> ir.Value:
        sizes = [self.numbers(dim) if isinstance(dim, int) else dim for dim in dims]
        return self.op("Reshape", value, self.op("Concat", *sizes, axis=0))

    def blocks(
        self, x: ir.Value, axis: int, size: int, *, aligned: bool
    ) -> tuple[ir.Value, Callable[[ir.Value], ir.Value]]:
        """``x`` as [blocks, size, inner], padded with zeros, and the way back."""
        length = self.shape(x, axis)
        inner = self.numbers(1)
        if axis != -1:
            inner = self.op("ReduceProd", self.op("Shape", x, start=axis + 1), keepdims=1)
        flat, padding = x, None
        if not aligned:
            padding = self.op("Mod", self.op("Neg", length), self.numbers(size))
            pads = self.op("Concat", self.numbers(0, 0, 0, 0), padding, self.numbers(0), axis=0)
            flat = self.op("Pad", self.reshape(x, -1, length, inner), pads)
        made, shape = self.reshape(flat, -1, size, inner), self.op("Shape", x)

        def restore(blocks: ir.Value) -> ir.Value:
            if padding is not None:
                padded = self.reshape(blocks, -1, self.op("Add", length, padding), inner)
                blocks = self.op("Slice", padded, self.numbers(0), length, self.numbers(1))
            return self.op("Reshape", blocks, shape)

        return made, restore

    def peak(self, parts: ir.Value) -> ir.Value:
        """Largest |x| of each block or sub-block of ``parts`` [count, size, inner]: [count, 1, inner]."""
        return self.op("ReduceMax", self.op("Abs", parts), axes=[1])

    def shared_scale(self, peak: ir.Value, block: BlockFormat) -> ir.Value:
        """2^shared, same shape as ``peak``.

        Log is good to some digits only, but its floor is off by one at most, and comparisons with the power itself
        put that right.
        """
        one, two = self.number(1.0), self.number(2.0)
        peak = self.op("Where", self.op("Equal", peak, self.number(0.0)), one, peak)
        logarithm = self.op("Floor", self.op("Mul", self.op("Log", peak), self.number(1 / np.log(2.0))))
        exponent = self.op("Clip", logarithm, self.number(-127.0), self.number(127.0))
        power = self.op("Pow", two, exponent)
        power = self.op("Where", self.op("Greater", power, peak), self.op("Mul", power, self.number(0.5)), power)
        double = self.op("Mul", power, two)
        power = self.op("Where", self.op("LessOrEqual", double, peak), double, power)
        if block.element.maximum_exponent:
            power = self.op("Mul", power, self.number(2.0**-block.element.maximum_exponent))
        return self.op("Max", power, self.number(2.0**block.smallest_exponent))

    def element(self, values: ir.Value, scale: ir.Value, element: FixedPoint | Minifloat) -> ir.Value:
        """``values`` as ``element`` represents them at ``scale``."""
        if isinstance(element, FixedPoint):
            step = self.op("Mul", scale, self.number(2.0**-element.fraction_bits))
            steps = self.op("Round", self.op("Div", values, step))
            held = self.op("Clip", steps, self.number(element.minimum), self.number(element.maximum))
            return self.op("Mul", held, step)
        ratio = self.op("Div", values, scale)
        if element.mantissa_bits in _CARRIERS:
            return self.op("Mul", self.through(ratio, element), scale)
        return self.op("Mul", self.binades(ratio, element), scale)

    def through(self, values: ir.Value, element: Minifloat) -> ir.Value:
        """element.fake(values) by Cast to a float8 with as many mantissa bits.

        2^-(difference of the biases) brings the subnormals, and with them the whole grid, to the same place.
        """
        carrier = _CARRIERS[element.mantissa_bits]
        shift = carrier.bias - element.bias
        if shift:
            limit = self.number(element.maximum)
            values = self.op("Clip", values, self.number(-element.maximum), limit)
            values = self.op("Mul", values, self.number(2.0**-shift))
        small = self.op("Cast", values, to=ir.DataType.from_numpy(carrier.storage).value)
        wide = self.op("Cast", small, to=ir.DataType.FLOAT.value)
        return self.op("Mul", wide, self.number(2.0**shift)) if shift else wide

    def binades(self, values: ir.Value, element: Minifloat) -> ir.Value:
        """element.fake(values) by comparison with each power of two at which the step doubles."""
        held = self.op("Clip", values, self.number(-element.maximum), self.number(element.maximum))
        magnitude = self.op("Abs", held)
        exponents = range(element.smallest_normal_exponent, element.maximum_exponent + 1)
        step = self.number(2.0 ** (exponents[0] - element.mantissa_bits))
        for exponent in exponents[1:]:
            reached = self.op("GreaterOrEqual", magnitude, self.number(2.0**exponent))
            step = self.op("Where", reached, self.number(2.0 ** (exponent - element.mantissa_bits)), step)
        return self.op("Mul", self.op("Round", self.op("Div", held, step)), step)


# Lowest one that knows local functions and 8-bit floats.
IR_VERSION = 9


class Written(NamedTuple):
    """What has to go into the model."""

    nodes: list[ir.Node]  # in order; none is in a graph yet
    initializers: list[ir.Value]  # to be registered
    output: ir.Value  # what readers of the original tensor read instead: float32, same shape
    functions: list[ir.Function]  # local functions that the nodes call, to be added with ``add_functions``


def weight_nodes(names: Names, stem: str, values: np.ndarray, grid: FloatGrid | BlockGrid) -> Written:
    """A weight as stored elements and the nodes that restore it.

    New names begin with ``stem``, and are added to ``names``. ``values`` are float32, finite; what a float type cannot
    reach saturates.

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

    New names begin with ``stem``, and are added to ``names``. ``integers`` are as ``grid`` holds them in memory.
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

    The shape of ``value``, float32, need not be known; the grid has one scale if any.

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
