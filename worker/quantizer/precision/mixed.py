"""Mixed precision as a step: rank, then lower as many layers as the goal allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from service.contracts.algorithms.precision import Level, MixedPrecision
from service.contracts.dtypes import bits_of
from service.contracts.selectors import Selector
from service.contracts.sensitivity import Sensitivity
from worker.quantizer.evaluation.compare import latencies_ms
from worker.quantizer.extra import ExtraFile, ExtraFiles
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.precision.assignment import Assigner, level_ranges
from worker.quantizer.precision.goal import Measured, Referee
from worker.quantizer.precision.layers import Layer, find_layers
from worker.quantizer.precision.sensitivity import analyse_once, enough_samples
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Workshop
from worker.quantizer.runtime import Session
from worker.quantizer.statistics.collect import Request

HIGH, LOW = 0, 1
LEVELS = ("high", "low")
_LATENCY_RUNS = 10


@dataclass(frozen=True)
class Trial:
    """The first ``lowered`` groups of the ranking at the lower level, all others at the higher one."""

    lowered: int
    draft: Draft
    measured: Measured
    over_budget: str | None


class MixedPrecisionStep:
    """Chooses the precision of every layer."""

    def __init__(self, spec: MixedPrecision) -> None:
        self.spec = spec
        self.method = spec.method

    def requests(self, draft: Draft) -> list[Request]:
        """Nothing: the ranges of both levels are collected when the ranking needs them."""
        return []

    def apply(self, draft: Draft, workshop: Workshop) -> Change:
        """The draft with as many layers lowered as the goal allows.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        context, spec = workshop.context, self.spec
        layers = find_layers(draft.graph, draft.plan)
        if not layers:
            return Change(None, (), "there is no quantized linear node")
        levels = (spec.high, spec.low)
        ranges = level_ranges(draft, levels, context)
        sensitivity = analyse_once(
            draft,
            layers,
            dict(zip(LEVELS, levels, strict=True)),
            "low",
            ranges,
            context,
            samples=spec.sensitivity_samples or enough_samples(len(layers)),
            first_sample=workshop.first_sample,
            output_index=spec.output_index,
        )
        publish(sensitivity, context.files)
        movable = _movable(draft, layers, spec)
        order = ranking(sensitivity, layers, movable, by_bytes=_counts_bytes(spec), levels=levels)
        referee = Referee(spec.goal, context, output_index=spec.output_index)
        search = _Search(Assigner(draft, layers, levels, ranges, context), order, referee, spec, workshop)
        best = search.run()
        lowered = set(order[: best.lowered])
        nodes = tuple(layer.node for layer in layers if layer.group in lowered)
        best.draft.plan.notes += [f"mixed precision: {note}" for note in [*referee.notes, *search.notes]]
        return Change(best.draft, nodes, search.summary(best, layers), judged=False)


def publish(sensitivity: Sensitivity, files: ExtraFiles) -> None:
    """Put the ranking among the files of the job, unless there is one already."""
    if any(file.kind == "sensitivity_json" for file in files.all):
        return
    document = sensitivity.model_dump_json(indent=1).encode()
    files.add(ExtraFile("sensitivity_json", "sensitivity.json", "application/json", document))
    files.add(ExtraFile("sensitivity_csv", "sensitivity.csv", "text/csv", sensitivity.to_csv().encode()))


def _movable(draft: Draft, layers: Sequence[Layer], spec: MixedPrecision) -> set[int]:
    """Groups all of whose layers may be lowered."""
    matcher = Matcher(draft.graph, draft.prepared.op_types)

    def chosen(selectors: tuple[Selector, ...]) -> set[str]:
        return {name for selector in selectors for name in matcher.nodes(selector)}

    included, excluded = chosen(spec.include), chosen(spec.exclude)
    fixed = {layer.group for layer in layers if layer.node in excluded or (spec.include and layer.node not in included)}
    return {layer.group for layer in layers} - fixed


def _counts_bytes(spec: MixedPrecision) -> bool:
    return spec.budget.max_weight_bytes is not None or spec.budget.max_mean_bits is not None


def ranking(
    sensitivity: Sensitivity, layers: Sequence[Layer], movable: set[int], *, by_bytes: bool, levels: Sequence[Level]
) -> list[int]:
    """Groups in the order in which they are lowered: what costs least first, by itself or by the byte that it saves.

    Args:
        sensitivity: of all layers.
        layers: with their groups.
        movable: groups that may be lowered.
        by_bytes: a budget asks for bytes.
        levels: high and low.
    """
    cost: dict[int, float] = {}
    saved: dict[int, float] = {}
    for row in sensitivity.layers:
        cost[row.group] = cost.get(row.group, 0.0) + row.levels["low"].both - row.levels["high"].both
        bits = _weight_bits(levels[HIGH]) - _weight_bits(levels[LOW])
        saved[row.group] = saved.get(row.group, 0.0) + max(bits, 0.0) / 8 * row.parameters
    if by_bytes:
        cost = {group: value / max(saved[group], 1.0) for group, value in cost.items()}
    return sorted(movable, key=lambda group: (cost[group], group))


def _weight_bits(level: Level) -> float:
    return 32.0 if isinstance(level.weight, str) else bits_of(level.weight.dtype)


class _Search:
    """Finds the largest number of lowered groups that meets the goal, by halving, with real evaluations."""

    def __init__(
        self, assigner: Assigner, order: Sequence[int], referee: Referee, spec: MixedPrecision, workshop: Workshop
    ) -> None:
        self._assigner = assigner
        self._order = order
        self._referee = referee
        self._spec = spec
        self._context = workshop.context
        self._begin = time.monotonic()
        self._trials: dict[int, Trial] = {}
        self.notes: list[str] = []

    def run(self) -> Trial:
        """The best trial: goal met and in budget, else in budget and nearest to the goal, else nearest to the goal."""
        ends = [len(self._order), 0] if self._spec.optimize == "speed" else [len(self._order)]
        for end in ends:
            self._try(end)
        low, high = 0, len(self._order)  # the goal is met at low, as far as anybody knows, and not at high
        if self._trials[high].measured.met:
            low = high
        while high - low > 1 and not self._out_of_time():
            middle = (low + high) // 2
            if self._try(middle).measured.met:
                low = middle
            else:
                high = middle
        self._try(low)
        self._fit_budget()
        return self._best()

    def _fit_budget(self) -> None:
        """Lower more than the goal allows where the budget asks for it."""
        low = max((k for k, trial in self._trials.items() if trial.over_budget), default=-1)
        high = min((k for k, trial in self._trials.items() if not trial.over_budget), default=None)
        if low < 0 or high is None:
            return
        while high - low > 1 and not self._out_of_time():
            middle = (low + high) // 2
            if self._try(middle).over_budget:
                low = middle
            else:
                high = middle

    def _best(self) -> Trial:
        trials = list(self._trials.values())
        fitting = [trial for trial in trials if trial.over_budget is None]
        met = [trial for trial in fitting if trial.measured.met]
        if met:
            return max(met, key=lambda trial: trial.lowered)
        if not fitting:
            self.notes.append(f"no mix fits the budget: {trials[0].over_budget}")
            return max(trials, key=lambda trial: trial.lowered)
        return min(fitting, key=lambda trial: (trial.measured.gap, -trial.lowered))

    def _try(self, lowered: int) -> Trial:
        if lowered not in self._trials:
            self._context.run.progress("mixed precision", len(self._trials), None, "trials")
            chosen = dict.fromkeys(self._groups, HIGH)
            chosen.update(dict.fromkeys(self._order[:lowered], LOW))
            draft = self._assigner.draft_of(chosen)
            self._trials[lowered] = Trial(lowered, draft, self._referee.measure(draft), self._over_budget(draft))
        return self._trials[lowered]

    @property
    def _groups(self) -> set[int]:
        return {layer.group for layer in self._assigner.layers}

    def _out_of_time(self) -> bool:
        limit = self._spec.budget.max_seconds
        if limit is None or time.monotonic() - self._begin < limit:
            return False
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
        context = self._context
        session = Session(draft.emitted_bytes(), threads=context.threads, what="quantized model")
        before, after = latencies_ms(
            context.float_session, session, context.measured_on, context.inputs, runs=_LATENCY_RUNS, run=context.run
        )
        if after > budget.max_latency_ratio * before:
            return f"{after / before:.2f} of the float model's latency, {budget.max_latency_ratio:g} allowed"
        return None

    def summary(self, best: Trial, layers: Sequence[Layer]) -> str:
        """One sentence for the report."""
        lowered = set(self._order[: best.lowered])
        count = sum(layer.group in lowered for layer in layers)
        goal, measured = self._spec.goal, best.measured
        source = "evaluation" if self._context.evaluation is not None else "calibration"
        what = (
            f"{goal.metric} drop {measured.value:.3g}" if goal.kind == "drop" else f"{goal.metric} {measured.value:.4g}"
        )
        limit = goal.max_drop if goal.kind == "drop" else goal.limit
        state = "met" if measured.met else f"missed by {measured.gap:.3g}"
        if best.over_budget is not None:
            state += f"; over budget: {best.over_budget}"
        return (
            f"{count} of {len(layers)} layers at the lower level, the others at the higher one; {what} on the {source} "
            f"data, limit {limit:g}: goal {state}; {self._referee.evaluations} evaluations"
        )


def weight_bits(draft: Draft, layers: Sequence[Layer]) -> float:
    """Bits of all weights of ``layers`` as the draft stores them."""
    total = 0.0
    for layer in layers:
        planned = draft.plan.weights.get(layer.weight) if layer.weight is not None else None
        total += layer.parameters * (bits_of(planned.spec.dtype) if planned is not None else 32.0)
    return total
