"""Mixed precision as a step: rank, then lower as many layers as the goal allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.contracts.algorithms import BiasCorrection
from service.contracts.algorithms.precision import Level, MixedPrecision
from service.contracts.dtypes import bits_of
from service.contracts.selectors import Selector
from service.contracts.sensitivity import Sensitivity
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.precision.goal import Referee
from worker.quantizer.precision.layers import NO_LINEAR_NODE, Layer, find_layers
from worker.quantizer.precision.mixed.assignment import Assigner
from worker.quantizer.precision.mixed.bisection import HIGH, LOW, Bisection
from worker.quantizer.precision.sensitivity.step import analyse_once, analysis_of
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import try_step
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Change, Step, Toolkit


class MixedPrecisionStep(Step[MixedPrecision]):
    """Chooses the precision of every layer."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The draft with as many layers lowered as the goal allows.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric, or there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        case, services, spec = toolkit.case, toolkit.services, self.spec
        layers = find_layers(draft.graph, draft.plan)
        if not layers:
            return Change.nothing(NO_LINEAR_NODE())
        levels, samples = {"high": spec.high, "low": spec.low}, spec.sensitivity_samples
        analysis = analysis_of(
            draft, layers, levels, toolkit, samples=samples, output=spec.output_index, verify=spec.verify
        )
        by_bytes = spec.budget.max_weight_bytes is not None or spec.budget.max_mean_bits is not None
        movable = _movable(draft, layers, spec)
        order = ranking(analyse_once(analysis), movable, by_bytes=by_bytes, levels=tuple(levels.values()))
        referee = Referee(spec.goal, case, services, output_index=analysis.output_index)
        corrections = Corrections(spec, toolkit)
        assigner = Assigner(draft, layers, (spec.high, spec.low), analysis.ranges, case, services)
        bisection = Bisection(assigner, order, referee, spec, toolkit, finished=corrections.applied)
        best = bisection.run()
        lowered = set(order[: best.lowered])
        nodes = tuple(layer.node for layer in layers if layer.group in lowered)
        made = bisection.draft_of(best.lowered)
        journal = made.journal.followed_by(*(f"mixed precision: {note}" for note in [*referee.notes, *bisection.notes]))
        return Change(replace(made, journal=journal), nodes, bisection.summary(best) + corrections.words, judged=False)


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
        self._judge = Judge(toolkit.case, toolkit.services, toolkit.held_back or toolkit.case.calibration_samples)

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


def _movable(draft: Draft, layers: Sequence[Layer], spec: MixedPrecision) -> set[int]:
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
