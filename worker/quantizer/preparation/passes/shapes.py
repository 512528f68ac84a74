"""What all other passes rely on: functions inlined, all nodes and values named, shapes repaired, fixed and inferred."""

from __future__ import annotations

import math
from collections.abc import Iterable

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from service.contracts.model import TensorInfo
from service.contracts.preparation import PreparationSpec, fixed_inputs
from service.contracts.reason import declare
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.graph.serialized import WeightlessProto
from worker.quantizer.graph.values import Names, node_name, users
from worker.quantizer.ops.table import operator

NO_FUNCTIONS = declare("no-functions", "the model has no functions")


def inline_functions(model: ir.Model) -> PassOutcome:
    """Put the nodes of model-local functions in the place of their calls."""
    count = len(model.functions)
    if not count:
        return PassOutcome(model, NO_FUNCTIONS())
    common.InlinePass()(model)
    return PassOutcome(model, f"{count} functions inlined")


def name_everything(model: ir.Model) -> PassOutcome:
    """Name what has no name, tell apart what shares one, and turn Constant nodes into initializers."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for k, node in enumerate(graph):
            if not node.name:
                node.name = f"{node.op_type}_{k}"
    omitted = [value for node in model.graph.all_nodes() for value in node.outputs if not value.name]
    modified = common.NameFixPass()(model).modified
    _distinguish_nodes(model.graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveInitializersFromInputsPass()(model)
    for value in omitted:
        if not value.uses():  # an optional output that is not wanted has no name; the pass gave it one
            value.name = ""
    return PassOutcome(model, "names made unique" if modified else "constants became initializers")


def _distinguish_nodes(graph: ir.Graph) -> None:
    """Let no two nodes share a name, across sub-graphs either; the main graph's keep theirs."""
    inner = [node for node in graph.all_nodes() if node.graph is not graph]
    if not inner:
        return
    names = Names(graph)
    seen = {node_name(node) for node in graph}
    for node in inner:
        if node_name(node) in seen:
            node.name = names.free(node_name(node))
        seen.add(node_name(node))


def first_output(node: ir.Node) -> str:
    """Name of the first output that is not omitted."""
    return next((value.name for value in node.outputs if value.name), "")


# Shapes: repaired, fixed by the user, and inferred.

NO_SHAPES_ASKED = declare("no-shapes-asked-for", "no shapes are requested")
_MOST_PROPAGATED = 1 << 22
INFERENCE_FAILED = declare("inference-failed", "shape inference fails on the model")
SHAPES_KNOWN = declare("shapes-known", "shape inference finds nothing new")


def repair_shapes(model: ir.Model) -> PassOutcome:
    """Some exporters write -1 for an unknown dimension, which converters and shape inference take for a size."""
    repaired = 0
    for value in _values(model):
        if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            value.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in value.shape])
            repaired += 1
    return PassOutcome.counted(model, repaired, "shapes with negative dimensions made dynamic")


def fix_shapes(model: ir.Model, spec: PreparationSpec) -> PassOutcome:
    """Give inputs the shapes of ``fixed_shapes``; inner shapes that depend on them are inferred anew.

    Raises:
        InvalidConfigError: an unknown input, or a shape that contradicts the declared one.
    """
    if not spec.fixed_shapes:
        return PassOutcome(model, NO_SHAPES_ASKED())
    fixed_inputs([_info(value) for value in model.graph.inputs], spec)
    inputs = {value.name: value for value in model.graph.inputs}
    for name, wanted in spec.fixed_shapes.items():
        inputs[name].shape = ir.Shape(wanted)
    for value in _values(model):
        if not value.is_graph_input() and value.shape is not None and not value.shape.is_static():
            value.shape = None
    return PassOutcome(model, ", ".join(f"{name}: {list(shape)}" for name, shape in spec.fixed_shapes.items()))


def _info(value: ir.Value) -> TensorInfo:
    shape = None
    if value.shape is not None:
        shape = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return TensorInfo(name=value.name or "", dtype=value.dtype.name if value.dtype else "other", shape=shape)


def infer_shapes(model: ir.Model) -> PassOutcome:
    """Infer types and shapes of all values, from the operators' own rules and without reading weights."""
    proto = WeightlessProto(model).proto
    note = ""
    values = _values_of_shapes(model) <= _MOST_PROPAGATED
    try:
        inferred = onnx.shape_inference.infer_shapes(proto, check_type=True, strict_mode=True, data_prop=values)
    except onnx.shape_inference.InferenceError as error:
        # One operator whose rule fails must not leave all others without shapes; the model ran when it was uploaded.
        note = f"; strict inference failed: {' '.join(str(error).split())[:200]}"
        try:
            inferred = onnx.shape_inference.infer_shapes(proto, data_prop=values)
        except onnx.shape_inference.InferenceError:
            return PassOutcome(model, INFERENCE_FAILED.saying(f"no shapes are inferred{note}"))
    modified = _merge(model.graph, inferred.graph)
    modified |= _count_copies(model.graph)
    unknown = sum(1 for node in model.graph for value in node.outputs if value.name and value.dtype is None)
    said = (f"{unknown} tensors of unknown type" if unknown else "all tensor types known") + note
    return PassOutcome(model, said if modified else SHAPES_KNOWN.saying(said))


def _count_copies(graph: ir.Graph) -> bool:
    """Tell how often Expand repeats the one axis of unknown length, as a Reshape behind it does; True if any is told.

    Inference does not follow the shapes that exporters compute for it, as those of keys that several heads share.
    """
    found = False
    for node in graph:
        value, made = node.inputs[0] if node.inputs else None, node.outputs[0] if node.outputs else None
        if node.op_type != "Expand" or value is None or made is None or value.shape is None or made.shape is None:
            continue
        pairs = list(zip(value.shape, made.shape, strict=False)) if len(value.shape) == len(made.shape) else []
        open_axes = [k for k, (before, after) in enumerate(pairs) if before == 1 and not isinstance(after, int)]
        readers = [reader for reader in users(made) if reader.op_type == "Reshape" and reader.inputs[0] is made]
        counts = {_copies(value.shape, reader.outputs[0].shape) for reader in readers}
        count = counts.pop() if len(counts) == 1 else None
        if len(open_axes) > 1 or count is None:
            continue
        # an axis whose length has a name is one of the batch, or of positions: such are not repeated
        lengths = [after if isinstance(after, int) else before for before, after in pairs]
        for axis in open_axes:
            lengths[axis] = count
        if _copies(value.shape, ir.Shape(lengths)) == count and lengths != list(made.shape):
            made.shape = ir.Shape(lengths)
            found = True
    return found


def _copies(before: ir.Shape, after: ir.Shape | None) -> int | None:
    """How many times as many elements a shape has; None if that cannot be told."""
    if after is None:
        return None
    names = [sorted(str(dim.value) for dim in shape if not isinstance(dim, int)) for shape in (before, after)]
    sizes = [math.prod(dim for dim in shape if isinstance(dim, int)) for shape in (before, after)]
    if names[0] != names[1] or "None" in names[0] or sizes[0] == 0 or sizes[1] % sizes[0]:
        return None
    return sizes[1] // sizes[0]


def _values_of_shapes(model: ir.Model) -> int:
    """At most how many values inference would carry along: those of one axis, whatever is joined of them.

    A chain of Concat doubles them with each node; each is a message of its own in the memory of the inference.
    """
    lengths: dict[ir.Value, int] = {}
    total = 0

    def length(value: ir.Value) -> int:
        tensor = value.const_value
        known = 0 if tensor is None or len(tensor.shape) > 1 else tensor.size
        return lengths.get(value, known)

    for node in model.graph.all_nodes():
        if operator(node.op_type).joins_shapes:
            found = min(sum(length(value) for value in node.inputs if value is not None), _MOST_PROPAGATED + 1)
            lengths.update(dict.fromkeys(node.outputs, found))
            total += found
    return total


def _merge(graph: ir.Graph, inferred: onnx.GraphProto) -> bool:
    """Take over what was inferred for a graph and its sub-graphs, which correspond node by node."""
    found = {entry.name: entry.type for entry in (*inferred.value_info, *inferred.output)}
    modified = False
    for node, proto in zip(graph, inferred.node, strict=True):
        for value in node.outputs:
            if value.name in found:
                modified |= _take_over(value, found[value.name])
        if any(attribute.type in _GRAPHS for attribute in node.attributes.values()):
            for mine, theirs in zip(_graphs(node), _graph_protos(proto), strict=True):
                modified |= _merge(mine, theirs)
    return modified


_GRAPHS = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


def _graphs(node: ir.Node) -> list[ir.Graph]:
    graphs: list[ir.Graph] = []
    for _, attribute in sorted(node.attributes.items()):
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs += attribute.as_graphs()
    return graphs


def _graph_protos(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    graphs: list[onnx.GraphProto] = []
    for attribute in sorted(node.attribute, key=lambda attribute: attribute.name):
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        graphs += attribute.graphs
    return graphs


def _take_over(value: ir.Value, inferred: onnx.TypeProto) -> bool:
    """True if the value's type or shape is another now."""
    if inferred.WhichOneof("value") != "tensor_type":
        return False
    tensor, modified = inferred.tensor_type, False
    if tensor.elem_type and value.dtype != tensor.elem_type:
        value.dtype, modified = ir.DataType(tensor.elem_type), True
    if tensor.HasField("shape"):
        dims: list[int | str | None] = [
            axis.dim_value if axis.HasField("dim_value") else axis.dim_param or None for axis in tensor.shape.dim
        ]
        if value.shape is None or value.shape != dims:
            value.shape, modified = ir.Shape(dims), True
    return modified


def _values(model: ir.Model) -> Iterable[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.outputs
    for graph in model.graph.subgraphs():
        yield from graph.inputs
    for node in model.graph.all_nodes():
        yield from node.outputs
