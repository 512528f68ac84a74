"""Keeps a few child processes alive: starts them, restarts a dead one with backoff, stops them all in time.

Every child is its own session (a terminal's Ctrl-C reaches only the parent) and gets SIGTERM from the kernel when the
parent ends, however it ends. Children must be started and watched from one thread that lives as long as they do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from worker import launcher

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
# A child that lived this long has recovered: its next death counts as the first.
SETTLED_SECONDS = 60.0
# 2 to the power of this is above the longest pause.
_MOST_DOUBLINGS = 10
_PACKAGE_ROOT = Path(__file__).resolve().parents[1]


def command_line(*arguments: str) -> list[str]:
    """Command that runs ``quantmill ARGUMENTS`` with this interpreter."""
    return [sys.executable, "-P", "-m", "worker.cli", *arguments]


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with ``variables``, and with our packages importable."""
    path = os.pathsep.join(filter(None, (str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path, **variables}


def start_child(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    pass_fds: Sequence[int] = (),
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own; it gets SIGTERM when the calling thread ends.

    Raises:
        OSError: the process could not be made.
    """
    spec = json.dumps({"parent": os.getpid(), "death_signal": signal.SIGTERM, "limits": {}})
    return subprocess.Popen(
        [sys.executable, "-I", "-S", launcher.__file__, spec, *command],
        env=child_environment(variables),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        pass_fds=tuple(pass_fds),
        start_new_session=True,
    )


@dataclass
class Child:
    """One child: what to start, and how it has fared."""

    name: str  # word for logs
    command: Sequence[str]  # what to start
    pass_fds: Sequence[int] = ()  # descriptors that it inherits
    variables: Mapping[str, str] = field(default_factory=dict)  # environment of its own
    process: subprocess.Popen[bytes] | None = None  # the running process; None between a death and the restart
    deaths: int = 0  # unexpected ends in a row, and starts that failed
    started_at: float = 0.0
    restart_at: float = 0.0  # monotonic time of the next start, while there is no process
    exit_codes: list[int] = field(default_factory=list)


class ChildKeeper:
    """Keeps ``children`` running until ``stop``.

    Args:
        children: what to keep alive, in starting order; stopped in the reverse order.
        variables: environment added for all of them.
        output: descriptor for their standard output and error; None: this process's standard error.
    """

    def __init__(self, children: Iterable[Child], *, variables: Mapping[str, str], output: int | None = None) -> None:
        self.children = list(children)
        self._variables = dict(variables)
        # Standard output belongs to the parent alone: it says where the service is.
        self._output = sys.stderr.fileno() if output is None else output

    def start(self) -> None:
        """Start every child."""
        for child in self.children:
            self._start(child)

    def watch(self) -> list[Child]:
        """Look once at every child; restart those whose time has come. Returns the children found dead just now."""
        now = time.monotonic()
        died = []
        for child in self.children:
            if child.process is None:
                if now >= child.restart_at:
                    self._restart(child)
                continue
            code = child.process.poll()
            if code is None:
                continue
            if now - child.started_at > SETTLED_SECONDS:
                child.deaths = 0
            child.process, wait = None, self._back_off(child)
            child.exit_codes.append(code)
            log.warning("child.died name=%s exit_code=%s restart_in_seconds=%.1f", child.name, code, wait)
            died.append(child)
        return died

    def stop(self, timeout_seconds: float) -> None:
        """Ask all to stop, wait, and kill what is left when the time is over."""
        running = [child for child in reversed(self.children) if child.process is not None]
        for child in running:
            self._signal(child, signal.SIGTERM)
        until = time.monotonic() + timeout_seconds
        for child in running:
            assert child.process is not None  # noqa: S101 - filtered above
            try:
                child.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.warning("child.killed name=%s", child.name)
            # The whole session, in case the child left something behind.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()
            child.process = None

    def _start(self, child: Child) -> None:
        child.process = start_child(
            child.command,
            variables={**self._variables, **child.variables},
            pass_fds=child.pass_fds,
            stdout=self._output,
            stderr=self._output,
        )
        child.started_at = time.monotonic()
        log.info("child.started name=%s pid=%d", child.name, child.process.pid)

    def _restart(self, child: Child) -> None:
        """Start it, or try again later: a machine without a process or a descriptor to spare may have one soon."""
        try:
            self._start(child)
        except OSError as error:
            wait = self._back_off(child)
            log.warning("child.not_started name=%s restart_in_seconds=%.1f: %s", child.name, wait, error)

    def _back_off(self, child: Child) -> float:
        """Put off the child's next start, for longer each time in a row; for how many seconds."""
        wait = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(child.deaths, _MOST_DOUBLINGS), MAX_BACKOFF_SECONDS)
        child.deaths, child.restart_at = child.deaths + 1, time.monotonic() + wait
        return wait

    def _signal(self, child: Child, number: signal.Signals) -> None:
        if child.process is not None:
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(number)
