"""From stubs to regions: markers in an exported graph become the names of regions on its nodes, and go.

Every float tensor that depends on the network's inputs is inside a region or outside of all. What a QuantStub returns
is inside; what is computed from it is, too, up to a DeQuantStub. Constants, shapes and integers belong to neither side,
but what is looked up by integers (an embedding) is outside until a QuantStub takes it in. Regions that compute together
are one. A region ends at a DeQuantStub or at an output of the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.errors import ModelError
from worker.quantizer.graph.metadata import REGION, module_paths

DOMAIN = "quantmill"
BEGIN, END = "QuantStub", "DeQuantStub"

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)
_SHAPES = ("Shape", "Size")
_GATHERS = ("Gather", "GatherND", "GatherElements")


class StubError(ModelError, code="misplaced-stub", title="QuantStub and DeQuantStub do not bound a region"):
    """A QuantStub or DeQuantStub stands where it bounds no region."""


def has_markers(model: ir.Model) -> bool:
    """True if a stub has left a marker in ``model``, its functions included."""
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    return any(node.domain == DOMAIN for graph in graphs for node in graph.all_nodes())


def resolve_regions(model: ir.Model) -> None:
    """Write the regions that the markers of ``model`` bound on its nodes and remove the markers; changed in place.

    A region is called by the path of the QuantStub that begins it, with ``#k`` for its k-th call from the second on.
    Without markers nothing is written: then everything is to be quantized.

    Args:
        model: as exported, without model-local functions.

    Raises:
        StubError: the stubs do not bound regions; names the stub, and the operator where two sides meet.
    """
    marks = [node for node in model.graph.all_nodes() if node.domain == DOMAIN]
    if not marks:
        return
    inner = next((node for node in marks if node.graph is not model.graph), None)
    if inner is not None:
        raise StubError(
            f"the stub {_path(inner)!r} is called inside a branch or a loop",
            hint="Call it before or behind the control flow.",
            module=_path(inner),
        )
    _RegionFollower(model.graph).run()
    for mark in marks:
        _remove(mark)
    model.graph.opset_imports.pop(DOMAIN, None)


@dataclass(frozen=True)
class _Call:
    """One call of a QuantStub: its module's path, and that with the number of the call."""

    path: str
    name: str


class _RegionFollower:
    """Follows the values of one graph from its inputs to its outputs.

    ``inside`` says for a value by which call its region began; ``outside`` are floats outside of all regions.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._calls: list[_Call] = []
        self._joined: list[int] = []  # by call: an earlier call of the same region, itself for the first
        self._counts: Counter[str] = Counter()
        self._inside: dict[ir.Value, int] = {}
        self._outside = {value for value in graph.inputs if value not in graph.initializers.values()}
        self._nodes: dict[ir.Node, int] = {}

    def run(self) -> None:
        for node in self._graph:
            if node.domain == DOMAIN:
                (self._begin if node.op_type == BEGIN else self._end)(node)
            else:
                self._pass(node)
        held = {self._first(call) for call in self._nodes.values()}
        for number, call in enumerate(self._calls):
            if self._first(number) not in held:
                raise StubError(
                    f"the QuantStub {call.name!r} begins a region in which nothing is computed",
                    hint="Compute with what it returns before it goes through a DeQuantStub.",
                    module=call.path,
                )
        for node, number in self._nodes.items():
            name = self._calls[self._first(number)].name
            for part in (node, *_inner(node)):
                part.metadata_props[REGION] = name

    def _begin(self, mark: ir.Node) -> None:
        value, path = mark.inputs[0], _path(mark)
        if value in self._inside:
            raise StubError(
                f"the QuantStub {path!r} is called inside the region that {self._opened(value)} began",
                hint="End that region with a DeQuantStub first.",
                module=path,
            )
        self._counts[path] += 1
        count = self._counts[path]
        self._calls.append(_Call(path, path if count == 1 else f"{path}#{count}"))
        self._joined.append(len(self._joined))
        self._inside[mark.outputs[0]] = len(self._calls) - 1

    def _end(self, mark: ir.Node) -> None:
        value, path = mark.inputs[0], _path(mark)
        if value not in self._inside:
            raise StubError(
                f"the DeQuantStub {path!r} is called on a tensor that no QuantStub leads to",
                hint="Begin the region with a QuantStub, or remove the DeQuantStub.",
                module=path,
            )
        self._outside.add(mark.outputs[0])

    def _pass(self, node: ir.Node) -> None:
        read = [*(value for value in node.inputs if value is not None), *_read_inside(node)]
        floats = [value for value in read if value.dtype is None or value.dtype in _FLOATS]
        inside = [value for value in floats if value in self._inside]
        outside = [value for value in floats if value in self._outside]
        if inside and outside:
            where = _path(node, own=False)
            at = f" in module {where!r}" if where else ""
            raise StubError(
                f"{node.op_type}{at} computes with a tensor inside the region that {self._opened(inside[0])} began and "
                f"with {_source(outside[0])}, which is outside",
                hint="Let a QuantStub take the second in, or a DeQuantStub the first out.",
                module=where or None,
                node=node.name,
            )
        if inside:
            numbers = [self._first(self._inside[value]) for value in inside]
            first = min(numbers)
            for number in numbers:
                self._joined[number] = first
            self._nodes[node] = first
            if node.op_type not in _SHAPES:
                self._inside.update((value, first) for value in node.outputs)
        elif node.op_type in _SHAPES:
            return
        elif outside or any(value in self._outside or value in self._inside for value in read):
            self._follow_outside(node, looked_up=not outside)

    def _follow_outside(self, node: ir.Node, *, looked_up: bool) -> None:
        """Integers stay what they are; floats made of them are outside only where they are looked up."""
        for value in node.outputs:
            is_float = value.dtype is None or value.dtype in _FLOATS
            if not is_float or not looked_up or node.op_type in _GATHERS:
                self._outside.add(value)

    def _first(self, number: int) -> int:
        while self._joined[number] != number:
            number = self._joined[number]
        return number

    def _opened(self, value: ir.Value) -> str:
        return f"the QuantStub {self._calls[self._first(self._inside[value])].name!r}"


def _remove(mark: ir.Node) -> None:
    """Let what the marker reads take the place of what it returns; an output keeps its name."""
    source, result = mark.inputs[0], mark.outputs[0]
    graph = mark.graph
    if source is None or not isinstance(graph, ir.Graph):
        raise ValueError("a marker reads one tensor of the main graph")
    if result.is_graph_output() and (source.producer() is None or source.is_graph_output()):
        kept = ir.node("Identity", [source], name=f"{mark.name}_Identity")
        kept.outputs[0].type, kept.outputs[0].shape = result.type, result.shape
        graph.insert_before(mark, kept)
        source = kept.outputs[0]
    name, is_output = result.name, result.is_graph_output()
    ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
    graph.remove(mark, safe=True)
    if is_output:
        result.name = None
        source.name = name
    source.type, source.shape = source.type or result.type, source.shape or result.shape


def _path(node: ir.Node, *, own: bool = True) -> str:
    """Path of the module that a node was made in; ``own``: the node is all that its module does."""
    paths = module_paths(node)
    return paths[-1] if paths else (node.op_type if own else "")


def _source(value: ir.Value) -> str:
    node = value.producer()
    if node is None:
        return f"the input {value.name!r}"
    where = _path(node, own=False)
    return f"the result of {node.op_type}" + (f" in module {where!r}" if where else "")


def _inner(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.as_graph().all_nodes()


def _read_inside(node: ir.Node) -> Iterator[ir.Value]:
    """What the bodies of ``node`` read of the graph around it."""
    for part in _inner(node):
        yield from (value for value in part.inputs if value is not None)
