"""Reads a whole dataset once: finite values, sound bytes, facts for its record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from service.contracts.dataset import (
    ArraySummary,
    DatasetSummary,
    LabelSummary,
    MediaSummary,
    PreprocessingSpec,
    Waveforms,
)
from service.contracts.errors import NonFiniteDataError
from worker.quantizer.data.profile import Profiler
from worker.quantizer.data.ragged import RaggedArray, pieces, told_shape
from worker.quantizer.data.selection import SelectedArrays
from worker.quantizer.data.stored import Array, ArraySource, array_fault, sample_bytes

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
    return DatasetSummary(
        format=identity.format,
        samples=selection.samples,
        arrays={name: _array_summary(array) for name, array in selection.arrays.items()},
        labels=None if selection.labels is None else _label_summary(selection.labels, classes),
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
    return LabelSummary(
        array=array.name,
        count=array.shape[0],
        minimum=None if classes is None else int(classes.min()),
        maximum=None if classes is None else int(classes.max()),
        dtype=array.dtype.name,
        shape=told_shape(array),
    )


def _check_values(array: ArraySource, profiler: Profiler | None) -> None:
    """Read to the end, whatever the type: damaged bytes show only then."""
    watch = None if profiler is None else profiler.watch(array)
    samples = array.shape[0]
    step = max(1, BLOCK_BYTES // max(1, sample_bytes(array.dtype, array.shape)))
    reader, masked, highest = array.open(), None, -np.inf
    try:
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
    finally:
        reader.close()


def _not_finite(array: ArraySource, sample: int, value: str) -> NonFiniteDataError:
    why, hint = f"holds {value} in sample {sample}", "Leave the sample out or repair it."
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
