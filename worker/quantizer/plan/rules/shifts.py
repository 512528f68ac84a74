"""Positions of power-of-two grids on AMD's NPU: scale = 2^-position, and the DPU limits shifts between positions.

Every limit is kept by lowering a position, which costs precision but saturates nothing: a limit reads "this position
is at most so and so much above those". Limits are looked at until none lowers anything, each again only when a position
it depends on has moved. A position that falls without end shows two limits that contradict each other: the one that
drove it is given up, reported, and all positions start anew.

Limits as in Vitis AI: a convolution's products have position weight + in, its result is shifted right by "cut" =
weight + in - out bits, its bias is shifted by weight + in - bias bits; elementwise nodes shift their operands to one
position and the sum to that of the result.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import node_name, users
from worker.quantizer.numerics.blocks import Grid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.rules.grids import Groups
from worker.quantizer.plan.types import Decision, Role, RuleContext

# (kind, name): an activation by source tensor, a weight or constant operand by initializer, a bias by node.
Variable = tuple[str, str]
Positions = Mapping[Variable, int]
# No limit of the hardware spans more; what falls further falls for ever.
_LARGEST_DROP = 48


@dataclass(frozen=True)
class ShiftLimit:
    """One rule at one node."""

    rule: str  # name of the option
    node: str  # name of the node
    why: str  # what the hardware asks for
    variables: tuple[Variable, ...]  # positions it depends on
    ceilings: Callable[[Positions], Sequence[tuple[Variable, int]]]  # highest positions allowed, given all positions


@dataclass
class Settled:
    """Positions that keep every limit but those given up."""

    positions: dict[Variable, int]  # of every variable
    cause: dict[Variable, ShiftLimit]  # the limit that lowered a variable last
    given_up: list[ShiftLimit]  # limits that contradict others


def position(grid: Grid | None) -> int | None:
    """-log2(scale) of a grid with one power-of-two scale, else None."""
    if not isinstance(grid, IntegerGrid) or grid.scale.ndim:
        return None
    mantissa, exponent = np.frexp(float(grid.scale))
    return 1 - int(exponent) if mantissa == 0.5 else None


def at_position(grid: IntegerGrid, wanted: int) -> IntegerGrid:
    """The grid with scale 2^-wanted."""
    return replace(grid, scale=np.asarray(2.0**-wanted, np.float32))


def settle(start: Positions, limits: Sequence[ShiftLimit]) -> Settled:
    """Lower positions from ``start`` until all limits hold.

    ``start`` holds the position of every variable that the limits name.
    """
    touched: dict[Variable, list[int]] = defaultdict(list)
    for index, limit in enumerate(limits):
        for variable in dict.fromkeys(limit.variables):
            touched[variable].append(index)
    given_up: set[int] = set()
    while True:
        positions, cause, culprit = _lower(start, limits, touched, given_up)
        if culprit is None:
            return Settled(positions, cause, [limits[index] for index in sorted(given_up)])
        given_up.add(culprit)


def _lower(
    start: Positions, limits: Sequence[ShiftLimit], touched: Mapping[Variable, list[int]], given_up: set[int]
) -> tuple[dict[Variable, int], dict[Variable, ShiftLimit], int | None]:
    positions = dict(start)
    cause: dict[Variable, ShiftLimit] = {}
    waiting = deque(index for index in range(len(limits)) if index not in given_up)
    queued = set(waiting)
    while waiting:
        index = waiting.popleft()
        queued.discard(index)
        limit = limits[index]
        for variable, ceiling in limit.ceilings(positions):
            if positions[variable] <= ceiling:
                continue
            if ceiling < start[variable] - _LARGEST_DROP:
                return positions, cause, index
            positions[variable], cause[variable] = ceiling, limit
            for other in touched[variable]:
                if other not in queued and other not in given_up:
                    waiting.append(other)
                    queued.add(other)
    return positions, cause, None


SHIFT_RULES = (
    "align_concat",
    "shift_read",
    "shift_write",
    "shift_cut",
    "shift_bias",
    "hard_sigmoid_positions",
    "shift_swish",
)
_READ_SPAN = 7
_ADD_LEFT, _ADD_RIGHT = 7, 25
_MUL_RIGHT, _SWISH_RIGHT = 32, 15
_CUT_RIGHT = 16
_BIAS_RIGHT = 15
_HARD_SIGMOID_IN, _HARD_SIGMOID_OUT = (0, 15), 7
_HARD_SIGMOID_PRODUCT = 14
_ALIGNED = "operands and result of a Concat share a position"


def settle_positions(context: RuleContext) -> list[Decision]:
    """Lower positions until every limit that is switched on holds; quantize anew what moves."""
    return _Positioning(context).run()


class _Positioning:
    """The positions of one plan, by variable; aligned tensors are one variable."""

    def __init__(self, context: RuleContext) -> None:
        self._context = context
        self._plan = context.plan
        self._groups = Groups()
        self._decisions: list[Decision] = []
        self._given: dict[Variable, int] = {}
        self._grids: dict[Variable, IntegerGrid] = {}
        self._members: Counter[Variable] = Counter()
        self._shared = Counter(entry.source for entry in context.plan.activations.values())
        self._read_positions()

    def run(self) -> list[Decision]:
        if self._context.options["align_concat"]:
            self._align()
        self._members = Counter(self._root(variable) for variable in self._given)
        start: dict[Variable, int] = {}
        for variable, found in self._given.items():
            root = self._root(variable)
            start[root] = min(found, start.get(root, found))
        floors = self._floors(start) if self._context.options["hard_sigmoid_positions"] else {}
        limits = [limit for node in self._context.graph for limit in self._limits(node)]
        settled = settle(start, limits)
        self._report(settled, floors)
        self._apply(settled)
        return self._decisions

    def _read_positions(self) -> None:
        plan, unknown = self._plan, 0
        grids = [
            *((("activation", entry.source), entry.quantization) for entry in plan.activations.values()),
            *((("weight", name), entry.quantization) for name, entry in plan.weights.items()),
            *(
                (("bias", name), entry.quantization)
                for name, entry in plan.biases.items()
                if entry.spec.dtype != "int32" and entry.quantization is not None
            ),
        ]
        for variable, grid in grids:
            found = position(grid)
            if found is None or not isinstance(grid, IntegerGrid):
                unknown += 1
            else:
                self._given[variable], self._grids[variable] = found, grid
        if unknown:
            why = "have no single power-of-two scale: the NPU's shift limits cannot be met there"
            self._context.plan_log.note(f"{unknown} tensors {why}")

    def _root(self, variable: Variable) -> Variable:
        kind, name = self._groups.find(":".join(variable)).split(":", 1)
        return kind, name

    def _variable(self, value: ir.Value | None) -> Variable | None:
        """The variable of an activation or a constant operand; None if it has no position."""
        if value is None or value.name is None:
            return None
        entry = self._plan.activations.get(value.name)
        found = ("activation", entry.source) if entry is not None else ("weight", value.name)
        return self._root(found) if found in self._given else None

    def _align(self) -> None:
        for node in self._context.graph:
            if node.op_type == "Concat" and self._quantized(node):
                values = [node.outputs[0], *node.inputs]
                variables = [found for value in values if (found := self._variable(value)) is not None]
                if len(variables) == len(values):
                    self._groups.unite(":".join(variable) for variable in variables)

    def _quantized(self, node: ir.Node) -> bool:
        return self._plan.nodes[node_name(node)].role not in (None, Role.FUSED)

    def _limits(self, node: ir.Node) -> Iterator[ShiftLimit]:
        if not self._quantized(node):
            return
        inputs = [self._variable(value) for value in node.inputs]
        out = self._variable(self._plan.carrier(node))
        for rule, why, variables, ceilings in _node_limits(self, node, inputs, out):
            if self._context.options[rule]:
                yield ShiftLimit(rule, node_name(node), why, variables, ceilings)

    def bias_of(self, node: ir.Node) -> Variable | None:
        found = ("bias", node_name(node))
        return found if found in self._given else None

    def gated(self, node: ir.Node) -> int | None:
        """Index of the operand of a Mul that is the (hard) sigmoid of the other."""
        for index, value in enumerate(node.inputs):
            producer = value.producer() if value is not None else None
            if producer is not None and self._is_fused(producer) and producer.inputs[0] is not None:
                producer = producer.inputs[0].producer()
            if producer is None or producer.op_type not in ("HardSigmoid", "Sigmoid"):
                continue
            if producer.inputs[0] is node.inputs[1 - index]:
                return index
        return None

    def _is_fused(self, node: ir.Node) -> bool:
        """True for what belongs to the node before it: an activation function, or a factor that simulates rounding."""
        return self._plan.nodes[node_name(node)].role is Role.FUSED

    def leaks(self, node: ir.Node) -> bool:
        return any(reader.op_type == "LeakyRelu" and self._is_fused(reader) for reader in users(node.outputs[0]))

    def _floors(self, start: dict[Variable, int]) -> dict[Variable, tuple[int, str]]:
        """Lowest positions around HardSigmoid; raises those that are too low where nothing else feels it."""
        floors: dict[Variable, tuple[int, str]] = {}
        for node in self._context.graph:
            if node.op_type != "HardSigmoid" or not self._quantized(node):
                continue
            before, after = self._variable(node.inputs[0]), self._variable(self._plan.carrier(node))
            for variable, floor in ((before, _HARD_SIGMOID_IN[0]), (after, _HARD_SIGMOID_OUT)):
                if variable is None:
                    continue
                floors[variable] = (max(floor, floors.get(variable, (floor, ""))[0]), node_name(node))
                readers = [] if variable == after or node.inputs[0] is None else users(node.inputs[0])
                harmless = all(reader.op_type == "HardSigmoid" for reader in readers)
                own = self._members[variable] == self._shared[variable[1]] == 1  # no other tensor shares the range
                if start[variable] < floor and harmless and own:
                    start[variable] = floor
        return floors

    def _report(self, settled: Settled, floors: dict[Variable, tuple[int, str]]) -> None:
        for limit in settled.given_up:
            what = "not kept: it contradicts the limits around it"
            self._decisions.append(Decision(limit.rule, limit.node, what, limit.why, conflict=True))
        for variable, (floor, node) in floors.items():
            if settled.positions[variable] < floor:
                what = f"position {settled.positions[variable]} of {variable[1]!r} is below {floor}"
                why = "a tensor that shares it needs the wider range"
                self._decisions.append(Decision("hard_sigmoid_positions", node, what, why, conflict=True))
        for variable, found in self._given.items():
            root = self._root(variable)
            now = settled.positions[root]
            if now == found:
                continue
            if root in settled.cause:
                rule, why = settled.cause[root].rule, settled.cause[root].why
            elif now > found:
                rule, why = "hard_sigmoid_positions", "HardSigmoid reads positions 0 to 15 and writes 7 or more"
            else:
                rule, why = "align_concat", _ALIGNED
            self._decisions.append(Decision(rule, variable[1], f"position {found} -> {now}", why))

    def _apply(self, settled: Settled) -> None:
        moved: dict[str, dict[str, IntegerGrid]] = {"activation": {}, "weight": {}, "bias": {}}
        for (kind, name), found in self._given.items():
            now = settled.positions[self._root((kind, name))]
            if now != found:
                moved[kind][name] = at_position(self._grids[kind, name], now)
        parameters = Parameters(self._context.graph, self._plan)
        parameters.move(sources=moved["activation"], weights=moved["weight"], biases=moved["bias"])


_Found = tuple[str, str, tuple[Variable, ...], Callable[[Positions], list[tuple[Variable, int]]]]


def _node_limits(
    where: _Positioning, node: ir.Node, inputs: list[Variable | None], out: Variable | None
) -> Iterator[_Found]:
    operands = [variable for variable in inputs if variable is not None]
    if node.op_type in ("Add", "Sub") and len(operands) == 2:
        yield from _addition(operands, out)
    elif node.op_type == "Mul" and len(operands) == 2 and out is not None:
        yield _product("shift_write", operands, out, _MUL_RIGHT, prefer=None)
        gate = where.gated(node)
        if gate is not None:
            yield _product("shift_swish", operands, out, _SWISH_RIGHT, prefer=operands[1 - gate])
    elif node.op_type in LINEAR and None not in inputs[:2]:
        yield from _linear(operands[0], operands[1], out, where.bias_of(node), leaks=where.leaks(node))
    elif node.op_type == "HardSigmoid" and operands and out is not None:
        yield _hard_sigmoid(operands[0], out)


def _addition(operands: list[Variable], out: Variable | None) -> Iterator[_Found]:
    def read(at: Positions) -> list[tuple[Variable, int]]:
        lowest = min(at[operand] for operand in operands)
        return [(operand, lowest + _READ_SPAN) for operand in operands]

    yield "shift_read", "operands are read at most 7 bits apart", tuple(operands), read
    if out is None:
        return

    def write(at: Positions) -> list[tuple[Variable, int]]:
        lowest = min(operands, key=lambda operand: at[operand])
        return [(out, at[lowest] + _ADD_LEFT), (lowest, at[out] + _ADD_RIGHT)]

    yield "shift_write", "a sum is shifted by -7 to 25 bits", (*operands, out), write


def _product(rule: str, operands: list[Variable], out: Variable, right: int, *, prefer: Variable | None) -> _Found:
    def write(at: Positions) -> list[tuple[Variable, int]]:
        total = sum(at[operand] for operand in operands)
        excess = total - at[out] - right
        if excess <= 0:
            return [(out, total)]
        lowered = prefer or max(operands, key=lambda operand: at[operand])
        bits = -(-excess // operands.count(lowered))
        return [(out, total), (lowered, at[lowered] - bits)]

    return rule, f"a product is shifted by 0 to {right} bits", (*operands, out), write


def _linear(
    source: Variable, weight: Variable, out: Variable | None, bias: Variable | None, *, leaks: bool
) -> Iterator[_Found]:
    if out is not None:

        def cut(at: Positions) -> list[tuple[Variable, int]]:
            return [(out, at[weight] + at[source]), (weight, at[out] + _CUT_RIGHT - at[source])]

        yield "shift_cut", "a result is shifted by 0 to 16 bits", (source, weight, out), cut
    if bias is None:
        return

    def shift(at: Positions) -> list[tuple[Variable, int]]:
        product = at[weight] + at[source]
        cut_bits = product - at[out] if out is not None else 0
        lowest = 0 if leaks else min(0, cut_bits - _CUT_RIGHT)
        return [(bias, product - lowest), (weight, at[bias] + _BIAS_RIGHT - at[source])]

    variables = (source, weight, bias) if out is None else (source, weight, bias, out)
    yield "shift_bias", "a bias is shifted by min(0, cut - 16) to 15 bits", variables, shift


def _hard_sigmoid(source: Variable, out: Variable) -> _Found:
    def write(at: Positions) -> list[tuple[Variable, int]]:
        return [(source, _HARD_SIGMOID_IN[1]), (out, _HARD_SIGMOID_PRODUCT + at[source])]

    why = "HardSigmoid reads positions 0 to 15 and shifts its result by 0 to 31 bits"
    return "hard_sigmoid_positions", why, (source, out), write
