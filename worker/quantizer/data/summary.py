"""Reads a whole dataset once: finite values, sound bytes, and what arrays hold: classes, ranges, waveforms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from service.contracts.dataset import (
    MAX_PROFILED_ARRAYS,
    MAX_WAVEFORMS,
    UNLABELLED,
    WAVEFORM_COLUMNS,
    WAVEFORM_STEPS,
    ArraySummary,
    DataProfile,
    DatasetSummary,
    LabelSummary,
    MediaSummary,
    PreprocessingSpec,
    Waveform,
    Waveforms,
    label_notes,
)
from service.contracts.errors import NonFiniteDataError
from service.contracts.sheets import sheet_numbers
from worker.quantizer.data.ragged import RaggedArray, pieces, told_shape
from worker.quantizer.data.selection import SelectedArrays, are_classes
from worker.quantizer.data.stored import Array, ArraySource, array_fault, sample_bytes
from worker.quantizer.data.value_counts import ValueCounter, count_classes

# Watches the arrays of a dataset go by in the pass of validation: classes, values, and waveforms small enough to be
# stored, which are the least and the greatest value of each column of time.

Watch = Callable[[int, Array], None]


class Profiler:
    """Takes in each array once, in blocks; memory does not grow with them.

    Exact are samples per class, and the least and the greatest value of each array. Means and histograms are so for
    arrays of up to 2**20 values, and estimated from every n-th value of larger ones. Waveforms are of up to 16 samples,
    evenly from all.

    Args:
        block_bytes: of a block at most, but for blocks of one sample.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._values: dict[str, ValueCounter] = {}
        self._waves: WaveTracer | None = None

    def watch(self, array: ArraySource) -> Watch | None:
        """What takes in the array: the number of a block's first sample, and the block; None: the array is left out."""
        if len(self._values) >= MAX_PROFILED_ARRAYS:
            return None
        sample = math.prod(array.shape[1:])
        values = sum(map(array.elements, range(array.shape[0]))) if isinstance(array, RaggedArray) else None
        counter = ValueCounter(
            array.dtype,
            array.shape[0] * sample if values is None else values,
            self._block_bytes // array.dtype.itemsize,
            sample,
        )
        self._values[array.name] = counter
        if self._waves is not None or not holds_waves(array):
            return lambda start, block: counter.add(block)
        tracer = self._waves = WaveTracer(array)

        def both(start: int, block: Array) -> None:
            counter.add(block)
            tracer.add(start, block)

        return both

    def profile(self, classes: np.ndarray[Any, np.dtype[np.int64]] | None, waveforms: Waveforms | None) -> DataProfile:
        """What has been found.

        Args:
            classes: the labels, if they are class numbers.
            waveforms: those of an archive of sounds, which take the place of an array's.
        """
        found = {name: counter.profile() for name, counter in self._values.items()}
        return DataProfile(
            classes=None if classes is None else count_classes(classes[classes != UNLABELLED]),
            values={name: one for name, one in found.items() if one is not None},
            waveforms=waveforms or (None if self._waves is None else self._waves.waveforms()),
        )


# An array of sounds is known by its name and its shape: values alone look like those of many other things.
_NAMES = {
    "audio", "input_values", "pcm", "signal", "signals", "sound", "sounds", "speech", "voice", "wav", "wave",
    "waveform", "waveforms", "waves",
}  # fmt: skip
_LEAST_LENGTH = 256
_CHANNEL_RANK = 3


def wave_numbers(samples: int) -> list[int]:
    """The samples whose waveforms are kept: those that stand on the sheet of a dataset of pictures."""
    return sheet_numbers(samples)[:MAX_WAVEFORMS]


def holds_waves(array: ArraySource) -> bool:
    """True for an array that plainly holds sounds: called so, float or int16 [samples, time] or [samples, 1, time]."""
    words = {array.name.lower(), *re.split(r"[^a-z]+", array.name.lower())}
    shape = told_shape(array)
    if not words & _NAMES or not (array.dtype.kind in "fV" or array.dtype == np.int16):
        return False
    one_channel = len(shape) == 2 or (len(shape) == _CHANNEL_RANK and shape[1] == 1)
    return one_channel and array.shape[-1] >= _LEAST_LENGTH


def waveform(number: int, values: Array) -> Waveform:
    """The envelope of one sound.

    Args:
        number: of the sample.
        values: [n], finite.
    """
    columns = min(len(values), WAVEFORM_COLUMNS)
    if not columns:
        return Waveform(number=number, length=0, minimum=0.0, maximum=0.0, lows=(), highs=())
    starts = np.arange(columns) * len(values) // columns
    lows = np.minimum.reduceat(values, starts).astype(np.float64) + 0.0  # no -0
    highs = np.maximum.reduceat(values, starts).astype(np.float64) + 0.0
    low, high = float(lows.min()), float(highs.max())
    peak = max(abs(low), abs(high)) or 1.0
    return Waveform(
        number=number, length=len(values), minimum=low, maximum=high, lows=_steps(lows, peak), highs=_steps(highs, peak)
    )


def _steps(values: Array, peak: float) -> tuple[int, ...]:
    return tuple(np.rint(values / peak * WAVEFORM_STEPS).astype(np.int64).tolist())


class WaveTracer:
    """Keeps some waveforms of one array that is read in blocks.

    Args:
        array: one that ``holds_waves``.
    """

    def __init__(self, array: ArraySource) -> None:
        self._name = array.name
        self._wanted = wave_numbers(array.shape[0])
        self._found: list[Waveform] = []

    def add(self, start: int, block: Array) -> None:
        """Take in the samples from ``start`` on, [count, ...]."""
        for number in self._wanted:
            if start <= number < start + len(block):
                self._found.append(waveform(number, block[number - start].reshape(-1)))

    def waveforms(self) -> Waveforms:
        """What has been kept."""
        return Waveforms(array=self._name, samples=tuple(self._found))


BLOCK_BYTES = 4 << 20
# Where nothing is above 0, it says which scores a Softmax is to leave out.
_MASK = "-inf"


class Identity(NamedTuple):
    """What a dataset's file is, with facts of its files, and waveforms of some, if it is an archive of them."""

    format: Literal["npz", "safetensors", "pictures", "sounds"]
    size_bytes: int
    sha256: str
    media: MediaSummary | None = None
    waveforms: Waveforms | None = None


def summarize(
    selection: SelectedArrays,
    preprocessing: PreprocessingSpec,
    *,
    classes: Array | None,
    identify: Callable[[], Identity],
    profiler: Profiler | None = None,
) -> DatasetSummary:
    """Read every array once, in blocks, and describe the dataset.

    Args:
        selection: the arrays.
        preprocessing: how they become inputs.
        classes: the labels, read, if they are class numbers.
        identify: tells what the file is, once all of it has been read.
        profiler: sees every block go by; None: the summary has no profile.

    Raises:
        NonFiniteDataError: NaN or Inf in an array.
        DatasetFormatError: damaged bytes.
    """
    for array in selection.arrays.values():
        _check_values(array, profiler)
    if selection.labels is not None and classes is None:
        _check_values(selection.labels, profiler)
    identity = identify()
    labels = None if selection.labels is None else _label_summary(selection.labels, classes)
    return DatasetSummary(
        format=identity.format,
        samples=selection.samples,
        arrays={name: _array_summary(array) for name, array in selection.arrays.items()},
        labels=labels,
        notes=label_notes(labels),
        preprocessing=preprocessing,
        size_bytes=identity.size_bytes,
        sha256=identity.sha256,
        media=identity.media,
        profile=None if profiler is None else profiler.profile(classes, identity.waveforms),
    )


def _array_summary(array: ArraySource) -> ArraySummary:
    shape = told_shape(array)
    if not isinstance(array, RaggedArray) or None not in shape:
        return ArraySummary(dtype=array.dtype.name, shape=shape)
    return ArraySummary(dtype=array.dtype.name, shape=shape, shortest=array.shortest, longest=array.longest)


def _label_summary(array: ArraySource, classes: Array | None) -> LabelSummary:
    known = None if classes is None else classes[classes != UNLABELLED]
    samples = array.shape[0] if are_classes(array) else 0  # that may have a label
    return LabelSummary(
        array=array.name,
        count=array.shape[0],
        minimum=None if known is None else int(known.min()),
        maximum=None if known is None else int(known.max()),
        unlabelled=samples - (0 if known is None else len(known)),
        dtype=array.dtype.name,
        shape=told_shape(array),
    )


def _check_values(array: ArraySource, profiler: Profiler | None) -> None:
    """Read to the end, whatever the type: damaged bytes show only then."""
    watch = None if profiler is None else profiler.watch(array)
    samples = array.shape[0]
    step = max(1, BLOCK_BYTES // max(1, sample_bytes(array.dtype, array.shape)))
    masked, highest = None, -np.inf
    with closing(array.open()) as reader:
        for start, count in pieces([array], 0, samples, step):
            block = reader.read(count)
            bad = _first_non_finite(block)
            if bad is not None and bad[1] == _MASK:
                masked = start + bad[0] if masked is None else masked
                if (block > 0).any():
                    raise _not_finite(array, masked, _MASK)
                block = np.where(block == -np.inf, np.zeros((), block.dtype), block)
                bad = _first_non_finite(block)
            if bad is not None:
                raise _not_finite(array, start + bad[0], bad[1])
            if block.dtype.kind == "f" and block.size:
                highest = max(highest, float(block.max()))
            if masked is not None and highest > 0.0:
                raise _not_finite(array, masked, _MASK)
            if watch is not None:
                watch(start, block)


def _not_finite(array: ArraySource, sample: int, value: str) -> NonFiniteDataError:
    why, hint = f"contains {value} in sample {sample}", "Leave the sample out or repair it."
    return array_fault(NonFiniteDataError, array.name, why, hint=hint, sample=sample)


def _first_non_finite(block: Array) -> tuple[int, str] | None:
    """Row and value of the first NaN or Inf."""
    finite = _is_finite(block)
    if finite is None or finite.all():
        return None
    flat = int(np.argmin(finite.reshape(-1)))
    return flat // max(1, block[:1].size), str(block.reshape(-1)[flat])


def _is_finite(block: Array) -> Array | None:
    """Element-wise, None for types that have no NaN. 16-bit floats by their exponent bits, which is much faster."""
    if block.dtype == np.float16:
        return _exponent_open(block, 0x7C00)
    if block.dtype == ml_dtypes.bfloat16:
        return _exponent_open(block, 0x7F80)
    finite: Array | None = np.isfinite(block) if block.dtype.kind == "f" else None
    return finite


def _exponent_open(block: Array, mask: int) -> Array:
    bits: np.ndarray[Any, np.dtype[np.uint16]] = np.ascontiguousarray(block).view(np.uint16)
    finite: Array = (bits & mask) != mask
    return finite
