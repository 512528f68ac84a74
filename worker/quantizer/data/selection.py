"""Which stored arrays a dataset is made of: model inputs, labels, and what is left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.contracts.base import below
from service.contracts.dataset import DEFAULT_LABELS, UNLABELLED, PreprocessingSpec
from service.contracts.errors import (
    DatasetArraysError,
    DatasetLabelsError,
    EmptyDatasetError,
)
from service.contracts.preprocessing import ANY_INPUT
from worker.quantizer.data.ragged import NUMBERING_HINT, RaggedArray, missing_sample, told_shape
from worker.quantizer.data.stored import (
    LABELS_POINTER,
    MAX_SAMPLE_BYTES,
    ArraySource,
    array_fault,
    array_pointer,
    is_numeric,
    sample_bytes,
)

_TEXT_KINDS = "USMm"
# Fewer rows of zeros and a one may be anything; and elements that are looked at at once.
_FEWEST_ONE_HOT, _ONE_HOT_BLOCK = 2, 1 << 20


@dataclass(frozen=True)
class SelectedArrays:
    """The arrays that can feed inputs or be named by a metric, the label array, and the samples that all share."""

    arrays: dict[str, ArraySource]
    labels: ArraySource | None
    samples: int


def select_arrays(stored: Mapping[str, ArraySource], preprocessing: PreprocessingSpec) -> SelectedArrays:
    """Choose the arrays that ``preprocessing`` speaks of, or all of them if it names none.

    Where arrays are named, the others may have any length and type and are left out if they do not fit. Where none is
    named, text arrays are left out (class names are often stored beside the data) and everything else has to fit.

    Raises:
        DatasetArraysError: a named array is not there, or an array is of another length or an unsupported type.
        DatasetLabelsError: the named label array is not there, holds no numbers, or is of another length.
        EmptyDatasetError: no arrays or no samples.
    """
    named = {spec.array or name for name, spec in preprocessing.inputs.items() if spec.array or name != ANY_INPUT}
    explicit = preprocessing.labels is not None or any(spec.array for spec in preprocessing.inputs.values())
    missing = sorted(name for name in named if name not in stored)
    if missing:
        raise DatasetArraysError(
            (
                f"preprocessing names array {missing[0]!r}, which the dataset does not contain; it contains "
                f"{_listed(stored)}"
            ),
            hint="Name one of the stored arrays in preprocessing.inputs.<input>.array.",
            pointer=_pointer(preprocessing, missing[0]),
            array=missing[0],
        )
    labels = _label_array(stored, preprocessing, named)
    arrays: dict[str, ArraySource] = {}
    optional: dict[str, ArraySource] = {}
    for name, array in stored.items():
        if labels is not None and name == labels.name and name not in named:
            continue
        if name not in named and array.dtype.kind in _TEXT_KINDS:
            continue
        if name in named or not explicit:
            _check_usable(array)
            arrays[name] = array
        elif _refusal(array, may_be_empty=True) is None:
            optional[name] = array
    samples = _samples(arrays, optional, labels, named)
    arrays |= {name: array for name, array in optional.items() if array.shape[0] == samples}
    if labels is not None and labels.shape[0] != samples:
        raise _wrong_length(labels, f" for {samples} samples{_missing([labels, *arrays.values()])}")
    ordered = {name: arrays[name] for name in sorted(arrays)}
    if all(0 in array.shape for array in ordered.values()):  # beside others it is a cache that holds nothing yet
        _check_usable(next(iter(ordered.values())), may_be_empty=False)
    return SelectedArrays(ordered, labels, samples)


def _samples(
    arrays: Mapping[str, ArraySource],
    optional: Mapping[str, ArraySource],
    labels: ArraySource | None,
    named: set[str],
) -> int:
    """The first axis that all arrays share."""
    # Only the labels were named: their length tells which of the arrays belong to them.
    pool = dict(arrays)
    if not pool and labels is not None:
        pool = {name: array for name, array in optional.items() if array.shape[0] == labels.shape[0]}
    if not pool and labels is not None and optional:
        why = f", and no array has as many samples; the dataset contains {_listed(optional)}"
        raise _wrong_length(labels, why)
    if not pool:
        raise EmptyDatasetError(
            "the dataset contains no numeric array that could feed a model input"
            + (f"; it contains labels {labels.name!r}" if labels is not None else ""),
            hint="Store one numeric array per model input, first axis = samples.",
            pointer="/arrays",
        )
    lengths: dict[int, list[str]] = {}
    for name in sorted(pool, key=lambda name: (name not in named, name)):
        lengths.setdefault(pool[name].shape[0], []).append(name)
    if len(lengths) > 1:
        usual = max(lengths, key=lambda length: len(lengths[length]))
        other = next(length for length in lengths if length != usual)
        raise DatasetArraysError(
            f"arrays differ in their first axis (samples): {lengths[usual][0]!r} has {usual}, "
            f"{lengths[other][0]!r} has {other}{_missing(pool.values())}",
            hint="Give every array the same number of samples, or map the arrays to use in preprocessing.inputs.",
            pointer=array_pointer(lengths[other][0]),
            array=lengths[other][0],
        )
    (samples,) = lengths
    if samples == 0:
        raise array_fault(
            EmptyDatasetError, next(iter(pool)), "contains zero samples", hint="Store at least one sample."
        )
    return samples


def _label_array(
    stored: Mapping[str, ArraySource], preprocessing: PreprocessingSpec, named: set[str]
) -> ArraySource | None:
    wanted = DEFAULT_LABELS if preprocessing.labels is None else preprocessing.labels
    if preprocessing.labels is None and (wanted not in stored or wanted in named):
        return None
    if wanted not in stored:
        raise DatasetLabelsError(
            (
                f"preprocessing names labels {wanted!r}, which the dataset does not contain; it contains "
                f"{_listed(stored)}"
            ),
            pointer="/preprocessing/labels",
            array=wanted,
        )
    array = stored[wanted]
    refusal = array.refusal or (None if is_numeric(array.dtype) else f"is {array.dtype}, not numbers")
    refusal = refusal or _refusal(array)
    if refusal is not None:
        raise DatasetLabelsError(
            f"label array {array.name!r} {refusal}",
            hint="Store class numbers as integers [samples], or the numbers that a declared metric compares with; "
            "other data goes under another name than 'labels'.",
            pointer=LABELS_POINTER,
            array=array.name,
        )
    return array


def _wrong_length(labels: ArraySource, why: str) -> DatasetLabelsError:
    return DatasetLabelsError(
        f"labels {labels.name!r} have {labels.shape[0]} values{why}",
        hint="Store one label per sample, or name the right array in preprocessing.labels.",
        pointer=LABELS_POINTER,
        array=labels.name,
    )


def _missing(arrays: Collection[ArraySource]) -> str:
    """The first sample that one of these lacks beside the others, for messages; nothing for arrays stored whole."""
    most = max(array.shape[0] for array in arrays)
    return next((words for array in arrays if (words := missing_sample(array, most))), "")


def are_classes(array: ArraySource) -> bool:
    """True for class numbers: integers, one per sample."""
    shape = told_shape(array)
    return array.dtype.kind in "iu" and (len(shape) == 1 or (len(shape) == 2 and shape[1] == 1))


def one_hot_classes(array: ArraySource) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Class numbers int64 [samples] of one-hot labels [samples, classes]: a single 1 per sample, all else 0.

    None for anything else; a single sample is too little to tell.
    """
    told, shape = told_shape(array), array.shape
    if array.dtype.kind not in "biuf" or len(told) != 2 or None in told or shape[0] < _FEWEST_ONE_HOT or shape[1] < 2:
        return None
    rows = max(1, _ONE_HOT_BLOCK // shape[1])
    found = []
    with closing(array.open()) as reader:
        for start in range(0, shape[0], rows):
            block = reader.read(min(rows, shape[0] - start))
            ones = block == 1
            if not (ones | (block == 0)).all() or not (ones.sum(axis=1) == 1).all():
                return None
            found.append(ones.argmax(axis=1))
    return np.concatenate(found).astype(np.int64)


def _refusal(array: ArraySource, *, may_be_empty: bool = False) -> str | None:
    """Why the array cannot feed an input, or None."""
    if array.refusal:
        return array.refusal
    if not is_numeric(array.dtype):
        return f"has dtype {array.dtype}, which cannot feed a model"
    if not array.shape:
        return "is a scalar: it has no first axis of samples"
    size = sample_bytes(array.dtype, array.shape)
    if size == 0 and may_be_empty and not isinstance(array, RaggedArray):
        size = sample_bytes(array.dtype, tuple(max(length, 1) for length in array.shape))
    if size == 0:
        return f"has samples of shape {list(array.shape[1:])}, without a single element"
    if isinstance(array, RaggedArray):
        size = array.largest_bytes
    if size > MAX_SAMPLE_BYTES:
        return f"has samples of {size} bytes; at most {MAX_SAMPLE_BYTES} are accepted"
    return None


def _check_usable(array: ArraySource, *, may_be_empty: bool = True) -> None:
    refusal = _refusal(array, may_be_empty=may_be_empty)
    if refusal is not None:
        hint = "Store bool, integer or float arrays [samples, ...], or name those to use in preprocessing.inputs."
        if isinstance(array, RaggedArray) and array.refusal:
            hint = NUMBERING_HINT
        raise array_fault(DatasetArraysError, array.name, refusal, hint=hint)


def _pointer(preprocessing: PreprocessingSpec, array: str) -> str:
    for name, spec in preprocessing.inputs.items():
        if (spec.array or name) == array:
            return below("/preprocessing/inputs", name) + ("/array" if spec.array else "")
    return "/preprocessing/inputs"


def _listed(stored: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{name!r} {array.dtype}{list(array.shape)}" for name, array in sorted(stored.items())) or "nothing"
    )


def read_labels(array: ArraySource) -> np.ndarray[Any, np.dtype[np.int64]]:
    """All class numbers as int64 [samples]; -1 where a sample has no label.

    Raises:
        DatasetLabelsError: another negative label, or one beyond int64.
    """
    with closing(array.open()) as reader:
        values = reader.read(array.shape[0]).reshape(-1)
    wide = values.astype(np.int64)
    bad = np.flatnonzero((wide < 0) & ((wide != UNLABELLED) | (values > 0)))  # beyond int64 it wraps around
    if bad.size:
        raise DatasetLabelsError(
            f"labels {array.name!r} contain {values[bad[0]]} at sample {int(bad[0])}; class numbers start at 0",
            hint="Store -1 for a sample without a label; store numbers that are not classes as floats.",
            pointer=LABELS_POINTER,
            array=array.name,
            sample=int(bad[0]),
        )
    return wide
