"""Measures the float and the quantized model side by side and writes the report."""

from __future__ import annotations

import hashlib

from service.contracts.calibration import TensorRange
from service.contracts.report import Manifest, ModelFigures, Report
from service.contracts.version import VERSION
from worker.quantizer.context import Context, Quantized
from worker.quantizer.evaluation.compare import compare, latencies_ms
from worker.quantizer.evaluation.gate import judge, metric_figures, search_clauses
from worker.quantizer.evaluation.nhwc import NhwcSession
from worker.quantizer.identity import library_versions
from worker.quantizer.layers import layer_figures
from worker.quantizer.wording import report_notes, summary_sentence


def make_report(quantized: Quantized, model_bytes: bytes, context: Context) -> Report:
    """Compare ``model_bytes`` with the float model and say what was found.

    Raises:
        UnsupportedModelError: onnxruntime refuses the quantized model.
        EngineError: it fails on the data.
        CanceledError: the run was canceled.
    """
    config, run = context.config, context.run
    data = context.measured_on
    with context.stages.stage("evaluation"):
        nhwc = () if quantized.plan.is_empty else quantized.prepared.nhwc_inputs
        quantized_session = NhwcSession(model_bytes, nhwc, threads=context.threads, what="quantized model")
        comparison = compare(
            context.float_session,
            quantized_session,
            data,
            context.inputs,
            source="evaluation" if context.evaluation is not None else "calibration",
            metrics=context.metrics,
            run=run,
        )
    with context.stages.stage("layers"):
        layers = layer_figures(
            quantized.filled.drafts,
            quantized.model,
            data,
            context.inputs,
            samples=config.evaluation.layer_samples,
            threads=context.threads,
            run=run,
        )
    with context.stages.stage("latency"):
        run.progress("latency")
        float_ms, quantized_ms = latencies_ms(
            context.float_session, quantized_session, data, context.inputs, runs=config.evaluation.latency_runs, run=run
        )
    float_figures = ModelFigures(
        metrics=comparison.float_metrics,
        metric_details=comparison.float_set.details,
        size_bytes=context.summary.size_bytes,
        latency_ms=float_ms,
    )
    figures = ModelFigures(
        metrics=comparison.quantized_metrics,
        metric_details=comparison.quantized_set.details,
        size_bytes=len(model_bytes),
        latency_ms=quantized_ms,
    )
    measured = metric_figures(config.evaluation, comparison)
    outcomes = quantized.filled.outcomes
    searched = search_clauses(config.algorithms, outcomes) if outcomes else ()
    verdict, clauses = judge(config.evaluation.gate, float_figures, figures, comparison.fidelity, measured, searched)
    return Report(
        verdict=verdict,
        gate=clauses,
        summary=summary_sentence(quantized.plan, layers, float_figures, figures, comparison, measured),
        float=float_figures,
        quantized=figures,
        metrics=measured,
        fidelity=comparison.fidelity,
        layers=layers,
        preparation=tuple(quantized.prepared.steps),
        algorithms=tuple(quantized.filled.outcomes),
        notes=report_notes(quantized.plan, comparison, data, config.evaluation.gate, float_figures, figures),
        tensor_ranges={
            name: TensorRange(minimum=found.minimum, maximum=found.maximum)
            for name, found in sorted(quantized.plan.ranges.items())
        },
        stages=tuple(context.stages.figures),
        manifest=Manifest(
            engine_version=VERSION,
            model_sha256=context.summary.sha256,
            calibration_sha256=context.calibration.summary.sha256,
            evaluation_sha256=context.evaluation.summary.sha256 if context.evaluation is not None else None,
            calibration_preprocessing=context.calibration.preprocessing,
            evaluation_preprocessing=context.evaluation.preprocessing if context.evaluation is not None else None,
            output_sha256=hashlib.sha256(model_bytes).hexdigest(),
            config=config,
            seed=config.seed,
            versions=library_versions(),
            threads=context.threads,
        ),
    )
