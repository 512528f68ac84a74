"""A runner and the process that it has asked for: one in which a written model may end its process, as models can.

A runner makes no processes itself (see ``worker.confinement``). Where it asks, the supervisor starts
``worker.quantizer.written.program`` under the same controls and limits, with the runner's scratch folder and nothing
else. Both are stopped, let go on and ended together.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from service.contracts.errors import EngineError
from service.contracts.runner import RunnerLine, TrialLine
from worker import launcher
from worker.runner_process import RunnerProcess
from worker.sandbox import Limits, Sandbox

log = logging.getLogger(__name__)

# Not by an import: the module loads onnxruntime, which no supervisor does.
PROGRAM = Path(launcher.__file__).with_name("quantizer") / "written" / "program.py"
COMMAND = (sys.executable, "-P", str(PROGRAM))
_LOOK_SECONDS = 0.02


class Accompanied:
    """What a supervisor sees of both.

    Args:
        runner: the first.
        sandbox: the runner's.
        scratch: the runner's folder.
        limits: the runner's; the other one sees no GPU.
    """

    def __init__(self, runner: RunnerProcess, sandbox: Sandbox, scratch: Path, limits: Limits) -> None:
        self._runner = runner
        self._sandbox = sandbox.running(COMMAND)
        self._scratch = scratch
        self._limits = replace(limits, gpus=False)
        self._other: RunnerProcess | None = None

    @property
    def pid(self) -> int:
        """Of the runner."""
        return self._runner.pid

    def groups(self) -> list[int]:
        """Ids of the process groups that there are now."""
        return [self.pid] if self._other is None else [self.pid, self._other.pid]

    @property
    def returncode(self) -> int | None:
        """Of the runner, see ``RunnerProcess.returncode``."""
        return self._runner.returncode

    def next_line(self, timeout_seconds: float) -> RunnerLine | None:
        """The runner's next line, see ``RunnerProcess.next_line``; one that asks for a process has been heeded.

        Raises:
            EngineError: the runner wrote something that is not a RunnerLine, or asks for a second process.
            OSError: no process could be made.
        """
        line = self._runner.next_line(timeout_seconds if self._other is None else min(timeout_seconds, _LOOK_SECONDS))
        if isinstance(line, TrialLine):
            self._start(line.folder)
        elif self._other is not None:
            self._look(self._other)
        return line

    def remaining_lines(self) -> Iterator[RunnerLine]:
        """After the runner's exit: every line that was not handed out yet."""
        return self._runner.remaining_lines()

    def tell_lease(self, ends_at: float) -> None:
        """Tell the runner until when it may go on."""
        self._runner.tell_lease(ends_at)

    def freeze(self) -> None:
        """Stop both where they stand."""
        for process in self._both():
            process.freeze()

    def thaw(self) -> None:
        """Let both go on."""
        for process in self._both():
            process.thaw()

    def terminate(self) -> None:
        """Ask the runner to stop; the other one ends with it."""
        self._runner.terminate()

    def kill(self) -> None:
        """End both at once."""
        for process in self._both():
            process.kill()

    def close(self) -> None:
        """Leave nothing behind of either; safe to call twice."""
        for process in self._both():
            process.close()

    def stderr_tail(self) -> str:
        """The last part of what the runner wrote to standard error."""
        return self._runner.stderr_tail()

    def _start(self, folder: str) -> None:
        if self._other is not None:
            raise EngineError("The runner asked for a second process beside the one that it has.")
        self._other = self._sandbox.start(Path(folder), scratch=self._scratch, limits=self._limits)
        log.info("runner.trial_started pid=%d runner=%d", self._other.pid, self.pid)

    def _look(self, other: RunnerProcess) -> None:
        """Tell the runner if the other one has ended."""
        code = other.returncode
        if code is not None and self._runner.tell_ended(code):
            log.info("runner.trial_ended pid=%d exit=%d", other.pid, code)
            other.close()
            self._other = None

    def _both(self) -> list[RunnerProcess]:
        return [self._runner] if self._other is None else [self._runner, self._other]
