"""The layers whose precision can be chosen, and which of them have to move together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.values import constant, is_constant, name_of, node_name
from worker.quantizer.plan.types import QuantizationPlan, Role

NO_LINEAR_NODE = declare("no-linear-node", "there is no quantized linear node")


@dataclass(frozen=True)
class QuantizedLayer:
    """A quantized linear node.

    Attributes:
        node: its name.
        op_type: its operator.
        weight: initializer of its weight; None for a product of two activations.
        sources: tensors whose grids its inputs are on.
        parameters: values of its weight.
        group: layers of one group share a source or a weight, so they have one precision.
    """

    node: str
    op_type: str
    weight: str | None
    sources: tuple[str, ...]
    parameters: int
    group: int


def find_layers(graph: ir.Graph, plan: QuantizationPlan) -> list[QuantizedLayer]:
    """The quantized linear nodes of a planned graph, in topological order."""
    found = []
    for node in graph:
        entry = plan.nodes.get(node_name(node))
        if entry is None or entry.role is not Role.LINEAR:
            continue
        value = node.inputs[1]
        weight = name_of(value) if is_constant(value) and value is not None and name_of(value) in plan.weights else None
        array = constant(value) if weight is not None else None
        read = [operand for operand in node.inputs[:2] if operand is not None and not is_constant(operand)]
        sources = tuple(
            dict.fromkeys(
                plan.activations[name_of(operand)].source for operand in read if name_of(operand) in plan.activations
            )
        )
        found.append((node, weight, sources, 0 if array is None else int(array.size)))
    groups = _groups([(weight, sources) for _, weight, sources, _ in found])
    return [
        QuantizedLayer(node_name(node), node.op_type, weight, sources, size, group)
        for (node, weight, sources, size), group in zip(found, groups, strict=True)
    ]


def _groups(shared: list[tuple[str | None, tuple[str, ...]]]) -> list[int]:
    """Number of the group of each layer, by what the layers share."""
    parent = list(range(len(shared)))

    def root(k: int) -> int:
        while parent[k] != k:
            parent[k] = parent[parent[k]]
            k = parent[k]
        return k

    first: dict[tuple[str, str], int] = {}
    for k, (weight, sources) in enumerate(shared):
        keys: Iterable[tuple[str, str]] = [("source", source) for source in sources]
        for key in [*keys, *([("weight", weight)] if weight is not None else [])]:
            other = root(first.setdefault(key, k))
            parent[max(root(k), other)] = min(root(k), other)
    numbers: dict[int, int] = {}
    return [numbers.setdefault(root(k), len(numbers)) for k in range(len(shared))]
