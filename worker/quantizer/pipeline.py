"""quantize: a float model and data in, a quantized model and a report out.

load -> prepare -> plan -> statistics -> parameters -> emit -> evaluate -> report
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from service.contracts.compatibility import check_dataset
from service.contracts.config import QuantizationConfig
from service.contracts.data_checks import check_data_given, check_training, random_data_of
from service.contracts.dataset import label_notes
from service.contracts.devices import Device
from service.contracts.errors import UnsupportedModelError
from service.contracts.graph_view import TensorGrid
from service.contracts.model import ModelSummary
from service.contracts.preparation import fixed_inputs
from service.contracts.report import Report
from service.contracts.runner import DATA_FILE, DatasetSource
from worker.quantizer.advice.advise import with_advice
from worker.quantizer.costs import expected_phases, forward_seconds
from worker.quantizer.data import OpenDataset, open_dataset
from worker.quantizer.data.random_inputs import random_dataset
from worker.quantizer.emit import Emitted
from worker.quantizer.emit.between import tidied
from worker.quantizer.equalization.stand_ins import fit_stand_ins
from worker.quantizer.evaluation.compare import NoLongerFiniteError
from worker.quantizer.evaluation.decisions import publish_samples
from worker.quantizer.evaluation.metrics import MetricFunction, Metrics
from worker.quantizer.fallback.choice import falling_back
from worker.quantizer.graph.mapped import SpillFolder, forget_pages
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.graph.serialized import ModelContent, copy_of, to_bytes
from worker.quantizer.intake.inspect import inspect_model, open_model
from worker.quantizer.intake.loading import uploaded_bytes
from worker.quantizer.modes.planning import (
    check_devices,
    check_fixed_batch,
    devices_of,
    kept_alike,
    plan_model,
    prepare_model,
)
from worker.quantizer.modes.registry import MODES, to_qoperator
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.preparation.layout import take_nhwc, turn_inputs
from worker.quantizer.preparation.prepare import undo_quantization
from worker.quantizer.refine.draft import Case, Draft, Filled, QuantizedDraft
from worker.quantizer.refine.ranges import settle_methods
from worker.quantizer.refine.values import settle_values
from worker.quantizer.report.assemble import Assembled, make_report, provenance_entries
from worker.quantizer.report.graph_view import grids_of
from worker.quantizer.report.plots import publish_ranges, publish_training
from worker.quantizer.report.words import calibration_notes, nothing_quantized
from worker.quantizer.run.cache import Cache
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.identity import origin, run_identity
from worker.quantizer.run.interface import Run
from worker.quantizer.run.progress import OverallRun, Stages
from worker.quantizer.run.services import ExtraFile, ExtraFiles, Services, nobody
from worker.quantizer.runtime.host import cpu_notes
from worker.quantizer.runtime.providers import find_accelerator
from worker.quantizer.runtime.session import Session, is_heavy
from worker.quantizer.sanity.examine import examine
from worker.quantizer.sanity.functions import with_function_findings
from worker.quantizer.written.settle import as_written

_MOST_SETTLED = 4  # how often nodes that make NaN or Inf are searched again


@dataclass(frozen=True)
class Result:
    """What a quantization gives; ``prepared`` is the float graph that was quantized, ``grids`` those of its tensors."""

    content: ModelContent
    report: Report
    files: tuple[ExtraFile, ...] = ()
    prepared: ir.Graph | None = None
    grids: Mapping[str, TensorGrid] = field(default_factory=dict)

    @property
    def model(self) -> bytes:
        """The bytes of the ONNX file; of a large one they are read from it."""
        return self.content.read()


@dataclass(frozen=True)
class Provisions:
    """What a caller gives to a quantization beside the model and the data; nothing of it is needed."""

    # folder that keeps finished work for another attempt of the same run; None: nothing is kept
    checkpoint_dir: Path | None = None
    checkpoint_bytes: int | None = None  # that it may take; None: no limit
    cache: Cache | None = None  # what earlier runs have computed; None: nothing is kept
    # files of uploaded models that metrics and losses are given as, by id
    graphs: Mapping[str, Path] = field(default_factory=dict)
    # Python functions that metrics of kind function are, by name; with any nothing is kept for other attempts, since
    # nobody can tell whether it would still hold
    functions: Mapping[str, MetricFunction] = field(default_factory=dict)
    extra_bytes: int | None = None  # that files beside the model may take; None: no limit
    reached: Callable[[str], None] = nobody  # see ``Services``
    scratch: Path | None = None  # folder on a disk for what is too large to be held; None: that of temporary files
    data_file: str = DATA_FILE  # see ``Services``
    device: Device = "cpu"  # gpu: float models run there where onnxruntime can use it

    def checkpoints(self, identity: str, run: Run) -> CheckpointStore:
        """Of the run with this identity."""
        folder, shared = (None, None) if self.functions else (self.checkpoint_dir, self.cache)
        return CheckpointStore(folder, identity, limit_bytes=self.checkpoint_bytes, run=run, shared=shared)


def quantize(
    model_path: Path,
    config: QuantizationConfig,
    calibration: DatasetSource | None,
    evaluation: DatasetSource | None = None,
    *,
    run: Run,
    threads: int,
    provisions: Provisions = Provisions(),
) -> Result:
    """Quantize a model and measure what that cost.

    Args:
        model_path: float ONNX model, or a quantized one if ``preparation.dequantize`` is set; external data lies
            beside it.
        config: resolved recipe.
        calibration: data that the ranges are taken from; None: random inputs, where the config asks for them.
        evaluation: data that both models are compared on; the calibration data if None.
        run: progress, log, cancellation.
        threads: CPU threads.
        provisions: what the caller gives to it.

    Raises:
        ModelError: the model cannot be used or is quantized already.
        DatasetError: a dataset is bad, does not fit the model, or is not there and random data was not asked for.
        InvalidConfigError: the config names nodes that are not there, or metrics or losses that do not fit the model or
            the data.
        EngineError: the engine or the runtime failed on a valid input.
        CanceledError: the run was canceled.
    """
    found = fill(model_path, config, calibration, evaluation, run=run, threads=threads, provisions=provisions)
    done, made = _measured(as_written(found.emit(), found), found)
    done, made = falling_back(done, made, found)
    report = with_advice(made.report, done, found.case, found.services, found)
    publish_ranges(report.algorithms, found.services.files)
    publish_training(report.algorithms, found.services.files)
    publish_samples(made.samples, found.services.files, run)
    run.overall(1.0, 0.0)
    return Result(done.content, report, found.services.files.all, done.prepared.graph, grids_of(done.plan))


def _measured(done: QuantizedDraft, found: Quantizing) -> tuple[QuantizedDraft, Assembled]:
    """The report of the model, or of one with the nodes in float that make NaN or Inf on samples not tried before."""
    for _ in range(_MOST_SETTLED):
        try:
            return done, make_report(done, found.case, found.services)
        except NoLongerFiniteError as error:
            other = as_written(done, found, error.sample)
            if other.filled is done.filled:
                raise
            done = other
    return done, make_report(done, found.case, found.services)


def fill(
    model_path: Path,
    config: QuantizationConfig,
    calibration: DatasetSource | None,
    evaluation: DatasetSource | None = None,
    *,
    run: Run,
    threads: int,
    provisions: Provisions = Provisions(),
) -> Quantizing:
    """Do what ``quantize`` does up to the filled plan: load, prepare, plan, calibrate, run the algorithms.

    Args and errors are those of ``quantize``.
    """
    run, graphs = OverallRun(run), provisions.graphs
    stages = Stages(run)
    with stages.stage("load"):
        run.progress("load")
        check_devices(config)
        original, undone, float_session, summary = _load(model_path, config, threads)
        forget_pages(original)
        check_fixed_batch(summary, original)
        check_data_given(config, calibration=calibration is not None, evaluation=evaluation is not None)
        calibration_data = _calibration(calibration, summary, config, float_session)
        evaluation_data = None if evaluation is None else _open(evaluation, summary, config, "evaluation dataset")
        check_training(config, inputs=summary.inputs, outputs=summary.outputs, data=calibration_data.summary)
        metrics = Metrics(
            config.evaluation, summary.outputs, graphs=graphs, functions=provisions.functions, threads=threads
        )
        metrics.check(evaluation_data or calibration_data)
        _probe(metrics, float_session, calibration_data, evaluation_data, summary, config, run)
        made_from = origin(summary, calibration_data, evaluation_data, graphs, threads=threads)
        case = Case(config, summary, calibration_data, evaluation_data, float_session, made_from, metrics, graphs)
        case = case.on(find_accelerator(provisions.device), original, threads=threads, run=run)
        try:
            pass_seconds = forward_seconds(case, run)
        except UnsupportedModelError:
            inspect_model(model_path, threads=threads)  # names the node, as it does for an upload
            raise
        run.expect(expected_phases(case, graph=original.graph, sample_seconds=pass_seconds))
        identity = run_identity(config, case.origin, devices=devices_of(config))
        services = Services(
            run=run,
            threads=threads,
            stages=stages,
            checkpoint=provisions.checkpoints(identity, run),
            files=ExtraFiles(provisions.extra_bytes),
            reached=provisions.reached,
            spill=SpillFolder(provisions.scratch) if is_heavy(original) else None,
            data_file=provisions.data_file,
        )
    with stages.stage("sanity"):
        run.progress("sanity")
        for note in _data_notes(case):
            run.log(note)
        case = replace(case, findings=examine(case, original, services))
    return _fill(original, _Origin(model_path, undone), case, services)


@dataclass(frozen=True)
class _Origin:
    """Where a model came from: its file, and what became of its Q/DQ pairs if they were to be taken off."""

    path: Path
    undone: PassOutcome | None

    def reloaded(self, config: QuantizationConfig) -> ir.Model:
        """A copy of the float model as it was uploaded: what is prepared is changed."""
        model = copy_of(self._uploaded)
        return undo_quantization(model).model if config.preparation.dequantize else model

    @cached_property
    def _uploaded(self) -> ir.Model:
        return open_model(self.path).model


@dataclass(frozen=True)
class Quantizing:
    """A model whose plan is filled: all that is needed to write it, and to measure what was written."""

    filled: Filled  # the drafts, and what became of each algorithm
    case: Case  # what is quantized, on which data
    services: Services  # of the run
    preface: PlanLog  # what the plan_log of the quantized model begins with
    _origin: _Origin

    @property
    def is_empty(self) -> bool:
        """True if nothing is quantized."""
        return self.filled.draft.plan.is_empty

    def emit(self, draft: Draft | None = None) -> QuantizedDraft:
        """The quantized model, in the format and the layout that the config asks for.

        Args:
            draft: another one for the same graph, on the target, in the place of the last; it follows it in the report.
        """
        filled = self.filled if draft is None else replace(self.filled, drafts=[*self.filled.drafts, draft])
        done = self._untouched(filled) if filled.draft.plan.is_empty else self._written(filled)
        if self._origin.undone is not None:
            _tell_undone(self._origin.undone, done)
        return done

    def planned(self, config: QuantizationConfig) -> QuantizationPlan:
        """The plan that another config makes for the same model, without numbers; no data is looked at.

        Raises:
            InvalidConfigError: the config does not fit the model.
            UnsupportedModelError: the model cannot be prepared for it.
        """
        prepared, _ = prepare_model(self._origin.reloaded(config), config)
        return plan_model(prepared, config).plan

    def again(self, config: QuantizationConfig, run: Run) -> QuantizedDraft:
        """The same model on the same data under another config; nothing of it joins the files of the run.

        Raises:
            QuantmillError: whatever ``quantize`` raises.
        """
        services = replace(
            Services(run, self.services.threads, checkpoint=self.services.checkpoint.for_others(run)),
            spill=self.services.spill and self.services.spill.another(),
        )
        case = replace(self.case, config=config)
        return _fill(self._origin.reloaded(config), self._origin, case, services).emit()

    def report(self, done: QuantizedDraft, evaluation: DatasetSource | None = None) -> Report:
        """Compare what ``emit`` gave with the float model and say what was found.

        Args:
            done: of ``emit``.
            evaluation: data that both are compared on; None: that of the case.

        Raises:
            DatasetError: the dataset is bad, or does not fit the model.
            InvalidConfigError: the config's metrics do not fit the data.
            EngineError: the runtime failed on the data.
            CanceledError: the run was canceled.
        """
        case = self.case
        if evaluation is not None:
            data = _open(evaluation, case.summary, case.config, "evaluation dataset")
            case.metrics.check(data)
            case.metrics.probe(case.float_session, data, case.inputs, self.services.run, role="evaluation dataset")
            case = replace(case, evaluation=data)
            case = replace(case, findings=examine(case, None, self.services))
        return make_report(done, case, self.services).report

    def _untouched(self, filled: Filled) -> QuantizedDraft:
        """The file as it was given."""
        prepared, undo = filled.draft.prepared, self._origin.undone is not None
        path, spill = self._origin.path, self.services.spill
        if spill is not None and path.stat().st_size != self.case.summary.size_bytes:
            content = self._filed(self._origin.reloaded(self.case.config), spill)
        else:
            content = ModelContent.held(uploaded_bytes(path, self.case.summary, undo))
        return QuantizedDraft(filled, Emitted(prepared.model), content, self.preface.followed_by())

    def _written(self, filled: Filled) -> QuantizedDraft:
        services, config = self.services, self.case.config
        prepared, told = filled.draft.prepared, filled.draft.plan_log
        plan_log = self.preface.followed_by(*told.notes, decisions=told.decisions)
        with services.stages.stage("emit"):
            services.run.progress("emit")
            quantized = filled.draft.form.emit(copy_of(prepared.model), filled.draft.plan)
            prepared.restore_interface(quantized.model)
            forget_pages(prepared.model)
            told_of = provenance_entries(self.case, services.threads)
            quantized.model.metadata_props.update(told_of)
            tidy = config.mode in ("weights_only", "dynamic")  # others keep shapes, which compilers for hardware read
            written = tidied(quantized.model) if tidy else quantized.model
            if services.spill is not None and config.format != "qoperator":
                if prepared.nhwc_inputs:
                    written = copy_of(written)
                    turn_inputs(written, prepared.nhwc_inputs)
                return QuantizedDraft(filled, quantized, self._filed(written, services.spill), plan_log)
            model_bytes = to_bytes(written)
            if config.format == "qoperator":
                model_bytes, left = to_qoperator(model_bytes, threads=services.threads, metadata=told_of)
                plan_log.note(f"QOperator format: {left} QuantizeLinear nodes are left where floats become integers")
            model_bytes = take_nhwc(model_bytes, prepared.nhwc_inputs)
        return QuantizedDraft(filled, quantized, ModelContent.held(model_bytes), plan_log)

    def _filed(self, model: ir.Model, spill: SpillFolder) -> ModelContent:
        spill.graph(model.graph)
        content = ModelContent.filed(model, spill, self.services.data_file)
        forget_pages(model)
        return content


def _load(
    path: Path, config: QuantizationConfig, threads: int
) -> tuple[ir.Model, PassOutcome | None, Session, ModelSummary]:
    """The float model, what became of its Q/DQ pairs if they are taken off, a session of it, and its facts.

    The file is read and parsed here and nowhere else.
    """
    uploaded = open_model(path)
    undone = undo_quantization(uploaded.model) if config.preparation.dequantize else None
    model = uploaded.model if undone is None else undone.model
    session = uploaded.session(threads=threads, what="float model", model=model)
    facts: dict[str, Any] = {"inputs": fixed_inputs(uploaded.summary.inputs, config.preparation)}
    if undone is not None and undone.applied:
        facts["size_bytes"] = len(to_bytes(model))
    return model, undone, session, uploaded.summary.model_copy(update=facts)


def _data_notes(case: Case) -> tuple[str, ...]:
    """What to know about the labels before anything is measured; none with declared metrics or random data."""
    data = case.measured_on
    return () if case.config.evaluation.metrics or data.is_random else label_notes(data.summary.labels)


def _probe(
    metrics: Metrics,
    session: Session,
    calibration: OpenDataset,
    evaluation: OpenDataset | None,
    summary: ModelSummary,
    config: QuantizationConfig,
    run: Run,
) -> None:
    """Try the metrics on the data that they are to be measured on; steps are judged on the calibration data."""
    if evaluation is not None:
        metrics.probe(session, evaluation, summary.inputs, run, role="evaluation dataset")
    if evaluation is None or (config.algorithms and metrics.fed_by(calibration)):
        metrics.probe(session, calibration, summary.inputs, run, role="calibration dataset")


def _tell_undone(undone: PassOutcome, done: QuantizedDraft) -> None:
    """Put the step that came before all others into the report; afterwards it found nothing left to do."""
    told = undone.step("dequantize")
    done.prepared.steps[:] = [told if step.name == told.name else step for step in done.prepared.steps]
    if undone.applied:
        done.plan_log.note("The uploaded model is quantized; 'float' is that model with its quantization undone")


def _calibration(
    source: DatasetSource | None, model: ModelSummary, config: QuantizationConfig, session: Session
) -> OpenDataset:
    if source is not None:
        return _open(source, model, config, "calibration dataset")
    return random_dataset(model.inputs, random_data_of(config), config.seed, session.run)


def _open(source: DatasetSource, model: ModelSummary, config: QuantizationConfig, role: str) -> OpenDataset:
    data = open_dataset(Path(source.path), source.preprocessing, role=role)
    check_dataset(model, data.summary, role=role, labels_of_first=not config.evaluation.metrics)
    return data


def _fill(original: ir.Model, origin_of: _Origin, case: Case, services: Services) -> Quantizing:
    config, run = case.config, services.run
    mode = MODES[config.mode]
    with services.stages.stage("prepare"):
        run.progress("prepare")
        prepared, notes = prepare_model(original, config)
    with services.stages.stage("plan"):
        run.progress("plan")
        found = prepared, [*calibration_notes(case), *notes, *cpu_notes(config)], plan_model(prepared, config)
        prepared, notes, planned = kept_alike(found, partial(origin_of.reloaded, config), case, services)
        run.check()
    draft = Draft(prepared, planned.plan, planned.plan_log, form=mode.form)
    draft = settle_values(fit_stand_ins(draft, planned.unedited, case, services), case, services)
    prepared, plan = draft.prepared, draft.plan
    plan.spill = services.spill
    if plan.is_empty:
        unselected = config.model_copy(update={"include": (), "exclude": ()})
        without = mode.form.plan(prepared.graph, unselected, prepared.facts, PlanLog())
        cause = nothing_quantized(by_selectors=not without.is_empty)
        run.log(cause, "warning")
        preface = draft.plan_log.followed_by(*notes, cause)
        return Quantizing(Filled([replace(draft, plan_log=PlanLog())]), case, services, preface, origin_of)
    case = with_function_findings(case, prepared, services)
    if config.mode == "static":
        case, told = settle_methods(prepared, plan, case, services)
        notes = [*notes, *told]
    return Quantizing(mode.fill(draft, case, services), case, services, PlanLog(notes, planned.edits), origin_of)
