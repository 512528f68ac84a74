"""One visit of the network in topological order, float and quantized side by side.

    plan = draft.plan.copy()
    with Walk(draft.prepared, plan, Feed.of(toolkit)) as walk:
        for visit in walk.visits():
            for part in visit.parts:
                x, x_quantized = visit.x(part), visit.x_quantized(part)     # float32 [n, ...]
            walk.parameters.put(visit.node, 1, ...)                        # the network behind it runs with these

``x`` is the node's input in the float network, ``x_quantized`` the one that onnxruntime computes in the network
quantized so far, with every edit of the nodes before. No segment runs twice: what crosses from one visited node to the
next waits in a ``Frontier``, quantized tensors as their integers, and goes with its last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import is_constant, name_of, node_name
from worker.quantizer.layerwise.frontier import Feed, Frontier, Part, real_samples
from worker.quantizer.layerwise.models import Segment, cut, ordered, rests_as_integers
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.preparation.prepare import Prepared


def is_tunable(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True for a quantized linear node with a constant weight."""
    entry = plan.nodes[node_name(node)]
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return entry.role is Role.LINEAR and is_constant(weight) and name_of(weight) in plan.weights  # type: ignore[arg-type]


class Visit:
    """One node with the tensors that it reads. Good until the next visit."""

    def __init__(self, frontier: Frontier, segment: Segment, index: int, total: int) -> None:
        self._frontier = frontier
        self.index = index
        self.total = total
        self.node = segment.nodes[0]  # the linear node, in the float graph
        self._reads = frozenset(segment.reads)

    @property
    def name(self) -> str:
        """Name of the node."""
        return node_name(self.node)

    @property
    def parts(self) -> list[Part]:
        """The samples, in parts."""
        return self._frontier.parts

    @property
    def samples(self) -> int:
        """Samples that are walked with."""
        return self._frontier.samples

    @property
    def input(self) -> str:
        """Name of the tensor that the node reads."""
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"node {self.name!r} reads nothing")
        return name_of(value)

    def x(self, part: Part) -> np.ndarray:
        """float32 [n, ...]: the node's input in the float network."""
        return real_samples(self._frontier.tensor(self.input, part, quantized=False), part)

    def x_quantized(self, part: Part) -> np.ndarray:
        """float32 [n, ...]: the node's input in the quantized network, on its grid."""
        stored, grid = self.x_stored(part)
        return stored if grid is None else grid.dequantize(stored)

    def waits(self, tensor: str) -> bool:
        """True for a tensor from before the node that it, or what runs together with it, reads."""
        return tensor in self._reads

    def tensor(self, name: str, part: Part, *, quantized: bool) -> np.ndarray:
        """float32 [n, ...]: a tensor that waits, in the float network or as the quantized network reads it."""
        return real_samples(self._frontier.tensor(name, part, quantized=quantized), part)

    def x_stored(self, part: Part) -> tuple[np.ndarray, IntegerGrid | None]:
        """``x_quantized`` as it waits: integers and their grid, or float32 values and None."""
        source = self.node.inputs[0]
        entry = self._frontier.plan.activations.get(self.input)
        grid = entry.quantization if entry is not None else None
        if source is not None and isinstance(grid, IntegerGrid) and rests_as_integers(source, self._frontier.plan):
            return real_samples(self._frontier.stored(self.input, part), part), grid
        value = real_samples(self._frontier.tensor(self.input, part, quantized=True), part)
        return value if grid is None else grid.at_run_time().fake(value), None


class Walk:
    """A walk through one network; a context manager. Visit it once.

    The plan is filled; the caller edits parameters of the node being visited, and of no other. ``visited`` says which
    nodes are; None: all quantized linear ones with a constant weight.

    Raises:
        EngineError: onnxruntime failed on the data.
        CanceledError: the run was canceled.
        ResourceLimitError: not even one part of the samples fits into memory and on disk.
    """

    def __init__(
        self,
        prepared: Prepared,
        plan: QuantizationPlan,
        feed: Feed,
        visited: Callable[[ir.Node], bool] | None = None,
    ) -> None:
        self.plan = plan
        self.graph = prepared.graph
        self.frontier = Frontier(prepared, plan, feed)
        self.parameters = Parameters(self.graph, plan)
        wanted = visited or (lambda node: is_tunable(node, plan))
        before = {node_name(node) for node in self.graph if wanted(node)}
        self._segments = cut(self.graph, ordered(self.graph, plan), before=before)

    def __enter__(self) -> Walk:
        """The walk."""
        return self

    def __exit__(self, *_: object) -> None:
        """Forget all tensors."""
        self.frontier.close()

    @property
    def total(self) -> int:
        """Number of visits."""
        return len(self._segments) - 1

    @property
    def notes(self) -> list[str]:
        """After the last visit: where room was short, for the report."""
        return self.frontier.notes

    def visits(self) -> Iterator[Visit]:
        """Each visited node in topological order, with the tensors that it reads."""
        before, *visited = self._segments
        used = {name for segment in self._segments for name in segment.reads}.union(map(name_of, self.graph.outputs))
        self.frontier.load(used, before.reads or visited[0].reads if visited else ())
        for k, segment in enumerate(visited):
            self.frontier.advance(self._segments[k], segment)
            yield Visit(self.frontier, segment, k, self.total)

    def rest(self, index: int) -> list[ir.Node]:
        """All nodes from the visit of number ``index`` on, for a ``piece`` of the whole rest of the network."""
        return [node for segment in self._segments[index + 1 :] for node in segment.nodes]
