"""Datasets: inputs, preprocessing, what validation has found in them, and random inputs in their place."""

from __future__ import annotations

import math
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from service.contracts.base import Contract
from service.contracts.errors import InvalidRequestError, problem_summary
from service.contracts.preprocessing import (
    ANY_INPUT,
    PLAIN_NAMES,
    TIMM_FORM,
    PictureSpec,
    SoundSpec,
    named_preprocessing,
)
from service.contracts.specs import TensorRange
from service.contracts.validation import field_problems

# Classes that are told one by one; of more of them only the largest.
MAX_CLASSES, LARGEST_CLASSES = 1000, 100
MAX_PROFILED_ARRAYS = 100
MAX_BINS = 64
MAX_WAVEFORMS, WAVEFORM_COLUMNS, WAVEFORM_STEPS = 16, 120, 127


class ClassCounts(Contract):
    """Number of samples per class; exact."""

    distinct: int = Field(description="Number of classes with samples.")
    fewest: int = Field(description="Number of samples in the smallest non-empty class.")
    most: int = Field(description="Number of samples in the largest class.")
    numbers: tuple[int, ...] = Field(
        max_length=MAX_CLASSES,
        description=f"Indices of all classes with samples, ascending; with more than {MAX_CLASSES} classes, only the "
        f"{LARGEST_CLASSES} largest, largest first.",
    )
    counts: tuple[int, ...] = Field(max_length=MAX_CLASSES, description="Number of samples of each class in `numbers`.")

    @property
    def is_whole(self) -> bool:
        """True if every class is told."""
        return len(self.numbers) == self.distinct


class ValueProfile(Contract):
    """Distribution of the stored values of one array. `minimum` and `maximum` are exact, except for integers beyond
    2**53, which are rounded to 64-bit floats. `mean` and `counts` cover `counted` values: all values, or every n-th
    value of a large array.
    """

    minimum: float
    maximum: float
    mean: float
    values: int = Field(description="Number of values in the array.")
    counted: int = Field(description="Number of values that `mean` and `counts` cover.")
    low: float = Field(description="Left edge of the first bin.")
    high: float = Field(description="Right edge of the last bin.")
    counts: tuple[int, ...] = Field(
        min_length=1,
        max_length=MAX_BINS,
        description="Values in bins of equal width from `low` to `high`; each bin includes its left edge.",
    )

    @property
    def is_exact(self) -> bool:
        """True if every value has been counted."""
        return self.counted == self.values

    def edges(self) -> list[float]:
        """Edges of the bins, one more than there are bins."""
        low, step = self.low / 2, (self.high / 2 - self.low / 2) / len(self.counts)  # halves, lest they overflow
        return [min(2 * (low + step * k), self.high) for k in range(len(self.counts) + 1)]


class Waveform(Contract):
    """Waveform of one sound: the lowest and highest value per column; all columns have the same duration."""

    number: int = Field(description="Index of the sample.")
    length: int = Field(description="Length of the sound in audio samples.")
    minimum: float
    maximum: float
    lows: tuple[int, ...] = Field(
        max_length=WAVEFORM_COLUMNS,
        description=f"Lowest value of each column; {WAVEFORM_STEPS} is the sound's maximum magnitude.",
    )
    highs: tuple[int, ...] = Field(
        max_length=WAVEFORM_COLUMNS, description="Highest value of each column, on the same scale."
    )

    @property
    def peak(self) -> float:
        """The greatest magnitude."""
        return max(abs(self.minimum), abs(self.maximum))


class Waveforms(Contract):
    """Waveforms of some sounds, evenly spaced over the dataset."""

    array: str = Field(description="Array that contains the sounds.")
    sample_rate_hz: int | None = Field(default=None, description="Null where the file does not say.")
    full_scale: float | None = Field(default=None, description="Value of the loudest possible sound; null if unknown.")
    samples: tuple[Waveform, ...] = Field(max_length=MAX_WAVEFORMS)


class DataProfile(Contract):
    """Statistics of a dataset's content, computed in the single pass that validates the data."""

    classes: ClassCounts | None = Field(
        default=None, description="Samples per class; null if the labels are not class indices."
    )
    values: dict[str, ValueProfile] = Field(
        default_factory=dict,
        description=f"Value profiles by array name: the first {MAX_PROFILED_ARRAYS} arrays, and labels other than "
        "class indices.",
    )
    waveforms: Waveforms | None = Field(default=None, description="Waveforms; null for data without sounds.")


DEFAULT_LABELS = "labels"
COLOURS = 3
_OUTLINED_ARRAYS = 100
ArrayFormat = Literal["npz", "safetensors"]
ArchiveKind = Literal["tar", "tar.gz", "zip"]
# What a dataset's file is, by its content.
FileFormat = Literal[ArrayFormat, ArchiveKind]


class InputSpec(Contract):
    """How a stored array becomes a model input: layout and channel order, then ``(x * scale - mean) / std``.

    An array of the input's rank is split along its first axis into batches. An array with one more axis contains
    complete inputs: each sample is passed unchanged (for states, scalars and other inputs without a batch axis). The
    same applies to samples stored one by one: samples with the input's rank are complete inputs; samples with one axis
    less are batched with adjacent samples of the same shape.
    """

    array: str | None = Field(default=None, description="Name of the stored array; default: the name of the input.")
    layout: Literal["NHWC", "NCHW", "NHW"] | None = Field(
        default=None, description="Layout of the stored images; null for other data."
    )
    model_layout: Literal["NCHW", "NHWC"] = Field(default="NCHW", description="Layout of the model's input.")
    channel_order: Literal["rgb", "bgr"] = Field(
        default="rgb",
        description="Channel order of the model input. bgr reverses the stored order of the three channels (pictures "
        "in archives are RGB); `mean` and `std` then apply to the reversed order. Requires a layout with "
        "channels.",
    )
    scale: float = Field(
        default=1.0, description="Factor, applied before mean and std: 1/255 = 0.00392156862745098 for 8-bit images."
    )
    mean: tuple[float, ...] = Field(
        default=(0.0,), min_length=1, max_length=4096, description="One value, or one per channel."
    )
    std: tuple[float, ...] = Field(
        default=(1.0,), min_length=1, max_length=4096, description="One value, or one per channel."
    )

    @field_validator("std")
    @classmethod
    def _no_zero(cls, std: tuple[float, ...]) -> tuple[float, ...]:
        if any(value == 0 for value in std):
            raise ValueError("std must not contain 0")
        return std

    @model_validator(mode="after")
    def _has_channels(self) -> InputSpec:
        if self.channel_order == "bgr" and self.layout not in ("NHWC", "NCHW"):
            raise ValueError("channel_order bgr takes a layout with channels: NHWC or NCHW")
        return self

    @property
    def channel_axis(self) -> int:
        """Of pictures as they are fed, samples first."""
        return 1 if self.model_layout == "NCHW" else 3

    @property
    def is_identity(self) -> bool:
        """True if values stay as they are."""
        return self.scale == 1.0 and set(self.mean) == {0.0} and set(self.std) == {1.0}

    @property
    def name(self) -> str | None:
        """The name of preprocessing that feeds arrays the same values; None: none does."""
        if not {len(self.mean), len(self.std)} <= {1, COLOURS}:
            return None
        names = (f"{plain}{form}" for plain in PLAIN_NAMES for form in ("", ":NHWC", ":BGR", ":NHWC:BGR"))
        return next((name for name in names if self._feeds_as(named_preprocessing(name)["inputs"][ANY_INPUT])), None)

    def _feeds_as(self, document: dict[str, Any]) -> bool:
        """Whatever way scale, mean and std are written."""
        other = InputSpec.model_validate(document)
        same = ("array", "layout", "model_layout", "channel_order")
        figures = zip(self._factors + self._offsets, other._factors + other._offsets, strict=True)
        return all(getattr(self, name) == getattr(other, name) for name in same) and all(
            math.isclose(mine, its, rel_tol=1e-4, abs_tol=1e-9) for mine, its in figures
        )

    @property
    def _factors(self) -> list[float]:
        """Of each color channel, for a value as stored."""
        return [self.scale / std for std in _per_channel(self.std)]

    @property
    def _offsets(self) -> list[float]:
        """Subtracted from each color channel behind them."""
        return [mean / std for mean, std in zip(_per_channel(self.mean), _per_channel(self.std), strict=True)]


def _per_channel(values: tuple[float, ...]) -> tuple[float, ...]:
    return values * COLOURS if len(values) == 1 else values


class PreprocessingSpec(Contract):
    """How the arrays of a dataset become model inputs and labels; the files of an archive are converted to arrays
    first. The name of a spec, such as "imagenet_torchvision", can be used instead of an object.
    """

    inputs: dict[str, InputSpec] = Field(
        default_factory=dict,
        description=(
            "By model input name; `*` applies to every input without its own entry. Other inputs are fed as stored."
        ),
    )
    labels: str | None = Field(
        default=None,
        description=(
            "Name of the array with the labels: class numbers [samples], one-hot [samples, classes], or the "
            "targets of a declared metric; default 'labels' where there is one."
        ),
    )
    pictures: PictureSpec | None = Field(
        default=None, description="How the pictures of an archive become the array `images`; default: unchanged."
    )
    sounds: SoundSpec | None = Field(
        default=None, description="How an archive of sounds becomes the array `sounds`; required for sounds."
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return named_preprocessing(value) if isinstance(value, str) else value

    def input(self, name: str) -> InputSpec:
        """How the model input ``name`` is fed."""
        return self.inputs.get(name) or self.inputs.get(ANY_INPUT) or InputSpec()


PREPROCESSING_NAMES = f"{', '.join(PLAIN_NAMES)} (each also with ':NHWC' or ':BGR' behind it), {TIMM_FORM}"


class ArraySummary(Contract):
    """A stored array: numpy dtype and shape; the first axis is the samples."""

    dtype: str
    shape: tuple[int | None, ...] = Field(description="Null for an axis whose length differs between samples.")
    shortest: tuple[int, ...] | None = Field(
        default=None,
        description="Minimum length of each axis of a sample; null if all samples have the same shape.",
    )
    longest: tuple[int, ...] | None = Field(
        default=None, description="Maximum length of each axis of a sample; null if all samples have the same shape."
    )


# What a reader of a dataset, a run or a report has to know where there are no labels.
NO_LABELS = "No labels: accuracy is not measured; agreement with the float model is."
# Class number of a sample that has no label.
UNLABELLED = -1


class LabelSummary(Contract):
    """The label array: class indices in [minimum, maximum], or any other labels of a declared metric."""

    array: str
    count: int
    minimum: int | None = Field(
        default=None, description="Lowest class index; null if labels are not class indices of shape [samples]."
    )
    maximum: int | None = Field(
        default=None, description="Highest class index; null if labels are not class indices of shape [samples]."
    )
    unlabelled: int = Field(default=0, description="Samples whose class number is -1: they have no label.")
    dtype: str | None = Field(
        default=None, description="As stored; null in older records, which contain class numbers."
    )
    shape: tuple[int | None, ...] | None = Field(
        default=None,
        description="As stored, null for an axis whose length differs between samples; null in older records: [count].",
    )

    @property
    def are_classes(self) -> bool:
        """True for class numbers, one per sample, stored as such or one-hot."""
        return self.maximum is not None

    @property
    def is_one_hot(self) -> bool:
        """True for class numbers that are stored one-hot."""
        return self.are_classes and len(self.shape or ()) == 2 and (self.shape or ())[1] != 1

    @property
    def stored(self) -> ArraySummary:
        """The array behind them."""
        return ArraySummary(dtype=self.dtype or "int64", shape=self.shape or (self.count,))


def label_notes(labels: LabelSummary | None) -> tuple[str, ...]:
    """What to know about the labels of a dataset before a job runs: that there are none, only some, or one-hot ones."""
    if labels is None:
        return (NO_LABELS,)
    if labels.is_one_hot:
        return (f"Labels are one-hot {list(labels.shape or ())}: used as class numbers (index of the 1).",)
    if labels.unlabelled:
        return (
            f"{labels.unlabelled} of {labels.count} samples have no label (-1): they count in agreement and distances, "
            "not in metrics on labels.",
        )
    return ()


class MediaSummary(Contract):
    """The original files of an archive of pictures or sounds, before preprocessing."""

    archive: ArchiveKind
    codecs: dict[str, int] = Field(description="Number of files per format: JPEG, PNG, WEBP, BMP, WAV.")
    classes: tuple[str, ...] | None = Field(
        default=None,
        description="Class names, ordered by class index; null if the labels were given as numbers, and in lists.",
    )
    smallest: tuple[int, ...] = Field(
        description="Height and width of the picture with the fewest pixels; for sounds, the smallest number of audio "
        "samples."
    )
    largest: tuple[int, ...] = Field(
        description="Height and width of the picture with the most pixels; for sounds, the largest number of audio "
        "samples."
    )


class Thumbnails(Contract):
    """A contact sheet of thumbnails (PNG)."""

    file: str = Field(description="File name in the output folder.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int


class DatasetSummary(Contract):
    """Validation result of a dataset. ``arrays`` does not include the labels."""

    format: Literal["npz", "safetensors", "pictures", "sounds"]
    samples: int
    arrays: dict[str, ArraySummary]
    labels: LabelSummary | None = None
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)
    size_bytes: int
    sha256: str
    media: MediaSummary | None = Field(default=None, description="Only for archives of pictures or sounds.")
    thumbnails: Thumbnails | None = Field(
        default=None, description="Only for pictures, after the service has validated them."
    )
    notes: tuple[str, ...] = Field(
        default=(), description="What to know before a job runs, such as missing or one-hot labels."
    )
    arrays_left_out: int = Field(default=0, description="Arrays beyond the first 100, which lists leave out.")
    profile: DataProfile | None = Field(
        default=None, description="Statistics of the content; null in older records and in lists."
    )

    def outline(self) -> DatasetSummary:
        """Without what would make up most of a list: names of classes, arrays beyond the first 100, the profile."""
        media = None if self.media is None else self.media.model_copy(update={"classes": None})
        arrays = dict(islice(self.arrays.items(), _OUTLINED_ARRAYS))
        left_out = self.arrays_left_out + len(self.arrays) - len(arrays)
        return self.model_copy(update={"media": media, "arrays": arrays, "arrays_left_out": left_out, "profile": None})

    @property
    def file_format(self) -> FileFormat:
        """What the file is."""
        if self.format == "npz" or self.format == "safetensors":
            return self.format
        assert self.media is not None  # noqa: S101 - told of every archive
        return self.media.archive

    @property
    def has_classes(self) -> bool:
        """True if the labels are class numbers, one per sample."""
        return self.labels is not None and self.labels.are_classes

    def array(self, name: str | None) -> ArraySummary | None:
        """The array that a metric names, None being the labels; None if there is no such array."""
        if self.labels is not None and name in (None, self.labels.array):
            return self.labels.stored
        return None if name is None else self.arrays.get(name)


_Axis = Annotated[int, Field(ge=0, le=2**31)]


class RandomCalibration(Contract):
    """Uniform random inputs, to try out the structure, size and speed of a quantized model. Ranges calibrated on them
    differ from those of real data, so the result shows nothing about accuracy. The inputs are drawn with the config's
    seed: the same config gives the same inputs.
    """

    samples: int = Field(default=8, ge=1, le=1024, description="Runs of the model, each on different inputs.")
    shapes: dict[str, tuple[_Axis, ...]] = Field(
        default_factory=dict,
        max_length=1000,
        description="Full shape of an input, by name. Default: the shape in the model. Dynamic axes after the first "
        "get sizes that fit their names and types and on which the model runs; masks are then filled with "
        "ones.",
    )
    ranges: dict[str, TensorRange] = Field(
        default_factory=dict,
        max_length=1000,
        description="Range of an input's values by name, both ends included; default: 0 to 1, also for integers.",
    )


def parse_preprocessing(given: Any, *, is_json: bool = False) -> PreprocessingSpec:
    """The preprocessing given by name, as an object, or as the JSON text of one; None: none.

    Raises:
        InvalidRequestError: it is not valid; names the fields.
    """
    try:
        if is_json:
            return PreprocessingSpec.model_validate_json(given)
        return PreprocessingSpec() if given is None else PreprocessingSpec.model_validate(given)
    except ValidationError as error:
        problems = field_problems(error, PreprocessingSpec, pointer="/preprocessing")
        raise InvalidRequestError(
            problem_summary(problems),
            errors=problems,
            hint='For images: {"inputs": {"INPUT": {"layout": "NHWC", "scale": 0.00392156862745098}}}',
        ) from None
