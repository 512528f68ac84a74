"""Static quantization: activations by ranges calibrated on data, algorithms on top, then Q/DQ pairs."""

from __future__ import annotations

from collections.abc import Collection

from worker.quantizer.context import Context
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.calibration import calibrate, take_over
from worker.quantizer.refine.draft import Draft, Filled
from worker.quantizer.refine.driver import refine
from worker.quantizer.refine.judge import Judge, held_back_samples
from worker.quantizer.refine.step import Workshop
from worker.quantizer.refine.steps import step_of


def fill_static(prepared: Prepared, plan: QuantizationPlan, context: Context) -> Filled:
    """Calibrate ``plan``, which is changed in place, and run the config's algorithms on it."""
    config = context.config
    steps = [(algorithm, step_of(algorithm)) for algorithm in config.algorithms]
    every = [step for _, step in steps]

    def recalibrate(changed: Prepared, *, base: Draft | None = None, touched: Collection[str] = ()) -> Draft:
        fresh = build_plan(changed.graph, config, changed.op_types)
        kept = {} if base is None else take_over(base.plan, fresh, touched)
        if any(tensor not in kept for tensor in config.tensor_ranges):
            fresh.notes.append("tensor_ranges are not used for tensors that an algorithm has changed")
        return calibrate(changed, fresh, context, every, {}, kept=kept)

    draft = calibrate(prepared, plan, context, every, config.tensor_ranges)
    judged = any(algorithm.accept == "if_better" for algorithm in config.algorithms)
    samples = held_back_samples(context.calibration_samples)
    workshop = Workshop(context, recalibrate, samples if judged else 0, step_of)
    drafts, outcomes = refine(draft, steps, workshop, Judge(context, samples))
    return Filled(drafts, outcomes)
