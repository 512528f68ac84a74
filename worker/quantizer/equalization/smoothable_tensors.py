"""Where a scale can be moved from activations into weights: a tensor and all linear layers that read it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.channel_graph import ChannelGraph, Fold, Folding
from worker.quantizer.graph.rewriting import axis_length, rank_of
from worker.quantizer.graph.values import constant, int_attribute, is_constant, is_float32, name_of, node_name, reads
from worker.quantizer.numerics.granularity import PER_TENSOR
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, LinearNode, linear_view
from worker.quantizer.plan.types import QuantizationPlan, Role


@dataclass(frozen=True)
class SmoothableTensor:
    """A tensor whose channels (last axis) can be scaled, inversely to the rows of the weights that it meets."""

    value: ir.Value  # the tensor
    channels: int  # length of its last axis
    consumers: tuple[ir.Node, ...]  # the MatMul and Gemm nodes, all that are to get the scaled tensor
    folding: Folding | None  # what takes the inverse scale in; None if a Mul has to
    refusal: str | None = None  # why neither is possible or worthwhile; None if one is

    @property
    def tensor(self) -> str:
        """The tensor's name."""
        return name_of(self.value)

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The constants that take the inverse scale in; none if a Mul has to."""
        return () if self.folding is None else self.folding.folds


def find_sites(graph: ir.Graph, plan: QuantizationPlan, smoothed: Collection[str] = ()) -> list[SmoothableTensor]:
    """All sites of a prepared main graph, in topological order of their first consumers.

    ``smoothed`` are consumers that have been dealt with.
    """
    finder = SmoothableTensorFinder(graph, plan, smoothed)
    sites = (finder.at(tensor) for tensor in finder.tensors)
    return [site for site in sites if site is not None]


class SmoothableTensorFinder:
    """Finds sites by their tensors, also when the graph has been changed at others: each costs what stands around it.

    Args are those of ``find_sites``.
    """

    def __init__(self, graph: ir.Graph, plan: QuantizationPlan, smoothed: Collection[str] = ()) -> None:
        self._channels, self._plan = ChannelGraph(graph), plan
        self._readers: dict[str, list[ir.Node]] = {}
        for node in graph:
            if is_consumer(node, plan) and node_name(node) not in smoothed:
                self._readers.setdefault(_read_by(node), []).append(node)

    @property
    def tensors(self) -> list[str]:
        """Tensors that matrix products read."""
        return list(self._readers)

    def at(self, tensor: str) -> SmoothableTensor | None:
        """The site of a tensor as the graph is now."""
        found = self._readers.get(tensor, ())
        nodes = [node for node in found if _read_by(node) == tensor and is_consumer(node, self._plan)]
        value = nodes[0].inputs[0] if nodes else None
        length = None if value is None else axis_length(value, -1)
        matching = [node for node in nodes if matrix_of(node).in_channels == length]
        if value is None or length is None or not matching:
            return None
        return _site(self._channels, self._plan, value, length, matching)


def _read_by(node: ir.Node) -> str:
    value = node.inputs[0]
    return "" if value is None else name_of(value)


def is_consumer(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True for a MatMul or Gemm of a constant matrix that is quantized and an activation that is, where any is."""
    entry = plan.nodes.get(node_name(node))
    if entry is None or entry.role is not Role.LINEAR or node.op_type not in MATRIX_PRODUCTS:
        return False
    weight, value = node.inputs[1], node.inputs[0]
    return (
        is_constant(weight)
        and is_float32(weight)
        and rank_of(weight) == 2
        and name_of(weight) in plan.weights  # type: ignore[arg-type]
        and value is not None
        and value is not weight
        and not is_constant(value)
        and (name_of(value) in plan.activations or not plan.activations)
        and not int_attribute(node, "transA", 0)
    )


def _site(
    channels: ChannelGraph, plan: QuantizationPlan, value: ir.Value, length: int, nodes: list[ir.Node]
) -> SmoothableTensor:
    alone = not value.is_graph_output() and set(reads(value)) == set(nodes)
    found = channels.folding(value, length, partial(_refuses, plan=plan)) if alone else None
    folding = found if isinstance(found, Folding) else None
    refusal = None
    if any(_is_tied(node, plan) for node in nodes):
        refusal = "a weight is a table of embeddings too, of which there would be two"
    elif folding is None and _made_on_integers(value, channels.graph, plan):
        reason = "nothing before it can take the scale in" if alone else "other nodes read it too"
        refusal = f"{reason}, and a Mul behind integers would only round twice"
    return SmoothableTensor(value, length, tuple(nodes), folding, refusal)


def _made_on_integers(value: ir.Value, graph: ir.Graph, plan: QuantizationPlan) -> bool:
    node = value.producer()
    entry = plan.nodes.get(node_name(node)) if node is not None and node.graph is graph else None
    return entry is not None and entry.rounds


def _is_tied(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True if the weight of a linear node is stored once for it and for lookups."""
    weight = plan.weights[name_of(node.inputs[1])]  # type: ignore[arg-type]
    return weight.tied is not None or plan.nodes[weight.node].role is Role.LOOKUP


def _refuses(node: ir.Node, plan: QuantizationPlan) -> bool:
    """A convolution whose channels share one integer scale: unequal channels would cost it more than the site gains."""
    if node.op_type in MATRIX_PRODUCTS:
        return False
    value = node.inputs[1]
    weight = plan.weights.get(name_of(value)) if value is not None else None
    return weight is not None and weight.granularity == PER_TENSOR


def matrix_of(node: ir.Node) -> LinearNode:
    """A MatMul or Gemm of a constant weight.

    Raises:
        ValueError: it is none.
    """
    linear = linear_view(node)
    if linear is None:
        raise ValueError(f"{node.name!r} multiplies by no matrix")
    return linear


def weight_of(node: ir.Node) -> np.ndarray:
    """The constant weight of a linear node.

    Raises:
        ValueError: it is no constant.
    """
    array = constant(node.inputs[1])
    if array is None:
        raise ValueError(f"the weight of {node.name!r} is no constant")
    return array


def upstream_grid(plan: QuantizationPlan, site: SmoothableTensor) -> tuple[np.ndarray, IntegerGrid] | None:
    """A constant factor that makes the site's tensor on integers, and the grid of what it multiplies; else None.

    What such a Mul reads has been rounded before the scale comes in.
    """
    node = site.value.producer()
    if node is None or node.op_type != "Mul" or len(site.folds) != 1:
        return None
    fold = site.folds[0]
    entry, other = plan.nodes[node_name(node)], node.inputs[1 - fold.index]
    if fold.node is not node or not entry.quantized or other is None:
        return None
    factor, activation = constant(node.inputs[fold.index]), plan.activations.get(name_of(other))
    if factor is None or activation is None or not isinstance(activation.quantization, IntegerGrid):
        return None
    if factor.ndim > 1 and factor.size != factor.shape[-1]:
        return None
    return factor.reshape(-1), activation.quantization
