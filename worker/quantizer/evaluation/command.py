"""evaluate: metrics of a model on a dataset, and its distance from a reference model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.contracts.compatibility import check_dataset
from service.contracts.errors import UnsupportedModelError
from service.contracts.runner import DatasetSource
from worker.quantizer.data import open_dataset
from worker.quantizer.evaluation.compare import compare, latencies_ms
from worker.quantizer.graph.loading import load_model
from worker.quantizer.intake import inspect_model
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session, to_bytes

_LATENCY_RUNS = 20


def evaluate_files(
    model: Path, evaluation: DatasetSource, reference: Path | None, *, threads: int, run: Run
) -> dict[str, Any]:
    """Measure ``model`` on ``evaluation``, beside ``reference`` if there is one.

    Returns:
        JSON-ready: ``model`` and (with a reference) ``reference`` {metrics, size_bytes, latency_ms}, ``samples``,
        ``fidelity``.

    Raises:
        ModelError: a model cannot be used, or their outputs differ in name.
        DatasetError: the dataset is bad or does not fit.
        EngineError: the runtime failed.
    """
    summary = inspect_model(model, threads=threads, list_nodes=False)
    data = open_dataset(Path(evaluation.path), evaluation.preprocessing)
    check_dataset(summary, data.summary, role="evaluation dataset")
    session = Session(to_bytes(load_model(model)), threads=threads, what="model", uploaded=True)
    other, other_summary = session, summary
    if reference is not None:
        other_summary = inspect_model(reference, threads=threads, list_nodes=False)
        check_dataset(other_summary, data.summary, role="evaluation dataset")
        other = Session(to_bytes(load_model(reference)), threads=threads, what="reference model", uploaded=True)
        if other.output_names != session.output_names:
            raise UnsupportedModelError(
                f"the outputs differ: {session.output_names} and {other.output_names}",
                hint="Compare models that come from the same float model.",
            )
    comparison = compare(other, session, data, summary.inputs, source="evaluation", run=run)
    other_ms, model_ms = latencies_ms(other, session, data, summary.inputs, runs=_LATENCY_RUNS, run=run)
    result: dict[str, Any] = {
        "samples": comparison.fidelity.samples,
        "model": {"metrics": comparison.quantized_metrics, "size_bytes": summary.size_bytes, "latency_ms": model_ms},
    }
    if reference is not None:
        result["reference"] = {
            "metrics": comparison.float_metrics,
            "size_bytes": other_summary.size_bytes,
            "latency_ms": other_ms,
        }
        result["fidelity"] = comparison.fidelity.model_dump(mode="json")
    return result
