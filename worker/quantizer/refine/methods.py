"""How ranges are found where the config leaves that to a trial: calibration method ``auto``.

What suits a network cannot be told tensor by tensor: a range of least square error may cut off what the layers behind
it live on. So each candidate quantizes all activations of the float network, its weights left alone, and the outputs
decide. Weights would only be in the way: where one scale per tensor ruins them, all candidates come out alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from service.contracts.config import QuantizationConfig
from service.contracts.costs import TRIAL_SAMPLES
from service.contracts.specs import ActivationSpec, AutoCalibration
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import side_by_side
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.inputs import settle_inputs
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.ranges import find_ranges, range_observer

# Samples of the trial that are run at once.
_BATCH = 8
# Below this the difference of two candidates is rounding of the runtime.
_SAME_DB = 0.005


def settle_methods(
    prepared: Prepared, plan: QuantizationPlan, case: Case, services: Services
) -> tuple[Case, list[str]]:
    """Put the best candidate in the place of every ``auto``, in the plan and in the config.

    Args:
        prepared: the float model.
        plan: without numbers; its specs are changed.
        case: what is quantized.
        services: of the run.

    Returns:
        the case with a config that names methods, and a sentence for the report on each choice.

    Raises:
        EngineError: a tensor has no finite range, or the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    specs = plan.sources().values()
    asked = list(dict.fromkeys(c for spec in specs if isinstance(c := spec.calibration, AutoCalibration)))
    notes: list[str] = []
    if not asked:
        return case, notes
    with services.stages.stage("calibration"):
        services.run.progress("calibration")
        for calibration in asked:
            figures = _tried(prepared, plan, calibration, case, services)
            best = max(figures)
            chosen = next(k for k, figure in enumerate(figures) if figure >= best - _SAME_DB)
            case = replace(case, config=_named(case.config, calibration, chosen))
            _name(plan, calibration, chosen)
            told = ", ".join(
                f"{method_words(one)} {figure:.2f} dB"
                for one, figure in zip(calibration.candidates, figures, strict=True)
            )
            method = method_words(calibration.candidates[chosen])
            notes.append(f"calibration auto: {method} was chosen; outputs with activations quantized: {told}")
    return case, notes


def _tried(
    prepared: Prepared, whole: QuantizationPlan, calibration: AutoCalibration, case: Case, services: Services
) -> list[float]:
    """SQNR in dB of the worst output under each candidate; -inf where that is not finite."""
    plans = [_activations_alone(whole, calibration, k) for k in range(len(calibration.candidates))]
    observers = {
        f"{k} {tensor}": range_observer(spec, samples=case.calibration_samples)
        for k, plan in enumerate(plans)
        for tensor, spec in plan.sources().items()
    }
    requests = [Request(name.partition(" ")[2], observer) for name, observer in observers.items()]
    case.collect(prepared.model, requests, services)
    found = find_ranges(observers, threads=services.threads)
    figures = []
    for k, plan in enumerate(plans):
        ranges = {tensor: found[f"{k} {tensor}"] for tensor in plan.sources()}
        figures.append(_sqnr_db(prepared, plan, ranges, case, services))
    return figures


def _activations_alone(plan: QuantizationPlan, calibration: AutoCalibration, chosen: int) -> QuantizationPlan:
    """The plan without weights and biases; whatever else is to be settled takes its first candidate."""
    alone = plan.copy()
    alone.weights, alone.biases = {}, {}
    for node in alone.nodes.values():
        if node.role in (Role.LOOKUP, Role.STORED):  # of weights there is nothing else to write
            node.role = None
    _name(alone, calibration, chosen)
    for entry in alone.activations.values():
        if isinstance(entry.spec.calibration, AutoCalibration):
            entry.spec = _with(entry.spec, entry.spec.calibration, 0)
    return alone


def _sqnr_db(
    prepared: Prepared, plan: QuantizationPlan, ranges: dict[str, Range], case: Case, services: Services
) -> float:
    better, _ = settle_inputs(ranges, plan.sources(), case, services)
    fill_activations(prepared.graph, plan, {**ranges, **better})
    session, distances = Draft(prepared, plan).session(services.threads), Distances()
    expected = case.expected_outputs(services.run, batch_size=_BATCH, last=TRIAL_SAMPLES)
    for twins in side_by_side(session, expected, services.run):
        distances.update(twins.pairs())
    worst = distances.worst_db
    return float("-inf") if worst is None else worst


def _name(plan: QuantizationPlan, calibration: AutoCalibration, chosen: int) -> None:
    for entry in plan.activations.values():
        entry.spec = _with(entry.spec, calibration, chosen)


def _with(spec: ActivationSpec, calibration: AutoCalibration, chosen: int) -> ActivationSpec:
    """The spec with a candidate in the place of ``calibration``."""
    if spec.calibration != calibration:
        return spec
    return spec.model_copy(update={"calibration": calibration.candidates[chosen]})


def _named(config: QuantizationConfig, calibration: AutoCalibration, chosen: int) -> QuantizationConfig:
    overrides = []
    for override in config.overrides:
        kinds = {"activation": override.activation, "input_activation": override.input_activation}
        named = {kind: _with(spec, calibration, chosen) for kind, spec in kinds.items() if spec is not None}
        overrides.append(override.model_copy(update=named))
    activation = _with(config.activation, calibration, chosen)
    return config.model_copy(update={"activation": activation, "overrides": tuple(overrides)})


def method_words(method: Any) -> str:
    """A calibration method for people, with its percentile."""
    share = getattr(method, "percentile", None)
    return str(method.method) if share is None else f"{method.method} {share:g}"
