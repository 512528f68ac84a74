"""What a target is: the operators it runs on integers, and rules that bend a plan to what it can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.reason import Reason, declare
from service.contracts.targets import target_options
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import Decision, PlanLog, QuantizationPlan, Role

SHAPES = "Nothing: it computes shapes or indices; with preparation.fixed_shapes it may fold away."
NO_INTEGER_KERNEL = declare(
    "no-integer-kernel",
    "{target} has no integer kernel for {op_type}",
    hint="Replace the operator by one that the target knows, or leave it in float.",
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

    @cached_property
    def options(self) -> dict[str, bool]:
        """Every option of the target by name."""
        return target_options(self.config.target, self.config.target_options)


@dataclass(frozen=True)
class Rule:
    """A rule of a target, or several that can only be kept together."""

    names: tuple[str, ...]  # those of the job's options which switch it; it runs if any is on and looks itself at which
    stage: Stage  # when it runs
    apply: Callable[[RuleContext], list[Decision]]  # changes the graph or the plan and returns what it changed


def rule(name: str, stage: Stage, apply: Callable[[RuleContext], list[Decision]]) -> Rule:
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
