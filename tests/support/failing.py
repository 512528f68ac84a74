"""Failpoints of this process: threads are held at named places, and others go on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from service import failpoints
from tests.worker.workbench import wait_for

T = TypeVar("T")


class Holds:
    """Named places at which threads of this process are held, by files in a folder that is made here."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self._folder = folder
        every = ";".join(f"{name}=wait:{folder / name}" for name in failpoints.NAMES)
        monkeypatch.setattr(failpoints, "_armed", failpoints._parsed(every))
        self._threads = ThreadPoolExecutor(4)

    def start(self, what: Callable[[], T]) -> Future[T]:
        """Let a thread do it."""
        return self._threads.submit(what)

    def start_until(self, place: str, what: Callable[[], T]) -> Future[T]:
        """Let a thread do it up to the place, where it is held until ``release``."""
        reached = self._folder / f"{place}.reached"
        reached.unlink(missing_ok=True)
        (self._folder / place).touch()
        doing = self.start(what)
        wait_for(lambda: reached.exists() or doing.done(), message=f"nobody ever came to {place}")
        assert not doing.done(), f"it ended without coming to {place}: {doing.exception() or doing.result()}"
        return doing

    def release(self, place: str) -> None:
        """Let whoever is held there go on, and nobody be held any more."""
        (self._folder / place).unlink(missing_ok=True)

    def close(self) -> None:
        """Nobody is held anywhere, and every thread has ended."""
        for name in failpoints.NAMES:
            self.release(name)
        self._threads.shutdown()
