"""What validation has counted in a dataset while it read it: classes, values and waveforms, for people to look at."""

from __future__ import annotations

from pydantic import Field

from service.contracts.base import Contract

# Classes that are told one by one; of more of them only the largest.
MAX_CLASSES, LARGEST_CLASSES = 1000, 100
MAX_PROFILED_ARRAYS = 100
MAX_BINS = 64
MAX_WAVEFORMS, WAVEFORM_COLUMNS, WAVEFORM_STEPS = 16, 120, 127


class ClassCounts(Contract):
    """Samples per class, exact."""

    distinct: int = Field(description="Number of classes that have samples.")
    fewest: int = Field(description="Samples of the smallest class that has any.")
    most: int = Field(description="Samples of the largest class.")
    numbers: tuple[int, ...] = Field(
        max_length=MAX_CLASSES,
        description=f"Class numbers: all that have samples, ascending; of more than {MAX_CLASSES} classes only the "
        f"{LARGEST_CLASSES} largest, the largest first.",
    )
    counts: tuple[int, ...] = Field(max_length=MAX_CLASSES, description="Samples of each of `numbers`.")

    @property
    def is_whole(self) -> bool:
        """True if every class is told."""
        return len(self.numbers) == self.distinct


class ValueProfile(Contract):
    """The values of one array as it is stored: their range, and how often which values occur.

    `minimum` and `maximum` are exact, but for integers beyond 2**53, which are rounded to 64-bit floats. `mean` and
    `counts` are of `counted` values: all of them, or in large arrays every n-th of the whole array.
    """

    minimum: float
    maximum: float
    mean: float
    values: int = Field(description="Values in the array.")
    counted: int = Field(description="Values that `mean` and `counts` are of.")
    low: float = Field(description="Left edge of the first bin.")
    high: float = Field(description="Right edge of the last bin.")
    counts: tuple[int, ...] = Field(
        min_length=1,
        max_length=MAX_BINS,
        description="Values in bins of equal width from `low` to `high`; each bin holds its left edge.",
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
    """One sound: its least and greatest value in columns of equal time."""

    number: int = Field(description="Of the sample.")
    length: int = Field(description="Samples of the sound.")
    minimum: float
    maximum: float
    lows: tuple[int, ...] = Field(
        max_length=WAVEFORM_COLUMNS,
        description=f"Least value of each column, in {WAVEFORM_STEPS}ths of the sound's greatest magnitude.",
    )
    highs: tuple[int, ...] = Field(max_length=WAVEFORM_COLUMNS, description="Greatest value of each column, likewise.")

    @property
    def peak(self) -> float:
        """The greatest magnitude."""
        return max(abs(self.minimum), abs(self.maximum))


class Waveforms(Contract):
    """Some sounds, evenly from the whole dataset."""

    array: str = Field(description="That they come from.")
    sample_rate_hz: int | None = Field(default=None, description="Null where the file does not tell.")
    full_scale: float | None = Field(default=None, description="Value of the loudest possible sound; null: not known.")
    samples: tuple[Waveform, ...] = Field(max_length=MAX_WAVEFORMS)


class DataProfile(Contract):
    """Figures of a dataset's content. All are told by the pass that validates the data, which reads it once."""

    classes: ClassCounts | None = Field(default=None, description="Null without class numbers.")
    values: dict[str, ValueProfile] = Field(
        default_factory=dict,
        description=f"By name of the array: the first {MAX_PROFILED_ARRAYS}, and labels that are no class numbers.",
    )
    waveforms: Waveforms | None = Field(default=None, description="Null without sounds.")
