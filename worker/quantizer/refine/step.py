"""What an algorithm looks like to the driver, and how a plan is filled: one pass over the data, grids, integers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from service.contracts.algorithms import Algorithm
from service.contracts.costs import spread
from service.contracts.reason import Reason
from service.contracts.report import RangeChange, TrainingFigures
from service.contracts.search import Search
from service.contracts.specs import TensorRange
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.channels import mark_outliers, mark_silent, watch_outliers, watch_silent
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.functions import functions_behind, settle_functions, watch_functions
from worker.quantizer.refine.ranges import activations_db, settle_inputs, settle_methods, watch_levels
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.ranges import check_finite, find_ranges, range_observer, supplied_ranges


def calibrate(
    draft: Draft,
    case: Case,
    services: Services,
    steps: Sequence[Step[Any]] = (),
    *,
    supplied: Mapping[str, TensorRange] | None = None,
    kept: Mapping[str, Range] | None = None,
) -> Draft:
    """Fill a copy of the plan with numbers, and collect what ``steps`` need on the same pass over the data.

    The draft is planned, without numbers; its plan_log goes on in that of the filled one. ``supplied`` are ranges that
    the config gives instead of calibrated ones, ``kept`` those that are known already.

    Raises:
        EngineError: a tensor has no finite range, or the runtime failed.
        CanceledError: the run was canceled.
    """
    prepared, plan, plan_log = draft.prepared, draft.plan.copy(), draft.plan_log.followed_by()
    case, chosen = settle_methods(prepared, plan, case, services)
    plan_log.note(*chosen)
    statistics: dict[str, list[Request]] = {}
    with services.stages.stage("statistics"):
        sources = plan.sources()
        made = (value for node in prepared.graph for value in node.outputs)
        known = {value.name for value in (*prepared.graph.inputs, *made) if value.name}
        given, idle = supplied_ranges(supplied or {}, sources, known)
        given |= kept or {}
        plan_log.note(*(f"tensor_ranges: {tensor!r} gets no grid, so its range is not used" for tensor in idle))
        observers = {
            tensor: range_observer(spec, samples=case.calibration_samples)
            for tensor, spec in sources.items()
            if tensor not in given
        }
        for step in steps:
            statistics.setdefault(step.method, []).extend(step.requests(draft))
        levels = watch_levels(case, {tensor: sources[tensor] for tensor in observers})
        functions = functions_behind(prepared.graph, plan)
        behind = watch_functions(functions, observers, case.calibration_samples)
        watching = (*observers.items(), *levels.items(), *behind.items())
        requests = [Request(tensor, observer) for tensor, observer in watching]
        requests += [request for of_step in statistics.values() for request in of_step]
        watched = watch_silent(prepared.graph, plan)
        requests += watched.values()
        channels = watch_outliers(prepared.graph, plan, observers) if case.config.outlier_ratio is not None else []
        requests += channels
        if requests:
            case.collect(prepared.model, requests, services)
    with services.stages.stage("parameters"):
        services.run.progress("parameters")
        found = find_ranges(observers, threads=services.threads)
        better, notes = settle_inputs(found, sources, case, services, levels)
        plan_log.note(*notes)
        ranges = plan.ranges = given | found | better
        check_finite(
            prepared.model,
            ranges,
            case.calibration,
            case.inputs,
            samples=case.calibration_samples,
            threads=services.threads,
            run=services.run,
        )
        if behind:
            observed = {tensor: ranges[tensor] for tensor in observers}
            by_function = settle_functions(observed, plan, functions, behind)
            if by_function and _is_closer(by_function, draft, plan, case, services):
                ranges = plan.ranges = ranges | by_function
                told = "that an activation function alone reads or makes have ranges of the least error behind it"
                plan_log.note(f"{len(by_function)} tensors {told}: the outputs are closer so")
        plan_log.note(*mark_silent(watched, plan))
        mark_outliers(channels, plan)
        fill_activations(prepared.graph, plan, ranges)
        plan_log.note(*Parameters(prepared.graph, plan).fill(threads=services.threads))
        move_grids(prepared.graph, plan, case.config, plan_log)
    return Draft(prepared, plan, plan_log, statistics, form=draft.form)


def _is_closer(
    by_function: Mapping[str, Range], draft: Draft, plan: QuantizationPlan, case: Case, services: Services
) -> bool:
    """True if the outputs are, with activations quantized by these ranges."""
    before, after = (
        activations_db(draft.prepared, plan, ranges, case, services)
        for ranges in (plan.ranges, plan.ranges | dict(by_function))
    )
    return after > before


def take_over(before: QuantizationPlan, after: QuantizationPlan, touched: Collection[str]) -> dict[str, Range]:
    """Hand on to ``after`` what is known of channels, and return the ranges of ``before`` that hold for it too.

    Those are the ranges of tensors that are not ``touched`` and have the same spec.
    """
    after.silent = dict(before.silent)
    specs = before.sources()
    taken = {
        tensor: before.ranges[tensor]
        for tensor, spec in after.sources().items()
        if tensor not in touched and tensor in before.ranges and specs.get(tensor) == spec
    }
    after.spans = {tensor: spans for tensor, spans in before.spans.items() if tensor in taken}
    return taken


# What an algorithm looks like to the driver.

Spec = TypeVar("Spec", bound=Algorithm)


@dataclass(frozen=True)
class TimeLimit:
    """Until when algorithms may go on."""

    end: float | None = None  # on the clock of ``time.monotonic``; None: there is no limit

    @classmethod
    def of(cls, seconds: float | None) -> TimeLimit:
        """One that ends so long from now."""
        return cls(None if seconds is None else time.monotonic() + seconds)

    @property
    def left(self) -> float | None:
        """Seconds from now, not below 0; None: there is no limit."""
        return None if self.end is None else max(self.end - time.monotonic(), 0.0)

    def allows(self, seconds: float = 0.0) -> bool:
        """True if so much more time is left."""
        return self.end is None or time.monotonic() + seconds < self.end


@dataclass(frozen=True)
class Toolkit:
    """What a step works with."""

    case: Case  # what is quantized
    services: Services  # of the run
    held_back: Sequence[int]  # numbers of the calibration samples for judging steps; no step may learn from them
    step_of: Callable[[Algorithm], Step[Any]]  # makes the step of an algorithm, for a step that tries others
    # steps that need their statistics whenever a changed float model is calibrated anew
    to_come: Sequence[Step[Any]] = ()
    time_limit: TimeLimit = TimeLimit()

    @property
    def judging(self) -> Sequence[int]:
        """Numbers of the calibration samples that a step judges by: all where none are held back."""
        return self.held_back or range(self.case.calibration_samples)

    def learning(self, wanted: int | None = None) -> list[int]:
        """Numbers of the calibration samples that a step may learn from, spread over all; None: of all of them."""
        held_back = frozenset(self.held_back)
        free = [number for number in range(self.case.calibration_samples) if number not in held_back]
        free = free or list(range(self.case.calibration_samples))
        return free if wanted is None else [free[k] for k in spread(len(free), wanted)]

    def recalibrate(self, draft: Draft, changed: Prepared, *, touched: Collection[str] | None = None) -> Draft:
        """A changed float model, planned and calibrated anew.

        ``touched`` are names of the tensors that no longer compute what they did; the ranges of all others are taken
        over from ``draft``. None: no range is.

        Raises:
            EngineError: a tensor has no finite range, or the runtime failed.
            CanceledError: the run was canceled.
        """
        made = draft.replanned(self.case.config, changed)
        made.plan.spill = draft.plan.spill
        kept = {} if touched is None else take_over(draft.plan, made.plan, touched)
        if any(tensor not in kept for tensor in self.case.config.tensor_ranges):
            made.plan_log.note("tensor_ranges are not used for tensors that an algorithm has changed")
        return calibrate(made, self.case, self.services, self.to_come, kept=kept)


@dataclass(frozen=True)
class StepResult:
    """What a step made of a draft."""

    draft: Draft | None  # the new one; None if there was nothing to do
    nodes: tuple[str, ...]  # names of the nodes that it changed
    summary: str  # one sentence for the report, or the reason why there was nothing to do
    search: Search | None = None  # what it has tried, for a step that searches
    ranges: tuple[RangeChange, ...] = ()  # what became of the ranges of tensors, for a step that moves them
    # mean square error of a layer's outputs before and after, by node, for a step that reconstructs layers
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    training: TrainingFigures | None = None  # how it went, for a step that trains
    judged: bool = True  # False for a step that pursues a goal of its own and measures itself whether it is met
    reason: Reason | None = None  # why there was nothing to do

    @classmethod
    def nothing(cls, reason: Reason, *, errors: dict[str, tuple[float, float]] | None = None) -> StepResult:
        """There was nothing to do."""
        return cls(None, (), reason.words, errors=errors or {}, reason=reason)


@dataclass(frozen=True)
class Step(ABC, Generic[Spec]):
    """One algorithm. It holds its settings and nothing else: what it knows of a network is in the draft."""

    spec: Spec  # its entry in the config

    @property
    def method(self) -> str:
        """Its name in configs and reports."""
        return self.spec.method

    def requests(self, draft: Draft) -> list[Request]:
        """Statistics of the float network that ``apply`` finds in its draft; collected together with all others.

        The draft is planned, without numbers.
        """
        return []

    def variants(self, draft: Draft) -> tuple[Any, ...]:
        """The settings to try on ``draft``: with a value in the place of every knob that is ``auto``."""
        return self.spec.variants()

    @abstractmethod
    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """A new draft, made from ``draft`` and its statistics.

        Raises:
            InvalidConfigError: the settings do not fit the model or the data.
            EngineError: the runtime failed on the data.
            CanceledError: the run was canceled.
        """
