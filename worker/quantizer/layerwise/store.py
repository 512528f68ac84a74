"""Where tensors wait between the segment that makes them and the last one that reads them: in memory or on disk."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

Level = Literal["auto", 0, 1, 2]

_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT, _CGROUP_USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
# Shares of what is free that waiting tensors may take: the rest is for the layers being solved, and for others.
_MEMORY_SHARE, _DISK_SHARE = 0.4, 0.5
_UNKNOWN_MEMORY = 1 << 30


class StoreFullError(Exception):
    """A tensor fits neither into memory nor on disk. The walk answers it by going on with fewer samples."""


@dataclass(frozen=True)
class StoreLimits:
    """Where tensors may wait.

    Attributes:
        level: 0 all in memory; 1 in memory what the next layer reads, on disk what waits longer; 2 all on disk; auto
            as 0. What does not fit where the level wants it goes to the next level.
        memory_bytes: that waiting tensors may take in memory; None: a share of what is free.
        disk_bytes: the same on disk.
    """

    level: Level = "auto"
    memory_bytes: int | None = None
    disk_bytes: int | None = None


DEFAULT_LIMITS = StoreLimits()


@dataclass
class _Entry:
    size: int
    array: np.ndarray | None
    path: Path | None
    dtype: np.dtype
    shape: tuple[int, ...]


class Store:
    """Arrays by key; ``close`` it when they are no longer needed.

    Args:
        limits: where tensors may wait.
        folder: to make the scratch folder in; default: that for temporary files.
    """

    def __init__(self, limits: StoreLimits, folder: Path | None = None) -> None:
        self._level = 0 if limits.level == "auto" else limits.level
        self._entries: dict[object, _Entry] = {}
        self._parent = folder
        self._folder: Path | None = None
        self._memory_limit = limits.memory_bytes
        self._disk_limit = limits.disk_bytes
        self._files = 0
        self.memory_bytes = self.disk_bytes = 0
        self.overflowed = False  # something did not fit where the level wanted it

    def close(self) -> None:
        """Remove everything, files too."""
        self._entries.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, key: object, array: np.ndarray, *, read_next: bool) -> None:
        """Keep ``array`` under ``key``, which must be free.

        Args:
            key: hashable.
            array: not copied where it stays in memory; nobody may write into it.
            read_next: the very next segment reads it.

        Raises:
            StoreFullError: it fits nowhere.
        """
        if key in self._entries:
            raise ValueError(f"{key!r} is kept already")
        in_memory = self._level == 0 or (self._level == 1 and read_next)
        if in_memory and self.memory_bytes + array.nbytes > self._memory():
            in_memory, self.overflowed = False, True
        if not in_memory and _fits_file(array):
            self._entries[key] = self._write(array)
            return
        self.memory_bytes += array.nbytes
        self._entries[key] = _Entry(array.nbytes, array, None, array.dtype, array.shape)

    def get(self, key: object) -> np.ndarray:
        """The array of ``key``; not to be written into."""
        entry = self._entries[key]
        if entry.array is not None:
            return entry.array
        if entry.path is None:
            raise ValueError("an entry without an array or a file")
        return np.fromfile(entry.path, entry.dtype).reshape(entry.shape)

    def discard(self, key: object) -> None:
        """Forget ``key``, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.path is None:
            self.memory_bytes -= entry.size
        else:
            entry.path.unlink()
            self.disk_bytes -= entry.size

    def put_away(self, key: object) -> None:
        """At level 1, move an array that nothing reads next from memory to disk.

        Raises:
            StoreFullError: there is no room on disk.
        """
        entry = self._entries[key]
        if self._level == 1 and entry.array is not None and _fits_file(entry.array):
            self._entries[key] = self._write(entry.array)
            self.memory_bytes -= entry.size

    def discard_where(self, condition: Callable[[object], bool]) -> None:
        """Forget all keys for which ``condition`` holds."""
        for key in [key for key in self._entries if condition(key)]:
            self.discard(key)

    def _write(self, array: np.ndarray) -> _Entry:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="walk-", dir=self._parent))
        if self._disk_limit is None:
            self._disk_limit = int(shutil.disk_usage(self._folder).free * _DISK_SHARE)
        if self.disk_bytes + array.nbytes > self._disk_limit:
            raise StoreFullError
        path = self._folder / str(self._files)
        self._files += 1
        with path.open("wb") as file:
            file.write(array.reshape(-1).view(np.uint8).data)  # tofile does not say why it wrote less
        self.disk_bytes += array.nbytes
        return _Entry(array.nbytes, None, path, array.dtype, array.shape)

    def _memory(self) -> int:
        if self._memory_limit is None:
            self._memory_limit = int(free_memory_bytes() * _MEMORY_SHARE)
        return self._memory_limit


def _fits_file(array: np.ndarray) -> bool:
    return array.nbytes > 0 and array.dtype.kind in "biuf"


def free_memory_bytes() -> int:
    """Memory that this process could still get: the machine's, or the container's or the process's own limit."""
    free = [_UNKNOWN_MEMORY]
    with contextlib.suppress(OSError, KeyError):  # no Linux: a guess is all there is
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free = [int(lines["MemAvailable"].split()[0]) * 1024]
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        free.append(int(_CGROUP_LIMIT.read_text()) - int(_CGROUP_USED.read_text()))
    return max(min([*free, *_address_space()]), 0)


def _address_space() -> list[int]:
    """What the process's limit on its address space leaves it."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return []
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return []
    return [limit - pages * os.sysconf("SC_PAGE_SIZE")]
