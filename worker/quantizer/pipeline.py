"""quantize: a float model and data in, a quantized model and a report out.

load -> prepare -> plan -> statistics -> parameters -> emit -> evaluate -> report
"""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import onnx_ir as ir

from service.contracts.compatibility import check_dataset, check_gate
from service.contracts.config import PercentileCalibration, QuantizationConfig
from service.contracts.errors import EngineError
from service.contracts.model import ModelSummary
from service.contracts.report import Manifest, ModelFigures, Report
from service.contracts.runner import DatasetSource, QuantizeTask
from service.contracts.version import VERSION
from worker.quantizer.data import Dataset, choose_batch_size, open_dataset
from worker.quantizer.emit import emit
from worker.quantizer.equalization import bias_correction
from worker.quantizer.evaluation.compare import compare, latencies_ms
from worker.quantizer.evaluation.gate import judge
from worker.quantizer.evaluation.metrics import Distance
from worker.quantizer.graph.loading import load_model
from worker.quantizer.graph.prepare import Prepared, prepare
from worker.quantizer.intake import inspect_model
from worker.quantizer.layers import layer_figures
from worker.quantizer.measure import Stages
from worker.quantizer.overflow import check_finite
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.parameters import fill_activations, fill_parameters
from worker.quantizer.plan.selection import check_selectors
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session, to_bytes
from worker.quantizer.soundness import check_channels
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.reducers import MinMax, Percentile, RangeReducer
from worker.quantizer.wording import report_notes, summary_sentence

MODEL_FILE = "model.onnx"
_LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime")
# float32 rounding leaves 100 dB and more; a float16 model that is widened leaves about 60.
_PREPARED_SQNR_DB = 40.0


@dataclass(frozen=True)
class Result:
    """What a quantization gives."""

    model: bytes
    report: Report


@dataclass(frozen=True)
class _Quantized:
    """The outcome of the engine proper, before evaluation."""

    prepared: Prepared
    plan: QuantizationPlan
    model: ir.Model
    bytes: bytes


def quantize_files(task: QuantizeTask, run: Run) -> Report:
    """Quantize the model of ``task`` and write ``model.onnx`` into its output folder.

    Raises:
        QuantmillError: whatever ``quantize`` raises.
    """
    result = quantize(
        Path(task.model_path), task.config, task.calibration, task.evaluation, run=run, threads=task.threads
    )
    (Path(task.output_dir) / MODEL_FILE).write_bytes(result.model)
    return result.report


def quantize(
    model_path: Path,
    config: QuantizationConfig,
    calibration: DatasetSource,
    evaluation: DatasetSource | None = None,
    *,
    run: Run,
    threads: int,
) -> Result:
    """Quantize a model and measure what that cost.

    Args:
        model_path: float ONNX model; external data lies beside it.
        config: resolved recipe.
        calibration: data that the ranges are taken from.
        evaluation: data that both models are compared on; the calibration data if None.
        run: progress, log, cancellation.
        threads: CPU threads.

    Raises:
        ModelError: the model cannot be used or is quantized already.
        DatasetError: a dataset is bad or does not fit the model.
        InvalidConfigError: the config names nodes that are not there, or a gate that the data cannot judge.
        EngineError: the engine or the runtime failed on a valid input.
        CanceledError: the run was canceled.
    """
    stages = Stages()
    with stages.stage("load"):
        run.progress("load")
        summary = inspect_model(model_path, threads=threads, list_nodes=False)
        calibration_data = _open(calibration, summary, "calibration dataset")
        evaluation_data = _open(evaluation, summary, "evaluation dataset") if evaluation is not None else None
        measured_on = evaluation_data or calibration_data
        check_gate(config.evaluation.gate, has_labels=measured_on.labels is not None)
        original = load_model(model_path)
        original_bytes = to_bytes(original)
        float_session = Session(original_bytes, threads=threads, what="float model", uploaded=True)
    done = _quantize(original, float_session, config, calibration_data, summary, stages, run=run, threads=threads)
    model_bytes = _uploaded_bytes(model_path, summary, original_bytes) if done.plan.is_empty else done.bytes
    return Result(
        model_bytes,
        _report(
            done,
            model_bytes,
            float_session,
            config,
            summary,
            calibration_data,
            evaluation_data,
            stages,
            run=run,
            threads=threads,
        ),
    )


def _uploaded_bytes(path: Path, summary: ModelSummary, whole: bytes) -> bytes:
    """The file as it is; ``whole``, with everything inside, if it keeps data in other files."""
    return path.read_bytes() if path.stat().st_size == summary.size_bytes else whole


def _open(source: DatasetSource, model: ModelSummary, role: str) -> Dataset:
    data = open_dataset(Path(source.path), source.preprocessing)
    check_dataset(model, data.summary, role=role)
    return data


def _quantize(
    original: ir.Model,
    float_session: Session,
    config: QuantizationConfig,
    calibration: Dataset,
    summary: ModelSummary,
    stages: Stages,
    *,
    run: Run,
    threads: int,
) -> _Quantized:
    with stages.stage("prepare"):
        run.progress("prepare")
        uploaded = [(node.name, node.op_type) for node in original.graph.all_nodes()]
        prepared = prepare(original)
        check_channels(prepared.graph)
        notes = check_selectors(
            config,
            [*uploaded, *prepared.op_types.items()],
            prepared.known_nodes(),
            Matcher(prepared.graph, prepared.op_types),
        )
    with stages.stage("plan"):
        run.progress("plan")
        plan = build_plan(prepared.graph, config, prepared.op_types)
        plan.notes += notes
    if plan.is_empty:
        plan.notes.append("nothing in this model can be quantized: the model is returned as it was uploaded")
        run.log(plan.notes[-1], "warning")
        return _Quantized(prepared, plan, prepared.model, b"")
    with stages.stage("statistics"):
        run.check()
        _check_prepared(float_session, prepared, calibration, summary, threads)
        limit = config.calibration_samples
        samples = calibration.samples if limit is None else min(limit, calibration.samples)
        reducers = {tensor: _reducer(config, samples) for tensor in plan.ranges_needed()}
        corrects_biases = any(algorithm.method == "bias_correction" for algorithm in config.algorithms)
        means = bias_correction.requests(prepared.graph, plan) if corrects_biases else []
        requests = [*(Request(tensor, reducer) for tensor, reducer in reducers.items()), *means]
        collect(prepared.model, requests, calibration, summary.inputs, limit=limit, threads=threads, run=run)
    with stages.stage("parameters"):
        run.progress("parameters")
        ranges = {tensor: reducer.result() for tensor, reducer in reducers.items()}
        check_finite(prepared.model, ranges, calibration, summary.inputs, limit=limit, threads=threads, run=run)
        fill_activations(plan, ranges)
        fill_parameters(prepared.graph, plan)
        if corrects_biases:
            corrected = bias_correction.correct_biases(prepared.graph, plan, means)
            run.log(f"bias correction: {corrected} nodes")
    with stages.stage("emit"):
        run.progress("emit")
        quantized = emit(ir.from_proto(ir.to_proto(prepared.model)), plan)
        prepared.restore_interface(quantized)
        model_bytes = to_bytes(quantized)
    return _Quantized(prepared, plan, quantized, model_bytes)


def _reducer(config: QuantizationConfig, samples: int) -> RangeReducer:
    calibration = config.activation.calibration
    if isinstance(calibration, PercentileCalibration):
        return Percentile(calibration.percentile, samples=samples, symmetric=config.activation.symmetric)
    return MinMax()


def _check_prepared(
    float_session: Session, prepared: Prepared, data: Dataset, summary: ModelSummary, threads: int
) -> None:
    """Preparation must not change what the model computes: compare one batch."""
    session = Session(to_bytes(prepared.model), threads=threads, what="prepared model")
    batch = next(iter(data.batches(summary.inputs, choose_batch_size(summary.inputs, data, 1), limit=1)))
    names = float_session.output_names
    for name, expected, got in zip(
        names, float_session.run(batch.feeds, names, start=batch.start), session.run(batch.feeds, names), strict=True
    ):
        if getattr(expected, "dtype", None) is None or expected.dtype.kind != "f" or expected.shape != got.shape:
            continue
        distance = Distance()
        distance.update(expected, got)
        if distance.sqnr_db is not None and distance.sqnr_db < _PREPARED_SQNR_DB:
            raise EngineError(
                f"preparation changed output {name!r} of the model ({distance.sqnr_db:.1f} dB)",
                hint="Export the model with opset 17 or later, so that fewer preparation passes are needed.",
                output=name,
            )


def _report(
    done: _Quantized,
    model_bytes: bytes,
    float_session: Session,
    config: QuantizationConfig,
    summary: ModelSummary,
    calibration: Dataset,
    evaluation: Dataset | None,
    stages: Stages,
    *,
    run: Run,
    threads: int,
) -> Report:
    data = evaluation or calibration
    inputs = summary.inputs
    with stages.stage("evaluation"):
        quantized_session = Session(model_bytes, threads=threads, what="quantized model")
        comparison = compare(
            float_session,
            quantized_session,
            data,
            inputs,
            source="evaluation" if evaluation is not None else "calibration",
            run=run,
        )
    with stages.stage("layers"):
        layers = layer_figures(
            done.prepared.model,
            done.model,
            done.plan,
            data,
            inputs,
            samples=config.evaluation.layer_samples,
            threads=threads,
            run=run,
        )
    with stages.stage("latency"):
        run.progress("latency")
        float_ms, quantized_ms = latencies_ms(
            float_session, quantized_session, data, inputs, runs=config.evaluation.latency_runs, run=run
        )
    float_figures = ModelFigures(metrics=comparison.float_metrics, size_bytes=summary.size_bytes, latency_ms=float_ms)
    figures = ModelFigures(metrics=comparison.quantized_metrics, size_bytes=len(model_bytes), latency_ms=quantized_ms)
    verdict, clauses = judge(config.evaluation.gate, float_figures, figures, comparison.fidelity)
    return Report(
        verdict=verdict,
        gate=clauses,
        summary=summary_sentence(done.plan, layers, float_figures, figures, comparison),
        float=float_figures,
        quantized=figures,
        fidelity=comparison.fidelity,
        layers=layers,
        preparation=tuple(done.prepared.steps),
        notes=report_notes(done.plan, comparison, data, config.evaluation.gate, float_figures, figures),
        stages=tuple(stages.figures),
        manifest=Manifest(
            engine_version=VERSION,
            model_sha256=summary.sha256,
            calibration_sha256=calibration.summary.sha256,
            evaluation_sha256=evaluation.summary.sha256 if evaluation is not None else None,
            calibration_preprocessing=calibration.preprocessing,
            evaluation_preprocessing=evaluation.preprocessing if evaluation is not None else None,
            output_sha256=hashlib.sha256(model_bytes).hexdigest(),
            config=config,
            seed=config.seed,
            versions={"python": platform.python_version(), **{name: version(name) for name in _LIBRARIES}},
            threads=threads,
        ),
    )


__all__ = ["MODEL_FILE", "Result", "quantize", "quantize_files"]
