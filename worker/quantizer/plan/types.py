"""The plan is the truth: what is quantized, how, and why the rest is not. ``emit`` writes it into the graph once, at
the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TypeVar

import numpy as np
import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from service.contracts.specs import HALF_DTYPES, ActivationSpec, BiasSpec, WeightSpec, needs_calibration
from service.contracts.targets import target_options
from worker.quantizer.graph.mapped import SpillFolder
from worker.quantizer.graph.metadata import StandIn
from worker.quantizer.graph.values import node_name, users
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import PER_TENSOR, Granularity, IntegerGrid
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.selection import Selection
from worker.quantizer.statistics.observers import Range


class Role(Enum):
    """What a quantized node does with its tensors."""

    LINEAR = "linear"  # weight and bias of its own, output range of its own
    ARITHMETIC = "arithmetic"  # several activations in, output range of its own
    UNARY = "unary"  # one activation in, output range of its own
    TRANSPARENT = "transparent"  # moves values without changing them: output shares the input's grid
    HALF = "half"  # computes in 16-bit floats
    LOOKUP = "lookup"  # takes rows of a table that is stored as integers; they are restored behind it
    STORED = "stored"  # only its weights are quantized; it computes in float, or by ranges taken at run time
    FUSED = "fused"  # an activation function that belongs to the node before it


@dataclass
class NodePlan:
    """Decision for one node.

    ``reason`` says why it stays in float, ``activation_reason`` why its activations do while its weight is quantized.
    """

    name: str
    op_type: str
    role: Role | None = None
    reason: Reason | None = None
    activation_reason: Reason | None = None

    @property
    def quantized(self) -> bool:
        """True if something of the node is quantized."""
        return self.role is not None

    @property
    def rounds(self) -> bool:
        """True if it computes on grids: what it makes is read from its grid by everything that reads it."""
        return self.role not in (None, Role.LOOKUP, Role.STORED)


@dataclass
class ActivationPlan:
    """One activation tensor that is quantized.

    ``source`` names the tensor whose range counts: the tensor itself, or the first of its sharing group.
    """

    tensor: str
    source: str
    spec: ActivationSpec
    quantization: Grid | None = None


@dataclass
class WeightPlan:
    """One weight initializer that is stored quantized; ``granularity`` says which of its elements share a scale.

    ``tied`` names the table of embeddings that holds the same numbers, perhaps transposed; None: no table does.
    """

    initializer: str
    node: str
    spec: WeightSpec
    granularity: Granularity = PER_TENSOR
    quantization: Grid | None = None
    integers: np.ndarray | None = None
    tied: str | None = None


@dataclass
class BiasPlan:
    """The bias of one node: int32 on the grid scale_x * scale_w, int8 or int16 on one of its own, a 16-bit float, which
    is rounded when it is written and has no grid here, or float with a reason.
    """

    node: str
    initializer: str
    spec: BiasSpec
    quantization: IntegerGrid | None = None
    integers: np.ndarray | None = None
    reason: Reason | None = None

    @property
    def is_half(self) -> bool:
        """True if it is stored as a 16-bit float."""
        return self.reason is None and self.spec.dtype in HALF_DTYPES


@dataclass(frozen=True)
class Decision:
    """Something that a rule of the target changed."""

    rule: str  # its name
    where: str  # the node or tensor concerned
    what: str  # the change, short: "position 6 -> 4", "per channel -> per tensor"
    why: str  # what the target asks for
    conflict: bool = False  # the rule could not be kept, because it contradicts another


@dataclass
class QuantizationPlan:
    """All decisions for a graph, by node, tensor and initializer name, in topological order.

    With ``integer_limits`` a limit per channel is kept to on integers where their type has 8 bits. ``moved`` are
    float32 arrays that stand in for initializers that have no integers of their own. ``silent`` says, by weight, which
    output channels are 0 on all calibration data, bool [out]; weights that were not looked at are not in it.
    ``float16_nodes`` names the nodes that compute in float16 where they compute on no integers, with their Q/DQ pairs;
    None: all compute in float32. With ``half_interface`` inputs and outputs of the model are float16 then as well.
    ``spill`` takes arrays that are too large to be held; None: all are held. ``spans`` holds, by tensor whose range
    counts, the range of each of its channels on the calibration data, float64 [channels]. ``kept_apart`` names tensors
    that onnxruntime must not make by integers, as it would make something else. What the value of a parameter is, and
    how it is changed: see ``worker.quantizer.plan.parameters``.
    """

    nodes: dict[str, NodePlan] = field(default_factory=dict)
    activations: dict[str, ActivationPlan] = field(default_factory=dict)
    weights: dict[str, WeightPlan] = field(default_factory=dict)
    biases: dict[str, BiasPlan] = field(default_factory=dict)
    ranges: dict[str, Range] = field(default_factory=dict)  # by tensor: calibrated or supplied
    integer_limits: bool = False
    moved: dict[str, np.ndarray] = field(default_factory=dict)
    silent: dict[str, np.ndarray] = field(default_factory=dict)
    spans: dict[str, np.ndarray] = field(default_factory=dict)
    float16_nodes: frozenset[str] | None = None
    half_interface: bool = False
    kept_apart: frozenset[str] = frozenset()
    spill: SpillFolder | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing is quantized."""
        return not self.weights and not any(entry.quantized for entry in self.nodes.values())

    def copy(self) -> QuantizationPlan:
        """A plan of its own: changing an entry leaves this one as it is.

        Arrays are shared; steps replace them and never write into them.
        """
        return replace(
            self,
            nodes={name: replace(entry) for name, entry in self.nodes.items()},
            activations={name: replace(entry) for name, entry in self.activations.items()},
            weights={name: replace(entry) for name, entry in self.weights.items()},
            biases={name: replace(entry) for name, entry in self.biases.items()},
            ranges=dict(self.ranges),
            moved=dict(self.moved),
            silent=dict(self.silent),
            spans=dict(self.spans),
        )

    def spilled(self, array: np.ndarray) -> np.ndarray:
        """The array, or what stands for it there."""
        return array if self.spill is None else self.spill.array(array)

    def spill_initializers(self, graph: ir.Graph) -> None:
        """Put large initializers of a graph that is written there, if there is one."""
        if self.spill is not None:
            self.spill.graph(graph)

    def role_of(self, node: ir.Node) -> Role | None:
        """That of a node; None where it stays in float, or the plan does not know it."""
        entry = self.nodes.get(node_name(node))
        return None if entry is None else entry.role

    def fused(self, node: ir.Node) -> tuple[ir.Node, ...]:
        """The node and, in their order, those that are fused with it: they run as one."""
        found = [node]
        while True:
            readers = users(found[-1].outputs[0])
            entries = [(reader, self.nodes.get(node_name(reader))) for reader in readers]
            after = next((reader for reader, entry in entries if entry and entry.role is Role.FUSED), None)
            if after is None:
                return tuple(found)
            found.append(after)

    def carrier(self, node: ir.Node) -> ir.Value:
        """The value behind which a node's Q/DQ pair stands: its output, or that of what is fused with it.

        That of several outputs is the first which the node gives: an LSTM may leave out the one of all steps.
        """
        outputs = self.fused(node)[-1].outputs
        return next((value for value in outputs if value.name), outputs[0])

    def sources(self) -> dict[str, ActivationSpec]:
        """Spec by tensor whose range has to be known."""
        return {plan.source: plan.spec for plan in self.activations.values() if needs_calibration(plan.spec.dtype)}


# How a plan came about, for the reader of the report: it stands beside the plan, which holds no words of that kind.
_Told = TypeVar("_Told", str, Decision)


@dataclass
class PlanLog:
    """What planning, filling and algorithms have to tell, in order, each thing once."""

    notes: list[str] = field(default_factory=list)  # sentences
    decisions: list[Decision] = field(default_factory=list)  # what the rules of the target changed

    def __post_init__(self) -> None:
        self.notes, self.decisions = list(dict.fromkeys(self.notes)), list(dict.fromkeys(self.decisions))
        self._told: set[str | Decision] = {*self.notes, *self.decisions}  # a large network has thousands

    def note(self, *sentences: str) -> None:
        """Write sentences down."""
        self.notes += self._new(sentences)

    def decide(self, decisions: Iterable[Decision]) -> None:
        """Write decisions down."""
        self.decisions += self._new(decisions)

    def _new(self, told: Iterable[_Told]) -> list[_Told]:
        found = [one for one in dict.fromkeys(told) if one not in self._told]
        self._told.update(found)
        return found

    def followed_by(self, *sentences: str, decisions: Iterable[Decision] = ()) -> PlanLog:
        """A plan_log of its own that goes on with these."""
        longer = PlanLog(self.notes, self.decisions)
        longer.note(*sentences)
        longer.decide(decisions)
        return longer


# What a target is: the operators it runs on integers, and rules that bend a plan to what it can do.

SHAPES = "Nothing: it computes shapes or indices; with preparation.fixed_shapes it may fold away."
NO_INTEGER_KERNEL = declare(
    "no-integer-kernel",
    "{target} has no integer kernel for {op_type}",
    hint="Replace the operator by one that the target supports, or leave it in float.",
)
SHAPE_ARITHMETIC = declare(
    "shape-arithmetic", "{target} has no integer kernel for {op_type}", hint=SHAPES, by_design=True
)


class Stage(Enum):
    """When a rule looks at the plan."""

    GRAPH = "graph"  # before planning: replaces operators in the prepared graph; no plan yet
    NODES = "nodes"  # roles are chosen, tensors are not yet planned: changes roles
    SPECS = "specs"  # tensors are planned: changes their specs, takes pairs away
    GRIDS = "grids"  # grids and integers are there: moves grids


@dataclass
class RuleContext:
    """What a rule may look at and change."""

    graph: ir.Graph  # prepared main graph; only rules of stage GRAPH change it
    plan: QuantizationPlan  # changed in place by rules of the other stages
    config: QuantizationConfig  # resolved config
    plan_log: PlanLog  # takes notes
    # what the user excluded, for rules of stage GRAPH, which run before any node has a role
    selection: Selection | None = None
    # takes the names of nodes that a rule of stage GRAPH puts in and that compute something inside the node before them
    simulated: set[str] = field(default_factory=set)
    # takes the nodes that a rule of stage GRAPH puts in the place of another function
    stand_ins: dict[str, StandIn] = field(default_factory=dict)

    def leave_in_float(self, node: ir.Node, reason: Reason, rule: str, why: str) -> Decision:
        """Take a node's role away; what is to be told of that."""
        entry = self.plan.nodes[node_name(node)]
        entry.role, entry.reason = None, reason
        return Decision(rule, entry.name, "left in float", why)

    @cached_property
    def options(self) -> dict[str, bool]:
        """Every option of the target by name."""
        return target_options(self.config.target, self.config.target_options)


@dataclass(frozen=True)
class Rule:
    """A rule of a target, or several that can only be kept together."""

    names: tuple[str, ...]  # those of the job's options which switch it; it runs if any is on and looks itself at which
    stage: Stage  # when it runs
    apply: Callable[[RuleContext], Iterable[Decision]]  # changes the graph or the plan and tells what it changed


def rule(name: str, stage: Stage, apply: Callable[[RuleContext], Iterable[Decision]]) -> Rule:
    """A rule of one name."""
    return Rule((name,), stage, apply)


@dataclass(frozen=True)
class Target:
    """A hardware or runtime profile."""

    name: str  # as in a config
    roles: dict[str, Role]  # operators with an integer kernel
    fusible: frozenset[str]  # activation functions that the node before them takes in
    takes_in: frozenset[str]  # operators that take an activation function in
    lossless: frozenset[str]  # operators that hand on the very integers they get
    reasons: dict[str, Reason]  # why some known operators stay in float; any other has no integer kernel
    rules: tuple[Rule, ...] = ()  # in the order they run within their stage
    # weighted layers of every kind return float where only float nodes read them; else those do that end classifiers:
    # MatMul, Gemm, a Conv over a single position
    float_results: bool = False
    # everything of the list runs on integers: also between float nodes, towards graph outputs, and with constants as
    # operands; else only what lies between quantized nodes does, and scores return float
    whole: bool = False
    fuses: Callable[[ir.Node], bool] = lambda node: True  # whether such a node has the form that is taken in
    # why a node of a known operator is in a form that has no integer kernel here; None where it has one
    refuses: Callable[[ir.Node], Reason | None] = lambda node: None
    integer_limits: bool = False  # it computes Min and Max on 8-bit integers

    def reason(self, op_type: str) -> Reason:
        """Why ``op_type`` stays in float."""
        kind = SHAPE_ARITHMETIC if operator(op_type).computes_shapes else NO_INTEGER_KERNEL
        return self.reasons.get(op_type) or kind(target=self.name, op_type=op_type)

    def rules_of(self, stage: Stage) -> tuple[Rule, ...]:
        """The rules of one stage."""
        return tuple(rule for rule in self.rules if rule.stage is stage)

    def run(self, stage: Stage, context: RuleContext) -> list[Decision]:
        """Run the rules of ``stage`` that the config has on; the decisions are also written into the plan_log."""
        made = [
            decision
            for rule in self.rules_of(stage)
            if any(context.options[name] for name in rule.names)
            for decision in rule.apply(context)
        ]
        context.plan_log.decide(made)
        return made
