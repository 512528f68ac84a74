"""Static quantization: activations by ranges calibrated on data, algorithms on top, then Q/DQ pairs."""

from __future__ import annotations

from worker.quantizer.modes.steps import step_of
from worker.quantizer.plan.journal import Journal
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.calibration import calibrate
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Filled
from worker.quantizer.refine.driver import refine
from worker.quantizer.refine.judge import Judge, held_back_samples
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.run.services import Services


def fill_static(prepared: Prepared, plan: QuantizationPlan, journal: Journal, case: Case, services: Services) -> Filled:
    """Calibrate ``plan`` and run the config's algorithms on it."""
    config = case.config
    steps = [step_of(algorithm) for algorithm in config.algorithms]
    draft = calibrate(prepared, plan, case, services, steps, config.tensor_ranges, journal=journal)
    judged = any(algorithm.accept == "if_better" for algorithm in config.algorithms)
    samples = held_back_samples(case.calibration_samples)
    toolkit = Toolkit(case, services, samples if judged else 0, step_of)
    drafts, outcomes = refine(draft, steps, toolkit, Judge(case, services, samples))
    return Filled(drafts, outcomes)
