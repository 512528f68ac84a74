"""Runs the float and the quantized model side by side over a dataset, batch by batch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from service.contracts.errors import EngineError
from service.contracts.model import TensorInfo
from service.contracts.report import Fidelity, OutputFidelity
from worker.quantizer.data import Batch, Dataset, choose_batch_size
from worker.quantizer.evaluation.metrics import Accuracy, Agreement, Distance
from worker.quantizer.run import Run
from worker.quantizer.runtime import Session

_EVALUATION_BATCH = 8
_WARMUP_RUNS = 3


@dataclass
class _OutputFigures:
    distance: Distance = field(default_factory=Distance)
    agreement: Agreement = field(default_factory=Agreement)


@dataclass(frozen=True)
class Comparison:
    """Figures of a side-by-side run; ``labels_used`` is False if the first output classifies nothing, ``non_finite``
    names the outputs of the float model that hold NaN or Inf.
    """

    float_metrics: dict[str, float]
    quantized_metrics: dict[str, float]
    fidelity: Fidelity
    labels_used: bool
    non_finite: tuple[str, ...] = ()


@dataclass(frozen=True)
class LayerDistances:
    """SQNR in dB by layer name: of the quantized model, and of other models by their names."""

    quantized: dict[str, float | None]
    others: dict[str, dict[str, float | None]]


def compare(
    reference: Session,
    quantized: Session,
    data: Dataset,
    inputs: Sequence[TensorInfo],
    *,
    source: str,
    limit: int | None = None,
    run: Run,
    stage: str = "evaluation",
) -> Comparison:
    """Feed every sample to both models.

    Args:
        reference: float model.
        quantized: its twin, with the same outputs.
        data: evaluation (or calibration) set; labels are used where there are any.
        inputs: the models' inputs.
        source: "evaluation" or "calibration", for the report.
        limit: use only the first ``limit`` samples.
        run: told of progress.
        stage: its name there.

    Raises:
        EngineError: a model fails to run, or the quantized model returns NaN or Inf where the float model does not.
        CanceledError: the run was canceled.
    """
    names = reference.output_names
    figures = {name: _OutputFigures() for name in names}
    float_accuracy, quantized_accuracy = Accuracy(), Accuracy()
    has_labels = data.labels is not None
    size = choose_batch_size(inputs, data, _EVALUATION_BATCH)
    total = data.samples if limit is None else min(limit, data.samples)
    run.progress(stage, 0, total, "samples")
    done = 0
    for batch in data.batches(inputs, size, limit=limit):
        run.check()
        expected = dict(zip(names, reference.run(batch.feeds, names, start=batch.start), strict=True))
        got = dict(zip(names, quantized.run(batch.feeds, names, start=batch.start), strict=True))
        for name in names:
            _update(figures[name], name, _valid(expected[name], batch, size), _valid(got[name], batch, size))
        if has_labels and batch.labels is not None:
            first = names[0]
            has_labels = float_accuracy.update(_valid(expected[first], batch, size), batch.labels)
            has_labels = has_labels and quantized_accuracy.update(_valid(got[first], batch, size), batch.labels)
        done += batch.valid
        run.progress(stage, done, total, "samples")
    return Comparison(
        float_metrics=_rounded(float_accuracy.metrics) if has_labels else {},
        quantized_metrics=_rounded(quantized_accuracy.metrics) if has_labels else {},
        fidelity=_fidelity(figures, done, source),
        labels_used=has_labels,
        non_finite=tuple(name for name, found in figures.items() if found.distance.is_undefined),
    )


def _valid(output: np.ndarray, batch: Batch, size: int) -> np.ndarray:
    """Without the padding of a last short batch."""
    if isinstance(output, np.ndarray) and batch.valid < size and output.ndim and output.shape[0] == size:
        return output[: batch.valid]
    return output


def _update(figures: _OutputFigures, name: str, expected: object, got: object) -> None:
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray) or expected.shape != got.shape:
        return  # sequences, and outputs whose length depends on the values: no distance is defined
    if expected.dtype.kind == "f":
        if np.isfinite(expected).all() and not np.isfinite(got).all():
            raise EngineError(
                f"the quantized model returns NaN or Inf in output {name!r}",
                hint="Exclude the nodes with the lowest SQNR, or use percentile calibration.",
                output=name,
            )
        figures.distance.update(expected, got)
    figures.agreement.update(expected, got)


def _rounded(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in metrics.items()}


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _fidelity(figures: Mapping[str, _OutputFigures], samples: int, source: str) -> Fidelity:
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
        source="evaluation" if source == "evaluation" else "calibration",
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
    others: Mapping[str, tuple[Session, Sequence[str]]] | None = None,
) -> LayerDistances:
    """SQNR of inner tensors.

    Args:
        reference: float model with the first names of ``pairs`` as outputs.
        quantized: quantized model with the second names as outputs.
        pairs: by layer name: tensor of the float model, tensor of the quantized model.
        data: samples to measure on.
        inputs: the models' inputs.
        limit: samples to run.
        run: told of progress.
        others: more quantized models to measure on the same samples, each with the layers that count; their outputs
            are those of ``quantized``, or fewer.

    Returns:
        SQNR in dB by layer name, of the quantized model and of each other one.
    """
    sessions = {"": (quantized, list(pairs)), **(others or {})}
    distances = {name: {layer: Distance() for layer in layers} for name, (_, layers) in sessions.items()}
    wanted = list({a: None for a, _ in pairs.values()})
    size = choose_batch_size(inputs, data, 1)
    total = min(limit, data.samples)
    done = 0
    for batch in data.batches(inputs, size, limit=limit):
        run.check()
        expected = dict(zip(wanted, reference.run(batch.feeds, wanted), strict=True))
        for name, (session, layers) in sessions.items():
            twins = list({pairs[layer][1]: None for layer in layers})
            got = dict(zip(twins, session.run(batch.feeds, twins), strict=True))
            for layer in layers:
                a, b = pairs[layer]
                if expected[a].shape == got[b].shape:
                    distances[name][layer].update(expected[a], got[b])
        done += batch.valid
        run.progress("layers", done, total, "samples")
    found = {
        name: {layer: _round(distance.sqnr_db, 3) for layer, distance in of_model.items()}
        for name, of_model in distances.items()
    }
    return LayerDistances(found.pop(""), found)


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
