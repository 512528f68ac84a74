"""A spare runner for each slot, started with the engine loaded before its job is known.

To start a process and to load the engine takes a second, a hundred times what all else takes before a small job makes
progress. A spare has done both. It is started under all controls, with rules of Landlock that let it reach the folders
in which the inputs of any job lie, and has read nothing of anybody's. With its job it gets the limits, the rules and
the filter of calls that any runner has, see ``worker.runner_input``; it does that job alone.

The next one is started as soon as a job has begun: each job costs one start either way, and so that of the next one is
done while this one runs, on cores that small jobs leave idle. At the job's end it would come too late where jobs wait:
the next one would start a runner of its own beside it, and both would take longer.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.settings import Settings
from worker import launcher
from worker.confinement.places import Places, has_gpus
from worker.runner import SPARE
from worker.runner_input import BEGUN, READY, UnfitSpareError, assignment_line
from worker.runner_process import RunnerProcess, StartedRunner
from worker.sandbox import Sandbox, SandboxLimits, Terms

log = logging.getLogger(__name__)

# Before the first one is started: a worker often starts beside an API, which somebody waits for.
FIRST_SECONDS = 3.0
# Time in which a spare must have loaded the engine, on a machine that is as busy as can be; and in which one that has
# must answer once it has a job.
LOADING_SECONDS, ANSWER_SECONDS = 60.0, 10.0
_LOOK_SECONDS = 0.25
# Variables that are those of a job.
_OF_A_JOB = ("HOME", "TMPDIR", "PYTHONPATH")


@dataclass(frozen=True)
class _Surroundings:
    """What a spare was started with and a job must not find otherwise."""

    environment: Mapping[str, str]  # but for what is of a job
    # device and inode of each folder that its rules hold on to; None: it was not there
    folders: Mapping[Path, tuple[int, int] | None]


@dataclass(frozen=True)
class _Spare:
    started: StartedRunner
    started_at: float
    surroundings: _Surroundings

    def assign(self, terms: Terms, scratch: Path, controls: Mapping[str, Any], check: Callable[[], None]) -> None:
        """Give it a job, and wait until it has begun.

        Raises:
            UnfitError: it has not; why.
            OSError: it has ended.
        """
        *_, task_file = terms.command
        line = assignment_line(
            task_file, scratch=scratch, environment=terms.environment, limits=terms.limits, controls=controls
        )
        if os.write(self.started.stdin, line) < len(line):
            raise UnfitSpareError("what it is to do is too long for its channel")
        if not self._hears(READY, self.started_at + LOADING_SECONDS, check):
            raise UnfitSpareError("it could not load the engine")
        if not self._hears(BEGUN, time.monotonic() + ANSWER_SECONDS, check):
            raise UnfitSpareError("it did not begin")

    def discard(self, reason: object = "") -> str:
        """End it; why, with the last that it has said."""
        runner = self.started.runner()
        runner.close()
        said = runner.stderr_tail(400).strip().rpartition("\n")[2]
        return f"{reason}; {said}" if said else str(reason)

    def _hears(self, word: bytes, until: float, check: Callable[[], None]) -> bool:
        """True if it has said the word, or says it before that time; not a byte behind it is read."""
        poll, heard = select.poll(), b""
        poll.register(self.started.lines, select.POLLIN)
        while len(heard) < len(word):
            left = until - time.monotonic()
            check()
            # what was said long ago still counts: a spare may wait for hours until it is needed
            if poll.poll(max(0.0, min(_LOOK_SECONDS, left)) * 1000):
                data = os.read(self.started.lines, len(word) - len(heard))
                if not data:
                    return False
                heard += data
            elif left <= 0:
                return False
        return heard == word


class Spares:
    """The spare runner of one slot, and the next one once it has been taken.

    The kernel ends a runner with the thread that has started it: it is this one's own, and lives until ``close``.

    Args:
        sandbox: of the slot; without GPUs of its own.
        settings: name the folders that jobs use, and the threads of a job.
        first_seconds: before the first one is started, or another try is made.
    """

    def __init__(self, sandbox: Sandbox, settings: Settings, *, first_seconds: float = FIRST_SECONDS) -> None:
        self._sandbox = sandbox
        self._threads = settings.threads
        self._scratch_root = settings.scratch_dir
        self._cache_dir = settings.cache_dir if settings.cache_bytes else None
        self._places = Places((settings.storage_dir,), (settings.checkpoint_dir, settings.cache_dir))
        self._first = first_seconds
        self._spare: _Spare | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._due_at: float | None = time.monotonic() + first_seconds
        self._closed = False
        self._thread = threading.Thread(target=self._keep, name="spares", daemon=True)
        self._thread.start()

    def take(
        self,
        task_file: Path,
        *,
        scratch: Path,
        limits: SandboxLimits,
        places: Places | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> RunnerProcess | None:
        """The spare as a runner on ``task_file``; None if there is none that will do.

        Args:
            task_file: what it is to do.
            scratch: as of ``Sandbox.start``.
            limits: likewise.
            places: likewise.
            check: called while it is waited for; what it raises ends that, and the spare.
        """
        if limits.gpus and has_gpus():
            return None  # nothing may touch their driver before the job is known
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is None:
            self._want(self._first)
            return None
        begun, process = time.monotonic(), spare.started.process
        try:
            self._check(spare, scratch, places or Places())
            if limits.niceness:
                launcher.stand_back(limits.niceness, process.pid)
            terms = self._sandbox.terms(task_file, scratch=scratch, limits=limits, places=places)
            spare.assign(terms, scratch, self._sandbox.controls().narrowed(terms.rules), check)
        except Exception as error:
            why = spare.discard(error)
            if not isinstance(error, UnfitSpareError | OSError):
                raise
            log.warning("spare.discarded pid=%d: %s", process.pid, why)
            return None
        finally:
            self._want(0.0)
        log.info("spare.taken pid=%d seconds=%.3f", process.pid, time.monotonic() - begun)
        return spare.started.runner()

    def _want(self, after_seconds: float) -> None:
        """Have one started then, unless it is going to be."""
        with self._lock:
            if self._due_at is None:
                self._due_at = time.monotonic() + after_seconds
        self._wake.set()

    def close(self) -> None:
        """Leave no process and no thread behind; no runner that was started here may run any more."""
        with self._lock:
            self._closed = True
        self._wake.set()
        self._thread.join()
        if self._spare is not None:
            self._spare.discard()
            self._spare = None

    def _check(self, spare: _Spare, scratch: Path, places: Places) -> None:
        """Raise UnfitError if the job would find something else than one that a runner is started for."""
        code = spare.started.process.poll()
        if code is not None:
            raise UnfitSpareError(f"it ended with exit code {code}")
        if spare.surroundings != self._surroundings():
            raise UnfitSpareError("folders or variables are not those that it was started with")
        roots = spare.surroundings.folders
        for path in (scratch, *places.readable, *places.writable):
            if not any(roots[root] is not None and path.is_relative_to(root) for root in roots):
                raise UnfitSpareError(f"{path} is in no folder that it may reach")

    def _surroundings(self) -> _Surroundings:
        environment = self._sandbox.environment(self._scratch_root)
        kept = {name: value for name, value in environment.items() if name not in _OF_A_JOB}
        folders = (self._scratch_root, *self._places.readable, *self._places.writable)
        return _Surroundings(kept, {folder: _identity(folder) for folder in folders})

    def _keep(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                wait = None if self._due_at is None else self._due_at - time.monotonic()
            if wait is None or wait > 0:
                self._wake.wait(wait)
                self._wake.clear()
                continue
            try:
                self._put(self._begin())
            except Exception as error:  # noqa: BLE001 - the thread may not end: the kernel would end a runner with it
                log.warning("spare.not_started: %s: %s", type(error).__name__, error)
                self._put(None)  # after the next job

    def _begin(self) -> _Spare:
        if self._cache_dir is not None:  # its first user would make it, and find a spare that cannot reach it
            with suppress(OSError):  # it is told to the job that misses it
                self._cache_dir.mkdir(parents=True, exist_ok=True)
        surroundings = self._surroundings()
        there = [folder for folder, identity in surroundings.folders.items() if identity is not None]
        places = Places(
            tuple(path for path in self._places.readable if path in there),
            tuple(path for path in self._places.writable if path in there),
        )
        terms = self._sandbox.terms_before([SPARE, str(self._threads)], scratch_root=self._scratch_root, places=places)
        controls = self._sandbox.controls().spec(terms.rules, narrows=True)
        started = self._sandbox.begin(terms, cwd=self._scratch_root, controls=controls)
        return _Spare(started, time.monotonic(), surroundings)

    def _put(self, spare: _Spare | None) -> None:
        with self._lock:
            self._spare, self._due_at = spare, None


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
