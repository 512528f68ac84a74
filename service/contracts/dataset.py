"""Datasets: how stored arrays become model inputs, and what is known of a dataset after validation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from service.contracts.base import Contract

DEFAULT_LABELS = "labels"


class InputSpec(Contract):
    """How one stored array becomes one model input: ``(x * scale - mean) / std``, then the layout.

    An array of the input's rank is cut along its first axis into batches. An array with one axis more holds whole
    inputs: each sample is fed as it is (for states, scalars and other inputs without a batch axis).
    """

    array: str | None = Field(default=None, description="Name of the stored array; default: the input's own name.")
    layout: Literal["NHWC", "NCHW", "NHW"] | None = Field(
        default=None, description="Layout of the stored images; none for other data."
    )
    model_layout: Literal["NCHW", "NHWC"] = Field(default="NCHW", description="Layout that the model wants.")
    scale: float = Field(default=1.0, description="Multiplied first, 1/255 = 0.00392156862745098 for 8-bit images.")
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
            raise ValueError("std must not hold 0")
        return std

    @property
    def is_identity(self) -> bool:
        """True if values stay as they are."""
        return self.scale == 1.0 and set(self.mean) == {0.0} and set(self.std) == {1.0}


class PreprocessingSpec(Contract):
    """How a dataset's arrays become model inputs and labels."""

    inputs: dict[str, InputSpec] = Field(
        default_factory=dict, description="By model input name; inputs not named here are fed as stored."
    )
    labels: str | None = Field(
        default=None,
        description=(
            "Name of the array with the labels: class numbers [samples], or whatever a declared metric takes; default "
            "'labels' where there is one."
        ),
    )


class ArraySummary(Contract):
    """A stored array: numpy dtype name and shape, first axis = samples."""

    dtype: str
    shape: tuple[int, ...]


class LabelSummary(Contract):
    """The label array: class numbers in [minimum, maximum], or whatever else a declared metric takes."""

    array: str
    count: int
    minimum: int | None = Field(default=None, description="Null for labels that are no class numbers [samples].")
    maximum: int | None = Field(default=None, description="Null for labels that are no class numbers [samples].")
    dtype: str | None = Field(default=None, description="As stored; null in older records, which hold class numbers.")
    shape: tuple[int, ...] | None = Field(default=None, description="As stored; null in older records: [count].")

    @property
    def are_classes(self) -> bool:
        """True for class numbers, one per sample."""
        return self.maximum is not None

    @property
    def stored(self) -> ArraySummary:
        """The array behind them."""
        return ArraySummary(dtype=self.dtype or "int64", shape=self.shape or (self.count,))


class DatasetSummary(Contract):
    """What validation found in a dataset. ``arrays`` leaves the labels out."""

    format: Literal["npz", "safetensors"]
    samples: int
    arrays: dict[str, ArraySummary]
    labels: LabelSummary | None = None
    preprocessing: PreprocessingSpec = Field(default_factory=PreprocessingSpec)
    size_bytes: int
    sha256: str

    @property
    def has_classes(self) -> bool:
        """True if the labels are class numbers, one per sample."""
        return self.labels is not None and self.labels.are_classes

    def array(self, name: str | None) -> ArraySummary | None:
        """The array that a metric names, None being the labels; None if there is no such array."""
        if self.labels is not None and name in (None, self.labels.array):
            return self.labels.stored
        return None if name is None else self.arrays.get(name)
