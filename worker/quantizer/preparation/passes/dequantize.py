"""Takes the quantization off a model with Q/DQ pairs, so that it can be quantized anew.

A DequantizeLinear of a constant becomes a float initializer; a QuantizeLinear with the DequantizeLinear nodes behind
it goes, if both sides have the same parameters. What a pair rounded and saturated is left alone from then on, with one
exception: quantizers drop a Relu (or a Clip at 0 and 6) where a pair follows whose integers begin at 0, since the pair
does the same. There it is put back.
"""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from service.contracts.compatibility import is_quantized_op
from service.contracts.dtypes import is_integer
from service.contracts.errors import AlreadyQuantizedError
from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import hand_on
from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.graph.values import Names, add_initializer, constant, int_attribute, name_of, node_name, users
from worker.quantizer.numerics.granularity import PER_TENSOR, Granularity, PerAxis, PerBlock
from worker.quantizer.preparation.signs import Signs

NOT_QUANTIZED = declare("no-quantized-operators", "the model holds no quantized operators")
FOREIGN_INTEGERS = declare("foreign-integers", "it reads integers that are neither constant nor of a QuantizeLinear")
INTEGERS_ARE_OUTPUT = declare("integers-are-output", "its integers are the model's output {output!r}")
INTEGERS_COMPUTED_ON = declare("integers-computed-on", "it computes on the integers of node {maker!r}")
OTHER_PARAMETERS = declare("other-parameters", "its scale or zero_point is not that of node {maker!r}")
NO_PAIR = declare("no-qdq-pair", "it is not part of a Q/DQ pair")

# com.microsoft holds the same pair, for types that came into the standard later.
_DOMAINS = ("", "ai.onnx", "com.microsoft")
_DEFAULT_AXIS = 1
_SIX_TOLERANCE = 1e-4
_HINT = "Upload the float model that it was made from: Q/DQ pairs alone can be taken off."


def dequantize(model: ir.Model) -> Outcome:
    """Take off every Q/DQ pair; the model has been named, and is changed in place.

    Raises:
        AlreadyQuantizedError: a quantized operator is left; names the node, and why.
    """
    if not any(is_quantized_op(node.op_type) for node in model.graph.all_nodes()):
        return Outcome(model, NOT_QUANTIZED())
    editor = _Undoing(model)
    for graph in (model.graph, *model.graph.subgraphs()):
        editor.walk(graph)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    _refuse_left(model, editor.reasons)
    return Outcome(model, editor.summary())


class _Undoing:
    """The state of one pass: counts, names, and why something could not be taken off."""

    def __init__(self, model: ir.Model) -> None:
        self.reasons: dict[str, Reason] = {}
        self._names = Names(model.graph)
        self._signs = Signs()
        self._counts: Counter[str] = Counter()

    def walk(self, graph: ir.Graph) -> None:
        """One graph in topological order, so that what is put back tells the signs of what follows."""
        for node in list(graph):
            if node.graph is None:  # it went with its QuantizeLinear
                continue
            if node.op_type == "DequantizeLinear" and node.domain in _DOMAINS:
                self._fold(node)
            elif node.op_type == "QuantizeLinear" and node.domain in _DOMAINS:
                self._take_off(node)
            self._signs.learn(node)

    def summary(self) -> str:
        """What was done, for the report."""
        counts = self._counts
        detail = (
            f"{counts['pairs']} pairs of QuantizeLinear and DequantizeLinear taken off, "
            f"{counts['constants']} constants made float"
        )
        put_back = " and ".join(f"{counts[op]} {op}" for op in ("Relu", "Clip") if counts[op])
        return f"{detail}; {put_back} put back where integers began at 0" if put_back else detail

    def _fold(self, node: ir.Node) -> None:
        """DequantizeLinear of a constant -> initializer under the name of its result."""
        integers, scale, zero_point = (constant(value) for value in _operands(node))
        given = _operands(node)[2]
        if integers is None or scale is None or (given is not None and zero_point is None):
            source = node.inputs[0]
            maker = source.producer() if source is not None else None
            if maker is None or maker.op_type != "QuantizeLinear":  # else its QuantizeLinear has to do with it
                self.reasons[node_name(node)] = FOREIGN_INTEGERS()
            return
        array = dequantized(integers, scale, zero_point, _granularity(node, scale))
        wanted = int_attribute(node, "output_dtype", 0)
        array = array.astype(ir.DataType(wanted).numpy() if wanted else scale.dtype)
        result = node.outputs[0]
        name = name_of(result)
        result.name = None
        graph = node.graph
        assert graph is not None  # noqa: S101 - it was found in one
        made = add_initializer(graph, name, array)
        ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        self._counts["constants"] += 1

    def _take_off(self, node: ir.Node) -> None:
        """QuantizeLinear and all its DequantizeLinear -> what it read, behind a Relu or Clip where one is missing."""
        integers, source = node.outputs[0], node.inputs[0]
        if source is None:
            return
        found = [(reader, _contradiction(node, reader)) for reader in users(integers)]
        if integers.is_graph_output():
            self.reasons[node_name(node)] = INTEGERS_ARE_OUTPUT(output=integers.name)
        for reader, contradiction in found:
            if contradiction is not None:
                self.reasons[node_name(reader)] = contradiction
        readers = [reader for reader, contradiction in found if contradiction is None]
        if not readers:
            return
        activation = self._missing_activation(node, source)
        replacement = source if activation is None else activation.outputs[0]
        for reader in readers:
            self._replace(reader, replacement)
            self._counts["pairs"] += 1
        if activation is not None:
            self._signs.learn(activation)

    def _replace(self, node: ir.Node, replacement: ir.Value) -> None:
        """Let ``replacement`` take the place of what ``node`` computes."""
        result, graph = node.outputs[0], node.graph
        assert graph is not None  # noqa: S101 - it was found in one
        maker = replacement.producer()
        if result.is_graph_output():
            name = name_of(result)
            result.name = None
            if maker is None or maker.graph is not graph or replacement.is_graph_output():
                identity = ir.node("Identity", [replacement], name=self._names.free(f"{node_name(node)}_Identity"))
                graph.insert_before(node, identity)
                replacement = identity.outputs[0]
            replacement.name = name
        replacement.type, replacement.shape = replacement.type or result.type, replacement.shape or result.shape
        ir.convenience.replace_all_uses_with(result, replacement, replace_graph_outputs=True)
        graph.remove(node, safe=True)

    def _missing_activation(self, node: ir.Node, source: ir.Value) -> ir.Node | None:
        """Relu or Clip(0, 6) in place of the pair, if it did what one of them does."""
        maker = source.producer()
        if maker is None or not _begins_at_zero(node) or self._signs.never_negative(source):
            return None
        graph = node.graph
        assert graph is not None  # noqa: S101 - it was found in one
        op_type, limits = "Relu", []
        if _ends_at_six(node):
            op_type = "Clip"
            for limit in (0.0, 6.0):
                name = self._names.free(f"{node_name(node)}_limit")
                limits.append(add_initializer(graph, name, np.array(limit, _float_type(node))))
        made = ir.node(op_type, [source, *limits], name=self._names.free(f"{node_name(maker)}_{op_type}"))
        made.outputs[0].name = self._names.free(f"{name_of(source)}_{op_type}")
        made.outputs[0].type, made.outputs[0].shape = source.type, source.shape
        hand_on([maker], [made])
        graph.insert_before(node, made)
        self._counts[op_type] += 1
        return made


def dequantized(
    integers: np.ndarray, scale: np.ndarray, zero_point: np.ndarray | None, granularity: Granularity
) -> np.ndarray:
    """(q - zero_point) * scale in float32, as DequantizeLinear defines it.

    Args:
        integers: of any integer or float8 type.
        scale: one value, one per index of ``axis``, or one per block along ``axis``.
        zero_point: of the same shape; None for 0.
        granularity: what shares a scale.
    """
    # Differences of 32-bit integers need more than 32 bits; float8 has no zero point but 0.
    exact = np.float32 if not _is_integer(integers.dtype) else np.int64
    difference = integers.astype(exact)
    if zero_point is not None:
        difference = difference - granularity.spread(zero_point.astype(exact), integers.shape)
    result: np.ndarray = difference.astype(np.float32) * granularity.spread(scale.astype(np.float32), integers.shape)
    return result


def _granularity(node: ir.Node, scale: np.ndarray) -> Granularity:
    axis, block_size = int_attribute(node, "axis", _DEFAULT_AXIS), int_attribute(node, "block_size", 0)
    if block_size:
        return PerBlock(axis, block_size)
    return PER_TENSOR if scale.size == 1 else PerAxis(axis)


def _operands(node: ir.Node) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    return node.inputs[0], node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None


def _contradiction(quantize: ir.Node, reader: ir.Node) -> Reason | None:
    """Why ``reader`` is not the other half of ``quantize``; None if it is."""
    maker = node_name(quantize)
    if reader.op_type != "DequantizeLinear" or reader.domain not in _DOMAINS:
        return INTEGERS_COMPUTED_ON(maker=maker)
    (_, *own), (_, *others) = _operands(quantize), _operands(reader)
    same = all(_equal(one, other) for one, other in zip(own, others, strict=True))
    if not same or any(
        int_attribute(quantize, name, default) != int_attribute(reader, name, default)
        for name, default in (("axis", _DEFAULT_AXIS), ("block_size", 0))
    ):
        return OTHER_PARAMETERS(maker=maker)
    return None


def _equal(one: ir.Value | None, other: ir.Value | None) -> bool:
    if one is other:
        return True
    array, twin = constant(one), constant(other)
    if one is None or other is None:  # an absent zero_point is 0
        there = array if other is None else twin
        return there is not None and not np.any(there.astype(np.float32))
    return array is not None and twin is not None and array.dtype == twin.dtype and np.array_equal(array, twin)


def _begins_at_zero(node: ir.Node) -> bool:
    """True if the lowest integer stands for 0, so that the pair made negative values 0."""
    given = node.inputs[2] if len(node.inputs) > 2 else None
    if given is None:
        dtype = node.outputs[0].dtype
        return dtype is None or (dtype.is_integer() and not dtype.is_signed())
    array = constant(given)
    if array is None or not _is_integer(array.dtype):
        return False
    return bool(np.all(array == _limits(array.dtype)[0]))


def _ends_at_six(node: ir.Node) -> bool:
    """True if the highest integer of a range that begins at 0 stands for 6."""
    scale = constant(node.inputs[1])
    array = constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if scale is None or scale.size != 1:
        return False
    low, high = _limits(np.dtype(np.uint8) if array is None else array.dtype)
    return abs(float(scale.reshape(-1)[0]) * (high - low) - 6.0) < 6.0 * _SIX_TOLERANCE


def _limits(dtype: np.dtype) -> tuple[int, int]:
    found = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]  # numpy's own knows no 4-bit integers
    return int(found.min), int(found.max)


def _float_type(node: ir.Node) -> np.dtype:
    scale = constant(node.inputs[1])
    return np.dtype(np.float32) if scale is None else scale.dtype


def _is_integer(dtype: np.dtype) -> bool:
    return dtype.kind in "iu" or is_integer(dtype.name)


def _refuse_left(model: ir.Model, reasons: dict[str, Reason]) -> None:
    """Refuse a model that still computes on integers; names the node where the pass got stuck first."""
    nodes = {node_name(node): node for node in model.graph.all_nodes()}
    stuck = [nodes[name] for name in reasons if name in nodes]
    left = stuck or [node for node in nodes.values() if is_quantized_op(node.op_type)]
    if not left:
        return
    node = left[0]
    reason = reasons.get(node_name(node)) or NO_PAIR()
    raise AlreadyQuantizedError(
        f"node {node_name(node)!r} ({node.op_type}) cannot be made float: {reason}",
        hint=_HINT,
        node=node_name(node),
        op_type=node.op_type,
        reason_code=reason.code,
    )
