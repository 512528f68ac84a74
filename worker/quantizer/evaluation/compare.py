"""Runs the float and the quantized model side by side over a dataset, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from service.contracts.costs import spread
from service.contracts.errors import EngineError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.report import Fidelity, Interval, OutputFidelity
from worker.quantizer.data import SampleBatch
from worker.quantizer.evaluation.certainty import interval_of
from worker.quantizer.evaluation.contributions import DenseSums
from worker.quantizer.evaluation.decisions import OutputDecisions, metric_columns
from worker.quantizer.evaluation.loss import LossEstimate
from worker.quantizer.evaluation.metrics import AgreementRate, Distance, Distances, Metrics, MetricSet
from worker.quantizer.evaluation.metrics.distances import power_sums, sqnr_of
from worker.quantizer.evaluation.side_by_side import FloatReference, Source, side_by_side
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import Session

_EVALUATION_BATCH = 8
# When to guess for the first time whether the outputs are far apart, and what counts as that.
_FIRST_LOOK_SAMPLES, _POOR_AGREEMENT_PERCENT, _POOR_SQNR_DB = 100, 95.0, 10.0
# Of intervals, where the gate asks for none.
DEFAULT_CONFIDENCE = 0.95


class NoLongerFiniteError(EngineError):
    """An output of the quantized model is NaN or Inf where the float model's is finite.

    Args:
        output: its name.
        sample: the first such one.
    """

    def __init__(self, output: str, sample: int) -> None:
        super().__init__(
            f"the quantized model returns NaN or Inf in output {output!r}",
            hint="Exclude the nodes with the lowest SQNR, or use percentile calibration.",
            output=output,
            sample=sample,
        )
        self.sample = sample


@dataclass
class _OutputFigures:
    distance: Distance = field(default_factory=Distance)
    powers: DenseSums = field(default_factory=lambda: DenseSums(sqnr_of))
    agreement: AgreementRate = field(default_factory=AgreementRate)


@dataclass(frozen=True)
class ModelComparison:
    """Figures of a side-by-side run."""

    float_set: MetricSet  # the metrics of the float model
    quantized_set: MetricSet  # those of its twin
    fidelity: Fidelity  # distance of the outputs, and what is lost
    labels_used: bool  # False if no metric is declared and the first output classifies nothing
    non_finite: tuple[str, ...] = ()  # outputs of the float model that hold NaN or Inf
    # of the outputs that give one class per sample, by name: the first, and those of shares of samples
    decisions: Mapping[str, OutputDecisions] = field(default_factory=dict)
    confidence: float = DEFAULT_CONFIDENCE  # of all intervals

    @property
    def samples(self) -> dict[str, np.ndarray]:
        """Sample by sample: what both models decide by their first output, where that gives a class for each, and as
        ``metric.NAME`` what it says of the quantized model's metrics, where these tell samples apart.
        """
        first = next(iter(self.decisions.values()), None)
        decided = {} if first is None else first.arrays
        told = metric_columns(self.quantized_set.contributions, self.fidelity.samples) if self.labels_used else {}
        if not told:
            return decided
        index = {"index": np.arange(self.fidelity.samples, dtype=np.int32)}
        return {**index, **decided, **{f"metric.{name}": column for name, column in told.items()}}

    @property
    def tells_classes_apart(self) -> bool:
        """False where the float model decides for one class on all samples, as what is no classifier often does."""
        decided = self.samples.get("float_class")
        return decided is None or len(decided) < 2 or bool((decided != decided[0]).any())

    @property
    def float_metrics(self) -> dict[str, float]:
        """By name."""
        return self.float_set.values if self.labels_used else {}

    @property
    def quantized_metrics(self) -> dict[str, float]:
        """By name."""
        return self.quantized_set.values if self.labels_used else {}


def compare(
    reference: FloatReference,
    quantized: Session,
    *,
    metrics: Metrics | None = None,
    limit: int | None = None,
    run: Run,
    stage: str = "evaluation",
    classes: Collection[str] | None = None,
    deciding: Collection[str] | None = None,
    on_poor: Callable[[], None] | None = None,
) -> ModelComparison:
    """Feed every sample to both models.

    Args:
        reference: float model, and the evaluation (or calibration) set.
        quantized: its twin, with the same outputs.
        metrics: what to measure; None: top1 and top5 of the first output, where there are class labels for it.
        limit: use only the first ``limit`` samples.
        run: told of progress.
        stage: its name there.
        classes: outputs of floats that hold class scores (``class_outputs``), as the first one does that labels fit;
            None: those whose shape allows it.
        deciding: outputs whose loss is told by their decisions (``deciding_outputs``); None: no loss is told.
        on_poor: called once, early on, if the models' first outputs turn out to be far apart.

    Raises:
        EngineError: a model fails to run; NoLongerFiniteError: the quantized model returns NaN or Inf where the float
            model does not.
        InvalidConfigError: an output or a label does not fit a declared metric.
        CanceledError: the run was canceled.
    """
    names = reference.session.output_names
    figures = {name: _OutputFigures() for name in names}
    metrics = metrics or Metrics(EvaluationSpec(), ())
    float_set, quantized_set = metrics.start(), metrics.start()
    labels = metrics.class_labels(names)
    decided = {name: OutputDecisions() for name in labels}
    confidence = metrics.spec.gate.confidence or DEFAULT_CONFIDENCE
    total = reference.data.samples if limit is None else min(limit, reference.data.samples)
    estimate = None if deciding is None else LossEstimate(deciding)
    run.progress(stage, 0, total, "samples")
    done, looked_at = 0, _FIRST_LOOK_SAMPLES
    expected = reference.outputs(run, batch_size=_EVALUATION_BATCH, samples=range(total), arrays=metrics.arrays)
    for twins in side_by_side(quantized, expected, run):
        for name, one, other in twins.pairs():
            _update(figures[name], name, one, other, twins.batch)
            if name in decided:
                decided[name].update(one, other, _labels(twins.batch, labels[name]))
        if estimate is not None:
            estimate.update(twins.pairs())
        float_set.update(twins.batch, twins.expected)
        quantized_set.update(twins.batch, twins.got, twins.expected)
        done += twins.batch.valid
        run.progress(stage, done, total, "samples")
        if on_poor is not None and done >= min(looked_at, total):
            looked_at *= 2
            if _is_poor(figures[names[0]], done):
                on_poor()
                on_poor = None
    labels_used = float_set.labels_used and quantized_set.labels_used
    if classes is not None:
        fitted = names[:1] if labels_used and not metrics.spec.metrics else []
        for name in set(names) - {*classes, *fitted}:
            if figures[name].agreement.only_integers():
                decided.pop(name, None)
    return ModelComparison(
        float_set,
        quantized_set,
        fidelity=_fidelity(figures, done, reference.source, confidence).model_copy(
            update={"loss": None if estimate is None else estimate.words()}
        ),
        labels_used=labels_used,
        non_finite=tuple(name for name, found in figures.items() if found.distance.is_undefined),
        decisions=decided,
        confidence=confidence,
    )


def _is_poor(figures: _OutputFigures, samples: int) -> bool:
    """True if decisions differ often, beyond chance; where nothing is decided, if there is much noise. A guess."""
    agreement, sqnr_db = figures.agreement.percent, figures.distance.sqnr_db
    if agreement is None:
        return sqnr_db is not None and sqnr_db < _POOR_SQNR_DB
    share = _POOR_AGREEMENT_PERCENT / 100.0
    return agreement < 100.0 * (share - 3.0 * math.sqrt(share * (1.0 - share) / samples))


def _labels(batch: SampleBatch, array: str | None) -> np.ndarray | None:
    """The array of this name, or the labels."""
    found = batch.arrays.get(array)
    return batch.labels if array is None and found is None else found


def _update(figures: _OutputFigures, name: str, expected: np.ndarray, got: np.ndarray, batch: SampleBatch) -> None:
    samples = batch.valid
    if expected.dtype.kind == "f":
        if np.isfinite(expected).all() and not np.isfinite(got).all():
            rows = np.argwhere(~np.isfinite(got))
            each = got.ndim > 0 and len(got) == samples
            raise NoLongerFiniteError(name, batch.numbers[int(rows[0, 0]) if each else 0])
        figures.distance.update(expected, got)
        figures.powers.add(power_sums(expected, got, samples), samples=samples)
    figures.agreement.update(expected, got, samples)


def _round(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _rounded(interval: Interval | None, digits: int) -> Interval | None:
    if interval is None:
        return None
    return interval.model_copy(update={"low": round(interval.low, digits), "high": round(interval.high, digits)})


def _fidelity(figures: Mapping[str, _OutputFigures], samples: int, source: Source, confidence: float) -> Fidelity:
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
    worst = next((output.name for output in outputs if ratios and output.sqnr_db == min(ratios)), None)
    hits = figures[outputs[0].name].agreement.hits if outputs else None
    return Fidelity(
        sqnr_interval_db=None if worst is None else _rounded(interval_of(figures[worst].powers, confidence), 3),
        top1_agreement_interval=_rounded(interval_of(hits, confidence), 4) if hits is not None and hits.units else None,
        sqnr_db=min(ratios) if ratios else None,
        cosine=min(cosines) if cosines else None,
        top1_agreement=outputs[0].top1_agreement if outputs else None,
        samples=samples,
        source=source,
        outputs=outputs,
    )


def layer_distances(
    reference: FloatReference,
    quantized: Session,
    pairs: Mapping[str, tuple[str, str]],
    *,
    limit: int,
    run: Run,
    seen: Callable[[str, np.ndarray], None] | None = None,
) -> dict[str, float | None]:
    """SQNR in dB of inner tensors, by layer.

    Args:
        reference: float model with the first names of ``pairs`` as outputs, and the samples to measure on.
        quantized: quantized model with the second names as outputs.
        pairs: by layer name: tensor of the float model, tensor of the quantized model.
        limit: samples to run.
        run: told of progress.
        seen: given, sample by sample, every layer and its tensor of the float model.
    """
    distances = {layer: Distance() for layer in pairs}
    wanted, twins = (list(dict.fromkeys(pair[k] for pair in pairs.values())) for k in (0, 1))
    chosen = spread(reference.data.samples, limit)
    done = 0
    expected = reference.outputs(run, batch_size=1, samples=chosen, names=wanted)
    for pair in side_by_side(quantized, expected, run, outputs=twins):
        for layer, (a, b) in pairs.items():
            one, other = pair.batch.cut(pair.expected[a]), pair.batch.cut(pair.got[b])
            if one.shape == other.shape:
                distances[layer].update(one, other)
            if seen is not None:
                seen(layer, one)
        done += pair.batch.valid
        run.progress("layers", done, len(chosen), "samples")
    return {layer: _round(distance.sqnr_db, 3) for layer, distance in distances.items()}


def worst_distance_db(reference: FloatReference, other: Session, *, limit: int, run: Run) -> float | None:
    """SQNR in dB of the model's worst output over some samples, one by one; None if it is not finite.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    distances = Distances()
    chosen = spread(reference.data.samples, limit)
    for twins in side_by_side(other, reference.outputs(run, batch_size=1, samples=chosen), run):
        distances.update(twins.pairs())
    return distances.worst_db
