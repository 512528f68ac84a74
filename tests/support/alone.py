"""Tests that measure time run while no other does, also where processes share a run.

@pytest.mark.alone
def test_something_is_quick() -> None: ...
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turnstile:
    """A lock that many hold together, or one alone. Whoever wants to be alone is waited for: nobody overtakes.

    Args:
        run: name of the run, the same in all its processes.
    """

    def __init__(self, run: str) -> None:
        stem = Path(tempfile.gettempdir()) / f"quantmill-tests-{run}"
        self._paths = [stem.with_suffix(".gate"), stem.with_suffix(".room")]
        self._gate, self._room = (os.open(path, os.O_RDWR | os.O_CREAT, 0o600) for path in self._paths)

    @contextmanager
    def inside(self, *, alone: bool) -> Iterator[None]:
        """Wait until the room is free enough; it stays so meanwhile."""
        fcntl.flock(self._gate, fcntl.LOCK_EX)
        fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave no files; processes that still run hold them open."""
        for path in self._paths:
            path.unlink(missing_ok=True)
