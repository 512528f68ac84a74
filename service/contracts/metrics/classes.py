"""Metrics of decisions for classes: of samples, of positions in a sequence, of pixels."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from service.contracts.metrics.base import Labelled, LabelRef

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
    reduce: Literal["mean", "worst"] = Field(default="mean", description="Which of them is the metric's value.")

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
            "Every score above it is a yes of its own: labels are 0 and 1 and of the output's shape, classes on the "
            "class axis, or of one class if it has none. Null: the class of the highest score."
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
