"""Mixed precision: rank, then lower as many layers as the goal allows, by bisection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from service.contracts.algorithms import BiasCorrection
from service.contracts.algorithms.precision import Level, MixedPrecision
from service.contracts.search import Sensitivity
from service.contracts.selectors import Selector
from service.contracts.specs import bits_of
from worker.quantizer.plan.selection import Matcher
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import try_step
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.search.goal import GoalEvaluator, GoalMeasurement
from worker.quantizer.search.levels import NO_LINEAR_NODE, Assigner, QuantizedLayer, find_layers
from worker.quantizer.search.sensitivity import analyse_once, analysis_of
from worker.quantizer.search.trials import TimedRun, Trials, within_reach

HIGH, LOW = 0, 1
_LATENCY_RUNS = 10


@dataclass(frozen=True)
class Mix:
    """The first ``lowered`` groups of the ranking at the lower level, all others at the higher one."""

    lowered: int  # how many
    measured: GoalMeasurement  # how it stands to the goal
    over_budget: str | None  # which limit of the budget it breaks; None if it keeps all

    @property
    def document(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"measured": self.measured.document, "over_budget": self.over_budget}


class Bisection:
    """Finds the largest number of lowered groups that meets the goal, by halving, with real evaluations.

    Args:
        assigner: makes the drafts.
        order: groups that may be lowered, in the order in which they are.
        evaluator: measures them.
        spec: goal, direction and budget.
        toolkit: of the step.
        finished: what becomes of a draft before it is measured.
    """

    def __init__(
        self,
        assigner: Assigner,
        order: Sequence[int],
        evaluator: GoalEvaluator,
        spec: MixedPrecision,
        toolkit: Toolkit,
        *,
        finished: Callable[[Draft], Draft],
    ) -> None:
        self._assigner = assigner
        self._finished = finished
        self._order = order
        self._evaluator = evaluator
        self._spec = spec
        self._case, self._services = toolkit.case, toolkit.services
        self._timed = TimedRun(self._services.run, spec.budget.max_seconds)
        self._trials = Trials[Mix](self._services.checkpoint, told=self._tell)
        self._last: tuple[int, Draft] | None = None
        self._identity = hashlib.sha256(json.dumps([spec.model_dump(mode="json"), list(order)]).encode()).hexdigest()
        self.notes: list[str] = []

    def run(self) -> Mix:
        """The best mix: goal met and in budget, else in budget and nearest to the goal, else nearest to the budget.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        low, high = 0, len(self._order)  # the goal is met at low, as far as anybody knows, and not at high
        if self._try(high).measured.met:
            low = high
        elif self._spec.optimize == "speed":
            self._try(low)
        while high - low > 1 and not self._out_of_time():
            middle = (low + high) // 2
            if self._try(middle).measured.met:
                low = middle
            else:
                high = middle
        self._try(low)
        self._fit_budget()
        return self._best()

    def draft_of(self, lowered: int) -> Draft:
        """The draft with the first ``lowered`` groups of the ranking at the lower level."""
        if self._last is None or self._last[0] != lowered:
            chosen = {layer.group: HIGH for layer in self._assigner.layers}
            chosen.update(dict.fromkeys(self._order[:lowered], LOW))
            self._last = lowered, self._assigner.draft_of(chosen)
        return self._last[1]

    def summary(self, best: Mix) -> str:
        """One sentence for the report."""
        layers = self._assigner.layers
        lowered = set(self._order[: best.lowered])
        count = sum(layer.group in lowered for layer in layers)
        goal, measured = self._spec.goal, best.measured
        source = self._case.source
        if goal.kind == "drop":
            what, limit, form = f"{goal.metric} drop", goal.max_drop, ".3g"
        else:
            what, limit, form = goal.metric, goal.limit, ".4g"
        figure = "without a value" if measured.value is None else f"{measured.value:{form}}"
        state = "met" if measured.met else measured.missed_words
        if best.over_budget is not None:
            state += f"; over budget: {best.over_budget}"
        evaluations = f"{len(self._trials)} evaluations"
        if self._trials.taken_over:
            evaluations += f", {self._trials.taken_over} of them by an earlier attempt"
        return (
            f"{count} of {len(layers)} layers at the lower level, the others at the higher one; {what} {figure} on the "
            f"{source} data, limit {limit:g}: goal {state}; {evaluations}"
        )

    def _fit_budget(self) -> None:
        """Lower more than the goal allows where the budget asks for it."""
        low = max((mix.lowered for mix in self._trials if mix.over_budget), default=-1)
        high = min((mix.lowered for mix in self._trials if not mix.over_budget), default=None)
        if low < 0 or high is None:
            return
        while high - low > 1 and not self._out_of_time():
            middle = (low + high) // 2
            if self._try(middle).over_budget:
                low = middle
            else:
                high = middle

    def _best(self) -> Mix:
        tried = list(self._trials)
        if all(mix.over_budget for mix in tried):
            self.notes.append(f"no mix fits the budget: {tried[0].over_budget}")
            return max(tried, key=lambda mix: mix.lowered)
        found = within_reach(tried, fits=lambda mix: mix.over_budget is None, met=lambda mix: mix.measured.met)
        return min(found, key=lambda mix: (0.0 if mix.measured.met else mix.measured.miss, -mix.lowered))

    def _try(self, lowered: int) -> Mix:
        return self._trials.of(
            f"mix {self._identity} {lowered}",
            lambda: self._measured(lowered),
            lambda found: Mix(lowered, GoalMeasurement.of(found["measured"]), found["over_budget"]),
        )

    def _measured(self, lowered: int) -> Mix:
        self._services.run.progress("mixed precision", len(self._trials), None, "trials")
        draft = self._finished(self.draft_of(lowered))
        # mixes are never compared by what their figures rest on
        measured = replace(self._evaluator.measure(draft), evidence=None)
        return Mix(lowered, measured, self._over_budget(draft))

    def _tell(self, number: int, mix: Mix) -> None:
        figures = {"lowered": float(mix.lowered), self._evaluator.figure: mix.measured.value}
        self._services.run.metric("mixed precision", number, figures)

    def _out_of_time(self) -> bool:
        if not self._timed.is_over:
            return False
        limit = self._spec.budget.max_seconds
        note = f"the search ended after {limit:g} s, as its budget says; the best so far is returned"
        if note not in self.notes:
            self.notes.append(note)
        return True

    def _over_budget(self, draft: Draft) -> str | None:
        """Which limit of the budget the draft breaks."""
        budget = self._spec.budget
        bits = weight_bits(draft, self._assigner.layers)
        values = sum(layer.parameters for layer in self._assigner.layers)
        if budget.max_weight_bytes is not None and bits / 8 > budget.max_weight_bytes:
            return f"{bits / 8:.0f} bytes of weights, {budget.max_weight_bytes} allowed"
        if budget.max_mean_bits is not None and bits / max(values, 1) > budget.max_mean_bits:
            return f"{bits / max(values, 1):.2f} bits a weight, {budget.max_mean_bits:g} allowed"
        if budget.max_latency_ratio is None:
            return None
        ratio = self._evaluator.latency_ratio(draft.emitted_bytes(), runs=_LATENCY_RUNS)
        if ratio > budget.max_latency_ratio:
            return f"{ratio:.2f} of the float model's latency, {budget.max_latency_ratio:g} allowed"
        return None


def weight_bits(draft: Draft, layers: Sequence[QuantizedLayer]) -> float:
    """Bits of all weights of ``layers`` as the draft stores them."""
    total = 0.0
    for layer in layers:
        planned = draft.plan.weights.get(layer.weight) if layer.weight is not None else None
        total += layer.parameters * (bits_of(planned.spec.dtype) if planned is not None else 32.0)
    return total


class MixedPrecisionStep(Step[MixedPrecision]):
    """Chooses the precision of every layer."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft with as many layers lowered as the goal allows.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric, or there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        case, services, spec = toolkit.case, toolkit.services, self.spec
        layers = find_layers(draft.graph, draft.plan)
        if not layers:
            return StepResult.nothing(NO_LINEAR_NODE())
        levels, samples = {"high": spec.high, "low": spec.low}, spec.sensitivity_samples
        analysis = analysis_of(
            draft, layers, levels, toolkit, samples=samples, output=spec.output_index, verify=spec.verify
        )
        by_bytes = spec.budget.max_weight_bytes is not None or spec.budget.max_mean_bits is not None
        movable = _movable(draft, layers, spec)
        order = ranking(analyse_once(analysis), movable, by_bytes=by_bytes, levels=tuple(levels.values()))
        evaluator = GoalEvaluator(spec.goal, case, services, output_index=analysis.output_index)
        corrections = Corrections(spec, toolkit)
        assigner = Assigner(draft, layers, (spec.high, spec.low), analysis.ranges, case, services)
        bisection = Bisection(assigner, order, evaluator, spec, toolkit, finished=corrections.applied)
        best = bisection.run()
        lowered = set(order[: best.lowered])
        nodes = tuple(layer.node for layer in layers if layer.group in lowered)
        made = bisection.draft_of(best.lowered)
        plan_log = made.plan_log.followed_by(
            *(f"mixed precision: {note}" for note in [*evaluator.notes, *bisection.notes])
        )
        return StepResult(
            replace(made, plan_log=plan_log), nodes, bisection.summary(best) + corrections.words, judged=False
        )


class Corrections:
    """The bias correction that the config lists behind the mix: what is measured is what will come out.

    Args:
        spec: the entry of the mix in the config's algorithms.
        toolkit: of the step.
    """

    def __init__(self, spec: MixedPrecision, toolkit: Toolkit) -> None:
        listed = toolkit.case.config.algorithms
        following = listed[listed.index(spec) + 1 :] if spec in listed else ()
        self._algorithms = [algorithm for algorithm in following if isinstance(algorithm, BiasCorrection)]
        self._toolkit = toolkit
        self._judge = Judge(toolkit.case, toolkit.services, toolkit.judging)

    @property
    def words(self) -> str:
        """What the summary says of it."""
        return "; measured with the bias correction that follows" if self._algorithms else ""

    def applied(self, draft: Draft) -> Draft:
        """The draft with what will be done to it; the very same one if nothing will.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        for algorithm in self._algorithms:
            draft = try_step(self._toolkit.step_of(algorithm), draft, self._toolkit, self._judge).draft
        return draft


def _movable(draft: Draft, layers: Sequence[QuantizedLayer], spec: MixedPrecision) -> set[int]:
    """Groups all of whose layers may be lowered."""
    matcher = Matcher(draft.graph, draft.prepared.op_types)

    def chosen(selectors: tuple[Selector, ...]) -> set[str]:
        return {name for selector in selectors for name in matcher.nodes(selector)}

    included, excluded = chosen(spec.include), chosen(spec.exclude)
    fixed = {layer.group for layer in layers if layer.node in excluded or (spec.include and layer.node not in included)}
    return {layer.group for layer in layers} - fixed


def ranking(sensitivity: Sensitivity, movable: set[int], *, by_bytes: bool, levels: Sequence[Level]) -> list[int]:
    """Groups in the order in which they are lowered: what costs least first, by itself or by the byte that it saves.

    Args:
        sensitivity: of all layers.
        movable: groups that may be lowered.
        by_bytes: a budget asks for bytes.
        levels: high and low.
    """
    cost: dict[int, float] = {}
    saved: dict[int, float] = {}
    for row in sensitivity.layers:
        low = row.levels["low"].both if row.verified is None else row.verified
        cost[row.group] = cost.get(row.group, 0.0) + low - row.levels["high"].both
        bits = _weight_bits(levels[HIGH]) - _weight_bits(levels[LOW])
        saved[row.group] = saved.get(row.group, 0.0) + max(bits, 0.0) / 8 * row.parameters
    if by_bytes:
        cost = {group: value / max(saved[group], 1.0) for group, value in cost.items()}
    return sorted(movable, key=lambda group: (cost[group], group))


def _weight_bits(level: Level) -> float:
    return 32.0 if isinstance(level.weight, str) else bits_of(level.weight.dtype)
