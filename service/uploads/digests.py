"""Digests of uploads that are under way: with them, a file that came in parts need not be read again at its end."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict

# Each is some hundred bytes; of an upload that is forgotten, the file is read again.
REMEMBERED = 4096
# Device, inode, size and time of change of a file: another one after anybody has written to it.
_State = tuple[int, int, int, int]


class RunningDigests:
    """The digest of each file as far as it was written in this process. Any thread may use it.

    A file that another process has written to meanwhile is not known here.
    """

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._remembered = remembered
        self._lock = threading.Lock()
        self._digests: OrderedDict[tuple[int, int], tuple[_State, hashlib._Hash]] = OrderedDict()

    def remember(self, descriptor: int, digest: hashlib._Hash) -> None:
        """Note the digest of all bytes that the open file has now."""
        state = _state(descriptor)
        with self._lock:
            self._digests[state[:2]] = state, digest.copy()
            self._digests.move_to_end(state[:2])
            while len(self._digests) > self._remembered:
                self._digests.popitem(last=False)

    def known(self, descriptor: int) -> hashlib._Hash | None:
        """The digest of all bytes that the open file has now, to be gone on with."""
        state = _state(descriptor)
        with self._lock:
            known = self._digests.get(state[:2])
        return known[1].copy() if known is not None and known[0] == state else None


def _state(descriptor: int) -> _State:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
