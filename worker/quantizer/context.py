"""One quantization run: what all its stages share, and what the engine proper hands over."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import ModelSummary, TensorInfo
from worker.quantizer.cache import Cache
from worker.quantizer.checkpoint import CheckpointStore
from worker.quantizer.data import Dataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.extra import ExtraFiles
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.measure import Stages
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Filled
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session


@dataclass(frozen=True)
class Context:
    """What every stage needs.

    Attributes:
        config: resolved recipe.
        summary: facts of the uploaded model.
        calibration: data that the ranges are taken from.
        evaluation: data that both models are compared on; None: the calibration data.
        float_session: the uploaded model, without its Q/DQ pairs where they are taken off.
        stages: takes the seconds and the memory of each stage.
        run: progress, log, cancellation.
        threads: CPU threads.
        origin: what the results depend on but the config, ready for JSON: see ``worker.quantizer.identity``.
        checkpoint: finished pieces of this run's work, for an attempt after this one.
        files: takes what the run gives beside the model.
        cache: what runs have computed, for every later run that needs the very same.
        metrics: what is measured beside the distance from the float model.
    """

    config: QuantizationConfig
    summary: ModelSummary
    calibration: Dataset
    evaluation: Dataset | None
    float_session: Session
    stages: Stages
    run: Run
    threads: int
    origin: dict[str, Any] = field(default_factory=dict)
    checkpoint: CheckpointStore = field(default_factory=lambda: CheckpointStore(None))
    files: ExtraFiles = field(default_factory=ExtraFiles)
    cache: Cache = field(default_factory=lambda: Cache(None))
    metrics: Metrics = field(default_factory=lambda: Metrics(EvaluationSpec(), ()))

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs."""
        return self.summary.inputs

    @property
    def measured_on(self) -> Dataset:
        """The data that both models are compared on."""
        return self.evaluation or self.calibration

    @property
    def calibration_samples(self) -> int:
        """Samples that the ranges are taken from."""
        limit = self.config.calibration_samples
        return self.calibration.samples if limit is None else min(limit, self.calibration.samples)


@dataclass(frozen=True)
class Quantized:
    """The outcome of the engine proper, before evaluation.

    Attributes:
        filled: the drafts, and what became of each algorithm.
        model: the last draft's quantized model.
        bytes: the same, serialized.
    """

    filled: Filled
    model: ir.Model
    bytes: bytes

    @property
    def prepared(self) -> Prepared:
        """The float model that was quantized."""
        return self.filled.draft.prepared

    @property
    def plan(self) -> QuantizationPlan:
        """What was emitted."""
        return self.filled.draft.plan
