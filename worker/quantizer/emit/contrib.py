"""Operators of onnxruntime's own domain that are written: MatMulNBits for few bits, DynamicQuantizeLSTM.

B is [outputs, blocks, block_size * bits / 8] uint8, values of 4 bits two to a byte with the earlier one in the low
bits; scales are [outputs * blocks], zero points of 4 bits are packed likewise, block by block of an output. Integers
are unsigned: signed ones are shifted, and what is not given as zero point is the middle of the type.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from service.contracts.specs import NUMBER_TYPES
from worker.quantizer.graph.values import Names, add_initializer, name_of, node_name, take_place
from worker.quantizer.numerics.integer import PER_TENSOR, IntegerGrid, PerBlock
from worker.quantizer.ops.linear import recurrent_weights
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import QuantizationPlan, WeightPlan

DOMAIN = "com.microsoft"
_BITS = (4, 8)
_SMALLEST_BLOCK = 16


def has_kernel(node: ir.Node, weight: WeightPlan) -> bool:
    """True for a MatMul whose planned weight has the form that the operator takes."""
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

    ``integers`` are [inputs, outputs], with a scale for each block of ``block_size`` inputs of an output.
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

    ``integers`` are those of the weight, [inputs, outputs]; the node ``has_kernel``.
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


# Recurrent layers on integers: onnxruntime's com.microsoft.DynamicQuantizeLSTM.
#
#     X, W, R, B, sequence_lens, initial_h, initial_c, P, W_scale, W_zero_point, R_scale, R_zero_point -> Y, Y_h, Y_c
#
# W is int8 or uint8 [directions, inputs, 4 * hidden] and R [directions, hidden, 4 * hidden], both transposed against
# LSTM's. Scales and zero points are [directions] or [directions, 4 * hidden]. With several scales to a direction int8
# has its zero points at 0, and uint8 has one zero point. Activations are rounded to uint8 by the range of each matrix.

_DOMAIN = "com.microsoft"
# Behind W and R: B, sequence_lens, initial_h, initial_c, P.
_FIRST_KEPT, _KEPT = 3, 5


def write_dynamic_lstm(model: ir.Model, node: ir.Node, plan: QuantizationPlan, names: Names) -> None:
    """Replace an LSTM by one that computes on integers; name, outputs and their names stay.

    The node is an LSTM of the main graph, layout 0, whose W and R are planned; the model is changed in place.

    Raises:
        EngineError: the plan was not filled.
    """
    graph, parameters = model.graph, Parameters(model.graph, plan)
    weights: list[ir.Value] = []
    scales: list[ir.Value] = []
    for value in recurrent_weights(node):
        if value is None:
            raise EngineError(f"node {node.name!r} has no weight", node=node.name)
        stem = f"{name_of(value)}_of_{node_name(node)}"
        integers, scale, zero_point = _operands(name_of(value), parameters.weight(name_of(value)))
        weights.append(add_initializer(graph, names.free(f"{stem}_quantized"), integers))
        scales.append(add_initializer(graph, names.free(f"{stem}_scale"), scale))
        scales.append(add_initializer(graph, names.free(f"{stem}_zero_point"), zero_point))
    kept = list(node.inputs[_FIRST_KEPT:])
    kept += [None] * (_KEPT - len(kept))
    attributes = [attribute for name, attribute in node.attributes.items() if name != "layout"]
    made = ir.Node(
        _DOMAIN,
        "DynamicQuantizeLSTM",
        [node.inputs[0], *weights, *kept, *scales],
        attributes,
        num_outputs=len(node.outputs),
        name=node_name(node),
    )
    model.opset_imports.setdefault(_DOMAIN, 1)
    graph.insert_before(node, made)
    called = [old.name for old in node.outputs]
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=old.is_graph_output())
    graph.remove(node, safe=True)
    for new, name in zip(made.outputs, called, strict=True):
        new.name = name


def _operands(initializer: str, weight: Parameter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers, scales and zero points of one weight as the operator takes them."""
    grid, integers = weight.grid, weight.integers
    if not isinstance(grid, IntegerGrid) or integers is None:
        raise EngineError(f"weight {initializer!r} was planned but not filled", tensor=initializer)

    def spread(array: np.ndarray) -> np.ndarray:
        whole = np.broadcast_to(grid.granularity.spread(array, integers.shape), integers.shape)
        return np.ascontiguousarray(whole[:, 0, 0] if grid.granularity == PER_TENSOR else whole[:, :, 0])

    turned = np.ascontiguousarray(integers.transpose(0, 2, 1))
    return turned, spread(grid.scale), spread(grid.zero_point)
