"""What of a planned graph is trained, and where tensors are rounded: as ``emit`` writes the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import constant, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.grids import scale_of_channel
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import BiasPlan, QuantizationPlan, WeightPlan

_ROUNDED, _HELD, _MOVED = "\0rounded", "\0held", "\0moved"


@dataclass(frozen=True)
class BiasRounding:
    """How a bias is rounded."""

    grid: IntegerGrid  # as the plan has it
    # of the activation whose scale is a factor of the grid's; None: the grid is the bias's own
    source: str | None = None
    weight: str | None = None  # the initializer whose scale is the other one
    scale_of_channel: np.ndarray | None = None  # int [channels]: which of the weight's scales each channel has


@dataclass(frozen=True)
class TrainedParameter:
    """A parameter where a node reads it."""

    key: str  # what the operand is called
    name: str  # of the initializer
    node: ir.Node  # that reads it
    index: int  # of the node's input
    now: Parameter  # the parameter as the plan has it
    weight: WeightPlan | None = None  # its entry in the plan; None for a bias or a float
    bias: BiasRounding | None = None  # how it is rounded; None for anything but a bias with a grid


class OperandNames:
    """Names the operands of a graph's nodes.

    Attributes:
        held: the parameters that were named, by key.
        moved: constants that the plan has in the place of initializers, float32 as their grids represent them, by key.
    """

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan) -> None:
        self._graph, self._plan = graph, plan
        self._parameters = Parameters(graph, plan)
        self._values = {name_of(value): value for value in _activations(graph)}
        self.held: dict[str, TrainedParameter] = {}
        self.moved: dict[str, np.ndarray] = {}

    def key(self, node: ir.Node, index: int, value: ir.Value) -> str:
        """What an operand is called: a parameter, a rounded activation, or the tensor itself."""
        name = name_of(value)
        now = self._parameters.of(node, index)
        if now is None:
            return name + _ROUNDED if self._reads_rounded(node, value) else name
        bias = self._plan.biases.get(node_name(node)) if index == 2 else None
        if self._is_trained(node, index, now, bias):
            key = f"{name}{_HELD} by {node_name(node)}" if bias is not None else name + _HELD
            if key not in self.held:
                weight = self._plan.weights.get(name) if self._parameters.is_stored(node, index) else None
                self.held[key] = TrainedParameter(key, name, node, index, now, weight, self._bias(node, now, bias))
            return key
        if now.grid is None and now.values is now.original:
            return name
        self.moved[name + _MOVED] = now.present
        return name + _MOVED

    def result(self, name: str) -> str:
        """What a tensor that is handed out is called: rounded, as ``emit`` hands it out."""
        value = self._values.get(name)
        if value is None or name not in self._plan.activations:
            return name
        outside = value.is_graph_output() and not self._made_on_integers(value)
        return name if outside else name + _ROUNDED

    def rounded(self, name: str) -> str | None:
        """What an activation is called once it is rounded; None if it is not planned."""
        return name + _ROUNDED if name in self._plan.activations else None

    def source(self, tensor: str) -> str:
        """What shares the learned grid of an activation: its source, unless the grids differ."""
        entry = self._plan.activations[tensor]
        first = self._plan.activations.get(entry.source)
        same = first is not None and first.quantization == entry.quantization
        return entry.source if same or first is None else tensor

    def rank(self, tensor: str) -> int:
        """Number of axes of an activation."""
        shape = self._values[tensor].shape
        return 1 if shape is None else len(shape)

    def title(self, parameter: TrainedParameter) -> str:
        """What a parameter is called: as its initializer; a bias that preparation has made, after its weight."""
        weight = parameter.node.inputs[1] if parameter.index == 2 else None
        path, dot, last = ("" if weight is None else name_of(weight)).rpartition(".")
        title = f"{path}{dot}bias"
        is_made = last == "weight" and "." not in parameter.name and title not in self._graph.initializers
        return title if is_made else parameter.name

    def maker(self, tensor: str) -> str:
        """What an activation is called: as the node that makes it; an input, or one of several results, by itself."""
        producer = self._values[tensor].producer()
        return tensor if producer is None or len(producer.outputs) > 1 else node_name(producer)

    def renew_biases(self, plan: QuantizationPlan) -> None:
        """Take over the grids that biases have in another plan for the same graph."""
        for key, parameter in self.held.items():
            entry = plan.biases.get(node_name(parameter.node)) if parameter.bias is not None else None
            if parameter.bias is not None and entry is not None and entry.quantization is not None:
                self.held[key] = replace(parameter, bias=replace(parameter.bias, grid=entry.quantization))

    def _reads_rounded(self, node: ir.Node, value: ir.Value) -> bool:
        if name_of(value) not in self._plan.activations:
            return False
        return self._made_on_integers(value) or self._has_role(node)

    def _made_on_integers(self, value: ir.Value) -> bool:
        producer = value.producer()
        return producer is not None and self._has_role(producer)

    def _has_role(self, node: ir.Node) -> bool:
        entry = self._plan.nodes.get(node_name(node))
        return entry is not None and entry.rounds

    def _is_trained(self, node: ir.Node, index: int, now: Parameter, bias: BiasPlan | None) -> bool:
        if now.original.dtype != np.float32 or now.original.size == 0:
            return False
        planned = bias is not None or self._parameters.is_stored(node, index)
        return (planned and now.original.size > 1) or index in operator(node.op_type).trained

    def _bias(self, node: ir.Node, now: Parameter, entry: BiasPlan | None) -> BiasRounding | None:
        if entry is None or not isinstance(now.grid, IntegerGrid):
            return None
        if entry.spec.dtype != "int32":
            return BiasRounding(now.grid)
        read, weight = node.inputs[0], node.inputs[1]
        planned = None if weight is None else self._plan.weights.get(name_of(weight))
        if read is None or planned is None or not isinstance(planned.quantization, IntegerGrid):
            return None
        channels = scale_of_channel(node, planned, now.original.size, planned.quantization.scale.size)
        return BiasRounding(now.grid, self.source(name_of(read)), planned.initializer, channels)


def _activations(graph: ir.Graph) -> Iterator[ir.Value]:
    yield from (value for value in graph.inputs if constant(value) is None)
    for node in graph:
        yield from (value for value in node.outputs if value.name)
