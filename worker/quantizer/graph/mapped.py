"""Weights that lie in a file, mapped into memory: where they lie, and how their memory is given back.

A model of many gigabytes is read page by page; the pages that were read stay in memory until somebody needs it, and
count as the process's own.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Collection
from pathlib import Path

import numpy as np
import onnx_ir as ir

_MAPPING = re.compile(r"^(?P<first>[0-9a-f]+)-(?P<end>[0-9a-f]+) r--[ps] \S+ \S+ \d+ +(?P<path>/.*)$")
_MAPS = Path("/proc/self/maps")
_WORTH_BYTES = 1 << 24


class MappedTensor(ir.Tensor[np.ndarray]):
    """A tensor whose array is a view of a mapped file.

    Args:
        values: the view.
        dtype: of its elements.
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
        super().__init__(values, dtype, shape=shape, name=name, doc_string=doc_string)
        self.folder, self.location, self.offset = folder, location, offset


def forget(tensor: ir.TensorProtocol | None) -> None:
    """Give back the memory of one mapped tensor; who reads it again reads the file again."""
    if isinstance(tensor, MappedTensor) and tensor.nbytes > _WORTH_BYTES:
        begin = int(tensor.numpy().__array_interface__["data"][0])
        first, end = (
            -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE,
            (begin + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE,
        )
        _give_back(first, end)


def _give_back(first: int, end: int) -> None:
    """Of a mapping that nobody writes to nothing is lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)


def forget_pages(model: ir.Model) -> None:
    """Give back the memory of the mapped files that weights of ``model`` lie in; who reads on reads the file again.

    Does nothing where the system does not tell what is mapped.
    """
    held = (value.const_value for value in model.graph.initializers.values())
    forget_files({one.folder / one.location for one in held if isinstance(one, MappedTensor)})


def forget_files(mapped: Collection[Path]) -> None:
    """Give back the memory of all mappings of these files, whoever has made them."""
    files = {str(file.resolve()) for file in mapped}
    if not files or not _MAPS.exists():
        return
    for line in _MAPS.read_text().splitlines():
        found = _MAPPING.match(line)
        if found is not None and found["path"] in files:
            _give_back(int(found["first"], 16), int(found["end"], 16))
