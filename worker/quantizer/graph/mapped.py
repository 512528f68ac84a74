"""Weights that lie in a file, mapped into memory: where they lie, and how their memory is given back.

A model of many gigabytes is read page by page; the pages that were read stay in memory until somebody needs it, and
count as the process's own. So what is mapped from large files is given back many times a second, whoever has read it:
numpy, or a session in the midst of a run. A reader who comes again finds the page in the system's cache of the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph import sizes

# Where a mapping lies, what may be done with it, and its file.
_MAPPING = re.compile(
    r"^(?P<first>[0-9a-f]+)-(?P<end>[0-9a-f]+) r(?P<write>[w-])-[ps] \S+ \S+ \d+ +(?P<path>/.*)$", re.MULTILINE
)
# How much of it was written to, and is the process's own since then.
_WRITTEN = re.compile(r"^Anonymous: +(\d+) kB$", re.MULTILINE)
_MAPS, _SMAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
# Files of this size and more are swept, so often.
SWEPT_BYTES = 1 << 28
_SWEEP_SECONDS = 0.02


class Mapped:
    """Of a tensor that is a view of a mapped file: where its bytes lie. The base beside it is the tensor itself.

    Args:
        values: the view; of elements of fewer than 8 bits packed, uint8 [bytes].
        dtype: of the elements.
        shape: of the tensor.
        folder: that the file lies in.
        location: of the file in it.
        offset: of the first byte in the file.
        name: of the tensor.
        doc_string: likewise.
    """

    def __init__(
        self,
        values: np.ndarray,
        dtype: ir.DataType,
        *,
        shape: ir.Shape,
        folder: Path,
        location: str,
        offset: int,
        name: str | None,
        doc_string: str | None,
    ) -> None:
        facts: dict[str, Any] = {
            "value": values,
            "dtype": dtype,
            "shape": shape,
            "name": name,
            "doc_string": doc_string,
        }
        super().__init__(**facts)
        self.folder, self.location, self.offset = folder, location, offset

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / self.location


class MappedTensor(Mapped, ir.Tensor[np.ndarray]):
    """A tensor whose array is a view of a mapped file."""


class MappedPackedTensor(Mapped, ir.PackedTensor[np.ndarray]):
    """The same of elements of fewer than 8 bits, packed as ONNX has them."""


def raw_bytes(tensor: ir.TensorProtocol) -> np.ndarray:
    """The bytes of a tensor as ONNX stores them, uint8 [bytes]; of a mapped one a view."""
    if isinstance(tensor, MappedTensor | MappedPackedTensor):
        flat: np.ndarray = np.ascontiguousarray(tensor.raw).reshape(-1)
        return flat.view(np.uint8)
    return np.frombuffer(tensor.tobytes(), np.uint8)


def forget(tensor: ir.TensorProtocol | None) -> None:
    """Give back the memory of one mapped tensor; who reads it again reads the file again."""
    if isinstance(tensor, MappedTensor | MappedPackedTensor) and tensor.nbytes > sizes.TENSOR_BYTES:
        begin = int(tensor.raw.__array_interface__["data"][0])
        first, end = (
            -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE,
            (begin + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE,
        )
        if end > first:
            _give_back(first, end)


def _give_back(first: int, end: int) -> None:
    """Of a mapping that nobody has written to nothing is lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def forget_pages(model: ir.Model) -> None:
    """Give back the memory of the mapped files that weights of ``model`` lie in; who reads on reads the file again.

    Does nothing where the system does not tell what is mapped.
    """
    forget_files({one.path for one in _held(model) if isinstance(one, Mapped)})


def _held(model: ir.Model) -> Iterator[object]:
    yield from (value.const_value for value in model.graph.initializers.values())


def forget_files(mapped: Collection[Path]) -> None:
    """Give back the memory of all mappings of these files, whoever has made them."""
    _forget({str(file.resolve()) for file in mapped})


def sweep(file: Path) -> None:
    """From now on give back the memory of all mappings of a file, as long as there are any."""
    _SWEEPER.add(str(file.resolve()))


def _forget(files: Collection[str]) -> set[str]:
    """Give back the memory of all mappings of files; those that are mapped.

    The runtime maps weights so that it may write to them, but does not. Each such mapping is looked at once: one that
    was written to is left alone, as that would be lost.
    """
    seen: set[str] = set()
    if not files or not _MAPS.exists():
        return seen
    found = [mapping for mapping in _MAPPING.finditer(_MAPS.read_text()) if mapping["path"] in files]
    if any(mapping["write"] == "w" and mapping[0] not in _PRISTINE for mapping in found):
        _PRISTINE.clear()
        _PRISTINE.update(_pristine(files))
    for mapping in found:
        seen.add(mapping["path"])
        if mapping["write"] == "-" or _PRISTINE.get(mapping[0]):
            _give_back(int(mapping["first"], 16), int(mapping["end"], 16))
    return seen


def _pristine(files: Collection[str]) -> dict[str, bool]:
    """By line of a mapping of files: whether nobody has written to it."""
    text = _SMAPS.read_text()
    mappings = [mapping for mapping in _MAPPING.finditer(text) if mapping["path"] in files]
    tails = [_WRITTEN.search(text, mapping.end()) for mapping in mappings]
    return {mapping[0]: tail is not None and tail[1] == "0" for mapping, tail in zip(mappings, tails, strict=True)}


# What was found of the mappings that may be written to.
_PRISTINE: dict[str, bool] = {}


class _Sweeper:
    """A thread that gives back what is mapped, and ends when nothing is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._process: int | None = None  # that the thread runs in; a fork has none

    def add(self, file: str) -> None:
        with self._lock:
            self._files.add(file)
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._run, name="mapped-pages", daemon=True).start()

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_SWEEP_SECONDS)
            with self._lock:
                self._files &= _forget(self._files)
                if not self._files:
                    self._process = None
                    return


_SWEEPER = _Sweeper()
