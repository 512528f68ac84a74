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
from service.contracts.costs import TRIAL_SAMPLES, spread
from service.contracts.specs import ActivationSpec, AutoCalibration, MseCalibration, is_integer, needs_calibration
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
from worker.quantizer.statistics.lattice import Levels
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
# Steps by which a range is widened, where its values lie between levels.
_MOST_WIDER = 4
# By what the ends of a range are multiplied.
_MOVES = ((0.5, 0.5), (1.0, 0.5), (0.5, 1.0), (2.0, 2.0))


def watch_levels(case: Case, sources: Mapping[str, ActivationSpec]) -> dict[str, Levels]:
    """Observers of the network inputs whose grids are laid over a range, each step of any size: by name."""
    return {
        tensor.name: Levels(case.calibration_samples)
        for tensor in case.inputs
        if (spec := sources.get(tensor.name)) is not None
        and is_integer(spec.dtype)
        and not spec.symmetric
        and spec.scale == "float32"
    }


def settle_inputs(
    ranges: Mapping[str, Range],
    sources: Mapping[str, ActivationSpec],
    case: Case,
    services: Services,
    levels: Mapping[str, Levels] | None = None,
) -> tuple[dict[str, Range], list[str]]:
    """Ranges of network inputs that serve the outputs better than those of their methods.

    Values on a lattice, as pixels are, get the grid that holds all of them, if there is one. If every value of such an
    input lies between two levels, ranges that are a few steps wider are tried. Of an input calibrated by ``mse`` the
    range is halved, at one end or both, or doubled. Tried is with nothing but this input quantized, as long as the
    outputs of the float network come closer to what they were.

    ``ranges`` are as found by the methods of ``sources``, the specs of all quantized tensors; ``levels`` are observers
    of inputs that have seen the same data. Returns the ranges that differ, and a sentence on each for the report.

    Raises:
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    better: dict[str, Range] = {}
    notes = []
    few: list[Expected] = []
    for name in (tensor.name for tensor in case.inputs if tensor.name in ranges):
        spec, seen = sources[name], (levels or {}).get(name)
        lattice = seen.result() if seen is not None else None
        family = GridFamily.of(spec) if needs_calibration(spec.dtype) else None
        exact = lattice.exact_range(family.span) if lattice is not None and family is not None else None
        if exact is not None:
            if not _same(exact, ranges[name]):
                better[name] = exact
                notes.append(f"input {name!r}: its range is {_words(exact)}, whose grid holds every value of the data")
            continue
        searched = isinstance(spec.calibration, MseCalibration)
        if family is None or not (searched or lattice is not None):
            continue
        few = few or _expected(case, services, _FEW)
        trial = _Trial(name, family, few, case, services)
        found = trial.settle(ranges[name]) if searched else trial.widen(ranges[name])
        if found == ranges[name]:
            continue
        proof = _Trial(name, family, _expected(case, services, _MANY), case, services)
        gain = proof.sqnr_db(found) - proof.sqnr_db(ranges[name])
        if gain > _WORTH_DB:
            better[name] = found
            notes.append(
                f"input {name!r}: its range is {_words(found)}, which brings the outputs {gain:.1f} dB closer than "
                f"{_words(ranges[name])} of {'the least square error' if searched else 'its calibration'}"
            )
    return better, notes


def _same(one: Range, other: Range) -> bool:
    return bool(np.allclose([one.minimum, one.maximum], [other.minimum, other.maximum], rtol=1e-6, atol=0.0))


def _words(found: Range) -> str:
    return f"[{found.minimum:g}, {found.maximum:g}]"


def _expected(case: Case, services: Services, wanted: int) -> list[Expected]:
    """Some samples, as many as may be held, and the float network's outputs for them."""
    found, held = [], 0
    samples = spread(case.calibration_samples, wanted)
    for expected in case.expected_outputs(services.run, batch_size=_SENSITIVITY_BATCH, samples=samples):
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

    def widen(self, found: Range) -> Range:
        """The range itself, or the best of those that are a few steps wider."""
        span = self._family.span
        wider = [span / (span - steps) for steps in range(1, _MOST_WIDER + 1)]
        return max((found, *(Range(found.minimum * by, found.maximum * by) for by in wider)), key=self.sqnr_db)

    def sqnr_db(self, tried: Range) -> float:
        """Of the worst output; -inf if it is not finite, or there is no output of floats."""
        if tried not in self._known:
            self._known[tried] = self._measure(tried)
        return self._known[tried]

    def _measure(self, tried: Range) -> float:
        scale, zero = self._family.parameters(np.asarray(tried.minimum), np.asarray(tried.maximum))

        def quantized(one: Expected) -> Expected:
            exact = one.batch.feeds[self._name]
            # as QuantizeLinear computes, so that ties fall where the runtime puts them
            rounded = self._family.fake(exact, scale, zero).astype(exact.dtype)
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
    alone = _without_weights(plan)
    _name(alone, calibration, chosen)
    for entry in alone.activations.values():
        if isinstance(entry.spec.calibration, AutoCalibration):
            entry.spec = _with(entry.spec, entry.spec.calibration, 0)
    return alone


def _without_weights(plan: QuantizationPlan) -> QuantizationPlan:
    alone = plan.copy()
    alone.weights, alone.biases = {}, {}
    for node in alone.nodes.values():
        if node.role in (Role.LOOKUP, Role.STORED):  # of weights there is nothing else to write
            node.role = None
    return alone


def _sqnr_db(
    prepared: Prepared, plan: QuantizationPlan, ranges: dict[str, Range], case: Case, services: Services
) -> float:
    better, _ = settle_inputs(ranges, plan.sources(), case, services)
    return activations_db(prepared, plan, {**ranges, **better}, case, services)


def activations_db(
    prepared: Prepared, plan: QuantizationPlan, ranges: Mapping[str, Range], case: Case, services: Services
) -> float:
    """SQNR in dB of the worst output with nothing but activations quantized, by these ranges; -inf if not finite.

    Raises:
        EngineError: a tensor has no finite range, or the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    alone = _without_weights(plan)
    fill_activations(prepared.graph, alone, ranges)
    expected = case.expected_outputs(
        services.run, batch_size=_TRIAL_BATCH, samples=spread(case.calibration_samples, TRIAL_SAMPLES)
    )
    return _worst_db(Draft(prepared, alone).session(services.threads), expected, services)


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
