"""Arrays that come in pieces, written to one .npz file without ever being whole in memory."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

_BLOCK_BYTES = 1 << 20
# The same bytes whenever it is written.
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Columns:
    """Arrays that grow along their first axis, each in a file of its own until they are packed.

    Args:
        folder: for the files; exists.

    Attributes:
        samples: so far.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.samples = 0

    def append(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Append one piece: arrays [n, ...] with the same n.

        Raises:
            ValueError: it differs from the pieces before it in names, types or shapes; says how.
        """
        if self._kinds and set(arrays) != set(self._kinds):
            raise ValueError(f"it holds {sorted(arrays)}, the batches before it {sorted(self._kinds)}")
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"its arrays differ in length: {lengths}")
        for name, array in arrays.items():
            dtype, shape = self._kinds.setdefault(name, (array.dtype, array.shape[1:]))
            if (array.dtype, array.shape[1:]) != (dtype, shape):
                raise ValueError(
                    f"{name!r} is {array.dtype}{list(array.shape[1:])} per sample, in the batches before it "
                    f"{dtype}{list(shape)}"
                )
            with self._file(name).open("ab") as stream:
                stream.write(np.ascontiguousarray(array).data)
        self.samples += next(iter(lengths.values()), 0)

    def pack(self, path: Path) -> None:
        """Write all arrays into one .npz, the same bytes for the same arrays; their files go."""
        with zipfile.ZipFile(path, "w") as archive:
            for name, (dtype, shape) in self._kinds.items():
                entry = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
                with archive.open(entry, "w", force_zip64=True) as target:
                    _write_header(target, dtype, (self.samples, *shape))
                    with self._file(name).open("rb") as source:
                        shutil.copyfileobj(source, target, _BLOCK_BYTES)
                self._file(name).unlink()

    def _file(self, name: str) -> Path:
        return self._folder / f"{list(self._kinds).index(name)}.bin"


def _write_header(stream: IO[bytes], dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
