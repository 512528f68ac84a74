"""What is quantized: a model, its data, and what is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import ModelSummary, TensorInfo
from service.contracts.report.layers import Finding
from worker.quantizer.data import Dataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.evaluation.side_by_side import Expected, expected_outputs
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session
from worker.quantizer.statistics.collect import Kept, Request, collect


@dataclass(frozen=True)
class Case:
    """What is known of the job's model and data.

    Attributes:
        config: resolved recipe.
        summary: facts of the uploaded model.
        calibration: data that the ranges are taken from.
        evaluation: data that both models are compared on; None: the calibration data.
        float_session: the uploaded model, without its Q/DQ pairs where they are taken off.
        origin: what the results depend on but the config, ready for JSON: see ``worker.quantizer.run.identity``.
        metrics: what is measured beside the distance from the float model.
        graphs: files of uploaded models that metrics and losses are given as, by id.
        findings: about model and data, known before any work.
    """

    config: QuantizationConfig
    summary: ModelSummary
    calibration: Dataset
    evaluation: Dataset | None
    float_session: Session
    origin: dict[str, Any] = field(default_factory=dict)
    metrics: Metrics = field(default_factory=lambda: Metrics(EvaluationSpec(), ()))
    graphs: Mapping[str, Path] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The model's inputs."""
        return self.summary.inputs

    @property
    def measured_on(self) -> Dataset:
        """The data that both models are compared on."""
        return self.evaluation or self.calibration

    @property
    def source(self) -> Literal["evaluation", "calibration", "random"]:
        """What that data is."""
        if self.evaluation is not None:
            return "evaluation"
        return "random" if self.calibration.is_random else "calibration"

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
        )

    def expected_outputs(
        self,
        run: Run,
        *,
        batch_size: int,
        first: int = 0,
        last: int | None = None,
        outputs: Sequence[str] | None = None,
        with_arrays: bool = False,
    ) -> Iterator[Expected]:
        """What the float model makes of calibration samples.

        Args:
            run: asked before every batch whether to stop.
            batch_size: samples per batch, where the model lets one choose.
            first: number of the first sample.
            last: number of the sample to stop before; None: the last one that ranges are taken from.
            outputs: names of those wanted; None for all.
            with_arrays: hand out what the metrics read beside the samples.

        Raises:
            DatasetError: the data is damaged or does not fit the model.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        return expected_outputs(
            self.float_session,
            self.calibration,
            self.inputs,
            run=run,
            batch_size=batch_size,
            first=first,
            last=self.calibration_samples if last is None else min(last, self.calibration_samples),
            outputs=outputs,
            arrays=self.metrics.arrays if with_arrays else (),
        )
