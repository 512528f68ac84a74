"""evaluate: metrics of a model on a dataset, and its distance from a reference model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.contracts.compatibility import check_dataset
from service.contracts.errors import FieldProblem, InvalidConfigError, UnsupportedModelError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import EVALUATION_POINTER
from service.contracts.report import MetricFigures
from service.contracts.runner import DatasetSource
from worker.quantizer.data import open_dataset
from worker.quantizer.evaluation.class_axis import class_outputs
from worker.quantizer.evaluation.compare import compare
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.evaluation.metric_figures import metric_figures
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.intake.provenance import read_provenance
from worker.quantizer.run.interface import Run

_LATENCY_RUNS = 20


def evaluate_files(
    model: Path,
    evaluation: DatasetSource,
    reference: Path | None,
    *,
    threads: int,
    run: Run,
    spec: EvaluationSpec | None = None,
) -> dict[str, Any]:
    """Measure ``model`` on ``evaluation``, beside ``reference`` if there is one.

    Args:
        model: the model to measure.
        evaluation: the data.
        reference: the model to compare with.
        threads: CPU threads.
        run: told of progress.
        spec: which metrics; None: top1 and top5 where there are class labels.

    Returns:
        JSON-ready: ``model`` and (with a reference) ``reference`` {metrics, metric_details, size_bytes, latency_ms},
        ``metrics`` [{name, unit, better, interval}], with a reference also {reference_interval, drop, drop_interval,
        p_value, flips} of each, as in a report; ``samples``; with a reference ``fidelity`` and ``latency``; of
        ``model`` its ``provenance``, null if it tells none.

    Raises:
        ModelError: a model cannot be used, or their outputs differ in name.
        DatasetError: the dataset is bad or does not fit.
        InvalidConfigError: a metric does not fit the model or the data, or compares with a reference that is not there.
        EngineError: the runtime failed.
    """
    uploaded = open_model(model)
    session, summary = uploaded.session(threads=threads, what="model"), uploaded.summary
    data = open_dataset(Path(evaluation.path), evaluation.preprocessing)
    spec = spec or EvaluationSpec()
    check_dataset(summary, data.summary, role="evaluation dataset", labels_of_first=not spec.metrics)
    metrics = Metrics(spec, summary.outputs, threads=threads)
    metrics.check(data)
    _check_reference(spec, reference)
    other, other_summary, graph = session, summary, uploaded.model
    if reference is not None:
        referred = open_model(reference)
        other, other_summary = referred.session(threads=threads, what="reference model"), referred.summary
        graph = referred.model  # a float one tells more of what its outputs are
        check_dataset(other_summary, data.summary, role="evaluation dataset", labels_of_first=not spec.metrics)
        if other.output_names != session.output_names:
            raise UnsupportedModelError(
                f"the outputs differ: {session.output_names} and {other.output_names}",
                hint="Compare models that come from the same float model.",
            )
    metrics.probe(other, data, summary.inputs, run, role="evaluation dataset")
    comparison = compare(
        other,
        session,
        data,
        summary.inputs,
        source="evaluation",
        metrics=metrics,
        run=run,
        classes=class_outputs(graph, spec, data.summary.labels),
    )
    latency = measure_latency(other, session, data, summary.inputs, runs=_LATENCY_RUNS, threads=threads, run=run)
    result: dict[str, Any] = {
        "samples": comparison.fidelity.samples,
        "metrics": [_metric(figures, compared=reference is not None) for figures in metric_figures(spec, comparison)],
        "model": {
            "metrics": comparison.quantized_metrics,
            "metric_details": comparison.quantized_set.details,
            "size_bytes": summary.size_bytes,
            "latency_ms": latency.quantized_ms,
            "provenance": _provenance(model),
        },
    }
    if reference is not None:
        result["reference"] = {
            "metrics": comparison.float_metrics,
            "metric_details": comparison.float_set.details,
            "size_bytes": other_summary.size_bytes,
            "latency_ms": latency.float_ms,
        }
        result["latency"] = latency.model_dump(mode="json")
        result["fidelity"] = comparison.fidelity.model_dump(mode="json")
    return result


def _metric(figures: MetricFigures, *, compared: bool) -> dict[str, Any]:
    """How a metric is to be read, and what the samples can carry."""
    told: dict[str, Any] = figures.model_dump(mode="json", include={"name", "unit", "better"})
    found = figures.model_dump(mode="json")
    told["interval"] = found["quantized_interval"]
    if compared:
        told["reference_interval"] = found["float_interval"]
        told |= {name: found[name] for name in ("drop", "drop_interval", "p_value", "flips")}
    return told


def _provenance(model: Path) -> dict[str, Any] | None:
    told = read_provenance(model)
    return None if told is None else told.model_dump(mode="json")


def _check_reference(spec: EvaluationSpec, reference: Path | None) -> None:
    """What compares with the float model needs one."""
    problems = tuple(
        FieldProblem(
            pointer=f"{EVALUATION_POINTER}/metrics/{k}/kind",
            code="reference-missing",
            message=f"{metric.name} compares with a reference model, and there is none",
        )
        for k, metric in enumerate(spec.metrics)
        if metric.reads_reference and reference is None
    )
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems), errors=problems, hint="Give --reference FLOAT.onnx."
        )
