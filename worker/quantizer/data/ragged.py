"""Arrays that are stored sample by sample, ``NAME/0000``, ``NAME/0001`` and so on, each of a shape of its own.

The samples keep the order of their numbers, whatever their shapes: a sample's number, label and prediction stand where
its user put them. What is read at once ends where the next sample has another shape.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from service.contracts.errors import DatasetArraysError
from worker.quantizer.data.stored import (
    Array,
    ArraySource,
    MemoryArray,
    SampleReader,
    StoredArray,
    array_fault,
    sample_bytes,
)

# Four digits at least: fewer are common in names of tensors. More than nine number nothing that could be stored.
_SAMPLE_NAME = re.compile(r"(.+)/([0-9]{4,9})", re.DOTALL)
NUMBERING_HINT = (
    "Number the samples of every array the same way, NAME/0000, NAME/0001 and so on without a gap, "
    "all of one dtype and one number of axes; or store one array NAME with all samples along its "
    "first axis."
)


@dataclass(frozen=True)
class RaggedArray:
    """Samples of one array that may differ in shape, though not in dtype and number of axes: an ArraySource."""

    name: str  # without the numbers
    dtype: np.dtype[Any]  # of all samples, native byte order
    samples: tuple[ArraySource, ...]  # each an array [1, ...]
    refusal: str | None = None  # why the array cannot be used, or None

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The number of samples, and the greatest length of every other axis."""
        return len(self.samples), *(max(lengths) for lengths in self._lengths)

    @cached_property
    def shortest(self) -> tuple[int, ...]:
        """The least length of every axis of a sample."""
        return tuple(min(lengths) for lengths in self._lengths)

    @property
    def longest(self) -> tuple[int, ...]:
        """The greatest length of every axis of a sample."""
        return self.shape[1:]

    @property
    def varies(self) -> bool:
        """True if the samples differ in shape."""
        return self.shortest != self.longest

    @cached_property
    def largest_bytes(self) -> int:
        """Bytes of the largest sample, where one without an element counts as if its empty axes held one."""
        return max(sample_bytes(self.dtype, tuple(max(1, axis) for axis in s.shape)) for s in self.samples)

    def elements(self, number: int) -> int:
        """Elements of one sample."""
        return sample_bytes(np.dtype(np.uint8), self.samples[number].shape)

    def run_end(self, start: int) -> int:
        """Number of the first sample behind ``start`` that has another shape; the number of samples if none has."""
        return self._run_ends[bisect_right(self._run_ends, start)]

    def open(self) -> SampleReader:
        """A reader that starts at sample 0, and reads samples of one shape at once.

        Raises:
            DatasetArraysError: the array cannot be used.
        """
        if self.refusal:
            raise array_fault(DatasetArraysError, self.name, self.refusal, hint=NUMBERING_HINT)
        return _RaggedReader(self)

    @cached_property
    def _lengths(self) -> list[tuple[int, ...]]:
        # of samples that differ in their number of axes, which are refused, those axes that all have
        return list(zip(*(sample.shape[1:] for sample in self.samples), strict=False))

    @cached_property
    def _run_ends(self) -> list[int]:
        shapes = [sample.shape for sample in self.samples]
        changes = [k for k in range(1, len(shapes)) if shapes[k] != shapes[k - 1]]
        return [*changes, len(shapes)]


class _RaggedReader:
    """Opens one sample after the other."""

    def __init__(self, array: RaggedArray) -> None:
        self._array = array
        self._at = 0

    def read(self, count: int) -> Array:
        """The next ``count`` samples, [count, ...].

        Raises:
            DatasetArraysError: they differ in shape; whoever asks for them needs samples of one shape.
        """
        array, start = self._array, self._at
        end = min(start + count, len(array.samples))
        if start == end:
            return np.empty((0, *array.longest), array.dtype)
        if end > array.run_end(start):
            other = array.run_end(start)
            shapes = [list(array.samples[number].shape[1:]) for number in (start, other)]
            why = f"has samples of different shapes, {shapes[0]} in {start} and {shapes[1]} in {other}, needed at once"
            hint = "Pad or cut the samples to one shape."
            raise array_fault(DatasetArraysError, array.name, why, hint=hint, sample=other)
        self._at = end
        blocks = []
        for sample in array.samples[start:end]:
            with closing(sample.open()) as reader:
                blocks.append(reader.read(1))
        return np.concatenate(blocks) if len(blocks) > 1 else blocks[0]

    def close(self) -> None:
        """Nothing to give back: every sample is closed once it is read."""


def grouped(stored: Mapping[str, ArraySource]) -> dict[str, ArraySource]:
    """Stored arrays by name, in which those named ``NAME/0000`` and so on are the samples of one array NAME.

    An array whose samples do not belong together, or whose name is that of a plain one, too, comes with a refusal.
    """
    found: dict[str, ArraySource] = {}
    numbered: dict[str, list[tuple[int, ArraySource]]] = {}
    for name, array in stored.items():
        match = _SAMPLE_NAME.fullmatch(name)
        if match is None:
            found[name] = array
        else:
            numbered.setdefault(match[1], []).append((int(match[2]), array))
    for name, entries in numbered.items():
        entries.sort(key=lambda entry: entry[0])
        refusal = f"is stored whole, and sample by sample ({entries[0][1].name!r}), too" if name in found else None
        refusal = refusal or _refusal(name, entries)
        samples = tuple(_as_sample(array) for _, array in entries)
        found[name] = RaggedArray(name, samples[0].dtype, samples, refusal)
    return found


def _refusal(name: str, entries: list[tuple[int, ArraySource]]) -> str | None:
    """Why these samples, in the order of their numbers, do not make an array; None if they do."""
    first = entries[0][1]
    for place, (number, array) in enumerate(entries):
        if place and number == entries[place - 1][0]:
            return f"contains sample {number} twice: {entries[place - 1][1].name!r} and {array.name!r}"
        if number != place:
            return f"has no sample {sample_name(name, place)!r}, although there is {array.name!r}"
        if array.refusal:
            return f"has sample {array.name!r}, which {array.refusal}"
        if array.dtype != first.dtype:
            return f"changes its dtype: {first.name!r} is {first.dtype}, {array.name!r} is {array.dtype}"
        if len(array.shape) != len(first.shape):
            ranks = f"{first.name!r} has {len(first.shape)}, {array.name!r} has {len(array.shape)}"
            return f"changes its number of axes: {ranks}"
    return None


def _as_sample(array: ArraySource) -> ArraySource:
    """The array as the only sample of an array with one axis more."""
    if isinstance(array, StoredArray):
        return replace(array, shape=(1, *array.shape))
    if isinstance(array, MemoryArray):
        return replace(array, values=array.values[np.newaxis])
    raise TypeError(f"{array.name!r} is not a stored array")


def sample_name(name: str, number: int) -> str:
    """What a sample of an array that is stored sample by sample is called."""
    return f"{name}/{number:04d}"


def missing_sample(array: ArraySource, samples: int) -> str:
    """The first sample that an array lacks beside others that hold ``samples``, for messages; else nothing."""
    if not isinstance(array, RaggedArray) or array.shape[0] >= samples:
        return ""
    return f"; {sample_name(array.name, array.shape[0])!r} is missing"


def told_shape(array: ArraySource) -> tuple[int | None, ...]:
    """Shape with None for every axis whose length differs from sample to sample."""
    if not isinstance(array, RaggedArray):
        return array.shape
    pairs = zip(array.shortest, array.longest, strict=True)
    return array.shape[0], *(longest if shortest == longest else None for shortest, longest in pairs)


def pieces(sources: Collection[ArraySource], first: int, last: int, most: int) -> Iterator[tuple[int, int]]:
    """The samples from ``first`` up to ``last`` in pieces that mix no shapes: number of the first sample, and how many.

    Args:
        sources: arrays that are read side by side.
        first: number of the first sample.
        last: number of the sample to stop before.
        most: samples in a piece.
    """
    ragged = [array for array in sources if isinstance(array, RaggedArray)]
    start = first
    while start < last:
        end = min(start + most, last, *(array.run_end(start) for array in ragged))
        yield start, end - start
        start = end


def alike(sources: Collection[ArraySource], numbers: Sequence[int], most: int) -> Iterator[list[int]]:
    """The samples of these ascending numbers in groups that mix no shapes, of ``most`` at most."""
    ragged = [array for array in sources if isinstance(array, RaggedArray)]
    group: list[int] = []
    end = 0  # of the run of samples of one shape that the group lies in
    for number in numbers:
        if group and (len(group) == most or number >= end):
            yield group
            group = []
        if not group:
            end = min((array.run_end(number) for array in ragged), default=numbers[-1] + 1)
        group.append(number)
    if group:
        yield group


class ChosenReader:
    """Reads some samples of an array, in their order.

    Args:
        array: of the samples.
        reader: that has read nothing yet; closed by whoever opened it.
        most: samples that are skipped at once.
    """

    def __init__(self, array: ArraySource, reader: SampleReader, most: int) -> None:
        self._array, self._reader, self._most = array, reader, most
        self._at = 0

    def read(self, numbers: Sequence[int]) -> Array:
        """The samples of these ascending numbers, all of one shape and behind those read so far, [numbers, ...]."""
        blocks = []
        place = 0
        while place < len(numbers):
            first, count = numbers[place], 1
            while place + count < len(numbers) and numbers[place + count] == first + count:
                count += 1
            for _, skipped in pieces([self._array], self._at, first, self._most):
                self._reader.read(skipped)
            blocks.append(self._reader.read(count))
            self._at = first + count
            place += count
        return np.concatenate(blocks) if len(blocks) > 1 else blocks[0]


def largest_sample(sources: Collection[ArraySource]) -> int:
    """Number of the first sample with the most elements over all arrays."""
    ragged = [array for array in sources if isinstance(array, RaggedArray) and array.varies]
    if not ragged:
        return 0
    total = min(array.shape[0] for array in ragged)
    return max(range(total), key=lambda number: sum(array.elements(number) for array in ragged))
