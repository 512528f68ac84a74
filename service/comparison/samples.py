"""What a job's models decided, sample by sample, read from its ``samples.npz``.

The file was written beside a client's model, so nothing of it is believed: every size is checked before it is read.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from service.contracts.errors import QuantmillError

MOST_SAMPLES = 5_000_000
_MOST_COLUMNS = 16
_MOST_HEADER_BYTES = 10_000
_INTEGERS = ("int32", "int64")
# Name of a column and the types that it may have; others are left alone.
_TYPES: dict[str, tuple[str, ...]] = {
    "float_class": _INTEGERS,
    "quantized_class": _INTEGERS,
    "label": _INTEGERS,
    "float_confidence": ("float32",),
}
# What zipfile raises for archives that are none, or damaged.
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, KeyError, RuntimeError)
_Column = npt.NDArray[Any]


class SamplesUnreadableError(QuantmillError):
    """The file is not one that the engine writes."""

    code = "samples-unreadable"
    title = "The results by sample cannot be read"
    status = 422


@dataclass(frozen=True)
class Decisions:
    """One class per sample.

    Attributes:
        quantized: of the quantized model, int32 or int64 [sample].
        expected: what it should be: the label, or, without labels, what the float model decided; likewise.
        labeled: whether ``expected`` are labels.
    """

    quantized: _Column
    expected: _Column
    labeled: bool

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Which samples the quantized model decides as expected, [sample]."""
        return np.asarray(self.quantized == self.expected)


def read_decisions(data: bytes) -> Decisions:
    """Read ``samples.npz``.

    Raises:
        SamplesUnreadableError: it is not as the engine writes it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if len(names) > _MOST_COLUMNS or len(set(names)) != len(names):
                raise _unreadable(f"it has {len(names)} columns")
            found = {name: _column(archive, name) for name in _TYPES if f"{name}.npy" in names}
    except _BROKEN as error:
        raise _unreadable(str(error)) from error
    missing = {"float_class", "quantized_class"} - found.keys()
    if missing or len({len(column) for column in found.values()}) != 1:
        raise _unreadable("a column is missing, or one is longer than another")
    return Decisions(found["quantized_class"], found.get("label", found["float_class"]), "label" in found)


def _column(archive: zipfile.ZipFile, name: str) -> _Column:
    """One column; as many bytes are read as its head tells, and that may be only so many."""
    with archive.open(f"{name}.npy") as entry:
        try:
            version = np.lib.format.read_magic(entry)
            if version != (1, 0):
                raise _unreadable(f"{name} is of version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(entry, max_header_size=_MOST_HEADER_BYTES)
        except ValueError as error:
            raise _unreadable(f"{name}: {error}") from error
        if dtype.newbyteorder("<") != dtype or dtype.name not in _TYPES[name]:
            raise _unreadable(f"{name} is of type {dtype}")
        if len(shape) != 1 or not 0 <= shape[0] <= MOST_SAMPLES:
            raise _unreadable(f"{name} is of shape {shape}")
        size_bytes = shape[0] * dtype.itemsize
        data = entry.read(size_bytes + 1)
    if len(data) != size_bytes:
        raise _unreadable(f"{name} is not as long as it says")
    return np.frombuffer(data, dtype)


def _unreadable(what: str) -> SamplesUnreadableError:
    return SamplesUnreadableError(
        f"The job's samples.npz cannot be read: {what}.",
        hint="Retry the job: POST /v1/jobs/{id}/retry. If its file comes out like this again, tell those who run it.",
    )
