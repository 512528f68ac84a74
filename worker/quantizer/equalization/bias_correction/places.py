"""Where the correction of a linear node's mean can be put: its bias, or a constant that is added right behind it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.regions import apart
from worker.quantizer.graph.rewriting import only_reader, other_operand
from worker.quantizer.graph.values import constant, float_attribute, is_float32, name_of, node_name
from worker.quantizer.ops.linear import bias_of, linear_view
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.walk import is_tunable

NOTHING_ADDED = "nothing constant is added to its result"


@dataclass(frozen=True)
class Place:
    """A constant with one value per output channel of a linear node.

    Attributes:
        node: the linear node.
        owner: the node that reads the constant: the same, or an Add behind it.
        index: of the constant among its inputs.
        channels: number of output channels.
    """

    node: ir.Node
    owner: ir.Node
    index: int
    channels: int

    @property
    def initializer(self) -> str:
        """Name of the constant."""
        return name_of(self.owner.inputs[self.index])  # type: ignore[arg-type]

    def of(self, parameters: Parameters) -> Parameter:
        """The constant as it is now."""
        found = parameters.of(self.owner, self.index)
        if found is None:
            raise ValueError(f"{self.initializer!r} is no constant")
        return found

    def add(self, parameters: Parameters, values: np.ndarray, shift: np.ndarray) -> None:
        """Let the quantized network add ``shift``, float64 [channels], to ``values``, what it adds now."""
        corrected = values.reshape(-1).astype(np.float64) + shift
        parameters.put(self.owner, self.index, corrected, refit=True)


def correctable(graph: ir.Graph, plan: QuantizationPlan) -> list[ir.Node]:
    """The quantized linear nodes with a constant weight, in topological order."""
    return [node for node in graph if is_tunable(node, plan)]


def channels_of(node: ir.Node) -> int:
    """Number of output channels of a linear node; 0 for a product with a vector."""
    linear = linear_view(node)
    return 0 if linear is None else linear.out_channels


def find_place(node: ir.Node, plan: QuantizationPlan) -> Place | str:
    """Where the correction of ``node`` goes, or why there is no place for it yet."""
    channels = channels_of(node)
    if node.op_type == "MatMul":
        return _term_behind(node, channels)
    bias = bias_of(node)
    if bias is None:
        return "it has no bias"
    array = constant(bias)
    if array is None or not is_float32(bias):
        return "its bias is not constant"
    if not array.ndim or array.size != channels or (array.ndim != 1 and array.shape[-1] != channels):
        return "its bias does not have one value per channel"
    if float_attribute(node, "beta", 1.0) != 1.0:
        return "its bias is multiplied by beta"
    entry = plan.biases.get(node_name(node))
    if (entry is None or entry.integers is None) and len(bias.uses()) > 1:
        return "others read its bias too"
    return Place(node, node, 2, channels)


def _term_behind(node: ir.Node, channels: int) -> Place | str:
    add = only_reader(node.outputs[0], "Add")
    term = other_operand(add, node.outputs[0]) if add is not None else None
    array = constant(term)
    if add is None or term is None or array is None or not is_float32(term) or apart((node, add)):
        return NOTHING_ADDED
    if not array.ndim or array.shape[-1] != channels or array.size != channels:
        return "what is added to its result does not have one value per channel"
    if len(term.uses()) > 1:
        return "others read what is added to its result"
    return Place(node, add, list(add.inputs).index(term), channels)
