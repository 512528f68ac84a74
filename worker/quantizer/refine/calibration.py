"""Fills a plan with numbers: one float pass over the data for all that is wanted, then grids and integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from service.contracts.calibration import TensorRange
from worker.quantizer.context import Context
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.overflow import check_finite
from worker.quantizer.plan.blocks import assign_block_axes
from worker.quantizer.plan.parameters import fill_activations, fill_parameters
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.inputs import settle_inputs
from worker.quantizer.refine.silence import mark, watch
from worker.quantizer.refine.step import Step
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.ranges import find_ranges, range_reducer
from worker.quantizer.statistics.reducers import Range
from worker.quantizer.statistics.supplied import supplied_ranges


def calibrate(
    prepared: Prepared,
    plan: QuantizationPlan,
    context: Context,
    steps: Sequence[Step],
    supplied: dict[str, TensorRange],
    kept: Mapping[str, Range] | None = None,
) -> Draft:
    """Fill ``plan`` with numbers, in place, and collect what ``steps`` need on the same pass over the data.

    Args:
        prepared: the float model.
        plan: made for it, without numbers.
        context: of the run.
        steps: algorithms to come.
        supplied: ranges to take instead of calibrated ones.
        kept: ranges that are known already.

    Raises:
        EngineError: a tensor has no finite range, or the runtime failed.
        CanceledError: the run was canceled.
    """
    draft = Draft(prepared, plan)
    with context.stages.stage("statistics"):
        sources = plan.sources()
        made = (value for node in prepared.graph for value in node.outputs)
        known = {value.name for value in (*prepared.graph.inputs, *made) if value.name}
        given, idle = supplied_ranges(supplied, sources, known)
        given |= kept or {}
        plan.notes += [f"tensor_ranges: {tensor!r} gets no grid, so its range is not used" for tensor in idle]
        reducers = {
            tensor: range_reducer(spec, samples=context.calibration_samples)
            for tensor, spec in sources.items()
            if tensor not in given
        }
        for step in steps:
            draft.statistics[step.method] = step.requests(draft)
        requests = [Request(tensor, reducer) for tensor, reducer in reducers.items()]
        requests += [request for of_step in draft.statistics.values() for request in of_step]
        watched = watch(prepared.graph, plan)
        requests += [entry.request for entry in watched]
        if requests:
            collect(
                prepared.model,
                requests,
                context.calibration,
                context.inputs,
                limit=context.config.calibration_samples,
                threads=context.threads,
                run=context.run,
            )
    with context.stages.stage("parameters"):
        context.run.progress("parameters")
        found = find_ranges(reducers, threads=context.threads)
        better, notes = settle_inputs(found, sources, context)
        plan.notes += notes
        ranges = plan.ranges = given | found | better
        _check_ranges(prepared, ranges, context)
        assign_block_axes(prepared.graph, plan)
        mark(watched, plan)
        fill_activations(plan, ranges)
        fill_parameters(prepared.graph, plan, threads=context.threads)
        move_grids(prepared.graph, plan, context.config)
    return draft


def take_over(before: QuantizationPlan, after: QuantizationPlan, touched: Collection[str]) -> dict[str, Range]:
    """Hand on to ``after`` which channels are silent, and return the ranges of ``before`` that hold for it too.

    Those are the ranges of tensors that are not ``touched`` and have the same spec.
    """
    after.silent = dict(before.silent)
    specs = before.sources()
    return {
        tensor: before.ranges[tensor]
        for tensor, spec in after.sources().items()
        if tensor not in touched and tensor in before.ranges and specs.get(tensor) == spec
    }


def _check_ranges(prepared: Prepared, ranges: dict[str, Range], context: Context) -> None:
    check_finite(
        prepared.model,
        ranges,
        context.calibration,
        context.inputs,
        limit=context.config.calibration_samples,
        threads=context.threads,
        run=context.run,
    )
