"""What config, data and float outputs tell of the outputs that a loss reads: are they scores of classes, and how?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import (
    KL,
    Agreement,
    ClassMetric,
    FunctionMetric,
    GraphMetric,
    Metric,
    Perplexity,
    WordErrorRate,
)
from service.contracts.metrics.kinds import CountedMetric
from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset

Divergence = Literal["kl", "mse"]

# How far rows of probabilities may be from a sum of 1: float16 leaves so much.
_SUM_TOLERANCE = 1e-2
# Without labels and metrics so many columns look like classes; one or two are as often coordinates or a regression.
_LEAST_COLUMNS = 3
FLOATS = {"float16", "bfloat16", "float32", "float64"}


@dataclass(frozen=True)
class OutputFacts:
    """What is known before a network has run."""

    outputs: tuple[TensorInfo, ...]  # of the model, in its order
    metrics: tuple[Metric, ...] = ()  # that the config declares
    labels_name: str | None = None  # of the array of labels; None if there is none
    # largest class number of the labels; None if they are no class numbers, one per sample
    largest_class: int | None = None
    next_tokens: str | None = None  # the output that scores the next token of a text; None: none is known to

    @staticmethod
    def of(outputs: Sequence[TensorInfo], evaluation: EvaluationSpec, data: OpenDataset) -> OutputFacts:
        """Of a model, a config and the data that it is trained on."""
        stored, classes = data.stored(None), data.labels
        return OutputFacts(
            tuple(outputs),
            evaluation.metrics,
            None if stored is None else stored.name,
            None if classes is None else int(classes.max()),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the outputs."""
        return tuple(tensor.name for tensor in self.outputs)

    @property
    def float_outputs(self) -> tuple[str, ...]:
        """Names of the outputs that hold floats."""
        return tuple(tensor.name for tensor in self.outputs if tensor.dtype in FLOATS)

    def classification(self, output: str) -> Metric | None:
        """The first metric that takes ``output`` for scores of classes that exclude each other."""
        return next((metric for metric in self.metrics if self._decides(metric, output)), None)

    def given_axis(self, output: str) -> int | None:
        """The class axis that a metric names for ``output``."""
        found = self.classification(output)
        return found.class_axis if isinstance(found, ClassMetric) else None

    def ignored(self, output: str, labels: str | None) -> int | None:
        """The label that does not count, by the metrics that compare ``output`` with ``labels``."""
        for metric in self.metrics:
            if isinstance(metric, ClassMetric | Perplexity) and self._reads(metric, output):
                same = self._array(metric.labels) == self._array(labels)
                if same and metric.ignore_index is not None:
                    return metric.ignore_index
        return None

    def choose(self, output: str, values: Tensor, axis: int | None, *, labelled: bool) -> tuple[Divergence, str]:
        """The divergence of an output where the config leaves it open, and why that.

        ``values`` are what the float network returns for some samples; ``axis`` is that of its classes, if it has
        several. With ``labelled`` a loss compares the output with class labels.
        """
        if axis is None or values.ndim <= axis:
            return "mse", "it has no scores of several classes"
        metric = self.classification(output)
        if metric is not None:
            return "kl", f"metric {metric.name} reads classes from it"
        if output == self.next_tokens:
            return "kl", "it scores the next token"
        if labelled:
            return "kl", "its classes have labels"
        # what graphs and functions read an output as is not known
        known = (metric for metric in self.metrics if not isinstance(metric, GraphMetric | FunctionMetric))
        judge = next((metric for metric in known if self._reads(metric, output)), None)
        if judge is not None:
            return "mse", f"metric {judge.name} reads numbers from it"
        single = values.numel() == values.shape[0] * values.shape[axis]
        if self.largest_class is not None:
            if output == self.names[0] and single and self.largest_class < values.shape[axis]:
                return "kl", "the dataset's class labels belong to it"
            return "mse", "the dataset's class labels do not belong to it"
        if self.metrics or self.labels_name is not None or values.ndim != 2 or values.shape[1] < _LEAST_COLUMNS:
            return "mse", "nothing shows that it contains class scores"
        if bool(((values >= 0) & (values <= 1)).all()) and not are_probabilities(values, axis):
            return "mse", "it contains shares that do not sum to 1"
        return "kl", f"its {values.shape[1]} columns look like scores of classes"

    def _reads(self, metric: Metric, output: str) -> bool:
        return any(find_output(ref, self.names) == output for ref in metric.output_refs().values())

    def _decides(self, metric: Metric, output: str) -> bool:
        if not isinstance(metric, ClassMetric | Perplexity | WordErrorRate | Agreement | KL):
            return False
        # With a threshold every class is a yes or no of its own.
        if isinstance(metric, CountedMetric) and metric.threshold is not None:
            return False
        return find_output(metric.output, self.names) == output

    def _array(self, name: str | None) -> str | None:
        return None if name == self.labels_name else name


def class_axis(shape: tuple[int, ...], given: int | None) -> int | None:
    """The axis of classes as the metrics see it: the last, of [n, class, height, width] the second; None without one.

    Axes of one at the end are left out, so that [n, class, 1, 1] has its classes on axis 1.
    """
    rank = len(shape)
    if given is None:
        while rank > 2 and shape[rank - 1] == 1:
            rank -= 1
        axis = 1 if rank > 3 else rank - 1
    else:
        axis = given
    return axis if 0 < axis < len(shape) and shape[axis] > 1 else None


def are_probabilities(values: Tensor, axis: int) -> bool:
    """True if the values along ``axis`` are nowhere negative and sum to 1, as behind a Softmax."""
    sums = values.double().sum(dim=axis)
    return bool((values >= 0).all()) and bool(((sums - 1.0).abs() <= _SUM_TOLERANCE).all())
