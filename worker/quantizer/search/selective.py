"""Selective precision: raises the few layers whose quantization costs most of the output's error for their bytes.

Each weight and each tensor is rounded alone, and its error carried to the outputs; these errors add up. What raising a
layer takes away of them is told by planning the network without it: a tensor may lose its grid with the layer, or keep
it for others. The dearest errors for their cost go first, until the budget ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import onnx_ir as ir

from service.contracts.algorithms.precision import SelectivePrecision
from service.contracts.reason import declare
from service.contracts.specs import bits_of
from worker.quantizer.evaluation.metrics import IDENTICAL_DB, Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.graph.values import node_name, users
from worker.quantizer.intake.work import multiply_adds
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.build import can_widen
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import PlanLog, QuantizationPlan, Role, WeightPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.search.levels import NO_LINEAR_NODE, QuantizedLayer, find_layers, under_facts
from worker.quantizer.search.propagation import ActivationError, WeightError, entrances
from worker.quantizer.search.sensitivity import propagated

MOST_ERROR = declare(
    "most-error-for-its-bytes",
    "selective_precision: quantizing it costs most of the output's error for its bytes",
    hint="Leave selective_precision out of algorithms to quantize it.",
    by_design=True,
)
WHOLE_TARGET = declare("whole-target", "{target} runs the whole network on integers", by_design=True)
NOTHING_PAYS = declare(
    "nothing-pays",
    "no few layers hold enough of the error: within the budget the most to be gained is {gain:.2f} dB, of {least:g} dB",
    by_design=True,
)
NOT_HELD = declare("weights-not-held", "the weights are too large for a walk that holds them twice", by_design=True)
NO_FLOAT_OUTPUT = declare("no-float-output", "the network has no output of floats to measure errors by", by_design=True)

# Errors travel through half of the network, in pairs of samples: about one pass over the calibration samples.
_COPIES_PER_SAMPLE, _MOST_COPIES, _MOST_SAMPLES = 2, 224, 16
_BATCH = 8
# Candidates that hold less of the error are not looked at: it takes a fifth of it to gain one decibel.
_LEAST_SHARE, _MOST_PLANNED, _MOST_NEIGHBOURS = 0.01, 40, 4
# Of the gain within the budget that is enough, and what each member must bring of it.
_ENOUGH, _PULLS_ITS_WEIGHT = 0.8, 0.05
# What cost counts beside the error, as a part of the budget: what is cheaper counts as free.
_FREE = 0.02
_NAMED_AT_MOST = 4
# Half the step is a quarter of the mean square error of rounding, step^2 / 12.
_DB_PER_BIT = 20.0 * math.log10(2.0)

Tensor = tuple[Literal["weight", "activation"], str]
Noise = Mapping[str, float]  # error power over signal power, by output


@dataclass(frozen=True)
class Raise:
    """A change of precision that may be worth its cost."""

    nodes: frozenset[str]  # names
    weights: frozenset[str]  # initializers that get 8 bits; none: the nodes return to float
    removed: frozenset[Tensor]  # whose rounding ends, or as good as ends
    size_bytes: float  # that the weights grow by
    multiply_adds: int  # of layers with weights that return to float

    @property
    def to_float(self) -> bool:
        """True if its nodes return to float."""
        return not self.weights


@dataclass(frozen=True)
class OutputErrors:
    """What rounding leaves in the outputs."""

    of: Mapping[Tensor, Noise]  # of each tensor alone
    total: Noise  # of all together

    def without(self, raised: Collection[Tensor]) -> float:
        """SQNR of the worst output in dB where these are not rounded."""
        left = [max(total - self._held(output, raised), total * _LEAST_SHARE) for output, total in self.total.items()]
        return min((-10.0 * math.log10(noise) for noise in left if noise > 0), default=IDENTICAL_DB)

    def gain_db(self, raised: Collection[Raise]) -> float:
        """What these bring in SQNR of the worst output."""
        return self.without({tensor for one in raised for tensor in one.removed}) - self.without(())

    def after(self, raised: Collection[Raise]) -> OutputErrors:
        """What is left with these."""
        removed = {tensor for one in raised for tensor in one.removed}
        left = {
            output: max(total - self._held(output, removed), total * _LEAST_SHARE)
            for output, total in self.total.items()
        }
        return OutputErrors({tensor: noise for tensor, noise in self.of.items() if tensor not in removed}, left)

    def _held(self, output: str, raised: Collection[Tensor]) -> float:
        return sum(self.of[one].get(output, 0.0) for one in raised if one in self.of)

    def share(self, raised: Collection[Tensor]) -> float:
        """The part of the worst output's error that these hold."""
        worst = max(self.total, key=lambda output: self.total[output])
        return self._held(worst, raised) / self.total[worst] if self.total[worst] else 0.0


class Candidates:
    """What may be raised in a draft.

    Args:
        draft: filled.
        errors: of its tensors.
        plan: makes the plan in which nodes of these names stay in float.
        on_integers: layers compute on integers; else their work costs no more in float.
    """

    def __init__(
        self,
        draft: Draft,
        errors: OutputErrors,
        plan: Callable[[Collection[str]], QuantizationPlan],
        *,
        on_integers: bool = True,
    ) -> None:
        self._on_integers = on_integers
        self._graph, self._plan, self._errors, self._plan_without = draft.graph, draft.plan, errors, plan
        self._layers = {layer.node: layer for layer in find_layers(draft.graph, draft.plan)}
        self._nodes = {node_name(node): node for node in draft.graph}

    @cached_property
    def weight_bytes(self) -> float:
        """Of all quantized weights as they are stored."""
        return sum(stored_bytes(entry, self._sizes[name]) for name, entry in self._plan.weights.items())

    @cached_property
    def _sizes(self) -> dict[str | None, int]:
        values = self._graph.initializers.values()
        return {value.name: math.prod(value.shape.numpy()) for value in values if value.shape}

    @property
    def _weight_values(self) -> int:
        return sum(self._sizes[name] for name in self._plan.weights)

    @property
    def db_per_byte(self) -> float:
        """What bytes bring where all weights get them alike: a bit more for each halves its steps, and so its error."""
        return _DB_PER_BIT * 8.0 / max(self._weight_values, 1)

    @cached_property
    def multiply_adds(self) -> int:
        """Of all layers with weights."""
        return sum(self._work(name) for name in self._layers)

    def widened(self) -> Iterator[Raise]:
        """Weights that may get 8 bits, each alone."""
        for layer in self._layers.values():
            entry = self._own(layer)
            if entry is not None and can_widen(entry):
                grown = layer.parameters * (8 - bits_of(entry.spec.dtype)) / 8
                weights = frozenset({entry.initializer})
                yield Raise(frozenset({layer.node}), weights, frozenset({("weight", entry.initializer)}), grown, 0)

    def in_float(self, most_bytes: float, most_multiply_adds: float) -> Iterator[Raise]:
        """Layers, and tensors with all that make and read them, that may return to float within these limits.

        As if all that they touch were rounded no more: see ``planned``.
        """
        for nodes in dict.fromkeys(self._sets()):
            cost = self._cost(nodes)
            if cost is not None and cost[0] <= most_bytes and cost[1] <= most_multiply_adds:
                yield Raise(nodes, frozenset(), self._touched(nodes), *cost)

    def planned(self, found: Sequence[Raise]) -> list[Raise]:
        """The same, the likeliest of them, with what is rounded no more by the plan without them."""
        likely = sorted(found, key=lambda one: -self._errors.share(one.removed))[:_MOST_PLANNED]
        return [replace(one, removed=self._lost(one.nodes)) for one in likely]

    def _lost(self, nodes: Collection[str]) -> frozenset[Tensor]:
        return frozenset(self._tensors(self._plan) - self._tensors(self._plan_without(nodes)))

    def _sets(self) -> Iterator[frozenset[str]]:
        for name in self._layers:
            yield frozenset({name})
        for source in dict.fromkeys(entry.source for entry in self._plan.activations.values()):
            around = {name for name, read, made in self._rounding if source in read or source in made}
            if 1 < len(around) <= _MOST_NEIGHBOURS:
                yield frozenset(around)

    @cached_property
    def _rounding(self) -> list[tuple[str, set[str], set[str]]]:
        """Nodes that compute on grids: name, sources that they read, and that they make."""
        found = []
        for name, node in self._nodes.items():
            entry = self._plan.nodes.get(name)
            if entry is not None and entry.rounds and entry.role is not Role.FUSED:
                made = (self._plan.carrier(node), *node.outputs)
                found.append((name, self._sources(node.inputs), self._sources(made)))
        return found

    def _sources(self, values: Sequence[ir.Value | None]) -> set[str]:
        known = self._plan.activations
        return {known[value.name].source for value in values if value is not None and value.name in known}

    def _touched(self, nodes: Collection[str]) -> frozenset[Tensor]:
        """All that may lose its grid with these nodes."""
        weights = [layer.weight for layer in map(self._layers.get, nodes) if layer is not None and layer.weight]
        sources = {one for name, read, made in self._rounding if name in nodes for one in read | made}
        return frozenset([*(("weight", name) for name in weights), *(("activation", name) for name in sources)])

    def _tensors(self, plan: QuantizationPlan) -> set[Tensor]:
        sources = {entry.source for entry in plan.activations.values()}
        return {("weight", name) for name in plan.weights} | {("activation", name) for name in sources}

    def _cost(self, nodes: Collection[str]) -> tuple[float, int] | None:
        """Bytes and multiply-accumulates; None if a weight is not theirs alone."""
        size_bytes, work = 0.0, 0
        for layer in (self._layers[name] for name in nodes if name in self._layers):
            work += self._work(layer.node)
            if layer.weight is not None:
                entry = self._own(layer)
                if entry is None:
                    return None
                size_bytes += 4.0 * layer.parameters - stored_bytes(entry, layer.parameters)
        return size_bytes, work

    def _own(self, layer: QuantizedLayer) -> WeightPlan | None:
        """The weight of a layer that no other node reads, and no table of embeddings holds."""
        entry = self._plan.weights.get(layer.weight) if layer.weight is not None else None
        value = self._graph.initializers.get(layer.weight or "")
        if entry is None or value is None or entry.tied is not None or len(users(value)) > 1:
            return None
        return entry

    def _work(self, name: str) -> int:
        counts = self._on_integers and self._layers[name].weight is not None
        return multiply_adds(self._nodes[name]) if counts else 0


def stored_bytes(weight: WeightPlan, values: int) -> float:
    """Of a weight of so many values, scales and zero points included."""
    grid = weight.quantization
    scales = grid.scale.size * grid.scale.itemsize + grid.zero_point.size if isinstance(grid, IntegerGrid) else 0
    return values * bits_of(weight.spec.dtype) / 8 + scales


def best_by_the_byte(
    candidates: Iterable[Raise], errors: OutputErrors, *, most_bytes: float, least_db_per_byte: float = 0.0
) -> list[Raise]:
    """What a budget of bytes buys, most error for a byte first.

    More bits for a weight cost nothing but bytes: there is no set too large, as long as its gain, less
    ``least_db_per_byte`` for its bytes, grows.
    """
    chosen, spent, count, most = list[Raise](), 0.0, 0, 0.0
    for one in sorted(candidates, key=lambda one: -errors.share(one.removed) / max(one.size_bytes, 1.0)):
        if spent + one.size_bytes <= most_bytes:
            chosen.append(one)
            spent += one.size_bytes
            net = errors.gain_db(chosen) - least_db_per_byte * spent
            if net >= most:
                count, most = len(chosen), net
    return chosen[:count]


def smallest_set(
    candidates: Sequence[Raise],
    errors: OutputErrors,
    *,
    most_bytes: float,
    most_multiply_adds: float,
    worth_db: float,
) -> list[Raise]:
    """The fewest of the candidates that bring most of what all of them bring within the budget.

    What they leave out would bring less than ``worth_db``, which is worth its bytes.
    """
    order: list[Raise] = []
    reached = [errors.without(())]
    left = list(candidates)
    while left:
        removed = {tensor for one in order for tensor in one.removed}
        spent = sum(one.size_bytes for one in order), sum(one.multiply_adds for one in order)
        least = _LEAST_SHARE * max(1.0 - errors.share(removed), _LEAST_SHARE)  # of what is left

        def cost(one: Raise) -> float:
            return _part(one.size_bytes, most_bytes) + _part(one.multiply_adds, most_multiply_adds)

        left = [
            one
            for one in left
            if one.size_bytes + spent[0] <= most_bytes
            and one.multiply_adds + spent[1] <= most_multiply_adds
            and errors.share(one.removed - removed) >= least
        ]
        if not left:
            break
        best = max(left, key=lambda one: errors.share(one.removed - removed) / max(cost(one), _FREE))
        left = [one for one in left if one is not best and not one.nodes & best.nodes]
        order.append(best)
        reached.append(errors.without(removed | best.removed))
    gains = [db - reached[0] for db in reached]
    wanted = max(_ENOUGH * max(gains), max(gains) - worth_db)
    count = next(k for k, gain in enumerate(gains) if gain >= wanted)
    return _pruned(order[:count], errors, worth_db)


def _part(cost: float, budget: float) -> float:
    return cost / budget if budget else 0.0


def _pruned(chosen: list[Raise], errors: OutputErrors, worth_db: float) -> list[Raise]:
    """Without those that bring next to nothing beside the others, the dearest first."""
    all_bring = min(errors.gain_db(chosen), worth_db / (1.0 - _ENOUGH))
    for one in sorted(chosen, key=lambda one: (-one.size_bytes, -one.multiply_adds)):
        rest = [other for other in chosen if other is not one]
        if errors.gain_db(chosen) - errors.gain_db(rest) < _PULLS_ITS_WEIGHT * all_bring:
            chosen = rest
    return chosen


def output_errors(draft: Draft, toolkit: Toolkit, *, samples: int | None) -> OutputErrors:
    """What rounding each weight and each tensor of a draft alone leaves in its outputs, and all of them together.

    Args:
        draft: filled.
        toolkit: of the step.
        samples: how many to run; None: as many as one pass over the data costs.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    case, services, plan = toolkit.case, toolkit.services, draft.plan
    parameters = Parameters(draft.graph, plan)
    model, entered = entrances(draft.prepared.model, plan)
    errors: dict[Tensor, WeightError | ActivationError] = {}
    for layer in find_layers(draft.graph, plan):
        if layer.weight is not None:
            errors["weight", layer.weight] = WeightError(layer.weight, parameters.weight(layer.weight).present)
    for entry in plan.activations.values():
        if entry.tensor == entry.source and entry.quantization is not None:
            source = entered.get(entry.source, entry.source)
            errors["activation", entry.source] = ActivationError(source, entry.quantization.fake)
    available = len(toolkit.learning())
    most = min(_COPIES_PER_SAMPLE * available, _MOST_COPIES) // max(len(errors), 1)
    numbers = toolkit.learning(samples or max(1, min(most, _MOST_SAMPLES)))
    alone = propagated(model, list(errors.values()), case, services, samples=numbers)
    expected = case.expected_outputs(services.run, batch_size=_BATCH, samples=numbers)
    together = Distances()
    for twins in side_by_side(draft.session(services.threads), expected, services.run):
        together.update(twins.pairs())
    of = dict(zip(errors, alone, strict=True))
    total = {
        output: max(distance.relative_noise, sum(noise.get(output, 0.0) for noise in alone))
        for output, distance in together.of.items()
    }
    return OutputErrors(of, total)


class SelectivePrecisionStep(Step[SelectivePrecision]):
    """Raises the precision of few layers."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft with these layers raised.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        config, spec = toolkit.case.config, self.spec
        if config.mode == "static" and TARGETS[config.target].whole:
            return StepResult.nothing(WHOLE_TARGET(target=config.target))
        if toolkit.services.spill is not None:
            return StepResult.nothing(NOT_HELD())
        if not find_layers(draft.graph, draft.plan):
            return StepResult.nothing(NO_LINEAR_NODE())
        errors = output_errors(draft, toolkit, samples=spec.samples)
        if not errors.total:
            return StepResult.nothing(NO_FLOAT_OUTPUT())
        facts = draft.prepared.facts

        def planned(nodes: Collection[str]) -> QuantizationPlan:
            kept = facts.with_kept_float(dict.fromkeys(nodes, MOST_ERROR()))
            return draft.form.plan(draft.graph, config, kept, PlanLog())

        candidates = Candidates(draft, errors, planned, on_integers=config.mode != "weights_only")
        most_bytes, least_db_per_byte = spec.max_weight_growth * candidates.weight_bytes, candidates.db_per_byte
        if spec.max_weight_bytes is not None:  # all of it may be spent
            most_bytes, least_db_per_byte = max(spec.max_weight_bytes - candidates.weight_bytes, 0.0), 0.0
        most_work = spec.max_float_share * candidates.multiply_adds
        widened = best_by_the_byte(
            candidates.widened(), errors, most_bytes=most_bytes, least_db_per_byte=least_db_per_byte
        )
        if errors.gain_db(widened) < spec.min_gain_db:
            widened = []
        most_bytes -= sum(one.size_bytes for one in widened)
        budget = {"most_bytes": most_bytes, "most_multiply_adds": most_work, "worth_db": spec.min_gain_db}
        rest, taken = errors.after(widened), {name for one in widened for name in one.nodes}
        found = [one for one in candidates.in_float(most_bytes, most_work) if not one.nodes & taken]
        in_float = smallest_set(found, rest, **budget)
        if rest.gain_db(in_float) >= spec.min_gain_db:  # if all goes well: planning tells
            found = candidates.planned(found)
            in_float = smallest_set(found, rest, **budget)
        chosen = [*widened, *(in_float if rest.gain_db(in_float) >= spec.min_gain_db else ())]
        gain_db = errors.gain_db(chosen)
        if not chosen:
            return StepResult.nothing(NOTHING_PAYS(gain=rest.gain_db(in_float), least=spec.min_gain_db))
        nodes = [name for one in chosen if one.to_float for name in one.nodes]
        weights = [name for one in chosen for name in one.weights]
        facts = facts.with_kept_float(dict.fromkeys(nodes, MOST_ERROR())).with_widened(weights)
        made = under_facts(draft, facts, toolkit.case, toolkit.services, anew=weights)
        changed = [name for one in chosen for name in one.nodes]
        summary = _summary(chosen, candidates, f"about {gain_db:.1f} dB expected")
        return StepResult(made, tuple(dict.fromkeys(changed)), summary + _basis(toolkit))


def _summary(chosen: Sequence[Raise], candidates: Candidates, gain: str) -> str:
    """One sentence for the report."""
    told = []
    for to_float, word in ((True, "in float"), (False, "with weights of 8 bits")):
        names = [name for one in chosen if one.to_float is to_float for name in sorted(one.nodes)]
        if names:
            more = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
            count = f"{len(names)} node{'s' if len(names) > 1 else ''}"
            told.append(f"{count} {word} ({', '.join(names[:_NAMED_AT_MOST])}{more})")
    size_bytes, work = sum(one.size_bytes for one in chosen), sum(one.multiply_adds for one in chosen)
    told.append(f"{size_bytes:+.0f} bytes of weights ({size_bytes / max(candidates.weight_bytes, 1.0):.2%})")
    if work:
        told.append(f"{work / max(candidates.multiply_adds, 1):.1%} of the multiply-accumulates in float")
    return "; ".join([*told, gain])


def _basis(toolkit: Toolkit) -> str:
    return "; judged on random inputs" if toolkit.case.calibration.is_random else ""
