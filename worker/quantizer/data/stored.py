"""Stored arrays: bytes in a file that are read as blocks of samples, never as a whole; and where their faults lie.

Faults of a dataset are told by JSON pointers (RFC 6901) into its record. One array: ``/arrays/<name>``, a key of
``DatasetSummary.arrays``; of one stored sample by sample, a damaged sample: ``/arrays/<name>~1<number>``. One file of
an archive of pictures or sounds: ``/files/<path>``, its path within the archive. The label array: ``/labels``, whatever
its name in the file. The preprocessing spec: ``/preprocessing/...``. A fault of the file as a whole has no pointer
here: whoever took the file in knows which of its fields gave the bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from service.contracts.base import below
from service.contracts.errors import DatasetArraysError, DatasetError, DatasetFormatError

Array = np.ndarray[Any, Any]

# One sample has to fit into memory several times over; anything larger is a mistake or an attack.
MAX_SAMPLE_BYTES = 1 << 30

NUMERIC_KINDS = "biuf"
_UNSUPPORTED = {"float128", "float96"}
LABELS_POINTER = "/labels"

Fault = TypeVar("Fault", bound=DatasetError)


class ByteStream(Protocol):
    """Bytes of one array, from its first element on."""

    def readinto(self, target: memoryview) -> int:
        """Fill ``target`` as far as there are bytes; returns the number of bytes written."""

    def close(self) -> None:
        """Give back file handles."""


class ByteSource(Protocol):
    """Opens a new stream over the bytes of one array."""

    def open(self) -> ByteStream:
        """A stream that starts at the first element."""


class SampleReader(Protocol):
    """Reads one array sample by sample, in order."""

    def read(self, count: int) -> Array:
        """The next ``count`` samples, a new or read-only array [count, ...]."""

    def close(self) -> None:
        """Give back file handles."""


class ArraySource(Protocol):
    """An array whose samples can be read again and again."""

    @property
    def name(self) -> str:
        """Name within the dataset."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, native byte order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, first axis = samples."""

    @property
    def refusal(self) -> str | None:
        """Why the array cannot be used, or None."""

    def open(self) -> SampleReader:
        """A reader that starts at sample 0."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, C order; ``stored_dtype`` may be of the other byte order, ``dtype`` is native."""

    name: str
    stored_dtype: np.dtype[Any]
    shape: tuple[int, ...]
    source: ByteSource
    refusal: str | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements, native byte order."""
        return self.stored_dtype.newbyteorder("=")

    def open(self) -> SampleReader:
        """A reader that starts at sample 0.

        Raises:
            DatasetArraysError: the array is of a kind that cannot be used.
        """
        if self.refusal:
            raise array_fault(DatasetArraysError, self.name, self.refusal)
        return _StoredReader(self)


class _StoredReader:
    """Cuts a byte stream into samples."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array
        self._stream = array.source.open()
        self._left = array.shape[0] if array.shape else 1

    def read(self, count: int) -> Array:
        count = min(count, self._left)
        block = np.empty((count, *self._array.shape[1:]), self._array.stored_dtype)
        if block.nbytes:
            # Through a byte view: a memoryview of ml_dtypes' types or of the other byte order cannot be cast.
            target = memoryview(block.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
            got = self._stream.readinto(target)
            if got != block.nbytes:
                raise cut_short(self._array.name, block.nbytes - got)
        self._left -= count
        return block if block.dtype.isnative else block.astype(self._array.dtype)

    def close(self) -> None:
        self._stream.close()


@dataclass(frozen=True)
class MemoryArray:
    """An array in memory."""

    name: str
    values: Array
    refusal: str | None = None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        native: np.dtype[Any] = self.values.dtype.newbyteorder("=")
        return native

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape, first axis = samples."""
        return tuple(self.values.shape)

    def open(self) -> SampleReader:
        """A reader that starts at sample 0."""
        return _MemoryReader(self.values)


class _MemoryReader:
    """Hands out slices."""

    def __init__(self, values: Array) -> None:
        self._values = values
        self._at = 0

    def read(self, count: int) -> Array:
        block = self._values[self._at : self._at + count]
        self._at += len(block)
        return block

    def close(self) -> None:
        """Nothing to give back."""


def cut_short(name: str, missing_bytes: int) -> DatasetFormatError:
    """The error of an array whose bytes are not all there."""
    why, hint = f"is truncated: {missing_bytes} bytes are missing", "Write the file again and upload it again."
    return array_fault(DatasetFormatError, name, why, hint=hint)


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """True for bool, integers and floats up to 64 bits, ml_dtypes' floats among them."""
    if dtype.name in _UNSUPPORTED:
        return False
    return dtype.kind in NUMERIC_KINDS or (dtype.kind == "V" and dtype.name in {"bfloat16"})


def sample_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Bytes of one sample."""
    return dtype.itemsize * math.prod(shape[1:])


def array_pointer(name: str) -> str:
    """Pointer of a stored array; an archive's member ``x.npy`` is array ``x``."""
    return below("/arrays", name.removesuffix(".npy"))


def array_fault(kind: type[Fault], name: str, why: str, **details: Any) -> Fault:
    """An error of ``kind`` about a stored array; ``why`` follows its name, ``details`` are those of any error."""
    return kind(f"array {name!r} {why}", pointer=array_pointer(name), array=name, **details)


def file_pointer(path: str) -> str:
    """Pointer of a file in an archive of pictures or sounds."""
    return below("/files", path)
