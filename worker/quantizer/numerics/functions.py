"""Quantize-dequantize as ONNX local functions, made of standard operators alone: any runtime can run them.

Each function is bit for bit what ``fake`` of its format does, for finite input. NaN stays NaN; an infinity makes its
block NaN.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import onnx_ir as ir
from onnx_ir.tape import Tape

from service.contracts.errors import EngineError
from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.numerics.blocks import BlockFormat, FixedPoint
from worker.quantizer.numerics.minifloat import FLOAT8_E4M3FN, FLOAT8_E5M2, Minifloat

DOMAIN = "quantmill"
# The opset from which ReduceMax takes its axes as an input.
_AXES_ARE_INPUTS = 18
# Formats with an ONNX type that ONNX Cast can round to, by mantissa bits.
_CARRIERS = {each.mantissa_bits: each for each in (FLOAT8_E4M3FN, FLOAT8_E5M2)}


def block_function(block: BlockFormat, axis: int, length: int | None, opset: int) -> ir.Function:
    """The function (x) => (y): float32 ``x`` of any rank and dynamic size, as ``block`` represents it along ``axis``.

    Args:
        block: the format.
        axis: along which blocks run; negative counts from the end.
        length: elements along ``axis``, None if that is known at run time only. A known length spares the padding
            where it is a multiple of the block size or less than it.
        opset: of the model that the function goes into.

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
            hint=f"Export the model anew with opset {lowest} or later.",
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
    """The nodes of one function, in order."""

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
        """A float32 scalar."""
        return self._tape.op("Constant", [], {"value": ir.tensor(np.float32(value))})

    def numbers(self, *values: int) -> ir.Value:
        """An int64 vector."""
        return self._tape.op("Constant", [], {"value": ir.tensor(np.array(values, np.int64))})

    def shape(self, value: ir.Value, axis: int) -> ir.Value:
        """The size of one axis, int64 [1]."""
        return self.op("Shape", value, start=axis) if axis == -1 else self.op("Shape", value, start=axis, end=axis + 1)

    def reshape(self, value: ir.Value, *dims: int | ir.Value) -> ir.Value:
        sizes = [self.numbers(dim) if isinstance(dim, int) else dim for dim in dims]
        return self.op("Reshape", value, self.op("Concat", *sizes, axis=0))

    def blocks(self, x: ir.Value, axis: int, size: int, *, aligned: bool) -> tuple[ir.Value, _Restore]:
        """``x`` as [blocks, size, inner], padded with zeros, and the way back."""
        length = self.shape(x, axis)
        inner = self.numbers(1)
        if axis != -1:
            inner = self.op("ReduceProd", self.op("Shape", x, start=axis + 1), keepdims=1)
        flat = x
        padding = None
        if not aligned:
            padding = self.op("Mod", self.op("Neg", length), self.numbers(size))
            pads = self.op("Concat", self.numbers(0, 0, 0, 0), padding, self.numbers(0), axis=0)
            flat = self.op("Pad", self.reshape(x, -1, length, inner), pads)
        return self.reshape(flat, -1, size, inner), _Restore(self, self.op("Shape", x), length, padding, inner)

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


class _Restore:
    """Brings blocks back into the shape they were cut from."""

    def __init__(
        self, body: _FunctionBody, shape: ir.Value, length: ir.Value, padding: ir.Value | None, inner: ir.Value
    ) -> None:
        self._body, self._shape, self._length, self._padding, self._inner = body, shape, length, padding, inner

    def __call__(self, blocks: ir.Value) -> ir.Value:
        body = self._body
        if self._padding is not None:
            padded = body.reshape(blocks, -1, body.op("Add", self._length, self._padding), self._inner)
            blocks = body.op("Slice", padded, body.numbers(0), self._length, body.numbers(1))
        return body.op("Reshape", blocks, self._shape)
