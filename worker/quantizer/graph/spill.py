"""Arrays that are too large to be held: each in a scratch file of its own, and mapped from there.

A model of gigabytes is quantized weight by weight: what is made of one is put here before the next one is read.
"""

from __future__ import annotations

import mmap
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph import sizes
from worker.quantizer.graph.mapped import FilePlace, Mapped, MappedPackedTensor, MappedTensor, forget, raw_bytes, sweep


class SpillFolder:
    """A folder of scratch files; it goes when nobody holds the spill any more, or what was put on it.

    Args:
        parent: folder to make it in; None: that of temporary files. A disk, where memory is to be spared: what lies
            on a tmpfs is memory.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix=".quantmill-spill-", dir=parent)
        self.folder = Path(self._temporary.name)
        self._count = 0
        self._known: dict[int, str] = {}  # file by address of its first byte

    def another(self) -> SpillFolder:
        """An empty one beside it."""
        return SpillFolder(self.folder.parent)

    def subfolder(self) -> Path:
        """A new folder for files that are nobody's arrays."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def array(self, array: np.ndarray) -> np.ndarray:
        """The same array, mapped if that is worth while; whoever reads it must not write."""
        if array.nbytes <= sizes.TENSOR_BYTES:
            return array
        tensor = self.tensor(ir.Tensor(np.ascontiguousarray(array)))
        return tensor.numpy()

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The same tensor, mapped if that is worth while and it is not yet."""
        if isinstance(tensor, Mapped) or tensor.nbytes <= sizes.TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
            return tensor
        location = self._location(tensor)
        with (self.folder / location).open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        sweep(self.folder / location, view)
        place = FilePlace(self.folder, location)
        made: MappedTensor | MappedPackedTensor
        if tensor.dtype.bitwidth < 8:
            made = MappedPackedTensor(np.frombuffer(view, np.uint8), tensor, place)
        else:
            values = np.frombuffer(view, tensor.dtype.numpy()).reshape(tensor.shape.numpy())
            self._known[_address(values)] = location
            made = MappedTensor(values, tensor, place)
        made.spill = self  # type: ignore[union-attr]  # the file stays as long as the tensor
        forget(made)
        return made

    def graph(self, graph: ir.Graph) -> None:
        """Put the initializers of a graph here, without those of its sub-graphs."""
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = self.tensor(value.const_value)

    def _location(self, tensor: ir.TensorProtocol) -> str:
        """The file of a tensor's bytes; written, unless it is an array that was put here before."""
        if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray) and tensor.dtype.bitwidth >= 8:
            known = self._known.get(_address(tensor.raw))
            path = self.folder / (known or "")
            if known and tensor.raw.flags.c_contiguous and path.stat().st_size == tensor.nbytes:
                return known
        self._count += 1
        location = str(self._count)
        (self.folder / location).write_bytes(raw_bytes(tensor).data)
        return location


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])
