"""One quantization run: what all its stages share, and what the engine proper hands over."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.model import ModelSummary, TensorInfo
from worker.quantizer.data import Dataset
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.measure import Stages
from worker.quantizer.plan.types import QuantizationPlan
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
    """

    config: QuantizationConfig
    summary: ModelSummary
    calibration: Dataset
    evaluation: Dataset | None
    float_session: Session
    stages: Stages
    run: Run
    threads: int

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
    """The outcome of the engine proper, before evaluation."""

    prepared: Prepared
    plan: QuantizationPlan
    model: ir.Model
    bytes: bytes
