"""The search for the best recipe as a step: quick recipes first, slow ones where they are needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from service.contracts.algorithms import Autopilot
from service.contracts.errors import InvalidConfigError, NotDifferentiableError, ResourceLimitError
from service.contracts.search import Search, TrialFigures
from worker.quantizer.evaluation.certainty.evidence import Evidence, surely_differ
from worker.quantizer.precision.autopilot.deadline import OutOfTimeError, TimedRun
from worker.quantizer.precision.autopilot.rescue import mixed_rescue
from worker.quantizer.precision.autopilot.space import (
    Basis,
    Chain,
    bases,
    chains,
    finetuned,
    recipe_words,
    trained,
    variants,
)
from worker.quantizer.precision.autopilot.trials import Bench, Finalist, Trial
from worker.quantizer.precision.goal import Referee, output_place
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Change, Step, Toolkit

# What differs by less is the same: latencies are measured on a machine with other work to do.
_SAME = {"latency": 0.1, "size": 0.01}
_BEST_BASES = 2
# A training takes this part of the time that is left, so that its outcome can be evaluated; less than so many seconds
# are not worth it.
_TRAINING_SHARE, _LEAST_TRAINING_SECONDS = 0.8, 5.0


class AutopilotStep(Step[Autopilot]):
    """Tries recipes and returns the best."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The draft of the best recipe.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric, or there is no such output.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        timed = TimedRun(toolkit.services.run, self.spec.budget.max_seconds)
        case, services = toolkit.case, replace(toolkit.services, run=timed)
        judge = Judge(case, services, toolkit.held_back or case.calibration_samples)
        referee = Referee(self.spec.goal, case, services, output_index=output_place(self.spec.output_index, case))
        bench = Bench(draft, replace(toolkit, services=services), judge, referee)
        search = _Search(self.spec, bench, timed)
        best = search.run()
        found = search.figures(best)
        chosen = bench.draft_of(best.trial)
        journal = chosen.journal.followed_by(*(f"autopilot: {note}" for note in bench.referee.notes))
        nodes = tuple(name for name, entry in chosen.plan.nodes.items() if entry.quantized)
        return Change(replace(chosen, journal=journal), nodes, _summary(best, found), judged=False, search=found)


class _Search:
    def __init__(self, spec: Autopilot, bench: Bench, timed: TimedRun) -> None:
        self._spec = spec
        self._bench = bench
        self._timed = timed
        self._begin = time.monotonic()
        self._ended_by = "every recipe that the search knows was tried"
        self._finalists: dict[str, Finalist] = {}

    def run(self) -> Finalist:
        """The best finalist. Behind the deadline no trial is finished but the first one, which there always is."""
        tried = bases(self._bench.case.config, smaller=self._spec.objective == "size")
        quick = chains(self._bench.draft.graph)
        every = [*quick, *(variant for chain in quick for variant in variants(chain))]
        self._bench.expect([*every, *map(finetuned, every)])
        self._timed.lenient = True
        self._evaluate([self._bench.trial(tried[0], ())])
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
        self._evaluate(self._finalists_of())
        smaller = self._smallest()
        if smaller is not None and self._goes_on() and not self._finalists[smaller.name].measured.met:
            self._try([(smaller.basis, finetuned(smaller.chain))])
            self._evaluate(self._finalists_of())
        if not self._met() and self._goes_on():
            self._try(
                [(trial.basis, chain) for trial in self._ranked()[:_BEST_BASES] for chain in variants(trial.chain)]
            )
            self._evaluate(self._finalists_of())
        if not self._met() and self._goes_on():
            self._try([(trial.basis, finetuned(trial.chain)) for trial in self._ranked()[:_BEST_BASES]])
            self._evaluate(self._finalists_of())
        if not self._met() and self._goes_on():
            rescued = mixed_rescue(self._bench, self._ranked()[0], self._spec.goal, self._spec.output_index)
            self._evaluate([rescued] if rescued is not None else [])
        if not self._met() and self._goes_on():
            self._train()

    def _train(self) -> None:
        """The last resort, where a time is set: the nearest recipe is trained for most of what is left of it."""
        left, case = self._timed.seconds_left, self._bench.case
        if left is None or left < _LEAST_TRAINING_SECONDS or case.calibration.is_random:
            return
        nearest = self._ranked()[0]
        store, key = self._bench.services.checkpoint, "autopilot training seconds"
        stored = store.load(key)  # another attempt goes on with the same training
        seconds = left * _TRAINING_SHARE if stored is None else float(stored)
        store.save(key, str(seconds).encode())
        try:
            trial = self._bench.trial(nearest.basis, trained(nearest.chain, seconds))
        except (NotDifferentiableError, InvalidConfigError, ResourceLimitError) as error:
            # what cannot be trained keeps nobody from the recipes found
            self._bench.services.run.log(f"the network is not trained: {error.detail}", "warning")
            return
        self._evaluate([trial] if trial.kept else [])

    def _try(self, recipes: list[tuple[Basis, Chain]]) -> None:
        for basis, chain in recipes:
            if not self._goes_on():
                return
            self._bench.trial(basis, chain)

    def _evaluate(self, trials: list[Trial]) -> None:
        for trial in trials:
            if trial.name not in self._finalists and (not self._finalists or self._goes_on()):
                self._finalists[trial.name] = self._bench.evaluate(trial)
                best, metric = self._best(), self._spec.goal.metric
                value = best.measured.value
                told = f"{metric} without a value" if value is None else f"{metric} {value:.4g}"
                after = f"best so far after {time.monotonic() - self._begin:.0f} s"
                self._bench.services.run.log(f"{after}: {best.trial.name}, {told}")

    def _good_bases(self, tried: list[Basis]) -> list[Basis]:
        made = {trial.name: trial for trial in self._bench.trials if not trial.chain}
        known = [basis for basis in tried if recipe_words(basis, ()) in made]
        by_score = sorted(known, key=lambda basis: -made[recipe_words(basis, ())].sqnr_db)
        good = by_score[:_BEST_BASES]
        smaller = [basis for basis in tried if basis.is_smaller and basis not in good]
        return [*good, *smaller]

    def _ranked(self) -> list[Trial]:
        """All trials whose draft differs from its parent's, nearest to the float model first."""
        return sorted((trial for trial in self._bench.trials if trial.kept), key=lambda trial: -trial.sqnr_db)

    def _smallest(self) -> Trial | None:
        """The best recipe with smaller weights, where such were tried and it was evaluated."""
        found = [trial for trial in self._ranked() if trial.basis.is_smaller and trial.name in self._finalists]
        return found[0] if found else None

    def _finalists_of(self) -> list[Trial]:
        """The recipes that come nearest, and the best one with smaller weights."""
        ranked = self._ranked()
        smaller = [trial for trial in ranked if trial.basis.is_smaller]
        first = ranked[: self._spec.finalists]
        return [*first, *(trial for trial in smaller[:1] if trial not in first)]

    def _met(self) -> bool:
        return any(self._fits(finalist) and finalist.measured.met for finalist in self._finalists.values())

    def _fits(self, finalist: Finalist) -> bool:
        budget = self._spec.budget
        too_large = budget.max_size_bytes is not None and finalist.size_bytes > budget.max_size_bytes
        too_slow = budget.max_latency_ratio is not None and finalist.latency_ratio > budget.max_latency_ratio
        return not (too_large or too_slow)

    def _best(self) -> Finalist:
        """The cheapest that meets the goal; if none does, the nearest to it."""
        finalists = list(self._finalists.values())
        fitting = [finalist for finalist in finalists if self._fits(finalist)] or finalists
        met = [finalist for finalist in fitting if finalist.measured.met]
        if not met:
            return min(fitting, key=lambda finalist: finalist.measured.miss)
        cheapest = min(self._cost(finalist) for finalist in met)
        level = cheapest * (1 + _SAME[self._spec.objective])
        cheap = [finalist for finalist in met if self._cost(finalist) <= level]
        return clear_winner(sorted(cheap, key=lambda finalist: len(finalist.trial.chain)))

    def _cost(self, finalist: Finalist) -> float:
        return float(finalist.size_bytes) if self._spec.objective == "size" else finalist.latency_ratio

    def _goes_on(self) -> bool:
        budget = self._spec.budget
        if self._timed.is_over:
            self._ended_by = f"the time of the budget, {budget.max_seconds:g} s, was used up"
            return False
        if budget.max_trials is not None and len(self._bench.trials) >= budget.max_trials:
            self._ended_by = f"{budget.max_trials} recipes were tried, as the budget says"
            return False
        return True

    def figures(self, best: Finalist) -> Search:
        """All trials for the report; the models of the Pareto set go to the job's files."""
        front = pareto(list(self._finalists.values()))
        rows = []
        for trial in self._bench.trials:
            finalist = self._finalists.get(trial.name)
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
                    "file": self._bench.keep_model(finalist, front.index(finalist) + 1) if on_front else None,
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


def clear_winner(finalists: Sequence[Finalist]) -> Finalist:
    """The first, unless a later one is better by more than chance; finalists stand simplest first."""
    best = finalists[0]
    for other in finalists[1:]:
        if other.measured.miss < best.measured.miss and _may_win(best.measured.evidence, other.measured.evidence):
            best = other
    return best


def _may_win(one: Evidence | None, other: Evidence | None) -> bool:
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
