"""An array whose samples are decoded from files one by one, and kept for later passes in a file without a name.

A job reads its data several times. Decoding a picture takes milliseconds, reading it again from the spool some tens of
microseconds; so what the first pass decodes is written down where that is bounded, and decoded anew where it is not.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from typing import IO, Any

import numpy as np

from service.contracts.errors import EngineError
from worker.quantizer.data.media.members import Archive, MediaFile
from worker.quantizer.data.stored import Array

MAX_SPOOL_BYTES = 16 << 30
Decode = Callable[[int, MediaFile, bytes], Array]


class DecodedArray:
    """An ArraySource over the files of an archive.

    Args:
        name: of the array.
        dtype: of the samples.
        sample_shape: of every sample.
        archive: holds the files.
        files: one per sample, in the archive's order.
        decode: makes a sample of a file's number, name and bytes.
    """

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        sample_shape: tuple[int, ...],
        archive: Archive,
        files: Sequence[MediaFile],
        decode: Decode,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = (len(files), *sample_shape)
        self.refusal: str | None = None
        self._archive = archive
        self._files = files
        self._decode = decode
        self._lock = threading.Lock()
        self._spool: _Spool | None = None

    def open(self) -> _SpooledReader | _DecodingReader:
        """A reader that starts at sample 0."""
        spool = self._opened_spool()
        return _DecodingReader(self) if spool is None else _SpooledReader(spool)

    def at(self, numbers: Sequence[int]) -> Array:
        """The samples of these numbers, which ascend: [len(numbers), ...]."""
        files = [self._files[number] for number in numbers]
        contents = zip(numbers, files, self._archive.contents(files), strict=True)
        return np.stack([self._decode(number, file, data) for number, file, data in contents])

    def decoded(self) -> Generator[Array, None, None]:
        """Every sample, from the first on."""
        contents = self._archive.contents(self._files)
        for number, (file, data) in enumerate(zip(self._files, contents, strict=True)):
            yield self._decode(number, file, data)

    def _opened_spool(self) -> _Spool | None:
        """Where samples are kept; None if there are too many of them."""
        with self._lock:
            if self._spool is None:
                folder = tempfile.gettempdir()
                bound = min(MAX_SPOOL_BYTES, shutil.disk_usage(folder).free // 2)
                if self.dtype.itemsize * math.prod(self.shape) > bound:
                    return None
                self._spool = _Spool(self)
            return self._spool


class _Spool:
    """What has been decoded so far, in a temporary file that is gone with this object."""

    def __init__(self, array: DecodedArray) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._sample_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="quantmill-spool-")  # noqa: SIM115 - as long as this lives
        self._lock = threading.Lock()
        self._filled = 0
        self._coming = array.decoded()
        self._failure: Exception | None = None

    def rows(self, start: int, count: int) -> Array:
        """Samples from ``start`` on, [count, ...]."""
        with self._lock:
            while self._filled < start + count:
                self._add()
        block = np.empty((count, *self.shape[1:]), self.dtype)
        if block.nbytes:
            target, at = memoryview(block.reshape(-1).view(np.uint8)), start * self._sample_bytes  # type: ignore[arg-type]
            while target:
                got = os.preadv(self._file.fileno(), [target], at)
                if not got:
                    raise EngineError("decoded samples are gone from the temporary folder")
                target, at = target[got:], at + got
        return block

    def _add(self) -> None:
        """Decode one more sample. A file that cannot be decoded cannot be decoded by later readers either."""
        if self._failure is not None:
            raise self._failure
        try:
            sample = next(self._coming)
            self._file.write(np.ascontiguousarray(sample, self.dtype).tobytes())
            self._file.flush()
        except Exception as error:
            self._failure = error
            raise
        self._filled += 1
        if self._filled == self.shape[0]:
            self._coming.close()  # and with it the archive's file


class _SpooledReader:
    """Reads from the spool, which decodes what is not there yet."""

    def __init__(self, spool: _Spool) -> None:
        self._spool = spool
        self._at = 0

    def read(self, count: int) -> Array:
        count = min(count, self._spool.shape[0] - self._at)
        block = self._spool.rows(self._at, count)
        self._at += count
        return block

    def close(self) -> None:
        """The spool stays for other readers."""


class _DecodingReader:
    """Decodes on every pass."""

    def __init__(self, array: DecodedArray) -> None:
        self._array = array
        self._left = array.shape[0]
        self._coming = array.decoded()

    def read(self, count: int) -> Array:
        count = min(count, self._left)
        block = np.empty((count, *self._array.shape[1:]), self._array.dtype)
        for row in range(count):
            block[row] = next(self._coming)
        self._left -= count
        return block

    def close(self) -> None:
        self._coming.close()
