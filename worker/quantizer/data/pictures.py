"""Arrays that contain pictures: which one, in which layout, and whether its values are those that a name expects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.contracts.dataset import COLOURS, PreprocessingSpec
from service.contracts.errors import DatasetArraysError
from service.contracts.preprocessing import ANY_INPUT, IMAGES
from worker.quantizer.data.ragged import told_shape
from worker.quantizer.data.stored import NUMERIC_KINDS, ArraySource, array_pointer

_RANK, _WHITE = 4, 255.0
# Samples whose values are looked at.
_LOOKED_AT = 16
_COUNTS = {2: "two", 3: "three"}
_EXPECTED = "pictures of three channels, [samples, height, width, 3] or [samples, 3, height, width]"


def for_stored_pictures(preprocessing: PreprocessingSpec, stored: Mapping[str, ArraySource]) -> PreprocessingSpec:
    """The spec for arrays of pictures, where it is one for pictures of any kind; else the spec as it is.

    Pictures that are stored as arrays are fed in the size that they have; array and layout are found.

    Args:
        preprocessing: its ``pictures.arrays`` says whether arrays take the place of files.
        stored: the arrays of the file.

    Raises:
        DatasetArraysError: no array, or more than one, contains pictures, or its values are not from 0 to 255.
    """
    feed = preprocessing.inputs.get(ANY_INPUT)
    if preprocessing.pictures is None or preprocessing.pictures.arrays != "as_stored" or feed is None:
        return preprocessing
    found = {name: layout for name, array in stored.items() if (layout := _layout(array)) is not None}
    names = [feed.array] if feed.array in found else list(found)
    if len(names) != 1 or names[0] is None:
        listed = ", ".join(map(repr, names))
        held = f"found {_COUNTS.get(len(names), len(names))}: {listed}" if names else "found none"
        raise DatasetArraysError(
            f"The preprocessing expects one array that contains {_EXPECTED}; {held}.",
            hint=f"Store the pictures as {IMAGES!r}, or give array and layout in preprocessing.inputs.",
            pointer="/preprocessing/inputs",
        )
    _check_values(stored[names[0]])
    changed = feed.model_copy(update={"array": names[0], "layout": found[names[0]]})
    inputs = {**preprocessing.inputs, ANY_INPUT: changed}
    return preprocessing.model_copy(update={"inputs": inputs, "pictures": None})


def _layout(array: ArraySource) -> Any:
    """Of the pictures that the array contains; None: it contains none."""
    shape = told_shape(array)
    if len(shape) != _RANK or array.dtype.kind not in NUMERIC_KINDS:
        return None
    return "NHWC" if shape[3] == COLOURS else "NCHW" if shape[1] == COLOURS else None


def _check_values(array: ArraySource) -> None:
    """Refuse values that are scaled or normalized already: nobody can tell how."""
    if array.dtype.name == "uint8" or not array.shape[0]:
        return
    reader = array.open()
    try:
        block = reader.read(min(_LOOKED_AT, array.shape[0]))
    finally:
        reader.close()
    if not block.size:
        return
    low, high = float(block.min()), float(block.max())
    if low < 0 or high > _WHITE or (array.dtype.kind != "u" and high <= 1):
        raise DatasetArraysError(
            f"array {array.name!r} contains {array.dtype.name} from {low:g} to {high:g}; the preprocessing expects "
            "pictures from 0 to 255",
            hint="Store the pictures as uint8, or give layout, scale, mean and std in preprocessing.inputs.",
            pointer=array_pointer(array.name),
            array=array.name,
        )
