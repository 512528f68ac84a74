"""The graph that torch's exporter makes, made fit to be kept: names that last, nothing of the machine.

Parameters keep their names and shapes, nodes the paths of their modules; what a Reshape makes is a constant. torch's
own optimization is not used: it merges equal parameters, and folds what is computed from parameters alone, so that
neither names nor shapes of the module's parameters would be found again.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript.optimizer import fold_constants_ir

from worker.quantizer.graph.metadata import CALL_NUMBER, SCOPES, Metadata, module_paths
from worker.quantizer.graph.values import Names, input_of
from worker.quantizer.intake.state import STATE_NAMES

# What the exporter is asked for: torch's default; Gelu is an operator of its own from here on.
OPSET = 20
# What a free first axis is called.
BATCH = "batch"
# What one may fold in a client's process; what is larger is folded by whoever prepares the model.
_FOLDED_AT_MOST_BYTES = 16 * 2**20

PathWithin = Callable[[str, str], str]
Resolve = Callable[[ir.Model], None]


def tidy(
    model: ir.Model,
    aliases: Mapping[str, str],
    outputs: Sequence[str],
    *,
    inputs: Sequence[str] | None = None,
    path_within: PathWithin | None = None,
    resolve: Resolve | None = None,
) -> None:
    """Bring the exporter's graph into its lasting form, in place.

    Args:
        model: as ``torch.onnx.export(dynamo=True, optimize=False)`` makes it.
        aliases: every name of a parameter or buffer -> the one that it is to have, as ``one_name_each`` gives them.
        outputs: names for its outputs, in their order.
        inputs: names for its inputs, in their order; None: as they are called.
        path_within: caller and told path of a called module -> the path that the caller knows it by; the exporter
            knows a module that is held by several others by one path alone. None: as they are told.
        resolve: takes out what means nothing to ONNX, once constants are folded.
    """
    if model.functions:
        common.InlinePass()(model)
    for node in model.graph.all_nodes():
        _settle_scopes(node, path_within)
    _write_shapes_down(model)
    _fold(model, set(aliases))
    if resolve is not None:
        resolve(model)
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    common.OutputFixPass()(model)
    named = [value.name or "" for value in model.graph.inputs] if inputs is None else inputs
    _name_values(model, aliases, named, outputs)
    _name_nodes(model.graph)
    _drop_traces(model)


def one_name_each(tensors: Iterable[tuple[str, Hashable]]) -> dict[str, str]:
    """Every name of a tensor -> its first one.

    Args:
        tensors: names, and what is the same for names of the same tensor.
    """
    first: dict[Hashable, str] = {}
    return {name: first.setdefault(key, name) for name, key in tensors}


def mark_state(model: ir.Model, tensors: Iterable[tuple[str, Hashable]]) -> None:
    """Mark the initializers that are of a module's state with all the names that it has for them, in place.

    Args:
        model: its parameters under their names.
        tensors: of the state, as ``one_name_each`` takes them.
    """
    names: dict[Hashable, list[str]] = {}
    for name, key in tensors:
        names.setdefault(key, []).append(name)
    of_name = {name: same for same in names.values() for name in same}
    for name, value in model.graph.initializers.items():
        if name in of_name:
            value.metadata_props[STATE_NAMES] = json.dumps(of_name[name])


def place_name(path: Iterable[Any], skipped: Iterable[str] = ()) -> str:
    """What a tensor is called that stands at ``path`` (of torch's pytree) in nested containers: their keys, joined.

    Args:
        path: from the outermost container inwards.
        skipped: first keys that are left out, unless they are all.
    """
    parts = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    if len(parts) > 1 and parts[0] in skipped:
        parts = parts[1:]
    return re.sub(r"\W+", "_", "_".join(parts)).strip("_") or "tensor"


def free_name(wanted: str, taken: Iterable[str]) -> str:
    """The name, with a number behind it if it is taken."""
    there = set(taken)
    name, k = wanted, 0
    while name in there:
        k += 1
        name = f"{wanted}_{k}"
    return name


def free_axis(value: ir.Value) -> str | None:
    """What the exporter calls the first axis of an input, if it may have any length."""
    first = value.shape[0] if value.shape else None
    return str(first.value) if isinstance(first, ir.SymbolicDim) else None


def name_batch(model: ir.Model, symbol: str) -> None:
    """Call the axis ``batch`` that the exporter calls ``symbol``, in every shape."""
    word = re.compile(rf"\b{re.escape(symbol)}\b")
    for value in _values(model.graph):
        if value.shape is not None:
            value.shape = ir.Shape([_renamed(dim, word) for dim in value.shape])


def _renamed(dim: int | ir.SymbolicDim, word: re.Pattern[str]) -> int | str | None:
    if isinstance(dim, int):
        return dim
    return None if dim.value is None else word.sub(BATCH, str(dim.value))


def _write_shapes_down(model: ir.Model) -> None:
    """Reshape nodes take the shape that the trace knows as a constant, -1 for its free axis, if there is but one.

    What computed the shape goes as dead code, and runtimes for fixed shapes can take the model.
    """
    for node in model.graph.all_nodes():
        result, wanted = node.outputs[0], input_of(node, 1)
        if node.op_type != "Reshape" or result.shape is None or wanted is None or wanted.const_value is not None:
            continue
        dims = [dim if isinstance(dim, int) else -1 for dim in result.shape]
        if dims.count(-1) > 1 or 0 in dims:
            continue
        shape = ir.Value(name=f"{result.name}_shape", const_value=ir.tensor(np.asarray(dims, np.int64)))
        shape.dtype, shape.shape = ir.DataType.INT64, ir.Shape([len(dims)])
        model.graph.register_initializer(shape)
        node.replace_input_with(1, shape)


def _fold(model: ir.Model, parameters: set[str]) -> None:
    """Compute what depends on neither inputs nor parameters."""
    metadata = Metadata(model.graph)

    def should_fold(node: ir.Node) -> bool | None:
        return False if any(value is not None and value.name in parameters for value in node.inputs) else None

    fold_constants_ir(
        model,
        onnx_shape_inference=True,
        input_size_limit=_FOLDED_AT_MOST_BYTES,
        output_size_limit=_FOLDED_AT_MOST_BYTES,
        should_fold=should_fold,
    )
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveUnusedNodesPass()(model)
    metadata.restore(model.graph)


def _settle_scopes(node: ir.Node, path_within: PathWithin | None) -> None:
    """Write the paths of the modules whose calls a node stands in as those calls know them, without calls' numbers."""
    text = node.metadata_props.get(SCOPES)
    if not text:
        return
    *paths, own = ast.literal_eval(text)
    settled: list[str] = []
    for path in (CALL_NUMBER.sub("", told) for told in paths):
        settled.append(path_within(settled[-1], path) if settled and path_within else path)
    node.metadata_props[SCOPES] = repr([*settled, own])


def _name_values(model: ir.Model, aliases: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Parameters keep their names; inputs and outputs get theirs, the others make room."""
    graph = model.graph
    for name, first in aliases.items():
        if name != first and name in graph.initializers and first not in graph.initializers:
            value = graph.initializers.pop(name)
            value.name = first
            graph.initializers[first] = value
    kept = {name for name in graph.initializers if name in aliases}
    wanted = [*zip(graph.inputs, inputs, strict=True), *zip(graph.outputs, outputs, strict=True)]
    for value, _ in wanted:
        value.name = None
    taken = set(kept)
    for value, name in wanted:
        value.name = free_name(name, taken)
        taken.add(value.name)
    for value in _values(graph):
        if value.name in taken and value.name not in kept and all(value is not other for other, _ in wanted):
            value.name = free_name(
                f"{value.name}_inner", taken | {other.name for other in _values(graph) if other.name}
            )
    for node in graph.all_nodes():
        source, result = (node.inputs[0], node.outputs[0]) if node.op_type == "Transpose" else (None, None)
        if source is not None and result is not None and source.name in kept and not result.is_graph_output():
            result.name = f"{source.name}_transposed"
    common.NameFixPass()(model)


def _name_nodes(graph: ir.Graph) -> None:
    """Call nodes by their innermost module and operator: 'layer1.0.conv1/Conv', numbered where there are several."""
    nodes = list(graph.all_nodes())
    for node in nodes:
        node.name = None
    names = Names(graph)
    for node in nodes:
        path = next(reversed(module_paths(node)), None)
        node.name = names.free(node.op_type if path is None else f"{path}/{node.op_type}")


def _drop_traces(model: ir.Model) -> None:
    """Paths and lines of the user's code, and the traced graph in words, stay at home: all but the modules' paths."""
    model.metadata_props.clear()
    for graph in (model.graph, *model.graph.subgraphs()):
        graph.metadata_props.clear()
        graph.doc_string = None
    for value in _values(model.graph):
        value.metadata_props.clear()
        value.doc_string = None
    for node in model.graph.all_nodes():
        node.doc_string = None
        for key in [key for key in node.metadata_props if key == "namespace" or key.startswith("pkg.")]:
            if key != SCOPES:
                del node.metadata_props[key]


def _values(graph: ir.Graph) -> Iterable[ir.Value]:
    for part in (graph, *graph.subgraphs()):
        yield from part.inputs
        yield from part.initializers.values()
    for node in graph.all_nodes():
        yield from (value for value in node.outputs if value is not None)
