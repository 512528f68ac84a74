"""Processes that a test started, and the signals that it may send them: to these and to no others."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import process_gone, wait_for

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Living processes that ``pid`` started, and those that they did; parents first."""
    found: list[int] = []
    children = _children()
    todo = [pid]
    while todo:
        for child in children.get(todo.pop(0), []):
            found.append(child)
            todo.append(child)
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def state_of(pid: int) -> str:
    """The kernel's letter for what a process does: R, S, D, T (stopped), Z; empty for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Process:
    """One process in a group of its own, which ends with this one; may be started again."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        pass_fds: Sequence[int] = (),
        user: str | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._environment = dict(environment)
        self._pass_fds = tuple(pass_fds)
        self._user = user
        self._folder = folder
        self._page_begins = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def returncode(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self, **variables: str) -> None:
        """Start it, with ``variables`` added to its environment this once."""
        assert not self.alive, f"{self.name} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**self._environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                pass_fds=self._pass_fds,
                start_new_session=True,
                user=self._user,
                preexec_fn=_die_with_parent,
            )

    def said(self) -> str:
        """Everything that it has logged since ``turn_page``, over all starts."""
        return self._whole_log()[self._page_begins :]

    def turn_page(self) -> None:
        self._page_begins = len(self._whole_log())

    def _whole_log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self.send(signal.SIGTERM)
        return self.wait()

    def pause(self) -> None:
        self.send(signal.SIGSTOP)
        wait_for(lambda: state_of(self.pid) in {"T", "Z", ""}, message=f"{self.name} did not stop")

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def wait(self) -> int:
        assert self._process is not None, f"{self.name} was never started"
        return self._process.wait(PATIENCE_SECONDS)

    def wait_until_said(self, words: str, *, after: int = 0) -> None:
        """Wait until ``words`` stand in its log, ``after`` so many characters of it."""

        def look() -> bool:
            assert self.alive, f"{self.name} ended with {self.returncode}:\n{self.said()[-4000:]}"
            return words in self.said()[after:]

        wait_for(look, message=f"{self.name} never said {words!r}")

    def children(self, word: str) -> list[int]:
        """Living descendants whose command line holds ``word`` and that have been launched."""
        pids = descendants(self.pid) if self.alive else []
        return [pid for pid in pids if word in (line := command_of(pid)) and "launcher.py" not in line]

    def close(self) -> None:
        """Nothing of it is left: neither the process nor what it started."""
        if self._process is None:
            return
        left = descendants(self._process.pid) if self._process.poll() is None else []
        self.kill()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            wait_for(lambda pid=pid: process_gone(pid), message=f"{self.name} left process {pid} behind")


def _children() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != "Z":
            found.setdefault(int(fields[1]), []).append(int(entry.name))
    return found
