"""Replaces small groups of nodes of the main graph by rules: a rule names what it would do, or why it cannot.

A rule looks at one node, the anchor. It returns None if the anchor has nothing to do with the rule, a reason if the
group is nearly the one wanted, else the ``Rewrite``. Rules read a bounded neighbourhood, so that a pass is linear in
the number of nodes. Nodes within sub-graphs are never anchors; what they read counts as read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from service.contracts.report import PreparationStep
from worker.quantizer.graph.metadata import ACROSS_BORDER, apart, hand_on, has_regions
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    is_constant,
    is_float32,
    name_of,
    node_name,
    users,
)

# What a preparation pass gives back.

NOTHING_TO_CHANGE = declare("nothing-to-change", "the model contains nothing for this pass")
NODES_STAY = declare("nodes-stay", "every node of this pass is unchanged, for its own reason")
# Reasons named one by one; a report must not grow with the model.
_NAMED_AT_MOST = 50


@dataclass(frozen=True)
class PassOutcome:
    """The prepared model and what was done."""

    model: ir.Model  # the model that was given, or another in its place
    said: str | Reason  # what was done, or the reason why nothing was
    op_types: Mapping[str, str] = field(default_factory=dict)  # operators by the names of new nodes, as users know them
    # nodes that stay as they were, though the pass is about them
    left: Mapping[str, Reason] = field(default_factory=dict)

    @classmethod
    def counted(
        cls,
        model: ir.Model,
        count: int,
        what: str,
        *,
        op_types: Mapping[str, str] | None = None,
        left: Mapping[str, Reason] | None = None,
    ) -> PassOutcome:
        """So many changes; ``what`` follows the number: "Split nodes became Slice nodes"."""
        said = f"{count} {what}"
        nothing = NODES_STAY if left else NOTHING_TO_CHANGE
        return cls(model, said if count else nothing.saying(said), op_types or {}, left or {})

    @property
    def applied(self) -> bool:
        """False if nothing was changed."""
        return not isinstance(self.said, Reason)

    def step(self, name: str) -> PreparationStep:
        """What the report says of the pass of this name."""
        named = sorted(self.left.items())[:_NAMED_AT_MOST]
        parts = [str(self.said), *(f"{node} stays: {reason}" for node, reason in named)]
        if len(self.left) > _NAMED_AT_MOST:
            parts.append(f"{len(self.left) - _NAMED_AT_MOST} more stay")
        return PreparationStep(
            name=name,
            applied=self.applied,
            detail="; ".join(parts),
            reason_code=self.said.code if isinstance(self.said, Reason) else None,
            left={node: reason.code for node, reason in named},
        )


PreparationPass = Callable[[ir.Model], PassOutcome]
INPUT_NOT_FLOAT32 = declare("input-not-float32", "its input is not float32")
RANK_UNKNOWN = declare("rank-unknown", "the rank of its input is not known")
INNER_READ_ELSEWHERE = declare("inner-read-elsewhere", "an inner tensor is read elsewhere too")
RANK_RAISED = declare("rank-raised", "a constant with more axes than its input gives its result more axes")
OPSET_TOO_OLD = declare("opset-too-old", "{op_type} needs opset {needed}, the model has {opset}")
Attribute = int | float | str | Sequence[int]


@dataclass(frozen=True)
class Rewrite:
    """One replacement."""

    old: Sequence[ir.Node]  # nodes to remove
    new: Sequence[ir.Node]  # nodes to put behind the anchor-most old node, in order
    # old value -> new value that takes over its name, its type and its readers
    results: Sequence[tuple[ir.Value, ir.Value]]
    op_types: Mapping[str, str] = field(default_factory=dict)  # operators by the names of new nodes, as users know them
    # what the new nodes give the shape of; constants of the old ones may have broadcast it to another
    source: ir.Value | None = None

    def raises_rank(self) -> bool:
        """True if a result has, or may have, more axes than ``source``."""
        rank = rank_of(self.source)
        if self.source is None:
            return False
        if rank is not None and all(rank_of(old) == rank for old, _ in self.results):
            return False
        numbers = (value for node in self.old for value in node.inputs if is_constant(value) and is_float32(value))
        return rank is not None or any(rank_of(value) != 0 for value in numbers)


class Editor:
    """Makes nodes and constants with free names."""

    def __init__(self, model: ir.Model) -> None:
        self.graph = model.graph
        self.opset = opset_of(model)

    @cached_property
    def _names(self) -> Names:
        return Names(self.graph)

    @cached_property
    def in_regions(self) -> bool:
        """True if the graph is quantized in regions alone."""
        return has_regions(self.graph)

    def constant(self, stem: str, array: np.ndarray) -> ir.Value:
        """A new initializer."""
        return add_initializer(self.graph, self._names.free(stem), array)

    def name(self, stem: str) -> str:
        """A free name for a new node."""
        return self._names.free(stem)

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        attributes: Mapping[str, Attribute] | None = None,
        dtype: ir.DataType | None = ir.DataType.FLOAT,
    ) -> ir.Node:
        """A new node with one output, which bears a name of its own until it takes over another value."""
        made = ir.node(op_type, list(inputs), attributes=dict(attributes or {}), name=name)
        made.outputs[0].name = self._names.free(f"{name}_output")
        if dtype is not None:
            made.outputs[0].dtype = dtype
        return made

    def too_old(self, op_type: str, needed: int) -> Reason | None:
        """The reason where the model's opset does not know ``op_type``, which came with opset ``needed``."""
        known = self.opset is not None and self.opset >= needed
        return None if known else OPSET_TOO_OLD(op_type=op_type, needed=needed, opset=self.opset)

    def fused(
        self,
        op_type: str,
        source: ir.Value,
        nodes: Sequence[ir.Node],
        result: ir.Value,
        attributes: Mapping[str, Attribute] | None = None,
    ) -> Rewrite | Reason:
        """One node of ``source`` in the place of ``nodes``, one of which makes ``result``; or why it cannot be."""
        if not is_float32(source):
            return INPUT_NOT_FLOAT32()
        if not enclosed(nodes, [result]):
            return INNER_READ_ELSEWHERE()
        made = self.node(op_type, [source], node_name(result.producer() or nodes[-1]), attributes)
        return Rewrite(nodes, [made], [(result, made.outputs[0])], source=source)


Rule = Callable[[ir.Node, Editor], Rewrite | Reason | None]


def rewrites(*anchors: str, what: str) -> Callable[[Rule], PreparationPass]:
    """Makes a preparation pass of a rule: it is applied once to every anchor of the main graph, in order.

    Args:
        anchors: operators that the rule looks at.
        what: words for the report, after a count: "Split nodes became Slice nodes".
    """

    def as_pass(rule: Rule) -> PreparationPass:
        return wraps(rule)(lambda model: _apply(model, anchors, rule, what))

    return as_pass


def _apply(model: ir.Model, anchors: Collection[str], rule: Rule, what: str) -> PassOutcome:
    editor = Editor(model)
    count = 0
    left: dict[str, Reason] = {}
    op_types: dict[str, str] = {}
    for node in list(model.graph):
        if node.graph is None or node.op_type not in anchors or node.domain not in DEFAULT_DOMAINS:
            continue
        found = rule(node, editor)
        if isinstance(found, Reason):
            left[node_name(node)] = found
        elif found is not None and apart(found.old):
            left[node_name(node)] = ACROSS_BORDER()
        elif found is not None and found.raises_rank():
            left[node_name(node)] = RANK_RAISED()
        elif found is not None:
            replace(model.graph, found)
            op_types |= found.op_types
            count += 1
    return PassOutcome.counted(model, count, what, op_types=op_types, left=left)


def replace(graph: ir.Graph, rewrite: Rewrite) -> None:
    """Carry out ``rewrite``. The new nodes stand where the last result was made, and take over the metadata."""
    last = rewrite.results[-1][0].producer()
    if last is None:
        raise ValueError("a rewrite replaces what nodes compute")
    for old, new in rewrite.results:
        new.shape = old.shape if old.shape is not None else new.shape
        new.type = old.type if old.type is not None else new.type
        name = name_of(old)
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        old.name = None
        new.name = name
    hand_on(rewrite.old, rewrite.new)
    graph.insert_after(last, list(rewrite.new))
    graph.remove(list(rewrite.old), safe=True)


def opset_of(model: ir.Model) -> int | None:
    """The opset of the standard operators, None if the model uses none."""
    return next((model.graph.opset_imports[d] for d in DEFAULT_DOMAINS if d in model.graph.opset_imports), None)


def producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node of one of ``op_types`` that makes ``value``, else None."""
    node = value.producer() if value is not None else None
    if node is None or node.op_type not in op_types or node.domain not in DEFAULT_DOMAINS:
        return None
    return node


def only_reader(value: ir.Value, *op_types: str) -> ir.Node | None:
    """The node of one of ``op_types`` in the same graph that alone reads ``value``, else None."""
    made, readers = value.producer(), users(value)
    if value.is_graph_output() or len(readers) != 1 or made is None:
        return None
    node = readers[0]
    if node.graph is not made.graph or node.op_type not in op_types or node.domain not in DEFAULT_DOMAINS:
        return None
    return node


def scalar(value: ir.Value | None) -> float | None:
    """The number in a constant of a single float or integer, else None."""
    if value is None or value.const_value is None or value.const_value.size != 1:
        return None
    array = constant(value)
    return None if array is None or array.dtype.kind not in "fiu" else float(array.reshape(-1)[0])


def squaring(value: ir.Value | None) -> ir.Node | None:
    """The Pow or Mul that makes ``value``, if that is the square of its first operand."""
    node = producer(value, "Pow", "Mul")
    if node is None or (scalar(node.inputs[1]) != 2 if node.op_type == "Pow" else node.inputs[0] is not node.inputs[1]):
        return None
    return node


def other_operand(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """The operand of a node of two operands that is not ``value``; None if both are."""
    others = [operand for operand in node.inputs if operand is not value]
    return others[0] if len(node.inputs) == 2 and len(others) == 1 else None


def enclosed(nodes: Iterable[ir.Node], results: Iterable[ir.Value]) -> bool:
    """True if nothing outside ``nodes`` reads what they make, ``results`` aside."""
    inside, kept = set(nodes), set(results)
    return all(
        value in kept or (not value.is_graph_output() and all(usage.node in inside for usage in value.uses()))
        for node in inside
        for value in node.outputs
    )


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape if every axis is known, else None."""
    if value is None or value.shape is None:
        return None
    dims = value.shape.dims
    return tuple(dim for dim in dims if isinstance(dim, int)) if all(isinstance(d, int) for d in dims) else None


def rank_of(value: ir.Value | None) -> int | None:
    """Number of axes, None if unknown."""
    return None if value is None or value.shape is None else len(value.shape)


def axis_length(value: ir.Value, axis: int) -> int | None:
    """Length of an axis if it is known."""
    dim = value.shape[axis] if value.shape is not None and -len(value.shape) <= axis < len(value.shape) else None
    return dim if isinstance(dim, int) else None


def reduced_axes(node: ir.Node) -> tuple[int, ...] | None:
    """Axes of a Reduce* node, whether attribute or input, not negative and in order; None if they are not known."""
    if "axes" in node.attributes:
        axes = list(node.attributes["axes"].as_ints())
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        array = constant(node.inputs[1])
        if array is None:
            return None
        axes = [int(axis) for axis in array.reshape(-1)]
    else:
        axes = []
    rank = rank_of(node.inputs[0])
    if rank is None:
        return None
    if not axes:
        noop = node.attributes.get("noop_with_empty_axes")
        return None if noop is not None and noop.as_int() else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in axes))
