"""evaluate: metrics of a model on a dataset, and its distance from a reference model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.contracts.base import VERSION
from service.contracts.compatibility import check_dataset
from service.contracts.errors import UnsupportedModelError, of_role
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import EVALUATION_POINTER
from service.contracts.evaluation_report import (
    EvaluatedMetric,
    EvaluatedModel,
    EvaluationManifest,
    EvaluationReport,
    check_gate,
    check_reference,
)
from service.contracts.report import ModelFigures
from service.contracts.runner import DatasetSource, EvaluateResult, EvaluateTask
from worker.quantizer.data import open_dataset
from worker.quantizer.evaluation.chance import with_chance
from worker.quantizer.evaluation.compare import compare
from worker.quantizer.evaluation.decisions import class_outputs, publish_samples
from worker.quantizer.evaluation.gate import MeasuredPair, judge, metric_figures
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.evaluation.side_by_side import FloatReference
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.intake.provenance import read_provenance
from worker.quantizer.run.identity import library_versions
from worker.quantizer.run.interface import Run
from worker.quantizer.run.progress import Stages
from worker.quantizer.run.services import ExtraFiles, write_files
from worker.quantizer.runtime.session import Session

# Of the specification in a request for an evaluation.
TASK_POINTER = "/evaluation"


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation gives."""

    report: EvaluationReport  # figures and verdict
    # what was decided, sample by sample, as for ``samples.npz``; empty where that is no class
    samples: dict[str, np.ndarray]


def evaluate_task(task: EvaluateTask, run: Run) -> EvaluateResult:
    """Measure the model of a task, and write ``samples.npz`` into its output folder where there is one to write.

    Raises:
        QuantmillError: as for ``evaluated``.
    """
    found = evaluated(
        Path(task.model_path),
        task.evaluation,
        None if task.reference_path is None else Path(task.reference_path),
        threads=task.threads,
        run=run,
        spec=task.spec,
        graphs={name: Path(path) for name, path in task.metric_graphs.items()},
        pointer=TASK_POINTER,
    )
    files = ExtraFiles(task.extra_bytes)
    publish_samples(found.samples, files, run)
    return EvaluateResult(report=found.report, files=write_files(files.all, Path(task.output_dir)))


def evaluated(
    model: Path,
    evaluation: DatasetSource,
    reference: Path | None,
    *,
    threads: int,
    run: Run,
    spec: EvaluationSpec | None = None,
    graphs: Mapping[str, Path] | None = None,
    pointer: str = EVALUATION_POINTER,
) -> Evaluated:
    """Measure ``model`` on ``evaluation``, beside ``reference`` if there is one.

    Args:
        model: the model to measure, quantized or not.
        evaluation: the data.
        reference: the model to compare with.
        threads: CPU threads.
        run: told of progress.
        spec: which metrics, and the gate; None: top1 and top5 where there are class labels, and no gate.
        graphs: files of uploaded models that metrics are given as, by id.
        pointer: of ``spec`` in what was asked for.

    Raises:
        ModelError: a model cannot be used, or their outputs differ in name.
        DatasetError: the dataset is bad or does not fit.
        InvalidConfigError: a metric does not fit the model or the data, or something compares with a reference that is
            not there.
        EngineError: the runtime failed.
    """
    spec, stages = spec or EvaluationSpec(), Stages()
    check_gate(spec, pointer=pointer)
    check_reference(spec, has_reference=reference is not None, pointer=pointer)
    with stages.stage("load"):
        run.progress("load")
        uploaded = open_model(model)
        session, summary = uploaded.session(threads=threads, what="model"), uploaded.summary
        data = open_dataset(Path(evaluation.path), evaluation.preprocessing, role="evaluation dataset")
        check_dataset(summary, data.summary, role="evaluation dataset", labels_of_first=not spec.metrics)
        metrics = Metrics(spec, summary.outputs, threads=threads, graphs=graphs)
        metrics.check(data)
        other, other_summary, graph = session, summary, uploaded.model
        if reference is not None:
            with of_role("reference model"):
                referred = open_model(reference)
            other, other_summary = referred.session(threads=threads, what="reference model"), referred.summary
            graph = referred.model  # a float one tells more of what its outputs are
            check_dataset(other_summary, data.summary, role="evaluation dataset", labels_of_first=not spec.metrics)
            _check_outputs(other, session)
        metrics.probe(other, data, summary.inputs, run, role="evaluation dataset")
    with stages.stage("evaluation"):
        held_against = FloatReference(other, data, summary.inputs)
        classes = class_outputs(graph, spec, data.summary.labels)
        comparison = compare(held_against, session, metrics=metrics, run=run, classes=classes)
    with stages.stage("latency"):
        run.progress("latency")
        latency = measure_latency(held_against, session, runs=spec.latency_runs, threads=threads, run=run)
    compared = reference is not None
    figures = EvaluatedModel(
        metrics=comparison.quantized_metrics,
        metric_details=comparison.quantized_set.details,
        size_bytes=summary.size_bytes,
        latency_ms=latency.quantized_ms,
        provenance=read_provenance(model),
    )
    before = ModelFigures(
        metrics=comparison.float_metrics,
        metric_details=comparison.float_set.details,
        size_bytes=other_summary.size_bytes,
        latency_ms=latency.float_ms,
    )
    measured = with_chance(metric_figures(spec, comparison), spec, summary.outputs, data)
    verdict, clauses = judge(
        spec.gate,
        MeasuredPair(before, figures, comparison.fidelity, measured, latency),
        decisions=comparison.samples if compared else None,
    )
    report = EvaluationReport(
        verdict=verdict,
        gate=clauses,
        samples=comparison.fidelity.samples,
        model=figures,
        reference=before if compared else None,
        metrics=tuple(EvaluatedMetric.of(one, compared=compared) for one in measured),
        fidelity=comparison.fidelity if compared else None,
        latency=latency if compared else None,
        stages=tuple(stages.figures),
        manifest=EvaluationManifest(
            engine_version=VERSION,
            model_sha256=summary.sha256,
            reference_sha256=other_summary.sha256 if compared else None,
            evaluation_sha256=data.summary.sha256,
            evaluation_preprocessing=data.preprocessing,
            evaluation=spec,
            versions=library_versions(),
            threads=threads,
        ),
    )
    return Evaluated(report, _samples(comparison.samples, compared=compared))


def _samples(arrays: dict[str, np.ndarray], *, compared: bool) -> dict[str, np.ndarray]:
    """Without labels and without a reference nobody knows what a decision should be: it is left out."""
    if compared or "label" in arrays:
        return arrays
    kept = {name: array for name, array in arrays.items() if name == "index" or name.startswith("metric.")}
    return kept if len(kept) > 1 else {}


def _check_outputs(reference: Session, session: Session) -> None:
    if reference.output_names != session.output_names:
        raise UnsupportedModelError(
            f"the outputs differ: {session.output_names} and {reference.output_names}",
            hint="Compare models that come from the same float model.",
        )
