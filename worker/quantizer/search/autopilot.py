"""The search for the best recipe: quick recipes first, slow ones where they are needed, float as the last resort."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service.contracts.algorithms import (
    AdaRound,
    Autopilot,
    BiasCorrection,
    CrossLayerEqualization,
    MixedPrecision,
    SmoothQuant,
)
from service.contracts.algorithms.precision import DistanceGoal, DropGoal, Level
from service.contracts.algorithms.training import QuantizationAwareTraining
from service.contracts.errors import InvalidConfigError, NotDifferentiableError, ResourceLimitError
from service.contracts.search import Search, TrialFigures
from worker.quantizer.evaluation.certainty import Evidence, surely_differ
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import try_step
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Step, StepResult, Toolkit
from worker.quantizer.search.goal import GoalEvaluator, output_place
from worker.quantizer.search.mixed_precision import MixedPrecisionStep
from worker.quantizer.search.recipes import (
    Basis,
    Chain,
    Finalist,
    RecipeTrial,
    RecipeTrials,
    bases,
    chains,
    variants,
)
from worker.quantizer.search.trials import OutOfTimeError, TimedRun, within_reach

# What differs by less is the same: latencies are measured on a machine with other work to do.
_SAME = {"latency": 0.1, "size": 0.01}
_BEST_BASES = 2
# A training takes this part of the time that is left, so that its outcome can be evaluated; less than so many seconds
# are not worth it.
_TRAINING_SHARE, _LEAST_TRAINING_SECONDS = 0.8, 5.0
# So much less noise, a tenth, is worth another algorithm.
_CLEAR_DB = 0.5
_EQUALIZING = (CrossLayerEqualization, SmoothQuant)


class AutopilotStep(Step[Autopilot]):
    """Tries recipes and returns the best."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft of the best recipe.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric, or there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        timed = TimedRun(toolkit.services.run, self.spec.budget.max_seconds)
        case, services = toolkit.case, replace(toolkit.services, run=timed)
        judge = Judge(case, services, toolkit.judging)
        place = output_place(self.spec.output_index, case)
        evaluator = GoalEvaluator(self.spec.goal, case, services, output_index=place)
        trials = RecipeTrials(draft, replace(toolkit, services=services), judge, evaluator)
        search = _RecipeSearch(self.spec, trials, timed)
        best = search.run()
        found = search.figures(best)
        chosen = trials.draft_of(best.trial)
        plan_log = chosen.plan_log.followed_by(*(f"autopilot: {note}" for note in evaluator.notes))
        nodes = tuple(name for name, entry in chosen.plan.nodes.items() if entry.quantized)
        return StepResult(replace(chosen, plan_log=plan_log), nodes, _summary(best, found), judged=False, search=found)


class _RecipeSearch:
    def __init__(self, spec: Autopilot, trials: RecipeTrials, timed: TimedRun) -> None:
        self._spec = spec
        self._trials, self._finalists = trials, trials.finalists
        self._timed = timed
        self._ended_by = "all recipes of the search were tried"

    def run(self) -> Finalist:
        """The best finalist. Behind the deadline no trial is finished but the first one, which there always is."""
        tried = bases(self._trials.case.config, smaller=self._spec.objective == "size")
        quick = chains(self._trials.draft.graph)
        every = [*quick, *(variant for chain in quick for variant in variants(chain))]
        self._trials.expect([*every, *((*chain, AdaRound()) for chain in every)])
        self._timed.lenient = True
        self._evaluate([self._trials.trial(tried[0], ())])
        self._timed.lenient = False
        try:
            self._search(tried, quick)
        except OutOfTimeError:
            self._goes_on()  # says why the search ends
        self._timed.lenient = True
        return self._best()

    def _search(self, tried: list[Basis], quick: list[Chain]) -> None:
        self._try([(basis, ()) for basis in tried[1:]])
        if not self._met() and self._goes_on():
            self._evaluate(self._ranked()[:1])
        good = self._good_bases(tried)
        self._try([(basis, chain) for chain in quick for basis in good])
        self._evaluate(self._nearest())
        smaller = self._smallest_missed()
        if smaller is not None and self._goes_on():
            self._try([(smaller.basis, (*smaller.chain, AdaRound()))])
            self._evaluate(self._nearest())
        for more in (self._varied, self._finetuned, self._partly_in_float, self._trained):
            if self._met() or not self._goes_on():
                return
            self._evaluate(more())

    def _varied(self) -> list[RecipeTrial]:
        self._try([(trial.basis, chain) for trial in self._ranked()[:_BEST_BASES] for chain in variants(trial.chain)])
        return self._nearest()

    def _finetuned(self) -> list[RecipeTrial]:
        self._try([(trial.basis, (*trial.chain, AdaRound())) for trial in self._ranked()[:_BEST_BASES]])
        return self._nearest()

    def _partly_in_float(self) -> list[RecipeTrial]:
        found = mixed_rescue(self._trials, self._ranked()[0], self._spec.goal, self._spec.output_index)
        return [] if found is None else [found]

    def _trained(self) -> list[RecipeTrial]:
        """The last resort, where a time is set: the nearest recipe is trained for most of what is left of it."""
        left, case = self._timed.seconds_left, self._trials.case
        if left is None or left < _LEAST_TRAINING_SECONDS or case.calibration.is_random:
            return []
        nearest = self._ranked()[0]
        store, key = self._trials.services.checkpoint, "autopilot training seconds"
        stored = store.load(key)  # another attempt goes on with the same training
        seconds = left * _TRAINING_SHARE if stored is None else float(stored)
        store.save(key, str(seconds).encode())
        try:
            training = QuantizationAwareTraining(seconds=seconds)
            trial = self._trials.trial(nearest.basis, (*nearest.chain, training))
        except (NotDifferentiableError, InvalidConfigError, ResourceLimitError) as error:
            # what cannot be trained keeps nobody from the recipes found
            self._trials.services.run.log(f"the network is not trained: {error.detail}", "warning")
            return []
        return [trial] if trial.kept else []

    def _try(self, recipes: list[tuple[Basis, Chain]]) -> None:
        for basis, chain in recipes:
            if not self._goes_on():
                return
            self._trials.trial(basis, chain)

    def _evaluate(self, trials: list[RecipeTrial]) -> None:
        for trial in trials:
            if self._finalists.get(trial.key) is None and (not self._finalists or self._goes_on()):
                self._trials.evaluate(trial)
                best, metric = self._best(), self._spec.goal.metric
                value = best.measured.value
                told = f"{metric} without a value" if value is None else f"{metric} {value:.4g}"
                after = f"best so far after {self._timed.seconds_spent:.0f} s"
                self._trials.services.run.log(f"{after}: {best.trial.name}, {told}")

    def _good_bases(self, tried: list[Basis]) -> list[Basis]:
        alone = [trial for trial in self._trials.tried if not trial.chain]
        good = [trial.basis for trial in sorted(alone, key=lambda trial: -trial.sqnr_db)[:_BEST_BASES]]
        smaller = [basis for basis in tried if basis.is_smaller and basis not in good]
        return [*good, *smaller]

    def _ranked(self) -> list[RecipeTrial]:
        """All trials whose draft differs from its parent's, nearest to the float model first."""
        return sorted((trial for trial in self._trials.tried if trial.kept), key=lambda trial: -trial.sqnr_db)

    def _smallest_missed(self) -> RecipeTrial | None:
        """The best recipe with smaller weights that was evaluated, if it does not meet the goal."""
        for trial in self._ranked():
            finalist = self._finalists.get(trial.key)
            if trial.basis.is_smaller and finalist is not None:
                return None if finalist.measured.met else trial
        return None

    def _nearest(self) -> list[RecipeTrial]:
        """The recipes that come nearest, and the best one with smaller weights."""
        ranked = self._ranked()
        smaller = [trial for trial in ranked if trial.basis.is_smaller]
        first = ranked[: self._spec.finalists]
        return [*first, *(trial for trial in smaller[:1] if trial not in first)]

    def _met(self) -> bool:
        return any(self._fits(finalist) and finalist.measured.met for finalist in self._finalists)

    def _fits(self, finalist: Finalist) -> bool:
        budget = self._spec.budget
        too_large = budget.max_size_bytes is not None and finalist.size_bytes > budget.max_size_bytes
        too_slow = budget.max_latency_ratio is not None and finalist.latency_ratio > budget.max_latency_ratio
        return not (too_large or too_slow)

    def _best(self) -> Finalist:
        """The cheapest that meets the goal; if none does, the nearest to it."""
        found = within_reach(list(self._finalists), fits=self._fits, met=lambda finalist: finalist.measured.met)
        if not found[0].measured.met:
            return min(found, key=lambda finalist: finalist.measured.miss)
        cheapest = min(self._cost(finalist) for finalist in found)
        level = cheapest * (1 + _SAME[self._spec.objective])
        cheap = [finalist for finalist in found if self._cost(finalist) <= level]
        return clear_winner(sorted(cheap, key=lambda finalist: len(finalist.trial.chain)))

    def _cost(self, finalist: Finalist) -> float:
        return float(finalist.size_bytes) if self._spec.objective == "size" else finalist.latency_ratio

    def _goes_on(self) -> bool:
        budget = self._spec.budget
        if self._timed.is_over:
            self._ended_by = f"the time of the budget, {budget.max_seconds:g} s, was used up"
            return False
        if budget.max_trials is not None and len(self._trials.tried) >= budget.max_trials:
            self._ended_by = f"{budget.max_trials} recipes were tried, as the budget says"
            return False
        return True

    def figures(self, best: Finalist) -> Search:
        """All trials for the report; the models of the Pareto set go to the job's files."""
        front = pareto(list(self._finalists))
        rows = []
        for trial in self._trials.tried:
            finalist = self._finalists.get(trial.key)
            measured: dict[str, Any] = {}
            if finalist is not None:
                on_front = finalist in front
                measured = {
                    "value": finalist.measured.value,
                    "gap": finalist.measured.gap,
                    "undefined": finalist.measured.undefined,
                    "size_bytes": finalist.size_bytes,
                    "latency_ratio": round(finalist.latency_ratio, 4),
                    "pareto": on_front,
                    "chosen": finalist is best,
                    "file": self._trials.keep_model(finalist, front.index(finalist) + 1) if on_front else None,
                }
            row = TrialFigures(
                name=trial.name,
                settings=trial.basis.settings,
                algorithms=tuple(algorithm.method for algorithm in trial.chain),
                chain=tuple(algorithm.model_dump(mode="json") for algorithm in trial.chain),
                sqnr_db=trial.score.sqnr_db,
                evaluated=finalist is not None,
                resumed=trial.resumed,
                seconds=round(trial.seconds, 3),
                **measured,
            )
            rows.append(row)
        return Search(
            goal=self._spec.goal.model_dump(mode="json"),
            met=best.measured.met and self._fits(best),
            goal_met=best.measured.met,
            gap=best.measured.gap,
            undefined=best.measured.undefined,
            ended_by=self._ended_by,
            trials=tuple(rows),
        )


def mixed_rescue(
    trials: RecipeTrials, best: RecipeTrial, goal: DropGoal | DistanceGoal, output_index: int | str = 0
) -> RecipeTrial | None:
    """The best recipe again, with as many layers left in float as the goal needs; None if that is all of them.

    Args:
        trials: makes drafts.
        best: the trial that came nearest.
        goal: what to reach.
        output_index: output that a distance is measured on, by number or name.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    begin = time.monotonic()
    config = trials.config_of(best.basis)
    spec = MixedPrecision(
        high=Level(activation="float32", weight="float32"),
        low=Level(activation=config.activation, weight=config.weight),
        optimize="quality",
        goal=goal,
        output_index=output_index,
    )
    start = tuple(algorithm for algorithm in best.chain if isinstance(algorithm, _EQUALIZING))
    mixed: Chain = (*start, spec)
    toolkit = trials.toolkit_of(best.basis, mixed)
    correction = BiasCorrection(mode="full")
    listed = toolkit.case.config.model_copy(update={"algorithms": (spec, correction)})
    toolkit = replace(toolkit, case=replace(toolkit.case, config=listed))
    tried = try_step(MixedPrecisionStep(spec), trials.draft_of(trials.trial(best.basis, start)), toolkit, trials.judge)
    if not tried.kept or not tried.draft.plan.weights:
        return None
    trial = RecipeTrial(best.basis, mixed, trials.judge.score(tried.draft), True, False, time.monotonic() - begin)
    trials.add(trial, tried.draft)
    corrected = trials.trial(best.basis, (*mixed, correction))
    return corrected if corrected.kept and corrected.sqnr_db > trial.sqnr_db else trial


def clear_winner(finalists: Sequence[Finalist]) -> Finalist:
    """The first, unless a later one is better by more than chance; finalists stand simplest first.

    Where the goal's metric does not tell two apart, SQNR on the samples held back does: it sees every score, where a
    metric such as top-1 sees decisions alone.
    """
    best = finalists[0]
    for other in finalists[1:]:
        if _told_apart(best.measured.evidence, other.measured.evidence):
            best = other if other.measured.miss < best.measured.miss else best
        elif other.measured.met >= best.measured.met and other.trial.sqnr_db > best.trial.sqnr_db + _CLEAR_DB:
            best = other
    return best


def _told_apart(one: Evidence | None, other: Evidence | None) -> bool:
    """Two models differ by more than chance, or nobody can tell."""
    if one is None or other is None or one.facts is None or other.facts is None:
        return True
    return surely_differ(one, other)


def pareto(finalists: list[Finalist]) -> list[Finalist]:
    """Those that no other beats or equals in gap, bytes and latency while being better in one of them."""

    def figures(finalist: Finalist) -> tuple[float, float, float]:
        return finalist.measured.miss, float(finalist.size_bytes), finalist.latency_ratio

    def beaten(finalist: Finalist) -> bool:
        mine = figures(finalist)
        return any(
            all(a <= b for a, b in zip(figures(other), mine, strict=True)) and figures(other) != mine
            for other in finalists
        )

    return [finalist for finalist in finalists if not beaten(finalist)]


def _summary(best: Finalist, found: Search) -> str:
    state = "goal met" if found.goal_met else f"goal {best.measured.missed_words}; this is the best so far"
    if found.goal_met and not found.met:
        state += f" but over budget, with {best.size_bytes} bytes and {best.latency_ratio:.2f} of the latency"
    evaluated = sum(row.evaluated for row in found.trials)
    counts = f"{len(found.trials)} recipes tried, {evaluated} evaluated in full"
    return f"{best.trial.name}: {state}; {counts}; {found.ended_by}"
