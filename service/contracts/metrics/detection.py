"""Mean average precision of detected boxes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.metrics.base import ArrayName, LabelRef, MetricBase, OutputRef

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
