"""Metrics by what they judge: classes, values, sequences."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from service.contracts.metrics.base import ArrayName, Labelled, LabelRef, MetricFacts, OfOutput, OutputRef

Average = Literal["macro", "micro", "weighted"]


class ClassMetric(Labelled):
    """A classification metric. Labels have the output's shape without its class axis; additional axes of length 1 are
    allowed. The output may also contain class indices.
    """

    class_axis: int | None = Field(
        default=None,
        ge=1,
        le=7,
        description="Axis of the classes; null: the last axis, or axis 1 of [n, class, height, width].",
    )
    ignore_index: int | None = Field(default=None, description="Label value to ignore.")


class TopKMetric(ClassMetric):
    """Share of labels among the k classes with the highest scores. Of equal scores, the lower class index wins."""

    @property
    def rank(self) -> int:
        """The k."""
        raise NotImplementedError


class Top1(TopKMetric):
    """Share of correct predictions."""

    kind: Literal["top1"] = "top1"

    @property
    def rank(self) -> int:
        """The k."""
        return 1


class Top5(TopKMetric):
    """Share of labels among the five classes with the highest scores."""

    kind: Literal["top5"] = "top5"

    @property
    def rank(self) -> int:
        """The k."""
        return 5


class AccuracyAtK(TopKMetric):
    """Share of labels among the ``k`` classes with the highest scores."""

    kind: Literal["accuracy_at_k"] = "accuracy_at_k"
    k: int = Field(ge=1, le=10_000)

    @classmethod
    def default_name(cls, data: dict[str, Any]) -> str:
        """With its k."""
        return f"accuracy_at_{data['k']}" if isinstance(data.get("k"), int) else "accuracy_at_k"

    @property
    def rank(self) -> int:
        """The k."""
        return self.k


class PerClassAccuracy(TopKMetric):
    """Accuracy of every class that occurs in the labels; the report's details list all of them."""

    kind: Literal["per_class_accuracy"] = "per_class_accuracy"
    k: int = Field(
        default=1, ge=1, le=10_000, description="Number of highest-scoring classes considered, as for accuracy_at_k."
    )
    reduce: Literal["mean", "worst"] = Field(
        default="mean", description="How the classes are reduced to the metric's value."
    )

    @property
    def rank(self) -> int:
        """The k."""
        return self.k


class MeanIoU(ClassMetric):
    """Intersection over union of segmentation maps: mean over all classes that occur in the labels or the output."""

    kind: Literal["mean_iou"] = "mean_iou"


class CountedMetric(ClassMetric):
    """A metric of true and false positives and negatives."""

    average: Average = Field(
        default="macro",
        description=(
            "macro: mean over the classes that occur; micro: over all predictions; weighted: mean weighted by "
            "the number of labels."
        ),
    )
    positive_class: int | None = Field(
        default=None, ge=0, description="Compute the metric for this class only instead of an average over all classes."
    )
    threshold: float | None = Field(
        default=None,
        description=(
            "Multi-label: every score above the threshold is a positive decision; labels are 0 and 1 and of "
            "the output's shape, classes on the class axis, or of one class if it has none. Null: the class "
            "of the highest score."
        ),
    )

    @model_validator(mode="after")
    def _one_way(self) -> CountedMetric:
        if self.positive_class is not None and "average" in self.model_fields_set and self.average != "macro":
            raise ValueError("average and positive_class exclude each other")
        return self

    def label_refs(self) -> dict[str, LabelRef]:
        """Class numbers; with a threshold 0 and 1, of any type."""
        return {"labels": LabelRef(self.labels, integer=self.threshold is None)}

    @classmethod
    def default_name(cls, data: dict[str, Any]) -> str:
        """With its average."""
        kind = super().default_name(data)
        if data.get("positive_class") is not None:
            return f"{kind}_class_{data['positive_class']}"
        average = data.get("average", "macro")
        return f"{kind}_{average}" if average in ("macro", "micro", "weighted") else kind


class F1(CountedMetric):
    """Harmonic mean of precision and recall."""

    kind: Literal["f1"] = "f1"


class Precision(CountedMetric):
    """Share of predictions of a class that are correct; 0 if there are none."""

    kind: Literal["precision"] = "precision"


class Recall(CountedMetric):
    """Share of labels of a class that are predicted correctly; 0 if there are none."""

    kind: Literal["recall"] = "recall"


class RegressionMetric(Labelled):
    """A regression metric; targets have the output's shape, except for axes of length 1."""

    INTEGER_LABELS: ClassVar[bool] = False


class RMSE(RegressionMetric):
    """Root mean square error, in the target's unit."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower")
    kind: Literal["rmse"] = "rmse"


class MAE(RegressionMetric):
    """Mean absolute error, in the target's unit."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower")
    kind: Literal["mae"] = "mae"


class R2(RegressionMetric):
    """Coefficient of determination: 1 for exact predictions, 0 for predictions no better than the targets' mean,
    negative for worse ones.

    1 - sum (x - y)^2 / sum (y - mean y)^2; mean over the output's columns if it has several.
    """

    FACTS: ClassVar[MetricFacts] = MetricFacts("")
    kind: Literal["r2"] = "r2"


class Pearson(RegressionMetric):
    """Linear correlation with the target in [-1, 1]; mean over the output's columns if it has several."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("")
    kind: Literal["pearson"] = "pearson"


class Spearman(RegressionMetric):
    """Pearson's correlation of the ranks; equal values share a rank. All values are kept in memory."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("")
    kind: Literal["spearman"] = "spearman"


class FidelityMetric(OfOutput):
    """Similarity of an output to the float model's output. Needs no labels; undefined for the float model itself."""


class Agreement(FidelityMetric):
    """Share of positions where both models predict the same class."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("%", "higher", against_float=True, ideal=100.0)
    kind: Literal["agreement"] = "agreement"


class Cosine(FidelityMetric):
    """Cosine similarity of both outputs, over all values."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "higher", against_float=True, ideal=1.0)
    kind: Literal["cosine"] = "cosine"


class SQNR(FidelityMetric):
    """10 log10(sum x^2 / sum (x - x~)^2); 200 dB means identical outputs."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("dB", "higher", against_float=True)
    kind: Literal["sqnr"] = "sqnr"


class PSNR(FidelityMetric):
    """10 log10(max |x|^2 / mean (x - x~)^2); 200 dB means identical outputs."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("dB", "higher", against_float=True)
    kind: Literal["psnr"] = "psnr"


class KL(FidelityMetric):
    """Mean of sum p log(p / p~) over all rows, where p is the softmax of the float model's scores."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("nats", "lower", against_float=True, ideal=0.0)
    kind: Literal["kl"] = "kl"


class L2(FidelityMetric):
    """||x - x~|| / ||x|| over all values."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower", against_float=True, ideal=0.0)
    kind: Literal["l2"] = "l2"


class WordErrorRate(Labelled):
    """Edits (insertions, deletions, substitutions) divided by the number of words in the labels, in percent.

    The output contains scores [n, time, class] or class indices [n, time]; labels contain class indices [n, words].
    Every class is one word unless ``separator`` is set.
    """

    FACTS: ClassVar[MetricFacts] = MetricFacts("%", "lower")
    kind: Literal["word_error_rate"] = "word_error_rate"
    decode: Literal["ctc_greedy", "argmax"] = Field(
        default="ctc_greedy",
        description="ctc_greedy: highest-scoring class per step, repeats merged, blanks removed; argmax: "
        "highest-scoring class per step.",
    )
    blank: int = Field(default=0, ge=0, description="The blank class that ctc_greedy removes.")
    padding: int = Field(default=-1, description="Padding value of short sequences, in labels and decoded outputs.")
    separator: int | None = Field(
        default=None, ge=0, description="The class that separates words, for outputs of letters."
    )
    time_first: bool = Field(default=False, description="True if the output is [time, n, class].")
    label_lengths: ArrayName | None = Field(
        default=None, description="Array [n] with the length of each label sequence, instead of padding."
    )
    output_lengths: OutputRef | None = Field(
        default=None, description="Output [n] with the number of valid steps per sample; null: all steps."
    )

    def output_refs(self) -> dict[str, int | str]:
        """The scores, and their lengths."""
        lengths = {} if self.output_lengths is None else {"output_lengths": self.output_lengths}
        return {**super().output_refs(), **lengths}

    def label_refs(self) -> dict[str, LabelRef]:
        """The words, and their number."""
        lengths = {} if self.label_lengths is None else {"label_lengths": LabelRef(self.label_lengths, True)}
        return {**super().label_refs(), **lengths}


class Perplexity(Labelled):
    """exp of the mean negative log probability of the labels. The output contains scores [n, ..., class]."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower")
    kind: Literal["perplexity"] = "perplexity"
    scores: Literal["logits", "log_probabilities", "probabilities"] = Field(
        default="logits", description="What the output contains."
    )
    shift: bool = Field(
        default=False, description="Compare position t with the label at t + 1, if the labels are the input tokens."
    )
    ignore_index: int = Field(default=-100, description="Label value to ignore.")
