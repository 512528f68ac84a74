"""Fills a plan with numbers: one float pass over the data for all that is wanted, then grids and integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from service.contracts.specs import TensorRange
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine import channels as outliers
from worker.quantizer.refine import channels as silence
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.ranges import settle_inputs, settle_methods
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.overflow import check_finite
from worker.quantizer.statistics.ranges import find_ranges, range_observer, supplied_ranges


class Asking(Protocol):
    """An algorithm to come."""

    @property
    def method(self) -> str:
        """Its name."""

    def requests(self, draft: Draft) -> list[Request]:
        """The statistics that it needs."""


def calibrate(
    draft: Draft,
    case: Case,
    services: Services,
    steps: Sequence[Asking] = (),
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
        requests = [Request(tensor, observer) for tensor, observer in observers.items()]
        requests += [request for of_step in statistics.values() for request in of_step]
        watched = silence.watch_silent(prepared.graph, plan)
        requests += [entry.request for entry in watched]
        channels = (
            outliers.watch_outliers(prepared.graph, plan, observers) if case.config.outlier_ratio is not None else []
        )
        requests += channels
        if requests:
            case.collect(prepared.model, requests, services)
    with services.stages.stage("parameters"):
        services.run.progress("parameters")
        found = find_ranges(observers, threads=services.threads)
        better, notes = settle_inputs(found, sources, case, services)
        plan_log.note(*notes)
        ranges = plan.ranges = given | found | better
        limit, threads = case.config.calibration_samples, services.threads
        check_finite(
            prepared.model, ranges, case.calibration, case.inputs, limit=limit, threads=threads, run=services.run
        )
        plan_log.note(*silence.mark_silent(watched, plan))
        outliers.mark_outliers(channels, plan)
        fill_activations(prepared.graph, plan, ranges)
        plan_log.note(*Parameters(prepared.graph, plan).fill(threads=services.threads))
        move_grids(prepared.graph, plan, case.config, plan_log)
    return Draft(prepared, plan, plan_log, statistics, form=draft.form)


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
