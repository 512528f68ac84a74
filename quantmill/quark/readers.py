"""Calibration data as Quark's users give it: readers, and folders of .npy files. It is streamed to disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from quantmill.columns import Columns
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import DatasetArraysError, EmptyDatasetError
from service.contracts.runner import DatasetSource

_HINT = "get_next() returns {input name: array of one batch}, and None at the end."


class CalibrationDataReader(ABC):
    """As onnxruntime's and Quark's, whose subclasses serve as well: whatever has ``get_next`` does."""

    @abstractmethod
    def get_next(self) -> dict[str, Any] | None:
        """The inputs of the next run by name; None at the end."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """All that is left."""
        while (item := self.get_next()) is not None:
            yield item


class RandomDataReader(CalibrationDataReader):
    """Stands for ``UseRandomData``: the inputs are drawn where the model is quantized.

    Args:
        model_input: is not needed.
        input_shape: whole shape by input, where the model leaves more than its first axis free.
        input_data_range: (minimum, maximum) by input.
    """

    def __init__(
        self,
        model_input: Any = None,
        input_shape: Mapping[str, Any] | None = None,
        input_data_range: Mapping[str, Any] | None = None,
    ) -> None:
        self.input_shape = dict(input_shape or {})
        self.input_data_range = None if input_data_range is None else dict(input_data_range)

    def get_next(self) -> dict[str, Any] | None:
        """None: there is nothing to hand over."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """The same as extra options."""
        ranges = self.input_data_range
        return {
            "UseRandomData": True,
            "RandomDataReaderInputShape": {name: list(shape) for name, shape in self.input_shape.items()},
            **({} if ranges is None else {"RandomDataReaderInputDataRange": {k: list(v) for k, v in ranges.items()}}),
        }


def store(reader: Any, path: Path, *, limit: int | None = None) -> DatasetSource:
    """Write what a reader gives to ``path`` (.npz), item by item.

    Items are cut into samples along the first axes where all inputs agree on how many there are, in every item and at
    once; else each item becomes one sample of whole inputs.

    Args:
        reader: has ``get_next``.
        path: of the new file; its folder holds the arrays meanwhile.
        limit: stop after the item in which so many samples are reached.

    Raises:
        DatasetArraysError: an item is no dict of arrays, or does not fit those before it.
        EmptyDatasetError: there is none.
    """
    whole: bool | None = None
    with TemporaryDirectory(dir=path.absolute().parent, prefix=".quantmill-") as folder:
        columns = Columns(Path(folder))
        for number, item in enumerate(_items(reader)):
            arrays = _arrays(item, number)
            whole = _is_whole(arrays) if whole is None else whole
            try:
                columns.append({name: array[None] if whole else array for name, array in arrays.items()})
            except ValueError as error:
                raise DatasetArraysError(f"item {number} of the calibration data reader: {error}", hint=_HINT) from None
            if limit is not None and columns.samples >= limit:
                break
        if not columns.samples:
            raise EmptyDatasetError(
                "the calibration data reader gives nothing",
                hint="A reader that was read before must be created again, or needs a method rewind().",
            )
        columns.pack(path)
    inputs = {name: InputSpec(array=name) for name in arrays}
    return DatasetSource(path=str(path.absolute()), preprocessing=PreprocessingSpec(inputs=inputs))


def _items(reader: Any) -> Iterator[Any]:
    """Everything, from the beginning if the reader can be set back to it."""
    first = reader.get_next()
    if first is None:
        back: Callable[[], Any] | None = getattr(reader, "rewind", None) or getattr(reader, "reset_iter", None)
        if back is not None:
            back()
            first = reader.get_next()
    while first is not None:
        yield first
        first = reader.get_next()


def _arrays(item: Any, number: int) -> dict[str, np.ndarray]:
    if not isinstance(item, Mapping) or not item:
        raise DatasetArraysError(
            f"item {number} of the calibration data reader is {type(item).__name__}, not a dict of arrays", hint=_HINT
        )
    arrays = {str(name): np.asarray(value) for name, value in item.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise DatasetArraysError(
                f"item {number} of the calibration data reader: {name!r} holds {array.dtype}, no numbers", hint=_HINT
            )
    return arrays


def _is_whole(arrays: Mapping[str, np.ndarray]) -> bool:
    """True if the inputs do not agree on a number of samples."""
    first = {array.shape[:1] for array in arrays.values()}
    return () in first or len(first) > 1


class FolderReader(CalibrationDataReader):
    """A folder of .npy files, one item each in the order of their names: ``calibration_data_path``.

    With several inputs it holds a folder for each, by the input's name.

    Args:
        folder: exists.
        inputs: names of the model's inputs.

    Raises:
        DatasetArraysError: files of an input are not there, or inputs differ in how many they have.
    """

    def __init__(self, folder: Path, inputs: list[str]) -> None:
        folders = {inputs[0]: folder} if len(inputs) == 1 and any(folder.glob("*.npy")) else {}
        self._files = {name: sorted((folders.get(name) or folder / name).glob("*.npy")) for name in inputs}
        counts = {name: len(files) for name, files in self._files.items()}
        if len(set(counts.values())) != 1:
            raise DatasetArraysError(
                f"{folder} holds {counts} files by input", hint="Give every input the same number of .npy files."
            )
        self._at = 0

    def get_next(self) -> dict[str, Any] | None:
        """The next file of every input, without pickles."""
        if any(self._at >= len(files) for files in self._files.values()):
            return None
        item = {name: np.load(files[self._at], allow_pickle=False) for name, files in self._files.items()}
        self._at += 1
        return item


__all__ = ["CalibrationDataReader", "FolderReader", "RandomDataReader", "store"]
