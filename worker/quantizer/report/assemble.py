"""Measures the float and the quantized model side by side and writes the report."""

from __future__ import annotations

import hashlib

from service.contracts.calibration import TensorRange
from service.contracts.report import Manifest, ModelFigures, Report
from service.contracts.version import VERSION
from worker.quantizer.evaluation.compare import compare, latencies_ms
from worker.quantizer.evaluation.gate import judge, metric_figures, search_clauses
from worker.quantizer.evaluation.nhwc import NhwcSession
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Quantized
from worker.quantizer.report.layers import layer_figures
from worker.quantizer.report.words import report_notes, summary_sentence
from worker.quantizer.run.identity import library_versions
from worker.quantizer.run.services import Services


def make_report(quantized: Quantized, model_bytes: bytes, case: Case, services: Services) -> Report:
    """Compare ``model_bytes`` with the float model and say what was found.

    Raises:
        UnsupportedModelError: onnxruntime refuses the quantized model.
        EngineError: it fails on the data.
        CanceledError: the run was canceled.
    """
    config, run = case.config, services.run
    data = case.measured_on
    with services.stages.stage("evaluation"):
        nhwc = () if quantized.plan.is_empty else quantized.prepared.nhwc_inputs
        quantized_session = NhwcSession(model_bytes, nhwc, threads=services.threads, what="quantized model")
        comparison = compare(
            case.float_session,
            quantized_session,
            data,
            case.inputs,
            source=case.source,
            metrics=case.metrics,
            run=run,
        )
    with services.stages.stage("layers"):
        layers = layer_figures(quantized.filled.drafts, quantized.emitted, case, services)
    with services.stages.stage("latency"):
        run.progress("latency")
        float_ms, quantized_ms = latencies_ms(
            case.float_session, quantized_session, data, case.inputs, runs=config.evaluation.latency_runs, run=run
        )
    float_figures = ModelFigures(
        metrics=comparison.float_metrics,
        metric_details=comparison.float_set.details,
        size_bytes=case.summary.size_bytes,
        latency_ms=float_ms,
    )
    figures = ModelFigures(
        metrics=comparison.quantized_metrics,
        metric_details=comparison.quantized_set.details,
        size_bytes=len(model_bytes),
        latency_ms=quantized_ms,
    )
    measured = metric_figures(config.evaluation, comparison)
    outcomes = tuple(quantized.filled.outcomes)
    searched = search_clauses(config.algorithms, outcomes) if outcomes else ()
    verdict, clauses = judge(config.evaluation.gate, float_figures, figures, comparison.fidelity, measured, searched)
    return Report(
        verdict=verdict,
        gate=clauses,
        summary=summary_sentence(quantized.plan, layers, float_figures, figures, comparison, measured, outcomes),
        float=float_figures,
        quantized=figures,
        metrics=measured,
        fidelity=comparison.fidelity,
        layers=layers,
        preparation=tuple(quantized.prepared.steps),
        algorithms=outcomes,
        notes=report_notes(
            quantized.plan,
            quantized.journal,
            comparison,
            data,
            config.evaluation.gate,
            float_figures,
            figures,
            outcomes,
        ),
        tensor_ranges={
            name: TensorRange(minimum=found.minimum, maximum=found.maximum)
            for name, found in sorted(quantized.plan.ranges.items())
        },
        stages=tuple(services.stages.figures),
        manifest=Manifest(
            engine_version=VERSION,
            model_sha256=case.summary.sha256,
            calibration_sha256=None if case.calibration.is_random else case.calibration.summary.sha256,
            evaluation_sha256=case.evaluation.summary.sha256 if case.evaluation is not None else None,
            calibration_preprocessing=None if case.calibration.is_random else case.calibration.preprocessing,
            evaluation_preprocessing=case.evaluation.preprocessing if case.evaluation is not None else None,
            output_sha256=hashlib.sha256(model_bytes).hexdigest(),
            config=config,
            seed=config.seed,
            versions=library_versions(),
            threads=services.threads,
        ),
    )
