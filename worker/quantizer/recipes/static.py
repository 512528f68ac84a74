"""Static quantization: activations by ranges calibrated on data, then Q/DQ pairs."""

from __future__ import annotations

from worker.quantizer.context import Context
from worker.quantizer.equalization import bias_correction
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.overflow import check_finite
from worker.quantizer.plan.blocks import assign_block_axes
from worker.quantizer.plan.parameters import fill_activations, fill_parameters
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.ranges import find_ranges, range_reducer
from worker.quantizer.statistics.reducers import Range
from worker.quantizer.statistics.supplied import supplied_ranges


def fill_static(prepared: Prepared, plan: QuantizationPlan, context: Context) -> None:
    """Calibrate and fill ``plan``, which is changed in place."""
    config, run = context.config, context.run
    corrects_biases = any(algorithm.method == "bias_correction" for algorithm in config.algorithms)
    with context.stages.stage("statistics"):
        sources = plan.sources()
        made = (value for node in prepared.graph for value in node.outputs)
        known = {value.name for value in (*prepared.graph.inputs, *made) if value.name}
        given, idle = supplied_ranges(config.tensor_ranges, sources, known)
        plan.notes += [f"tensor_ranges: {tensor!r} gets no grid, so its range is not used" for tensor in idle]
        reducers = {
            tensor: range_reducer(spec, samples=context.calibration_samples)
            for tensor, spec in sources.items()
            if tensor not in given
        }
        means = bias_correction.requests(prepared.graph, plan) if corrects_biases else []
        requests = [*(Request(tensor, reducer) for tensor, reducer in reducers.items()), *means]
        if requests:
            collect(
                prepared.model,
                requests,
                context.calibration,
                context.inputs,
                limit=config.calibration_samples,
                threads=context.threads,
                run=run,
            )
    with context.stages.stage("parameters"):
        run.progress("parameters")
        ranges = plan.ranges = given | find_ranges(reducers, threads=context.threads)
        _check_ranges(prepared, ranges, context)
        assign_block_axes(prepared.graph, plan)
        fill_activations(plan, ranges)
        fill_parameters(prepared.graph, plan, threads=context.threads)
        # before biases are corrected, so that they are corrected for the weights as they will be
        move_grids(prepared.graph, plan, config)
        if corrects_biases:
            corrected = bias_correction.correct_biases(prepared.graph, plan, means)
            run.log(f"bias correction: {corrected} nodes")
        move_grids(prepared.graph, plan, config)


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
