"""What can be computed beforehand is, within a cost told from the operands; what nothing reads goes.

Those of sub-graphs (bodies of If, Loop and Scan) are brought into the main graph, and every reader of a shared weight
or bias gets a copy of its own, so that each may be changed and quantized alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript.optimizer import fold_constants_ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import Metadata
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.graph.serialized import weight_bytes
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_twin,
    is_constant,
    name_of,
    node_name,
    subgraph_nodes,
)
from worker.quantizer.ops.linear import LINEAR, RECURRENT, RECURRENT_WEIGHTS, is_linear, is_recurrent
from worker.quantizer.ops.table import operator

# What computing a constant beforehand would cost, told from the operands alone, and how much of that is done.
#
# A few hundred bytes can ask for a chain of products of 8192 x 8192 matrices, or for a tensor of gigabytes. What is
# beyond the budget stays in the graph as it is: the runtime computes it where a job needs it, within that job's limits.

BEYOND_BUDGET = declare("beyond-folding-budget", "computing it in advance takes more time or memory than allowed")
# All constants together: some seconds of one core, and memory beside that of the weights.
MOST_FLOP = 1 << 35
FREE_BYTES, BYTES_PER_WEIGHT_BYTE = 256 << 20, 4
_FLOP_PER_SLOW_ELEMENT = 100_000
_GROWTH_OF_OTHERS = 8
# Operands that a shape may depend on have few elements.
_MOST_VALUES = 1024


class FoldingBudget:
    """Says of each node whether it is computed beforehand; to be asked once per node, in order.

    Args:
        opsets: versions by domain.
        weight_bytes: of the model.

    Attributes:
        left_alone: nodes beyond the budget.
    """

    def __init__(self, opsets: Mapping[str, int], *, weight_bytes: int) -> None:
        self._opsets = opsets
        self._flop_left = MOST_FLOP
        self._bytes_left = FREE_BYTES + BYTES_PER_WEIGHT_BYTE * weight_bytes
        self.left_alone: dict[str, Reason] = {}

    def should_fold(self, node: ir.Node) -> bool | None:
        """False for a node beyond the budget; None leaves it to the folder's own rules.

        Args:
            node: all its inputs are constants.
        """
        cost = self._cost(node)
        if cost is not None:
            flop, size_bytes = cost
            if flop <= self._flop_left and size_bytes <= self._bytes_left:
                self._flop_left -= flop
                self._bytes_left -= size_bytes
                return None
        self.left_alone[node_name(node)] = BEYOND_BUDGET()
        return False

    def _cost(self, node: ir.Node) -> tuple[int, int] | None:
        """FLOP and bytes of the outputs; None: they cannot be told."""
        operands = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
        taken = sum(tensor.size for tensor in operands)
        shape = self._output_shape(node)
        if shape is None:
            if operator(node.op_type).grows_by_values or node.domain not in DEFAULT_DOMAINS:
                return None
            made = _GROWTH_OF_OTHERS * taken
        else:
            made = math.prod(shape)
        item_bytes = max((tensor.dtype.itemsize for tensor in operands), default=4)
        return int(_flop(node, operands, taken, made)), int(made * max(item_bytes, 1))

    def _output_shape(self, node: ir.Node) -> tuple[int, ...] | None:
        """Of the first output, by the operator's own rule; what the file declares may be a lie."""
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        given = {value.name: value.const_value for value in node.inputs if value is not None and value.name}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(domain, 1), domain)
            types = {
                name: onnx.helper.make_tensor_type_proto(int(tensor.dtype), tensor.shape.numpy())
                for name, tensor in given.items()
                if tensor is not None
            }
            values = {
                name: ir.serde.serialize_tensor(tensor)
                for name, tensor in given.items()
                if tensor is not None and tensor.size <= _MOST_VALUES
            }
            found = onnx.shape_inference.infer_node_outputs(schema, ir.serde.serialize_node(node), types, values)
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError):
            return None
        kind = found.get(node.outputs[0].name or "")
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in kind.tensor_type.shape.dim]
        return tuple(dims) if all(axis >= 0 for axis in dims) else None


def _flop(node: ir.Node, operands: list[ir.TensorProtocol], taken: int, made: int) -> float:
    """Multiplications and additions, or what takes as long."""
    shapes = [tensor.shape.numpy() for tensor in operands]
    kind = node.op_type
    if operator(kind).slow_reference:
        return _FLOP_PER_SLOW_ELEMENT * float(taken + made)
    if kind in ("MatMul", "MatMulInteger") and shapes[0]:
        return 2.0 * made * shapes[0][-1]
    if kind == "Gemm" and len(shapes[0]) == 2:
        transposed = node.attributes.get("transA")
        inner = shapes[0][0] if transposed is not None and transposed.value else shapes[0][1]
        return 2.0 * made * inner
    if kind in ("Conv", "ConvInteger") and len(shapes) > 1:
        return 2.0 * made * float(np.prod(shapes[1][1:], dtype=float))
    if kind in ("ConvTranspose", "Einsum", "Det") or kind.startswith("Attention"):
        return 2.0 * math.prod(float(tensor.size) for tensor in operands)
    return float(taken + made)


_FOLD_INPUT_BYTES = 64 * 2**20
_FOLD_OUTPUT_BYTES = 64 * 2**20


def fold_constants(model: ir.Model) -> PassOutcome:
    """Replace what depends on constants alone by its value, and remove nodes without effect.

    What costs more than the budget of folding is left as it is, and told.
    """
    before = model.graph.num_nodes()
    metadata = Metadata(model.graph)
    budget = FoldingBudget(model.opset_imports, weight_bytes=weight_bytes(model))
    fold_constants_ir(
        model,
        onnx_shape_inference=True,
        input_size_limit=_FOLD_INPUT_BYTES,
        output_size_limit=_FOLD_OUTPUT_BYTES,
        should_fold=budget.should_fold,
    )
    _forget_dropped_branches(model.graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if not any(True for _ in model.graph.subgraphs()):  # the pass cannot see reads across graphs
        _remove_identities(model.graph)
    common.RemoveUnusedNodesPass()(model)
    metadata.restore(model.graph)
    removed = before - model.graph.num_nodes()
    there = {node_name(node) for node in model.graph.all_nodes()} if budget.left_alone else set()
    left = {name: reason for name, reason in budget.left_alone.items() if name in there}
    return PassOutcome.counted(model, removed, "nodes folded away", left=left)


def remove_dead_code(model: ir.Model) -> PassOutcome:
    """Remove nodes and initializers that no output depends on."""
    before = model.graph.num_nodes()
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    removed = before - model.graph.num_nodes()
    return PassOutcome.counted(model, removed, "nodes removed")


def _forget_dropped_branches(graph: ir.Graph) -> None:
    """An If of a constant condition is gone, but the nodes of its other branch still count as readers."""
    there = set(graph.all_nodes())
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in there for value in node.outputs)]
    for value in values:
        for usage in list(value.uses()):
            if usage.node not in there:
                usage.node.replace_input_with(usage.idx, None)


def _remove_identities(graph: ir.Graph) -> None:
    """onnx-ir's own pass merges two graph outputs into one where an Identity stands between them."""
    for node in list(graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Identity" or node.domain not in DEFAULT_DOMAINS or source is None:
            continue
        is_output = result.is_graph_output()
        if is_output and (source.is_graph_output() or source.producer() is None):
            continue
        name = name_of(result)
        source.type, source.shape = source.type or result.type, source.shape or result.shape
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if is_output:
            source.name = name


SUBGRAPHS_IN_FLOAT = declare("subgraphs-in-float", "sub-graphs stay in float")
NO_SUBGRAPH_WEIGHT = declare("no-subgraph-weight", "no {op_types} of a sub-graph has its own weight")


def lift_subgraph_weights(model: ir.Model, *, wanted: bool) -> PassOutcome:
    """Make the weights that nodes of sub-graphs hold initializers of the main graph, if that is ``wanted``.

    Bodies see what the graphs around them hold, so nothing else changes. A constant that is also read otherwise within
    its body, or is a result of it, stays there as well; both share their memory.
    """
    if not wanted:
        return PassOutcome(model, SUBGRAPHS_IN_FLOAT())
    graph = model.graph
    held: dict[ir.Value, list[tuple[ir.Node, int]]] = {}
    for node in subgraph_nodes(graph):
        for index in _weights(node):
            weight = node.inputs[index]
            if weight is not None and is_constant(weight) and weight.graph is not graph:
                held.setdefault(weight, []).append((node, index))
    if not held:
        return PassOutcome(model, NO_SUBGRAPH_WEIGHT(op_types=", ".join((*LINEAR, *RECURRENT))))
    names, times = Names(graph), _times_used(graph)
    for weight, readers in held.items():
        alone = len(weight.uses()) == len(readers) and not weight.is_graph_output()
        name = name_of(weight)
        free = name if alone and times[name] == 1 else names.free(name)
        if alone and weight.graph is not None:
            del weight.graph.initializers[name]
        lifted = add_twin(graph, free, weight)
        for node, index in readers:
            node.replace_input_with(index, lifted)
    return PassOutcome(model, f"{len(held)} weights moved from sub-graphs into the main graph")


def _weights(node: ir.Node) -> tuple[int, ...]:
    """Which inputs of a node are weights."""
    if is_recurrent(node):
        return RECURRENT_WEIGHTS
    return (1,) if is_linear(node) else ()


def _times_used(graph: ir.Graph) -> Counter[str | None]:
    """How many values bear each name: sub-graphs that stand beside each other may use the same ones."""
    times: Counter[str | None] = Counter()
    for part in (graph, *graph.subgraphs()):
        times.update({value.name for value in (*part.inputs, *part.initializers.values())})
        times.update(value.name for node in part for value in node.outputs)
    return times


NOTHING_SHARED = declare("nothing-shared", "no weight or bias has several readers")


def unshare_initializers(model: ir.Model) -> PassOutcome:
    """Copy the constants that a Conv, ConvTranspose, Gemm or MatMul shares with other nodes or with itself.

    The first reader keeps the constant. Copies share its memory until one of them is changed; in a file each one
    takes its bytes. Readers within sub-graphs read a copy in the main graph.
    """
    graph = model.graph
    shared = [value for value in graph.initializers.values() if len(value.uses()) > 1 and _is_weight(value)]
    if not shared:
        return PassOutcome(model, NOTHING_SHARED())
    names = Names(graph)
    copies = 0
    for value in shared:
        for usage in list(value.uses())[0 if value.is_graph_output() else 1 :]:
            reader = usage.node
            copy = add_twin(graph, names.free(f"{name_of(value)}_of_{node_name(reader)}"), value)
            reader.replace_input_with(usage.idx, copy)
            copies += 1
    return PassOutcome(model, f"{copies} copies of {len(shared)} shared weights and biases")


def _is_weight(value: ir.Value) -> bool:
    return not value.is_graph_input() and any(is_linear(usage.node) for usage in value.uses())
