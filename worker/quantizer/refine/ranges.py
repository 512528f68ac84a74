"""Ranges found by trial: calibration method ``auto``, and the network's inputs by what the outputs make of them.

What suits a network cannot be told tensor by tensor: a range of least square error may cut off what the layers behind
it live on. So each candidate quantizes all activations of the float network, its weights left alone, and the outputs
decide. Weights would only be in the way: where one scale per tensor ruins them, all candidates come out alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from service.contracts.config import QuantizationConfig
from service.contracts.costs import TRIAL_SAMPLES
from service.contracts.specs import ActivationSpec, AutoCalibration, MseCalibration
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.side_by_side import Expected, side_by_side
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.grids import GridFamily
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.ranges import find_ranges, range_observer

# Ranges of the network's inputs by what the outputs make of them.
#
# Features of very different size may share an input: a loudness beside spectral shapes, a coordinate beside a flag. The
# square error of the tensor is then that of its largest feature, though the layers behind it may hardly look at that
# one. Inputs are few and any grid of theirs can be tried on the float network alone, so that the outputs can decide.

# Samples that ranges are searched on, and that the outcome has to prove itself on.
_FEW, _MANY = 8, 32
# The float network's session keeps the memory of its largest batch.
_SENSITIVITY_BATCH = 1
# Elements of feeds and outputs that are held at once.
_MOST_ELEMENTS = 8_000_000
# A move is made if the outputs come closer by this much.
_WORTH_DB = 0.5
_MOST_STEPS = 24
# By what the ends of a range are multiplied.
_MOVES = ((0.5, 0.5), (1.0, 0.5), (0.5, 1.0), (2.0, 2.0))


def settle_inputs(
    ranges: Mapping[str, Range], sources: Mapping[str, ActivationSpec], case: Case, services: Services
) -> tuple[dict[str, Range], list[str]]:
    """Ranges of network inputs that serve the outputs better than those of the least square error.

    Each such range is halved, at one end or both, or doubled, as long as the outputs of the float network, with nothing
    but this input quantized, come closer to what they were.

    ``ranges`` are as found by the methods of ``sources``, the specs of all quantized tensors; inputs calibrated by
    ``mse`` among them are looked at. Returns the ranges that differ, and a sentence on each for the report.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    names = [
        tensor.name
        for tensor in case.inputs
        if tensor.name in ranges and isinstance(sources[tensor.name].calibration, MseCalibration)
    ]
    better: dict[str, Range] = {}
    notes = []
    few = _expected(case, services, _FEW) if names else []
    for name in names:
        family = GridFamily.of(sources[name])
        found = _Trial(name, family, few, case, services).settle(ranges[name])
        if found == ranges[name]:
            continue
        trial = _Trial(name, family, _expected(case, services, _MANY), case, services)
        gain = trial.sqnr_db(found) - trial.sqnr_db(ranges[name])
        if gain > _WORTH_DB:
            better[name] = found
            notes.append(
                f"input {name!r}: its range is [{found.minimum:g}, {found.maximum:g}], which brings the outputs "
                f"{gain:.1f} dB closer than [{ranges[name].minimum:g}, {ranges[name].maximum:g}] of the least square "
                "error"
            )
    return better, notes


def _expected(case: Case, services: Services, samples: int) -> list[Expected]:
    """The first samples, as many as may be held, and the float network's outputs for them."""
    found, held = [], 0
    for expected in case.expected_outputs(services.run, batch_size=_SENSITIVITY_BATCH, last=samples):
        found.append(expected)
        held += sum(array.size for array in expected.arrays)
        if held > _MOST_ELEMENTS:
            break
    return found


class _Trial:
    """The outputs with one input quantized."""

    def __init__(self, name: str, family: GridFamily, expected: list[Expected], case: Case, services: Services) -> None:
        self._name, self._family, self._expected = name, family, expected
        self._case, self._services = case, services
        self._known: dict[Range, float] = {}

    def settle(self, found: Range) -> Range:
        """The range that is reached from ``found`` by the best moves, until none is worth it."""
        if not (np.isfinite(found.minimum) and np.isfinite(found.maximum)) or found.minimum == found.maximum:
            return found
        best = found
        moves = [(low, high) for low, high in _MOVES if low == high or not self._family.symmetric]
        for _ in range(_MOST_STEPS):
            tried = max((Range(best.minimum * low, best.maximum * high) for low, high in moves), key=self.sqnr_db)
            if not self.sqnr_db(tried) > self.sqnr_db(best) + _WORTH_DB:
                break
            best = tried
        return best

    def sqnr_db(self, tried: Range) -> float:
        """Of the worst output; -inf if it is not finite, or there is no output of floats."""
        if tried not in self._known:
            self._known[tried] = self._measure(tried)
        return self._known[tried]

    def _measure(self, tried: Range) -> float:
        scale, zero = self._family.parameters(np.asarray(tried.minimum), np.asarray(tried.maximum))

        def quantized(one: Expected) -> Expected:
            exact = one.batch.feeds[self._name]
            rounded = self._family.fake(exact.astype(np.float64), scale, zero).astype(exact.dtype)
            return replace(one, batch=replace(one.batch, feeds={**one.batch.feeds, self._name: rounded}))

        return _worst_db(self._case.float_session, map(quantized, self._expected), self._services)


def _worst_db(session: Session, expected: Iterable[Expected], services: Services) -> float:
    """SQNR of the worst output in dB; -inf if it is not finite, or there is no output of floats."""
    distances = Distances()
    for twins in side_by_side(session, expected, services.run):
        distances.update(twins.pairs())
    return -np.inf if distances.worst_db is None else distances.worst_db


# Samples of the trial that are run at once.
_TRIAL_BATCH = 8
# Below this the difference of two candidates is rounding of the runtime.
_SAME_DB = 0.005


def settle_methods(
    prepared: Prepared, plan: QuantizationPlan, case: Case, services: Services
) -> tuple[Case, list[str]]:
    """Put the best candidate in the place of every ``auto``, in the plan and in the config.

    The plan has no numbers; its specs are changed. Returns the case with a config that names methods, and a sentence
    for the report on each choice.

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
    expected = case.expected_outputs(services.run, batch_size=_TRIAL_BATCH, last=TRIAL_SAMPLES)
    return _worst_db(Draft(prepared, plan).session(services.threads), expected, services)


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
