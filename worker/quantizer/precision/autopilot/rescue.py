"""The last resort of the search: what hurts most goes back to float."""

from __future__ import annotations

import time
from dataclasses import replace

from service.contracts.algorithms import BiasCorrection, CrossLayerEqualization, MixedPrecision, SmoothQuant
from service.contracts.algorithms.precision import DistanceGoal, DropGoal, Level
from worker.quantizer.precision.autopilot.space import Chain
from worker.quantizer.precision.autopilot.trials import Bench, Trial
from worker.quantizer.precision.mixed.step import MixedPrecisionStep
from worker.quantizer.refine.driver import try_step

_EQUALIZING = (CrossLayerEqualization, SmoothQuant)


def mixed_rescue(bench: Bench, best: Trial, goal: DropGoal | DistanceGoal, output_index: int | str = 0) -> Trial | None:
    """The best recipe again, with as many layers left in float as the goal needs; None if that is all of them.

    Args:
        bench: makes drafts.
        best: the trial that came nearest.
        goal: what to reach.
        output_index: output that a distance is measured on, by number or name.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    begin = time.monotonic()
    config = bench.config_of(best.basis)
    spec = MixedPrecision(
        high=Level(activation="float32", weight="float32"),
        low=Level(activation=config.activation, weight=config.weight),
        optimize="quality",
        goal=goal,
        output_index=output_index,
    )
    start = tuple(algorithm for algorithm in best.chain if isinstance(algorithm, _EQUALIZING))
    mixed: Chain = (*start, spec)
    toolkit = bench.toolkit_of(best.basis, mixed)
    correction = BiasCorrection(mode="full")
    listed = toolkit.case.config.model_copy(update={"algorithms": (spec, correction)})
    toolkit = replace(toolkit, case=replace(toolkit.case, config=listed))
    tried = try_step(MixedPrecisionStep(spec), bench.draft_of(bench.trial(best.basis, start)), toolkit, bench.judge)
    if not tried.kept or not tried.draft.plan.weights:
        return None
    trial = Trial(best.basis, mixed, bench.judge.score(tried.draft), True, False, time.monotonic() - begin)
    bench.add(trial, tried.draft)
    corrected = bench.trial(best.basis, (*mixed, correction))
    return corrected if corrected.kept and corrected.sqnr_db > trial.sqnr_db else trial
