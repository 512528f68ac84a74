"""What is quantized, a model, its data and what is asked for; and the quantized network under construction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import ModelSummary, TensorInfo
from service.contracts.report import AlgorithmFigures
from service.contracts.report.layers import Finding
from service.contracts.specs import ActivationSpec
from worker.quantizer.data import OpenDataset
from worker.quantizer.emit import Emitted, emit
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.evaluation.side_by_side import Expected, FloatReference, Source
from worker.quantizer.graph.metadata import NodeFacts
from worker.quantizer.graph.serialized import ModelContent, copy_of, to_bytes
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.providers import Accelerator
from worker.quantizer.runtime.session import Session, SessionSettings, is_large, own_session
from worker.quantizer.statistics.collect import Kept, Request, collect

Planner = Callable[[ir.Graph, QuantizationConfig, NodeFacts, PlanLog], QuantizationPlan]


@dataclass(frozen=True)
class Form:
    """What a mode makes of a network."""

    plan: Planner  # (prepared graph, config, facts of its nodes, plan_log that takes notes) -> plan without numbers
    emit: Callable[[ir.Model, QuantizationPlan], Emitted]  # writes the plan into a copy of the prepared model
    # what becomes of the activations that a plan of weights alone does not name; None: they stay in float
    at_run_time: ActivationSpec | None = None


STATIC = Form(build_plan, emit)


@dataclass(frozen=True)
class Draft:
    """A prepared float model with its filled plan. Never changed: a step that changes something makes a new draft."""

    prepared: Prepared  # the float model, as equalized so far
    plan: QuantizationPlan  # with grids and integers
    plan_log: PlanLog = field(default_factory=PlanLog)  # how the plan came about
    # what each algorithm asked for, collected on this float model, by method
    statistics: dict[str, list[Request]] = field(default_factory=dict)
    algorithm: str | None = None  # the method that made this draft of the one before; None for calibration alone
    changed: tuple[str, ...] = ()  # names of the nodes that it changed
    form: Form = STATIC  # of the config's mode

    @property
    def graph(self) -> ir.Graph:
        """The float model's main graph."""
        return self.prepared.graph

    def on_target(self, config: QuantizationConfig) -> Draft:
        """The draft with its grids where the target can work with them."""
        plan, plan_log = self.plan.copy(), self.plan_log.followed_by()
        move_grids(self.graph, plan, config, plan_log)
        return replace(self, plan=plan, plan_log=plan_log)

    def emitted(self) -> Emitted:
        """The quantized model, with the interface that the user declared."""
        found = self.form.emit(copy_of(self.prepared.model), self.plan)
        self.prepared.restore_interface(found.model)
        return found

    def session(self, threads: int) -> Session:
        """The quantized model, ready to run."""
        model = self.emitted().model
        return own_session(model, threads=threads, what="quantized model", optimized=not is_large(model))

    def emitted_bytes(self) -> bytes:
        """The quantized model, serialized."""
        return to_bytes(self.emitted().model)

    def replanned(self, config: QuantizationConfig, prepared: Prepared | None = None) -> Draft:
        """The float model, or another one, with the plan that ``config`` makes for it, without numbers."""
        prepared, plan_log = prepared or self.prepared, PlanLog()
        return Draft(
            prepared, self.form.plan(prepared.graph, config, prepared.facts, plan_log), plan_log, form=self.form
        )


@dataclass(frozen=True)
class Filled:
    """What filling a plan gives."""

    drafts: list[Draft]  # the calibrated network, then one more for every algorithm that was kept; the last one counts
    outcomes: list[AlgorithmFigures] = field(default_factory=list)  # what became of each algorithm

    @property
    def draft(self) -> Draft:
        """The one that counts."""
        return self.drafts[-1]


@dataclass(frozen=True)
class Differs:
    """A model that onnxruntime computes otherwise than it says."""

    finding: Finding  # for the report
    plain_db: float | None  # SQNR of the worst output without the runtime's optimizations, in dB; None: it has none
    optimized_db: float | None  # with them


@dataclass(frozen=True)
class QuantizedDraft:
    """The outcome of the engine proper, before evaluation."""

    filled: Filled  # the drafts, and what became of each algorithm
    emitted: Emitted  # the last draft's quantized model
    content: ModelContent  # the same, as it is written
    plan_log: PlanLog  # how it came about: that of the last draft, and what comes before and behind it
    # what is to be told where onnxruntime computes it otherwise than it says; None: it does not
    differs: Differs | None = None

    @property
    def prepared(self) -> Prepared:
        """The float model that was quantized."""
        return self.filled.draft.prepared

    @property
    def plan(self) -> QuantizationPlan:
        """What was emitted."""
        return self.filled.draft.plan


# What is quantized: a model, its data, and what is asked for.


@dataclass(frozen=True)
class Case:
    """What is known of the job's model and data."""

    config: QuantizationConfig  # resolved recipe
    summary: ModelSummary  # facts of the uploaded model
    calibration: OpenDataset  # data that the ranges are taken from
    evaluation: OpenDataset | None  # data that both models are compared on; None: the calibration data
    float_session: Session  # the uploaded model, without its Q/DQ pairs where they are taken off
    # what the results depend on but the config, ready for JSON: see ``worker.quantizer.run.identity``
    origin: dict[str, Any] = field(default_factory=dict)
    # what is measured beside the distance from the float model
    metrics: Metrics = field(default_factory=lambda: Metrics(EvaluationSpec(), ()))
    # files of uploaded models that metrics and losses are given as, by id
    graphs: Mapping[str, Path] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()  # about model and data, known before any work
    accelerator: Accelerator = field(default_factory=Accelerator)  # where float models run that statistics are taken of
    float_on_gpu: Session | None = None  # ``float_session`` there; None: that is a CPU

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs."""
        return self.summary.inputs

    @property
    def measured_on(self) -> OpenDataset:
        """The data that both models are compared on."""
        return self.evaluation or self.calibration

    @property
    def source(self) -> Source:
        """What that data is."""
        if self.evaluation is not None:
            return "evaluation"
        return "random" if self.calibration.is_random else "calibration"

    @property
    def reference(self) -> FloatReference:
        """The float model on that data."""
        return FloatReference(self.float_session, self.measured_on, self.inputs, self.source)

    def on(self, accelerator: Accelerator, model: ir.Model, *, threads: int, run: Run) -> Case:
        """The same with float models on an accelerator; why not is logged where that is the CPU.

        Args:
            accelerator: where they are to run.
            model: the float model, of ``float_session``.
            threads: CPU threads.
            run: of the log.

        Raises:
            UnsupportedModelError: onnxruntime refuses the model there.
            ResourceLimitError: it has too little memory.
        """
        if not accelerator.is_gpu:
            if accelerator.missing is not None:
                run.log(f"float models run on the CPU: {accelerator.missing}", "warning")
            return replace(self, accelerator=accelerator)
        settings = SessionSettings(device=accelerator.device)
        session = Session(model, threads=threads, what="float model", uploaded=True, settings=settings)
        origin = {**self.origin, **accelerator.origin} if self.origin else {}
        return replace(self, origin=origin, accelerator=accelerator, float_on_gpu=session)

    @property
    def fast_reference(self) -> FloatReference:
        """The same on a GPU where the run has one: for many samples, and where the last bits do not matter."""
        return replace(self.reference, session=self.float_on_gpu or self.float_session)

    @property
    def calibration_samples(self) -> int:
        """Samples that the ranges are taken from."""
        limit = self.config.calibration_samples
        return self.calibration.samples if limit is None else min(limit, self.calibration.samples)

    def collect(self, model: ir.Model, requests: Sequence[Request], services: Services) -> None:
        """Feed the observers of ``requests`` with what a float model makes of the calibration samples, in one pass.

        Raises:
            EngineError: the runtime failed on the data.
            CanceledError: the run was canceled.
        """
        limit, threads = self.config.calibration_samples, services.threads
        collect(
            model,
            requests,
            self.calibration,
            self.inputs,
            limit=limit,
            threads=threads,
            run=services.run,
            kept=Kept(services.checkpoint, self.origin or {}),
            device=self.accelerator.device,
        )

    def expected_outputs(
        self,
        run: Run,
        *,
        batch_size: int,
        samples: Sequence[int] | None = None,
        outputs: Sequence[str] | None = None,
        with_arrays: bool = False,
    ) -> Iterator[Expected]:
        """What the float model makes of calibration samples.

        ``samples`` are ascending numbers, None: of all that ranges are taken from. ``outputs`` are names, None: all.
        With ``with_arrays`` what the metrics read is handed out too.

        Raises:
            DatasetError: the data is damaged or does not fit the model.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        return FloatReference(self.float_session, self.calibration, self.inputs).outputs(
            run,
            batch_size=batch_size,
            samples=range(self.calibration_samples) if samples is None else samples,
            names=outputs,
            arrays=self.metrics.arrays if with_arrays else (),
        )
