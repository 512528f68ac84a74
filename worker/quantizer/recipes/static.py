"""Static quantization: activations by ranges calibrated on data, then Q/DQ pairs."""

from __future__ import annotations

from service.contracts.config import PercentileCalibration, QuantizationConfig
from worker.quantizer.context import Context
from worker.quantizer.equalization import bias_correction
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.overflow import check_finite
from worker.quantizer.plan.parameters import fill_activations, fill_parameters
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.reducers import MinMax, Percentile, Range, RangeReducer


def fill_static(prepared: Prepared, plan: QuantizationPlan, context: Context) -> None:
    """Calibrate and fill ``plan``, which is changed in place."""
    config, run = context.config, context.run
    corrects_biases = any(algorithm.method == "bias_correction" for algorithm in config.algorithms)
    with context.stages.stage("statistics"):
        reducers = {tensor: _reducer(config, context.calibration_samples) for tensor in plan.ranges_needed()}
        means = bias_correction.requests(prepared.graph, plan) if corrects_biases else []
        requests = [*(Request(tensor, reducer) for tensor, reducer in reducers.items()), *means]
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
        ranges = {tensor: reducer.result() for tensor, reducer in reducers.items()}
        _check_ranges(prepared, ranges, context)
        fill_activations(plan, ranges)
        fill_parameters(prepared.graph, plan)
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


def _reducer(config: QuantizationConfig, samples: int) -> RangeReducer:
    calibration = config.activation.calibration
    if isinstance(calibration, PercentileCalibration):
        return Percentile(calibration.percentile, samples=samples, symmetric=config.activation.symmetric)
    return MinMax()
