"""Metrics by what they judge: classes, values, detections, sequences."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from service.contracts.base import Contract
from service.contracts.metrics.base import ArrayName, Labelled, LabelRef, MetricBase, MetricFacts, OfOutput, OutputRef

Average = Literal["macro", "micro", "weighted"]


class ClassMetric(Labelled):
    """A metric of class numbers. Labels have the output's shape without its class axis, or hold ones besides.

    The output may also hold the class numbers themselves.
    """

    class_axis: int | None = Field(
        default=None, ge=1, le=7, description="Axis of the classes; null: the last, of [n, class, height, width] 1."
    )
    ignore_index: int | None = Field(default=None, description="Label of what does not count.")


class TopKMetric(ClassMetric):
    """Share of labels that are among the k classes of the highest scores. Ties go to the smaller class number."""

    @property
    def rank(self) -> int:
        """The k."""
        raise NotImplementedError


class Top1(TopKMetric):
    """Share of correct decisions."""

    kind: Literal["top1"] = "top1"

    @property
    def rank(self) -> int:
        """The k."""
        return 1


class Top5(TopKMetric):
    """Share of labels among the first five."""

    kind: Literal["top5"] = "top5"

    @property
    def rank(self) -> int:
        """The k."""
        return 5


class AccuracyAtK(TopKMetric):
    """Share of labels among the first ``k``."""

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
    """Accuracy of every class that occurs in the labels; all of them are told in the report's details."""

    kind: Literal["per_class_accuracy"] = "per_class_accuracy"
    k: int = Field(default=1, ge=1, le=10_000, description="As of accuracy_at_k.")
    reduce: Literal["mean", "worst"] = Field(
        default="mean", description="How the classes are reduced to the metric's value."
    )

    @property
    def rank(self) -> int:
        """The k."""
        return self.k


class MeanIoU(ClassMetric):
    """Intersection over union of segmentation maps: mean over the classes that occur in the labels or the output."""

    kind: Literal["mean_iou"] = "mean_iou"


class CountedMetric(ClassMetric):
    """A metric of true and false positives and negatives."""

    average: Average = Field(
        default="macro",
        description=(
            "macro: mean over the classes that occur; micro: all decisions together; weighted: mean by the number of "
            "labels."
        ),
    )
    positive_class: int | None = Field(
        default=None, ge=0, description="Judge this class alone, instead of an average over all."
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
    """Share of the decisions for a class that are right; 0 where there are none."""

    kind: Literal["precision"] = "precision"


class Recall(CountedMetric):
    """Share of a class's labels that were decided so; 0 where there are none."""

    kind: Literal["recall"] = "recall"


class RegressionMetric(Labelled):
    """A metric of predicted numbers; targets have the output's shape, ones aside."""

    INTEGER_LABELS: ClassVar[bool] = False


class RMSE(RegressionMetric):
    """Root of the mean square error, in the target's unit."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower")
    kind: Literal["rmse"] = "rmse"


class MAE(RegressionMetric):
    """Mean absolute error, in the target's unit."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower")
    kind: Literal["mae"] = "mae"


class R2(RegressionMetric):
    """Coefficient of determination: 1 for exact, 0 for no better than the targets' mean, below 0 for worse.

    1 - sum (x - y)^2 / sum (y - mean y)^2; mean over the output's columns if it has several.
    """

    FACTS: ClassVar[MetricFacts] = MetricFacts("")
    kind: Literal["r2"] = "r2"


class Pearson(RegressionMetric):
    """Linear correlation with the target in [-1, 1]; mean over the output's columns if it has several."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("")
    kind: Literal["pearson"] = "pearson"


class Spearman(RegressionMetric):
    """Pearson's correlation of the ranks, equal values sharing theirs. Keeps every value in memory."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("")
    kind: Literal["spearman"] = "spearman"


class FidelityMetric(OfOutput):
    """Nearness of an output to the float model's. Needs no labels; has no value for the float model itself."""


class Agreement(FidelityMetric):
    """Share of positions where both models decide alike."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("%", "higher", against_float=True, ideal=100.0)
    kind: Literal["agreement"] = "agreement"


class Cosine(FidelityMetric):
    """Cosine of the angle between both outputs, over all values."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "higher", against_float=True, ideal=1.0)
    kind: Literal["cosine"] = "cosine"


class SQNR(FidelityMetric):
    """10 log10(sum x^2 / sum (x - x~)^2); 200 dB stands for identical outputs."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("dB", "higher", against_float=True)
    kind: Literal["sqnr"] = "sqnr"


class PSNR(FidelityMetric):
    """10 log10(max |x|^2 / mean (x - x~)^2); 200 dB stands for identical outputs."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("dB", "higher", against_float=True)
    kind: Literal["psnr"] = "psnr"


class KL(FidelityMetric):
    """Mean of sum p log(p / p~) over all rows, p the soft-maxed scores of the float model."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("nats", "lower", against_float=True, ideal=0.0)
    kind: Literal["kl"] = "kl"


class L2(FidelityMetric):
    """||x - x~|| / ||x|| over all values."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower", against_float=True, ideal=0.0)
    kind: Literal["l2"] = "l2"


BoxFormat = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
_Overlap = Annotated[float, Field(gt=0.0, le=1.0)]
COCO_OVERLAPS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)


class BoxLabels(Contract):
    """The arrays that hold the true boxes."""

    boxes: ArrayName = Field(default="boxes", description="Array [n, most, 4].")
    classes: ArrayName = Field(default="classes", description="Integers [n, most]; a negative one fills up.")
    counts: ArrayName | None = Field(
        default=None, description="Array [n] with the number of boxes of each sample, instead of negative classes."
    )
    box_format: BoxFormat = "xyxy"


class MeanAveragePrecision(MetricBase):
    """COCO's average precision: mean over the overlaps and over the classes that occur in the labels.

    101-point interpolation, areas of all sizes, no crowds (Lin et al. 2014; pycocotools' AP).
    """

    kind: Literal["map"] = "map"
    boxes: OutputRef = Field(description="Output [n, k, 4], after non-maximum suppression.")
    scores: OutputRef = Field(description="Output [n, k], or [n, k, class] if there is no output of classes.")
    classes: OutputRef | None = Field(default=None, description="Output [n, k] of class numbers.")
    counts: OutputRef | None = Field(default=None, description="Output [n] with the number of valid boxes.")
    labels: BoxLabels = Field(default_factory=BoxLabels)
    box_format: BoxFormat = Field(
        default="xyxy", description="Of the output: corners, corner and size, or center and size."
    )
    box_scale: tuple[float, float] = Field(
        default=(1.0, 1.0), description="Factors of x and y that bring the output to the labels' unit."
    )
    class_offset: int = Field(default=0, description="Added to the output's class numbers.")
    min_score: float = Field(default=0.0, description="Boxes at or below it are none.")
    max_detections: int = Field(default=100, ge=1, le=10_000, description="Per sample and class, the best first.")
    overlaps: tuple[_Overlap, ...] = Field(
        default=COCO_OVERLAPS, min_length=1, max_length=100, description="IoU from which on a box is found."
    )

    def output_refs(self) -> dict[str, int | str]:
        """Boxes, scores, and what else there is."""
        found = {"boxes": self.boxes, "scores": self.scores, "classes": self.classes, "counts": self.counts}
        return {place: ref for place, ref in found.items() if ref is not None}

    def label_refs(self) -> dict[str, LabelRef]:
        """Boxes, classes, and their numbers."""
        found = {
            "labels/boxes": LabelRef(self.labels.boxes, False),
            "labels/classes": LabelRef(self.labels.classes, True),
        }
        if self.labels.counts is not None:
            found["labels/counts"] = LabelRef(self.labels.counts, True)
        return found


class WordErrorRate(Labelled):
    """Edits (insertions, deletions, substitutions) over the number of words in the labels, in percent.

    The output holds scores [n, time, class], or class numbers [n, time]; labels hold class numbers [n, words]. Every
    class number is a word of its own unless ``separator`` says where words end.
    """

    FACTS: ClassVar[MetricFacts] = MetricFacts("%", "lower")
    kind: Literal["word_error_rate"] = "word_error_rate"
    decode: Literal["ctc_greedy", "argmax"] = Field(
        default="ctc_greedy",
        description="ctc_greedy: the best class of each step, repeats merged, blanks left out; argmax: as it is.",
    )
    blank: int = Field(default=0, ge=0, description="The class that ctc_greedy leaves out.")
    padding: int = Field(default=-1, description="Number that fills short sequences, in labels and decoded outputs.")
    separator: int | None = Field(default=None, ge=0, description="The class between words, for outputs of letters.")
    time_first: bool = Field(default=False, description="The output is [time, n, class].")
    label_lengths: ArrayName | None = Field(
        default=None, description="Array [n] with the length of each label sequence, instead of padding."
    )
    output_lengths: OutputRef | None = Field(
        default=None, description="Output [n] with the number of steps of each sample; null: all."
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
    """exp of the mean negative log probability of the labels. The output holds scores [n, ..., class]."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower")
    kind: Literal["perplexity"] = "perplexity"
    scores: Literal["logits", "log_probabilities", "probabilities"] = Field(
        default="logits", description="What the output contains."
    )
    shift: bool = Field(
        default=False, description="Position t is judged by the label at t + 1, for labels that are the input's tokens."
    )
    ignore_index: int = Field(default=-100, description="Label of what does not count.")
