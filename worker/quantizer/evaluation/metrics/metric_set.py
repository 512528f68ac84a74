"""The metrics of a config: bound to a model's outputs once, then measured on any model with these outputs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import EVALUATION_POINTER, FUNCTION_HINT, check_evaluation, find_output
from service.contracts.metrics import FunctionMetric, GraphMetric, Metric, MetricFacts, TopKMetric, WordErrorRate
from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset, SampleBatch, choose_batch_size
from worker.quantizer.data.ragged import pieces
from worker.quantizer.evaluation.contributions import Contributions
from worker.quantizer.evaluation.metrics.base import Array, Arrays, Meter, MetricBatch, UnfitError, finite
from worker.quantizer.evaluation.metrics.classes import Accuracy, FScore, IntersectionOverUnion, TopK
from worker.quantizer.evaluation.metrics.custom import FunctionMeter, GraphMeter, GraphProgram, MetricFunction
from worker.quantizer.evaluation.metrics.detection import AveragePrecision, BoxAgreementRate, ScoreShift
from worker.quantizer.evaluation.metrics.distances import FidelityMeter
from worker.quantizer.evaluation.metrics.sequences import PerplexityMeter, WordErrors
from worker.quantizer.evaluation.metrics.values import (
    Correlation,
    Determination,
    MeanError,
    RankCorrelation,
)
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.session import Session

# Each takes the metric; one given as a graph or as a function has a meter made of that.
METERS: dict[str, Callable[[Any], Meter]] = {
    "top1": TopK,
    "top5": TopK,
    "accuracy_at_k": TopK,
    "per_class_accuracy": TopK,
    "mean_iou": IntersectionOverUnion,
    "f1": FScore,
    "precision": FScore,
    "recall": FScore,
    "map": AveragePrecision,
    "box_agreement": BoxAgreementRate,
    "confidence_shift": ScoreShift,
    "rmse": MeanError,
    "mae": MeanError,
    "r2": Determination,
    "pearson": Correlation,
    "spearman": RankCorrelation,
    "word_error_rate": WordErrors,
    "perplexity": PerplexityMeter,
    "agreement": FidelityMeter,
    "cosine": FidelityMeter,
    "sqnr": FidelityMeter,
    "psnr": FidelityMeter,
    "l2": FidelityMeter,
    "kl": FidelityMeter,
}
_HINT = "Name the output and the array that belong together, and look up the metric's shapes at /docs."
_LABEL_BLOCK = 256


@dataclass(frozen=True)
class _Bound:
    """One metric with its meters' maker, and the outputs and arrays that it reads, by place."""

    metric: Metric
    make: Callable[[], Meter]
    pointer: str
    outputs: dict[str, str]
    reference: dict[str, str]
    arrays: dict[str, str | None]

    @contextmanager
    def faults(self) -> Iterator[None]:
        """A meter's complaint as a typed error that points into the config.

        Raises:
            InvalidConfigError: naming the metric.
        """
        try:
            yield
        except UnfitError as fault:
            raise InvalidConfigError(
                f"{self.metric.name}: {fault.message}", pointer=f"{self.pointer}/{fault.place}", hint=_HINT
            ) from None

    def seen(self, batch: SampleBatch, outputs: Arrays, reference: Arrays | None) -> MetricBatch:
        """The batch by the metric's places."""
        axis = int(isinstance(self.metric, WordErrorRate) and self.metric.time_first)
        cut = {
            place: batch.cut(outputs[name], axis if place == "output" else 0) for place, name in self.outputs.items()
        }
        twins = {place: batch.cut((reference or outputs)[name], axis) for place, name in self.reference.items()}
        return MetricBatch(cut, {place: batch.arrays[name] for place, name in self.arrays.items()}, batch.valid, twins)


class Metrics:
    """What ``spec`` declares, for models with these outputs; top1 and top5 where it declares nothing.

    Args:
        spec: metrics and gate.
        outputs: of the models.
        graphs: files of uploaded models that are metrics, by id.
        functions: of the caller that are metrics, by name.
        threads: for metrics given as graphs.
        pointer: of ``spec`` in the config's document.

    Raises:
        InvalidConfigError: a metric names an output that is not there, its graph cannot be used, or its function was
            not handed over.
    """

    def __init__(
        self,
        spec: EvaluationSpec,
        outputs: Sequence[TensorInfo],
        *,
        graphs: Mapping[str, Path] | None = None,
        functions: Mapping[str, MetricFunction] | None = None,
        threads: int = 1,
        pointer: str = EVALUATION_POINTER,
    ) -> None:
        self.spec = spec
        self._outputs = tuple(outputs)
        self._pointer = pointer
        self._programs: list[GraphProgram] = []
        self._functions = functions or {}
        check_evaluation(spec, outputs=self._outputs, data=None, pointer=pointer)
        self._bound = [
            self._bind(metric, graphs or {}, threads, f"{pointer}/metrics/{k}") for k, metric in enumerate(spec.metrics)
        ]

    @property
    def primary(self) -> str:
        """Name of the metric that stands for the others."""
        return self.spec.primary

    def facts(self, name: str) -> MetricFacts:
        """Unit and direction of a metric.

        Raises:
            KeyError: it is not measured.
        """
        return self.spec.facts_of(name)

    @property
    def arrays(self) -> tuple[str | None, ...]:
        """What ``OpenDataset.batches`` has to hand out: names of arrays, None being the labels."""
        return tuple(dict.fromkeys(name for bound in self._bound for name in bound.arrays.values()))

    def class_labels(self, outputs: Sequence[str]) -> dict[str, str | None]:
        """The first output and those whose decisions are judged, each with the array of its labels; None: the labels.

        Args:
            outputs: names of all.
        """
        judged = [
            (bound.outputs["output"], bound.arrays["labels"])
            for bound in self._bound
            if isinstance(bound.metric, TopKMetric)
        ]
        # of two metrics of one output the first one wins
        return {**dict.fromkeys(outputs[:1]), **dict(reversed(judged))}

    def check(self, data: OpenDataset) -> None:
        """Make sure that ``data`` holds what the metrics and the gate read.

        Raises:
            InvalidConfigError: one problem per missing or unfit array.
        """
        check_evaluation(self.spec, outputs=self._outputs, data=data.summary, pointer=self._pointer)
        for program in self._programs:
            program.check(data.summary)

    def fed_by(self, data: OpenDataset) -> bool:
        """True if ``data`` holds every array that the metrics read."""
        return all(data.stored(name) is not None for name in self.arrays)

    @property
    def judges_parts(self) -> bool:
        """True if the metric that stands for the others has a value over a part of the samples, too."""
        return not any(bound.metric.WHOLE for bound in self._bound[:1])

    def probe(self, session: Session, data: OpenDataset, inputs: Sequence[TensorInfo], run: Run, *, role: str) -> None:
        """Try the metrics on one batch of the float model, and on all labels, before any work is done.

        Args:
            session: the float model.
            data: holds what the metrics read.
            inputs: the model's.
            run: asked whether to stop.
            role: the data in words.

        Raises:
            InvalidConfigError: an output or a label does not fit its metric.
        """
        if not self._bound:
            return
        try:
            self._probe(session, data, inputs, run)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"{role}: {error.detail}", errors=error.errors, hint=error.hint) from None

    def _probe(self, session: Session, data: OpenDataset, inputs: Sequence[TensorInfo], run: Run) -> None:
        found = self.start()
        # Where outputs are as long as samples, those of the longest are what any label may name.
        size, largest = choose_batch_size(inputs, data, 1), data.largest(inputs)
        batch = next(iter(data.batches(inputs, size, samples=[largest], arrays=self.arrays)))
        names = [tensor.name for tensor in self._outputs]
        found.update(batch, dict(zip(names, session.run(batch.feeds, names, numbers=batch.numbers), strict=True)))
        for labels in _blocks(data, self.arrays):
            run.check()
            found.check(labels)

    def start(self, *, part: bool = False) -> MetricSet:
        """A new measurement; with ``part`` it is of a part of the samples, without what is defined over all only."""
        return MetricSet([bound for bound in self._bound if not (part and bound.metric.WHOLE)], bare=bool(self._bound))

    def _bind(self, metric: Metric, graphs: Mapping[str, Path], threads: int, pointer: str) -> _Bound:
        names = [tensor.name for tensor in self._outputs]
        if isinstance(metric, GraphMetric):
            program = GraphProgram(metric, graphs, outputs=self._outputs, threads=threads, pointer=pointer)
            self._programs.append(program)
            sources: dict[str, dict[str, str | None]] = {"output": {}, "reference": {}, "array": {}}
            for name, feed in program.feeds.items():
                sources[feed.source][name] = feed.name
            return _Bound(
                metric,
                lambda: GraphMeter(program),
                pointer,
                {name: str(of) for name, of in sources["output"].items()},
                {name: str(of) for name, of in sources["reference"].items()},
                sources["array"],
            )
        make = self._maker(metric, pointer)
        outputs = {place: str(find_output(ref, names)) for place, ref in metric.output_refs().items()}
        return _Bound(
            metric,
            make,
            pointer,
            outputs,
            outputs if metric.facts.against_float else {},
            {place: ref.array for place, ref in metric.label_refs().items()},
        )

    def _maker(self, metric: Metric, pointer: str) -> Callable[[], Meter]:
        if not isinstance(metric, FunctionMetric):
            maker = METERS[metric.kind]
            return lambda: maker(metric)
        function = self._functions.get(metric.name)
        if function is None:
            raise InvalidConfigError(
                f"{metric.name}: no Python function of this name was handed over",
                pointer=f"{pointer}/kind",
                hint=FUNCTION_HINT,
            )
        return lambda: FunctionMeter(metric, function)


class MetricSet:
    """Measures one model: takes its outputs batch by batch, gives {name: value}.

    Made by ``Metrics.start``.
    """

    def __init__(self, bound: Sequence[_Bound], *, bare: bool = False) -> None:
        self._meters = [(entry, entry.make()) for entry in bound]
        self._default = None if bound or bare else Accuracy()

    def update(
        self, batch: SampleBatch, outputs: Mapping[str, Any], reference: Mapping[str, Any] | None = None
    ) -> None:
        """Take in one batch.

        Args:
            batch: with the arrays that ``Metrics.arrays`` names.
            outputs: of the model that is measured, by name, with the samples that fill up.
            reference: of the float model; None if that is the one measured.

        Raises:
            InvalidConfigError: an output or an array does not fit its metric.
        """
        if self._default is not None:
            self._default.take(batch, outputs)
        for bound, meter in self._meters:
            if reference is None and bound.metric.facts.against_float:
                continue
            with bound.faults():
                meter.update(bound.seen(batch, outputs, reference))

    def check(self, labels: Mapping[str | None, Array]) -> None:
        """Look at labels by name, without outputs; see ``Meter.check``.

        Raises:
            InvalidConfigError: a label that the model cannot meet.
        """
        for bound, meter in self._meters:
            with bound.faults():
                meter.check({place: labels[name] for place, name in bound.arrays.items()})

    @property
    def values(self) -> dict[str, float]:
        """By name of the metric; what is undefined is left out."""
        if self._default is not None:
            return {name: rounded(value, "%") for name, value in self._default.metrics.items()}
        found = {}
        for bound, meter in self._meters:
            with bound.faults():
                value = meter.value()
            if value is not None and finite(value) is not None:
                found[bound.metric.name] = rounded(value, bound.metric.facts.unit)
        return found

    @property
    def contributions(self) -> dict[str, Contributions]:
        """What each sample adds, by name of the metric; of those that have a value and tell it."""
        if self._default is not None:
            return dict(self._default.contributions)
        known = self.values
        found = {bound.metric.name: meter.contributions for bound, meter in self._meters}
        return {name: each for name, each in found.items() if each is not None and name in known}

    @property
    def details(self) -> dict[str, dict[str, float]]:
        """Figures behind the values, by name of the metric; those without any are left out."""
        told = {}
        for bound, meter in self._meters:
            unit = bound.metric.facts.unit
            found = {word: rounded(value, unit) for word, value in meter.details().items() if finite(value) is not None}
            if found:
                told[bound.metric.name] = found
        return told

    @property
    def undefined(self) -> dict[str, str]:
        """Why metrics that were measured have no value, by name."""
        told = {}
        for bound, meter in self._meters:
            value = meter.value()
            if (value is None or finite(value) is None) and meter.undefined is not None:
                told[bound.metric.name] = meter.undefined
        return told

    @property
    def labels_used(self) -> bool:
        """Without declared metrics: False if the first output classifies nothing that the labels speak of."""
        return self._default is None or self._default.fits


def _blocks(data: OpenDataset, arrays: Collection[str | None]) -> Iterator[dict[str | None, Array]]:
    """All of these arrays, in blocks of samples that mix no shapes."""
    sources = {name: source for name in arrays if (source := data.stored(name)) is not None}
    with ExitStack() as opened:
        readers = {name: opened.enter_context(closing(source.open())) for name, source in sources.items()}
        for _, count in pieces(sources.values(), 0, data.samples if readers else 0, _LABEL_BLOCK):
            yield {name: reader.read(count) for name, reader in readers.items()}


def rounded(value: float, unit: str) -> float:
    """To what means something: four places for percent and dB, seven digits for what may be of any size."""
    return round(value, 4) if unit in ("%", "dB") else float(f"{value:.7g}")


def metric_words(name: str, values: Sequence[float | None], unit: str) -> str:
    """A metric of several models in words: ``top-1 89.27 -> 88.90 %``; None has no word."""
    shown = {"top1": "top-1", "top5": "top-5"}.get(name, name)
    form = ".2f" if unit in ("%", "dB") else ".4g"
    told = " -> ".join(f"{value:{form}}" for value in values if value is not None)
    return f"{shown} {told} {unit}".rstrip()
