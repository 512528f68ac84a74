"""Products with weights of few bits as onnxruntime's own operator, com.microsoft.MatMulNBits.

B is [outputs, blocks, block_size * bits / 8] uint8, values of 4 bits two to a byte with the earlier one in the low
bits; scales are [outputs * blocks], zero points of 4 bits are packed likewise, block by block of an output. Integers
are unsigned: signed ones are shifted, and what is not given as zero point is the middle of the type.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.graph.values import Names, add_initializer, node_name, take_place
from worker.quantizer.numerics.granularity import PerBlock
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import WeightPlan

DOMAIN = "com.microsoft"
_BITS = (4, 8)
_SMALLEST_BLOCK = 16


def has_kernel(node: ir.Node, weight: WeightPlan) -> bool:
    """True for a MatMul whose planned weight has the form that the operator takes.

    Args:
        node: reads the weight.
        weight: its entry in the plan.
    """
    grid, size = weight.quantization, weight.spec.block_size
    shape = None if node.inputs[1] is None else node.inputs[1].shape
    return (
        node.op_type == "MatMul"
        and isinstance(grid, IntegerGrid)
        and weight.granularity == PerBlock(0, size)
        and NUMBER_TYPES[grid.dtype].bits in _BITS
        and size >= _SMALLEST_BLOCK
        and size & (size - 1) == 0
        and shape is not None
        and len(shape) == 2
    )


def packed(
    integers: np.ndarray, grid: IntegerGrid, block_size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """B, scales, and zero points where they are not all the middle of the type.

    Args:
        integers: [inputs, outputs].
        grid: that they lie on, one scale for each block of inputs of an output.
        block_size: inputs of a block.
    """
    known = NUMBER_TYPES[grid.dtype]
    bits, lowest = int(known.bits), known.limits[0] if known.limits else 0
    middle = 1 << (bits - 1)
    blocks = -(-integers.shape[0] // block_size)
    zero = (grid.zero_point.astype(np.int32) - lowest).T  # [outputs, blocks]
    values = (integers.astype(np.int32) - lowest).T
    whole = np.repeat(zero, block_size, axis=1)  # what is filled up counts as 0
    whole[:, : values.shape[1]] = values
    stored = _pairs(whole.astype(np.uint8), bits).reshape(values.shape[0], blocks, -1)
    points = None if (zero == middle).all() else _pairs(zero.astype(np.uint8), bits).reshape(-1)
    return stored, np.ascontiguousarray(grid.scale.T, np.float32).reshape(-1), points


def _pairs(values: np.ndarray, bits: int) -> np.ndarray:
    """uint8 [rows, columns] with two values of 4 bits in a byte, an odd last one beside a 0; of 8 bits, as they are."""
    if bits == 8:
        return values
    even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
    pairs: np.ndarray = even[:, 0::2] | (even[:, 1::2] << 4)
    return pairs


def write_product(
    graph: ir.Graph,
    names: Names,
    node: ir.Node,
    integers: np.ndarray,
    weight: WeightPlan,
) -> None:
    """Put MatMulNBits in the place of a MatMul, under its name.

    Args:
        graph: that holds the node.
        names: in use.
        node: MatMul that ``has_kernel``.
        integers: of its weight, [inputs, outputs].
        weight: its entry in the plan.
    """
    grid = weight.quantization
    if not isinstance(grid, IntegerGrid):
        raise TypeError(f"weight {weight.initializer!r} has no integer grid")
    size, stem = weight.spec.block_size, weight.initializer
    stored, scales, points = packed(integers, grid, size)
    if weight.spec.scale == "float16":
        half = add_initializer(graph, names.free(f"{stem}_scale"), scales.astype(np.float16))
        cast = ir.node("Cast", [half], attributes={"to": int(ir.DataType.FLOAT)}, name=names.free(f"{stem}_Cast"))
        cast.outputs[0].name = names.free(f"{stem}_scale_Cast")
        graph.insert_before(node, cast)
        scale = cast.outputs[0]
    else:
        scale = add_initializer(graph, names.free(f"{stem}_scale"), scales)
    inputs = [node.inputs[0], add_initializer(graph, names.free(f"{stem}_quantized"), stored), scale]
    if points is not None:
        inputs.append(add_initializer(graph, names.free(f"{stem}_zero_point"), points))
    attributes = {
        "K": integers.shape[0],
        "N": integers.shape[1],
        "bits": int(NUMBER_TYPES[grid.dtype].bits),
        "block_size": size,
        "accuracy_level": weight.spec.accuracy_level,
    }
    product = ir.node("MatMulNBits", inputs, attributes=attributes, domain=DOMAIN, name=node_name(node))
    take_place(node, [product], product.outputs[0])
