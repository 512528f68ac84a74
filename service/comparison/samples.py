"""What a job's models decided, sample by sample, read from its ``samples.npz``.

The file was written beside a client's model, so nothing of it is believed: every size is checked before it is read.
"""

from __future__ import annotations

import io
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from service.contracts.errors import QuantmillError
from service.contracts.evaluation import MAX_METRICS

MOST_SAMPLES = 5_000_000
_MOST_COLUMNS = 16 + MAX_METRICS
_MOST_HEADER_BYTES = 10_000
_INTEGERS = ("int32", "int64")
_METRIC = "metric."
# Of all columns together, unpacked.
_MOST_BYTES = 512 * 1024 * 1024
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


class SamplesUnreadableError(
    QuantmillError, code="samples-unreadable", title="The results by sample cannot be read", status=422
):
    """The file is not one that the engine writes."""


@dataclass(frozen=True)
class Decisions:
    """One class per sample."""

    quantized: _Column  # of the quantized model, int32 or int64 [sample]
    expected: _Column  # what it should be: the label, or, without labels, what the float model decided; likewise
    labeled: bool  # whether ``expected`` are labels

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        """Which samples have a class that is expected, [sample]: those without a label have -1."""
        return np.asarray(self.expected >= 0) if self.labeled else np.ones(len(self.expected), bool)

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Which samples the quantized model decides as expected, [sample]."""
        return np.asarray((self.quantized == self.expected) & self.counted)


@dataclass(frozen=True)
class Samples:
    """What a ``samples.npz`` tells."""

    decisions: Decisions | None  # one class per sample; None: the output gives none
    # by name what each sample says of the quantized model's metric, in its unit: finite float64 [sample]
    metrics: dict[str, npt.NDArray[np.float64]]
    # as they stand in the file, those of ``decisions`` and ``float_confidence`` (may be NaN), [sample]
    columns: Mapping[str, _Column] = field(default_factory=dict)


def read_samples(data: bytes) -> Samples:
    """Read ``samples.npz``.

    Raises:
        SamplesUnreadableError: it is not as the engine writes it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
            if len(names) > _MOST_COLUMNS or len(set(names)) != len(names):
                raise _unreadable(f"it has {len(names)} columns")
            known = {name.removesuffix(".npy") for name in names}
            if sum(info.file_size for info in archive.infolist()) > _MOST_BYTES:
                raise _unreadable(f"it has more than {_MOST_BYTES} bytes")
            found = {name: _column(archive, name, types) for name, types in _TYPES.items() if name in known}
            metrics = {
                name.removeprefix(_METRIC): _column(archive, name, ("float64",))
                for name in sorted(known)
                if name.startswith(_METRIC)
            }
    except _BROKEN as error:
        raise _unreadable(str(error)) from error
    if len({len(column) for column in [*found.values(), *metrics.values()]}) > 1:
        raise _unreadable("a column is longer than another")
    if not all(np.isfinite(column).all() for column in metrics.values()):
        raise _unreadable("a metric is not finite")
    return Samples(_decisions(found), metrics, found)


def _decisions(columns: dict[str, _Column]) -> Decisions | None:
    if not columns:
        return None
    if {"float_class", "quantized_class"} - columns.keys():
        raise _unreadable("a column is missing")
    expected = columns.get("label", columns["float_class"])
    return Decisions(columns["quantized_class"], expected, "label" in columns)


def _column(archive: zipfile.ZipFile, name: str, types: tuple[str, ...]) -> _Column:
    """One column; as many bytes are read as its head tells, and that may be only so many."""
    with archive.open(f"{name}.npy") as entry:
        try:
            version = np.lib.format.read_magic(entry)
            if version != (1, 0):
                raise _unreadable(f"{name} is of version {version}")
            shape, _, dtype = np.lib.format.read_array_header_1_0(entry, max_header_size=_MOST_HEADER_BYTES)
        except (ValueError, TypeError, SyntaxError, RecursionError, tokenize.TokenError) as error:
            # numpy has Python's own reader look at a head that it does not know
            raise _unreadable(f"{name}: {error}") from error
        if dtype.newbyteorder("<") != dtype or dtype.name not in types:
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
        hint="Retry the job with POST /v1/jobs/{id}/retry. If the new file cannot be read either, report it.",
    )
