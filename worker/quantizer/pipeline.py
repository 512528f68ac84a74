"""quantize: a float model and data in, a quantized model and a report out.

load -> prepare -> plan -> statistics -> parameters -> emit -> evaluate -> report
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from service.contracts.compatibility import check_dataset
from service.contracts.config import QuantizationConfig
from service.contracts.errors import EngineError
from service.contracts.model import ModelSummary
from service.contracts.preparation import fixed_inputs
from service.contracts.report import PreparationStep, Report
from service.contracts.runner import DatasetSource, QuantizeResult, QuantizeTask
from worker.quantizer.cache import Cache
from worker.quantizer.checkpoint import CheckpointStore
from worker.quantizer.context import Context, Quantized
from worker.quantizer.cpu import cpu_notes
from worker.quantizer.data import Dataset, choose_batch_size, open_dataset
from worker.quantizer.evaluation.metrics import Distance, Metrics
from worker.quantizer.extra import ExtraFile, ExtraFiles, write_files
from worker.quantizer.graph.layout import take_nhwc
from worker.quantizer.graph.loading import load_model
from worker.quantizer.graph.passes.outcome import Outcome
from worker.quantizer.graph.prepare import prepare, undo_quantization
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.identity import origin, run_identity
from worker.quantizer.intake import inspect_model
from worker.quantizer.measure import Stages
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import check_selectors
from worker.quantizer.plan.targets import edit_graph, edits_graph
from worker.quantizer.provenance import fates, outline
from worker.quantizer.range_plot import publish_ranges
from worker.quantizer.recipes.qoperator import to_qoperator
from worker.quantizer.recipes.registry import RECIPES, wanted_opset
from worker.quantizer.refine.draft import Draft, Filled
from worker.quantizer.reporting import make_report
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session, is_large, to_bytes
from worker.quantizer.soundness import check_channels
from worker.quantizer.wording import calibration_notes, nothing_quantized

MODEL_FILE = "model.onnx"
# float32 rounding leaves 100 dB and more; a float16 model that is widened leaves about 60.
_PREPARED_SQNR_DB = 40.0


@dataclass(frozen=True)
class Result:
    """What a quantization gives."""

    model: bytes
    report: Report
    files: tuple[ExtraFile, ...] = ()


def quantize_files(task: QuantizeTask, run: Run) -> QuantizeResult:
    """Quantize the model of ``task`` and write ``model.onnx`` and all other files into its output folder.

    Raises:
        QuantmillError: whatever ``quantize`` raises.
    """
    result = quantize(
        Path(task.model_path),
        task.config,
        task.calibration,
        task.evaluation,
        run=run,
        threads=task.threads,
        checkpoint_dir=None if task.checkpoint_dir is None else Path(task.checkpoint_dir),
        checkpoint_bytes=task.checkpoint_bytes,
        cache=_cache(task, run),
        graphs={name: Path(path) for name, path in task.metric_graphs.items()},
        extra_bytes=task.extra_bytes,
    )
    output = Path(task.output_dir)
    (output / MODEL_FILE).write_bytes(result.model)
    return QuantizeResult(model_file=MODEL_FILE, report=result.report, files=write_files(result.files, output))


def quantize(
    model_path: Path,
    config: QuantizationConfig,
    calibration: DatasetSource,
    evaluation: DatasetSource | None = None,
    *,
    run: Run,
    threads: int,
    checkpoint_dir: Path | None = None,
    checkpoint_bytes: int | None = None,
    cache: Cache | None = None,
    graphs: Mapping[str, Path] | None = None,
    extra_bytes: int | None = None,
) -> Result:
    """Quantize a model and measure what that cost.

    Args:
        model_path: float ONNX model, or one with Q/DQ pairs if ``preparation.dequantize`` is set; external data lies
            beside it.
        config: resolved recipe.
        calibration: data that the ranges are taken from.
        evaluation: data that both models are compared on; the calibration data if None.
        run: progress, log, cancellation.
        threads: CPU threads.
        checkpoint_dir: folder that keeps finished work for another attempt of the same run; None: nothing is kept.
        checkpoint_bytes: that it may take; None: no limit.
        cache: what earlier runs have computed; None: nothing is kept.
        graphs: files of uploaded models that metrics are given as, by id.
        extra_bytes: that files beside the model may take; None: no limit.

    Raises:
        ModelError: the model cannot be used or is quantized already.
        DatasetError: a dataset is bad or does not fit the model.
        InvalidConfigError: the config names nodes that are not there, or metrics that do not fit the model or the data.
        EngineError: the engine or the runtime failed on a valid input.
        CanceledError: the run was canceled.
    """
    stages = Stages()
    with stages.stage("load"):
        run.progress("load")
        summary = inspect_model(model_path, threads=threads, list_nodes=False)
        summary = summary.model_copy(update={"inputs": fixed_inputs(summary.inputs, config.preparation)})
        calibration_data = _open(calibration, summary, config, "calibration dataset")
        evaluation_data = None if evaluation is None else _open(evaluation, summary, config, "evaluation dataset")
        metrics = Metrics(config.evaluation, summary.outputs, graphs=graphs, threads=threads)
        metrics.check(evaluation_data or calibration_data)
        original = load_model(model_path)
        undone = undo_quantization(original) if config.preparation.dequantize else None
        original = original if undone is None else undone.model
        if undone is not None and undone.applied:
            summary = summary.model_copy(update={"size_bytes": len(to_bytes(original))})
        float_session = Session(original, threads=threads, what="float model", uploaded=True)
        _probe(metrics, float_session, calibration_data, evaluation_data, summary, config, run)
        made_from = origin(summary, calibration_data, evaluation_data, graphs or {}, threads=threads)
        context = Context(
            config=config,
            summary=summary,
            calibration=calibration_data,
            evaluation=evaluation_data,
            float_session=float_session,
            stages=stages,
            run=run,
            threads=threads,
            origin=made_from,
            checkpoint=CheckpointStore(
                checkpoint_dir, run_identity(config, made_from), limit_bytes=checkpoint_bytes, run=run
            ),
            files=ExtraFiles(extra_bytes),
            cache=Cache(None) if cache is None else cache,
            metrics=metrics,
        )
    done = _quantize(original, context)
    if undone is not None:
        _tell_undone(undone, done)
    model_bytes = _uploaded_bytes(model_path, summary, undone is not None) if done.plan.is_empty else done.bytes
    report = make_report(done, model_bytes, context)
    publish_ranges(report.algorithms, context.files)
    return Result(model_bytes, report, context.files.all)


def _probe(
    metrics: Metrics,
    session: Session,
    calibration: Dataset,
    evaluation: Dataset | None,
    summary: ModelSummary,
    config: QuantizationConfig,
    run: Run,
) -> None:
    """Try the metrics on the data that they are to be measured on; steps are judged on the calibration data."""
    if evaluation is not None:
        metrics.probe(session, evaluation, summary.inputs, run, role="evaluation dataset")
    if evaluation is None or (config.algorithms and metrics.fed_by(calibration)):
        metrics.probe(session, calibration, summary.inputs, run, role="calibration dataset")


def _cache(task: QuantizeTask, run: Run) -> Cache:
    folder = None if task.cache_dir is None else Path(task.cache_dir)
    return Cache(folder, scope=task.cache_scope, limit_bytes=task.cache_bytes, run=run)


def _uploaded_bytes(path: Path, summary: ModelSummary, undo: bool) -> bytes:
    """The file as it is; read anew and written whole if it keeps data in other files, or has its pairs taken off."""
    if path.stat().st_size == summary.size_bytes:
        return path.read_bytes()
    model = load_model(path)
    return to_bytes(undo_quantization(model).model if undo else model)


def _tell_undone(undone: Outcome, done: Quantized) -> None:
    """Put the step that came before all others into the report; afterwards it found nothing left to do."""
    told = PreparationStep(name="dequantize", applied=undone.applied, detail=undone.detail)
    done.prepared.steps[:] = [told if step.name == told.name else step for step in done.prepared.steps]
    if undone.applied:
        done.plan.notes.append("The uploaded model is quantized; 'float' is that model with its Q/DQ pairs taken off")


def _open(source: DatasetSource, model: ModelSummary, config: QuantizationConfig, role: str) -> Dataset:
    data = open_dataset(Path(source.path), source.preprocessing)
    check_dataset(model, data.summary, role=role, labels_of_first=not config.evaluation.metrics)
    return data


def _quantize(original: ir.Model, context: Context) -> Quantized:
    config, run = context.config, context.run
    recipe = RECIPES[config.mode]
    with context.stages.stage("prepare"):
        run.progress("prepare")
        uploaded = [(node.name, node.op_type) for node in original.graph.all_nodes()]
        before = outline(original.graph)
        prepared = prepare(
            original, config.preparation, opset=wanted_opset(config), subgraph_weights=config.subgraphs == "weights"
        )
        check_channels(prepared.graph)
        notes = check_selectors(
            config,
            [*uploaded, *prepared.op_types.items()],
            prepared.known_nodes(),
            Matcher(prepared.graph, prepared.op_types),
            fates(before, prepared.graph),
        )
        notes += cpu_notes(config)
        notes += calibration_notes(config.calibration_samples, context.calibration.samples)
    with context.stages.stage("plan"):
        run.progress("plan")
        unedited = copy_of(prepared.model) if edits_graph(config) else prepared.model
        edits = edit_graph(prepared.graph, config, prepared.op_types)
        plan = recipe.plan(prepared.graph, config, prepared.op_types)
        run.check()
        if not plan.is_empty and prepared.keeps_function:
            _check_prepared(unedited, context)
    if plan.is_empty:
        unselected = config.model_copy(update={"include": (), "exclude": ()})
        without = recipe.plan(prepared.graph, unselected, prepared.op_types)
        plan.notes += [*notes, nothing_quantized(by_selectors=not without.is_empty)]
        run.log(plan.notes[-1], "warning")
        return Quantized(Filled([Draft(prepared, plan)]), prepared.model, b"")
    filled = recipe.fill(prepared, plan, context)
    prepared, plan = filled.draft.prepared, filled.draft.plan
    plan.notes[:0] = notes
    plan.decisions[:0] = edits
    with context.stages.stage("emit"):
        run.progress("emit")
        quantized = recipe.emit(copy_of(prepared.model), plan)
        prepared.restore_interface(quantized)
        model_bytes = to_bytes(quantized)
        if config.format == "qoperator":
            model_bytes, left = to_qoperator(model_bytes, threads=context.threads)
            plan.notes.append(f"QOperator format: {left} QuantizeLinear nodes are left where floats become integers")
        model_bytes = take_nhwc(model_bytes, prepared.nhwc_inputs)
    return Quantized(filled, quantized, model_bytes)


def _check_prepared(prepared: ir.Model, context: Context) -> None:
    """Preparation must not change what the model computes, unlike what its target asks for: compare one batch."""
    data, float_session = context.calibration, context.float_session
    session = Session(prepared, threads=context.threads, what="prepared model", optimized=not is_large(prepared))
    batch = next(iter(data.batches(context.inputs, choose_batch_size(context.inputs, data, 1), limit=1)))
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


__all__ = ["MODEL_FILE", "Result", "quantize", "quantize_files"]
