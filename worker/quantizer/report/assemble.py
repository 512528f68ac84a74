"""Measures the float and the quantized model side by side and writes the report with its manifest."""

from __future__ import annotations

import hashlib
import sys
from typing import NamedTuple

import numpy as np

from service.contracts.base import VERSION
from service.contracts.provenance import Provenance
from service.contracts.report import GateClause, GpuFigures, Manifest, ModelFigures, Report
from service.contracts.specs import TensorRange
from worker.quantizer.evaluation.chance import with_chance
from worker.quantizer.evaluation.compare import compare
from worker.quantizer.evaluation.decisions import class_outputs, deciding_outputs
from worker.quantizer.evaluation.gate import MeasuredPair, judge, metric_figures, search_clauses
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.evaluation.side_by_side import NhwcSession
from worker.quantizer.graph import sizes
from worker.quantizer.graph.serialized import ModelContent
from worker.quantizer.refine.draft import Case, Differs, QuantizedDraft
from worker.quantizer.report.kernels import THIS_CPU, kernel_figures, not_representative
from worker.quantizer.report.layers import hidden_histograms_note, layer_figures, with_latency
from worker.quantizer.report.words import cost_notes, growth_words, large_note, report_notes, summary_sentence
from worker.quantizer.run.identity import library_versions
from worker.quantizer.run.progress import trials_seconds
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.providers import CPU_PROVIDER
from worker.quantizer.runtime.session import SessionSettings
from worker.quantizer.sanity.decisions import channel_findings, figure_findings
from worker.quantizer.sanity.kind import worst_first

# The manifest of a run, before there is a model and with it.


def make_manifest(case: Case, threads: int, content: ModelContent | None = None) -> Manifest:
    """Everything needed to make the same bytes again.

    Args:
        case: what is quantized.
        threads: CPU threads.
        content: the quantized model; no digest but its own depend on it. None: it is not made yet.
    """
    config = case.config
    return Manifest(
        engine_version=VERSION,
        model_sha256=case.summary.sha256,
        calibration_sha256=None if case.calibration.is_random else case.calibration.summary.sha256,
        evaluation_sha256=case.evaluation.summary.sha256 if case.evaluation is not None else None,
        calibration_preprocessing=None if case.calibration.is_random else case.calibration.preprocessing,
        evaluation_preprocessing=case.evaluation.preprocessing if case.evaluation is not None else None,
        output_sha256=hashlib.sha256().hexdigest() if content is None else content.sha256,
        output_data_sha256=None if content is None else content.data_sha256,
        config=config,
        seed=config.seed,
        versions=library_versions(),
        threads=threads,
    ).with_digests()


def provenance_entries(case: Case, threads: int) -> dict[str, str]:
    """What the quantized model's file says of its making."""
    return Provenance.of(make_manifest(case, threads)).entries()


class Assembled(NamedTuple):
    """A report, and what goes beside it."""

    report: Report  # of the quantized model
    # what both models decide, sample by sample, as for ``samples.npz``; empty where that is no class
    samples: dict[str, np.ndarray]


def make_report(quantized: QuantizedDraft, case: Case, services: Services) -> Assembled:
    """Compare ``quantized`` with the float model and say what was found.

    Raises:
        UnsupportedModelError: onnxruntime refuses the quantized model.
        EngineError: it fails on the data.
        CanceledError: the run was canceled.
    """
    config, run, content = case.config, services.run, quantized.content
    data = case.measured_on

    def foresee_advice() -> None:
        limit, spent = config.evaluation.advice_seconds, services.stages.spent_seconds
        services.stages.foresee("advice", expected_seconds=trials_seconds(spent, limit))

    with services.stages.stage("evaluation"):
        nhwc = () if quantized.plan.is_empty else quantized.prepared.nhwc_inputs
        settings = SessionSettings(packed=content.size_bytes <= sizes.PACKED_BYTES)
        quantized_session = NhwcSession(
            content.runnable, nhwc, threads=services.threads, what="quantized model", settings=settings
        )
        # What is written is judged on the CPU: a GPU's provider fuses Q/DQ pairs otherwise, or computes them in float,
        # so that its outputs are those of another model. The float model has no such freedom but in its last bits. An
        # empty plan gives that model again, which is to be equal to the last bit.
        comparison = compare(
            case.reference if quantized.plan.is_empty else case.fast_reference,
            quantized_session,
            metrics=case.metrics,
            run=run,
            classes=class_outputs(quantized.prepared.model, config.evaluation, data.summary.labels),
            deciding=deciding_outputs(quantized.prepared.model, config.evaluation, data.summary.labels),
            on_poor=foresee_advice,
        )
    with services.stages.stage("layers"):
        layers = layer_figures(quantized.filled.drafts, quantized.emitted, case, services)
    with services.stages.stage("latency"):
        run.progress("latency")
        latency = measure_latency(
            case.reference,
            quantized_session,
            runs=config.evaluation.latency_runs,
            threads=services.threads,
            run=run,
        )
        if not quantized.plan.is_empty:
            latency = latency.model_copy(update={"not_representative": not_representative(config)})
        kernels = kernel_figures(quantized, quantized_session, latency, case, services)
        layers, untimed = with_latency(layers, quantized, case, services)
    float_figures = ModelFigures(
        metrics=comparison.float_metrics,
        metric_details=comparison.float_set.details,
        size_bytes=case.summary.size_bytes,
        latency_ms=latency.float_ms,
    )
    figures = ModelFigures(
        metrics=comparison.quantized_metrics,
        metric_details=comparison.quantized_set.details,
        size_bytes=content.size_bytes,
        latency_ms=latency.quantized_ms,
    )
    measured = with_chance(metric_figures(config.evaluation, comparison), config.evaluation, case.summary.outputs, data)
    by_figures = figure_findings(measured, case, comparison.fidelity.samples)
    by_channels = channel_findings(quantized.filled.drafts[0], config.outlier_ratio)
    differs = [] if quantized.differs is None else [quantized.differs.finding]
    findings = worst_first([*differs, *case.findings, *by_figures, *by_channels])
    outcomes = tuple(quantized.filled.outcomes)
    gate, pair = config.evaluation.gate, MeasuredPair(float_figures, figures, comparison.fidelity, measured, latency)
    searched = search_clauses(config.algorithms, outcomes, gate, pair) if outcomes else ()
    further = (*searched, *([] if quantized.differs is None else [_runtime_clause(quantized.differs)]))
    verdict, clauses = judge(
        gate,
        pair,
        further,
        findings=findings,
        decisions=comparison.samples,
        is_target=config.target == THIS_CPU,
    )
    report = Report(
        verdict=verdict,
        gate=clauses,
        findings=findings,
        summary=summary_sentence(
            quantized.plan,
            layers,
            (float_figures.size_bytes, figures.size_bytes),
            latency,
            comparison,
            measured,
            outcomes,
            labelled=data.summary.labels is not None,
            findings=findings,
        ),
        float=float_figures,
        quantized=figures,
        metrics=measured,
        fidelity=comparison.fidelity,
        latency=latency,
        kernels=kernels,
        layers=layers,
        preparation=tuple(quantized.prepared.steps),
        algorithms=outcomes,
        notes=(
            *report_notes(quantized.plan, quantized.plan_log, comparison, data, config.evaluation.gate, outcomes),
            *cost_notes(quantized.plan, latency, growth_words(quantized, float_figures, figures)),
            *(note for note in (untimed, hidden_histograms_note(layers), large_note(content)) if note),
            *services.checkpoint.notes,
        ),
        tensor_ranges={
            name: TensorRange(minimum=found.minimum, maximum=found.maximum)
            for name, found in sorted(quantized.plan.ranges.items())
        },
        stages=tuple(services.stages.figures),
        gpu=_gpu_figures(quantized, case),
        manifest=make_manifest(case, services.threads, content),
    )
    return Assembled(report, comparison.samples)


def _gpu_figures(quantized: QuantizedDraft, case: Case) -> GpuFigures | None:
    """What ran on the GPU of the run; None: it has none."""
    accelerator = case.accelerator
    if not accelerator.is_wanted:
        return None
    torch = sys.modules.get("torch")  # loaded by what computes with it
    counts = torch is not None and torch.cuda.is_initialized()
    return GpuFigures(
        statistics_provider=accelerator.provider,
        float_provider=CPU_PROVIDER if quantized.plan.is_empty else accelerator.provider,
        quantized_provider=CPU_PROVIDER,
        missing=accelerator.missing,
        peak_torch_bytes=torch.cuda.max_memory_reserved() if torch is not None and counts else None,
    )


def _runtime_clause(differs: Differs) -> GateClause:
    """The clause that such a model breaks, whatever the gate asks for: no gate is passed by it."""
    return GateClause(
        clause="runtime_agreement",
        wanted=0.0 if differs.plain_db is None else round(differs.plain_db, 3),
        got=None if differs.optimized_db is None else round(differs.optimized_db, 3),
        holds=False,
        why=differs.finding.message,
    )
