"""Runs the float and the quantized model side by side over a dataset, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from service.contracts.errors import EngineError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import TensorInfo
from service.contracts.report import Fidelity, OutputFidelity
from worker.quantizer.data import Dataset, choose_batch_size
from worker.quantizer.evaluation.metrics import Agreement, Distance, Metrics, MetricSet
from worker.quantizer.evaluation.side_by_side import expected_outputs, side_by_side
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import Session

_EVALUATION_BATCH = 8
_WARMUP_RUNS = 3
Source = Literal["evaluation", "calibration", "random"]


@dataclass
class _OutputFigures:
    distance: Distance = field(default_factory=Distance)
    agreement: Agreement = field(default_factory=Agreement)


@dataclass(frozen=True)
class Comparison:
    """Figures of a side-by-side run.

    Attributes:
        float_set: the metrics of the float model.
        quantized_set: those of its twin.
        fidelity: distance of the outputs.
        labels_used: False if no metric is declared and the first output classifies nothing.
        non_finite: outputs of the float model that hold NaN or Inf.
    """

    float_set: MetricSet
    quantized_set: MetricSet
    fidelity: Fidelity
    labels_used: bool
    non_finite: tuple[str, ...] = ()

    @property
    def float_metrics(self) -> dict[str, float]:
        """By name."""
        return self.float_set.values if self.labels_used else {}

    @property
    def quantized_metrics(self) -> dict[str, float]:
        """By name."""
        return self.quantized_set.values if self.labels_used else {}


def compare(
    reference: Session,
    quantized: Session,
    data: Dataset,
    inputs: Sequence[TensorInfo],
    *,
    source: Source,
    metrics: Metrics | None = None,
    limit: int | None = None,
    run: Run,
    stage: str = "evaluation",
) -> Comparison:
    """Feed every sample to both models.

    Args:
        reference: float model.
        quantized: its twin, with the same outputs.
        data: evaluation (or calibration) set.
        inputs: the models' inputs.
        source: what that data is, for the report.
        metrics: what to measure; None: top1 and top5 of the first output, where there are class labels for it.
        limit: use only the first ``limit`` samples.
        run: told of progress.
        stage: its name there.

    Raises:
        EngineError: a model fails to run, or the quantized model returns NaN or Inf where the float model does not.
        InvalidConfigError: an output or a label does not fit a declared metric.
        CanceledError: the run was canceled.
    """
    names = reference.output_names
    figures = {name: _OutputFigures() for name in names}
    metrics = metrics or Metrics(EvaluationSpec(), ())
    float_set, quantized_set = metrics.start(), metrics.start()
    total = data.samples if limit is None else min(limit, data.samples)
    run.progress(stage, 0, total, "samples")
    done = 0
    expected = expected_outputs(
        reference, data, inputs, run=run, batch_size=_EVALUATION_BATCH, last=limit, arrays=metrics.arrays
    )
    for twins in side_by_side(quantized, expected, run):
        for name, one, other in twins.pairs():
            _update(figures[name], name, one, other)
        float_set.update(twins.batch, twins.expected)
        quantized_set.update(twins.batch, twins.got, twins.expected)
        done += twins.batch.valid
        run.progress(stage, done, total, "samples")
    return Comparison(
        float_set,
        quantized_set,
        fidelity=_fidelity(figures, done, source),
        labels_used=float_set.labels_used and quantized_set.labels_used,
        non_finite=tuple(name for name, found in figures.items() if found.distance.is_undefined),
    )


def _update(figures: _OutputFigures, name: str, expected: np.ndarray, got: np.ndarray) -> None:
    if expected.dtype.kind == "f":
        if np.isfinite(expected).all() and not np.isfinite(got).all():
            raise EngineError(
                f"the quantized model returns NaN or Inf in output {name!r}",
                hint="Exclude the nodes with the lowest SQNR, or use percentile calibration.",
                output=name,
            )
        figures.distance.update(expected, got)
    figures.agreement.update(expected, got)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _fidelity(figures: Mapping[str, _OutputFigures], samples: int, source: Source) -> Fidelity:
    outputs = tuple(
        OutputFidelity(
            name=name,
            sqnr_db=_round(found.distance.sqnr_db, 3),
            cosine=_round(found.distance.cosine, 7),
            top1_agreement=_round(found.agreement.percent, 4),
        )
        for name, found in figures.items()
    )
    ratios = [output.sqnr_db for output in outputs if output.sqnr_db is not None]
    cosines = [output.cosine for output in outputs if output.cosine is not None]
    return Fidelity(
        sqnr_db=min(ratios) if ratios else None,
        cosine=min(cosines) if cosines else None,
        top1_agreement=outputs[0].top1_agreement if outputs else None,
        samples=samples,
        source=source,
        outputs=outputs,
    )


def layer_distances(
    reference: Session,
    quantized: Session,
    pairs: Mapping[str, tuple[str, str]],
    data: Dataset,
    inputs: Sequence[TensorInfo],
    *,
    limit: int,
    run: Run,
) -> dict[str, float | None]:
    """SQNR in dB of inner tensors, by layer.

    Args:
        reference: float model with the first names of ``pairs`` as outputs.
        quantized: quantized model with the second names as outputs.
        pairs: by layer name: tensor of the float model, tensor of the quantized model.
        data: samples to measure on.
        inputs: the models' inputs.
        limit: samples to run.
        run: told of progress.
    """
    distances = {layer: Distance() for layer in pairs}
    wanted, twins = (list(dict.fromkeys(pair[k] for pair in pairs.values())) for k in (0, 1))
    total = min(limit, data.samples)
    done = 0
    expected = expected_outputs(reference, data, inputs, run=run, batch_size=1, last=limit, outputs=wanted)
    for pair in side_by_side(quantized, expected, run, outputs=twins):
        for layer, (a, b) in pairs.items():
            one, other = pair.batch.cut(pair.expected[a]), pair.batch.cut(pair.got[b])
            if one.shape == other.shape:
                distances[layer].update(one, other)
        done += pair.batch.valid
        run.progress("layers", done, total, "samples")
    return {layer: _round(distance.sqnr_db, 3) for layer, distance in distances.items()}


def latencies_ms(
    reference: Session, quantized: Session, data: Dataset, inputs: Sequence[TensorInfo], *, runs: int, run: Run
) -> tuple[float, float]:
    """Median milliseconds of one run of either model at the smallest batch, taken in turn after a warm-up."""
    batch = next(iter(data.batches(inputs, choose_batch_size(inputs, data, 1), limit=1)))
    times: tuple[list[float], list[float]] = ([], [])
    for k in range(_WARMUP_RUNS + runs):
        run.check()
        for session, kept in ((reference, times[0]), (quantized, times[1])):
            begin = time.perf_counter()
            session.run(batch.feeds)
            if k >= _WARMUP_RUNS:
                kept.append(time.perf_counter() - begin)
    return round(median(times[0]) * 1e3, 4), round(median(times[1]) * 1e3, 4)
