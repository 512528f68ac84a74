"""Copies of a bucket's files on the disk of one host, up to so many bytes; the least recently used go first."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from service.storage.base import Check, file_name
from service.storage.digests import file_sha256, is_sha256

_READ_ONLY = 0o440
# A part that nobody has written to for so long is nobody's.
_LEFT_SECONDS = 3600.0
# Writes a file to this place, verified.
Fetch = Callable[[Path], None]


class LocalCopies:
    """Files below ``root``, at ``sha256/ab/abcd...``; shared by all processes of the host.

    A copy that is in use has a shared lock and is not evicted; the lock ends with its process, too.

    Args:
        root: folder on a local disk.
        limit_bytes: what all copies that are not in use may take.
    """

    def __init__(self, root: Path, limit_bytes: int) -> None:
        self._root = root
        self._limit = limit_bytes

    @contextmanager
    def lend(self, sha256: str, size_bytes: int, fetch: Fetch, check: Check, *, verify: bool) -> Iterator[Path]:
        """A copy for as long as the block runs.

        Args:
            sha256: of the file.
            size_bytes: its size.
            fetch: writes it where there is no copy.
            check: called every now and then; what it raises ends the wait.
            verify: read a copy that is there, and fetch one that is damaged anew.
        """
        path = self._root / file_name(sha256)
        stream = self._held(path)
        if stream is not None and verify and file_sha256(path, check=check) != sha256:
            stream.close()  # a disk that lies, or a write cut off
            stream = self._fetched(path, fetch, anew=True)
        if stream is None:
            self._make_room(size_bytes)
            stream = self._fetched(path, fetch)
        with stream:
            yield path

    def evict(self, limit_bytes: int) -> None:
        """Remove copies that are not in use, the least recently used first, until the others take no more than this."""
        found = sorted(self._copies(), key=lambda copy: copy[0])
        size_bytes = sum(size for _, size, _ in found)
        for _, size, path in found:
            if size_bytes <= limit_bytes:
                return
            if _removed(path):
                size_bytes -= size

    def size_bytes(self) -> int:
        """What all copies take."""
        return sum(size for _, size, _ in self._copies())

    def _make_room(self, size_bytes: int) -> None:
        """For one more copy, also on a disk that is nearly full."""
        most_bytes = min(self._limit, self.size_bytes() + shutil.disk_usage(self._root).free)
        self.evict(max(0, most_bytes - size_bytes))

    def _fetched(self, path: Path, fetch: Fetch, *, anew: bool = False) -> IO[bytes]:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.{id(self):x}.part")
        try:
            fetch(part)
            part.chmod(_READ_ONLY)
            if anew:  # whoever has the damaged one by its name finds this one
                os.link(part, place := part.with_suffix(".anew"))
                place.replace(path)
            while True:
                with suppress(FileExistsError):
                    os.link(part, path)
                if (stream := self._held(path)) is not None:
                    return stream
        finally:
            part.unlink(missing_ok=True)

    @staticmethod
    def _held(path: Path) -> IO[bytes] | None:
        """The copy, open and locked, with its time of use noted; None: there is none."""
        while True:
            try:
                stream = path.open("rb")
            except FileNotFoundError:
                return None
            fcntl.flock(stream, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(stream.fileno()), path.stat()):
                    os.utime(path)
                    return stream
            stream.close()  # evicted between the two

    def _copies(self) -> Iterator[tuple[float, int, Path]]:
        """Time of the last use, size and place of each copy; also of parts that a killed process has left."""
        for path in (self._root / "sha256").glob("??/*"):
            with suppress(FileNotFoundError):
                state = path.stat()
                if is_sha256(path.name) or time.time() - state.st_mtime > _LEFT_SECONDS:
                    yield state.st_mtime, state.st_size, path


def _removed(path: Path) -> bool:
    with suppress(FileNotFoundError), path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.path.samestat(os.fstat(stream.fileno()), path.stat()):  # else it was replaced, and may be in use
            path.unlink(missing_ok=True)
    return True
