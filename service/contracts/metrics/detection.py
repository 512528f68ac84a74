"""Metrics of detectors: boxes against labels, and against those of the float model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.contracts.base import Contract
from service.contracts.metrics.base import ArrayName, LabelRef, MetricBase, MetricFacts, OutputRef
from service.contracts.validation import BELOW

BoxFormat = Literal["xyxy", "yxyx", "xywh", "cxcywh"]
Decoding = Literal["none", "yolox", "yolov5", "yolov8"]
COCO_OVERLAPS = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95)
# IoU from which on boxes of a raw output are taken for the same object, where nothing is given (YOLOX's).
RAW_NMS_OVERLAP = 0.65
_Overlap = Annotated[float, Field(gt=0.0, le=1.0)]
_Length = Annotated[int, Field(ge=1, le=65_536)]


class BoxLabels(Contract):
    """The arrays with the ground-truth boxes."""

    boxes: ArrayName = Field(default="boxes", description="Array [n, max, 4].")
    classes: ArrayName = Field(default="classes", description="Integer array [n, max]; negative values are padding.")
    counts: ArrayName | None = Field(
        default=None,
        description="Array [n] with the number of boxes per sample, as an alternative to negative classes.",
    )
    crowds: ArrayName | None = Field(
        default=None,
        description="Integer array [n, max]; a box with a value other than 0 is to be ignored, like COCO's crowds: "
        "detections inside it count neither as correct nor as wrong.",
    )
    box_format: BoxFormat = "xyxy"


class DetectionMetric(MetricBase):
    """A metric of boxes, scores and classes."""

    boxes: OutputRef = Field(description="Output [n, k, 4] of boxes; with `decode`, the raw output.")
    scores: OutputRef | None = Field(
        default=None,
        description="Output [n, k]; or [n, k, class] if there is no class output. Required without `decode`.",
    )
    classes: OutputRef | None = Field(default=None, description="Output [n, k] of class indices.")
    counts: OutputRef | None = Field(default=None, description="Output [n] with the number of valid boxes.")
    decode: Decoding = Field(
        default="none",
        description="What the output `boxes` contains. none: boxes. yolox: [n, k, 5 + class], center and size relative "
        "to the cells of a grid (logarithm of the size), then objectness and class scores in [0, 1]. yolov5: "
        "[n, k, 5 + class], center, size, objectness and class scores. yolov8: [n, 4 + class, k], center, size and "
        "class scores.",
    )
    strides: tuple[_Length, ...] = Field(
        default=(8, 16, 32), min_length=1, max_length=16, description="Strides of the grids of `yolox`, in order."
    )
    image_size: tuple[_Length, _Length] | None = Field(
        default=None, description="Height and width of the model's input, for the grids of `yolox`; null: a square."
    )
    nms_overlap: _Overlap | None = Field(
        default=None,
        description="IoU above which non-maximum suppression drops the box with the lower score of two of one class. "
        f"Null: {RAW_NMS_OVERLAP} with `decode`, otherwise no suppression.",
    )
    box_format: BoxFormat = Field(
        default="xyxy",
        description="Format of the output boxes: two corners, corner and size, or center and size. Not used with "
        "`decode`.",
    )
    box_scale: tuple[float, float] = Field(
        default=(1.0, 1.0), description="Factors for x and y that convert the output to the unit of the labels."
    )
    class_offset: int = Field(default=0, description="Offset added to the class indices of the output.")
    min_score: float = Field(default=0.0, description="Boxes with this score or a lower one are ignored.")
    max_detections: int = Field(
        default=100, ge=1, le=10_000, description="Maximum number of boxes per sample and class, highest scores first."
    )

    @model_validator(mode="after")
    def _scores_once(self) -> DetectionMetric:
        if self.decode == "none" and self.scores is None:
            raise _wrong("/scores", "is missing: name the output with the scores, or give decode")
        for place in ("scores", "classes", "counts"):
            if self.decode != "none" and getattr(self, place) is not None:
                raise _wrong(f"/{place}", f"is not used with decode {self.decode!r}: everything is in the output boxes")
        return self

    @property
    def suppression(self) -> float | None:
        """IoU of non-maximum suppression; None: there is none."""
        return RAW_NMS_OVERLAP if self.nms_overlap is None and self.decode != "none" else self.nms_overlap

    def output_refs(self) -> dict[str, int | str]:
        """Boxes, scores, and what else there is."""
        found = {"boxes": self.boxes, "scores": self.scores, "classes": self.classes, "counts": self.counts}
        return {place: ref for place, ref in found.items() if ref is not None}


class MeanAveragePrecision(DetectionMetric):
    """COCO average precision: mean over the IoU thresholds and over the classes that occur in the labels. 101-point
    interpolation, areas of all sizes (Lin et al. 2014; AP of pycocotools).
    """

    kind: Literal["map"] = "map"
    labels: BoxLabels = Field(default_factory=BoxLabels)
    overlaps: tuple[_Overlap, ...] = Field(
        default=COCO_OVERLAPS,
        min_length=1,
        max_length=100,
        description="IoU thresholds; a box with at least this IoU counts as found.",
    )

    def label_refs(self) -> dict[str, LabelRef]:
        """Boxes, classes, and their numbers."""
        found = {
            "labels/boxes": LabelRef(self.labels.boxes, False),
            "labels/classes": LabelRef(self.labels.classes, True),
        }
        for place, array in (("counts", self.labels.counts), ("crowds", self.labels.crowds)):
            if array is not None:
                found[f"labels/{place}"] = LabelRef(array, True)
        return found


class MatchedBoxes(DetectionMetric):
    """Compares the boxes with those of the float model. Needs no labels; undefined for the float model itself."""

    min_score: float = Field(
        default=0.25, description="Boxes with this score or a lower one are ignored, in both models."
    )
    overlap: _Overlap = Field(default=0.5, description="IoU from which on two boxes of one class are the same.")


class BoxAgreement(MatchedBoxes):
    """Share of boxes that both models return, of all boxes that either returns: 2 matched / (float + quantized)."""

    FACTS: ClassVar[MetricFacts] = MetricFacts("%", "higher", against_float=True, ideal=100.0)
    kind: Literal["box_agreement"] = "box_agreement"


class ConfidenceShift(MatchedBoxes):
    """Mean absolute change of the score of boxes that both models return; the report's details have the mean with its
    sign.
    """

    FACTS: ClassVar[MetricFacts] = MetricFacts("", "lower", against_float=True, ideal=0.0)
    kind: Literal["confidence_shift"] = "confidence_shift"


def _wrong(place: str, message: str) -> PydanticCustomError:
    return PydanticCustomError("value_error", "{why}", {"why": message, BELOW: place})
