"""The child process of one attempt: ``python -m worker.runner TASK.json``; ``--spare THREADS`` while there is no task.

Reads a RunnerTask, calls the engine, answers with RunnerLines on descriptor 3 and ends with one of the exit codes of
``service.contracts.runner``. It has no database, no broker and no network of its own. SIGTERM asks it to stop: it ends
as canceled if the file ``CANCEL_FLAG`` stands beside the task file, else as interrupted. Without its supervisor, or
without a lease, it does not go on: see ``worker.runner_input``. A spare one loads the engine and waits, see
``worker.runner_input``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from service import failpoints
from service.contracts.errors import (
    CanceledError,
    DatasetFormatError,
    InterruptedRunError,
    QuantmillError,
)
from service.contracts.runner import (
    EXIT_CANCELED,
    EXIT_CRASH,
    EXIT_INSTALLATION,
    EXIT_INTERRUPTED,
    EXIT_NOT_STARTED,
    EXIT_OK,
    EXIT_RESOURCE_LIMIT,
    EXIT_USER_ERROR,
    TASK_ADAPTER,
    DatasetResult,
    ErrorLine,
    EvaluateResult,
    EvaluateTask,
    InspectDatasetTask,
    InspectionResult,
    InspectModelTask,
    InspectTargetTask,
    LogLine,
    MetricLine,
    ModelResult,
    ProgressLine,
    QuantizeResult,
    QuantizeTask,
    RunnerLine,
    RunnerTask,
    TrialLine,
)
from worker.faults import has_room, no_room, storage_fault
from worker.launcher import LINE_FD
from worker.memory import set_threads
from worker.resource_limits import resource_limit
from worker.runner_input import ParentWatch, await_assignment

if TYPE_CHECKING:
    from worker.quantizer.run.interface import Run

CANCEL_FLAG = "canceled"
SPARE = "--spare"
# What ``perform`` imports.
_ENGINE = (
    "worker.quantizer.command",
    "worker.quantizer.evaluation.command",
    "worker.quantizer.intake.made",
    "worker.quantizer.data",
    "worker.quantizer.modes.planning",
)
PROGRESS_PERIOD_SECONDS = 0.2
# A stage that tells nothing has its last line sent again so often, with what is left of the whole.
OVERALL_PERIOD_SECONDS = 2.0
TRIAL_LOOK_SECONDS = 0.25


class TrialProcesses:
    """Has the supervisor try written models, each in a process of its own."""

    def __init__(self) -> None:
        self._codes: queue.SimpleQueue[int] = queue.SimpleQueue()

    def ended(self, code: int) -> None:
        """Take the exit code of the process that was asked for last."""
        self._codes.put(code)

    def run(self, folder: Path, send: Callable[[TrialLine], None], check: Callable[[], None]) -> int:
        """Ask for one, and wait for its end; its exit code. ``check`` is called meanwhile, and may raise."""
        send(TrialLine(folder=folder.name))
        while True:
            try:
                return self._codes.get(timeout=TRIAL_LOOK_SECONDS)
            except queue.Empty:
                check()


class LineRun:
    """The engine's surroundings inside a runner process: progress becomes lines, signals become CanceledError.

    Progress is thinned to one line per stage and ``period_seconds``; first and last of each stage are always sent.

    Args:
        send: takes each line that is to be sent.
        stop: gives the error to raise when the run has to end, else None.
        trials: has written models tried; None: nobody does.
    """

    def __init__(
        self,
        send: Callable[[ProgressLine | MetricLine | LogLine | TrialLine], None],
        stop: Callable[[], CanceledError | None],
        *,
        trials: TrialProcesses | None = None,
        period_seconds: float = PROGRESS_PERIOD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._stop = stop
        self._trials = trials
        self._period = period_seconds
        self._clock = clock
        self._sent_at: dict[str, float] = {}
        self._held: dict[str, tuple[int, int | None, str, str]] = {}
        self._whole: tuple[float | None, float | None] = (None, None)
        self._last: ProgressLine | None = None
        self._line_at = clock()
        self._overall_period = max(period_seconds, OVERALL_PERIOD_SECONDS)

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Send the state of ``stage``, or hold it back while the last line of this stage is recent."""
        now = self._clock()
        sent_at = self._sent_at.get(stage)
        if sent_at is None:
            self.flush()
        elif now - sent_at < self._period and done != total:
            self._held[stage] = (done, total, unit, message)
            return
        self._held.pop(stage, None)
        self._sent_at[stage] = now
        self._deliver(ProgressLine(stage=stage, done=done, total=total, unit=unit, message=message))

    def overall(self, share: float, seconds_left: float) -> None:
        """Send how far the whole has come with whatever line comes next; by itself where none has come for a while."""
        self._whole = round(share, 4), round(seconds_left, 1)
        last, now = self._last, self._clock()
        if last is not None and (share >= 1.0 or now - self._line_at >= self._overall_period):
            held = self._held.pop(last.stage, None)
            self._deliver(last if held is None else _line(last.stage, held))

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Send figures; never thinned."""
        self._send(MetricLine(stage=stage, step=step, values=dict(values)))

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Send a message for people."""
        self._send(LogLine(level=level, message=message))

    def check(self) -> None:
        """Raise CanceledError if the run has to stop."""
        error = self._stop()
        if error is not None:
            raise error

    def try_written(self, folder: Path) -> int | None:
        """Have the supervisor start a process for it; its exit code."""
        return None if self._trials is None else self._trials.run(folder, self._send, self.check)

    def flush(self) -> None:
        """Send what was held back: the last state of every stage."""
        for stage, held in self._held.items():
            self._deliver(_line(stage, held))
        self._held.clear()

    def _deliver(self, line: ProgressLine) -> None:
        share, seconds_left = self._whole
        self._last, self._line_at = line, self._clock()
        self._send(line.model_copy(update={"share": share, "seconds_left": seconds_left}))


def _line(stage: str, held: tuple[int, int | None, str, str]) -> ProgressLine:
    done, total, unit, message = held
    return ProgressLine(stage=stage, done=done, total=total, unit=unit, message=message)


class LineWriter:
    """Writes RunnerLines as JSON, one per line, unbuffered beyond the line."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def __call__(self, line: RunnerLine) -> None:
        """Write one line.

        Raises:
            BrokenPipeError: the supervisor has closed its end.
        """
        data = line.model_dump_json(by_alias=True).encode() + b"\n"
        with self._lock:
            self._stream.write(data)
            self._stream.flush()


class StopSignal:
    """Remembers SIGTERM and tells canceled from interrupted by the flag file."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag
        self._seen = False

    def install(self) -> None:
        """Take over SIGTERM, and ignore SIGINT: a terminal's Ctrl-C is the parent's business."""
        signal.signal(signal.SIGTERM, self._remember)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _remember(self, *_: object) -> None:
        self._seen = True

    def __call__(self) -> CanceledError | None:
        """The error to stop with, if a stop was asked for."""
        if not self._seen:
            return None
        if self._flag.exists():
            return CanceledError("The job was canceled while it was running.")
        return InterruptedRunError("The worker is shutting down.")


class NotLoadedError(Exception):
    """The engine cannot be loaded: what is installed is broken, or is being replaced just now."""


@contextmanager
def _loading() -> Iterator[None]:
    """Around imports of the engine.

    Raises:
        NotLoadedError: they failed.
    """
    try:
        yield
    except Exception as error:
        raise NotLoadedError(str(error)) from error


def perform(
    task: RunnerTask, run: Run
) -> QuantizeResult | EvaluateResult | ModelResult | DatasetResult | InspectionResult:
    """Do what the task asks. The engine is imported here and only as far as the task needs it."""
    if isinstance(task, QuantizeTask):
        with _loading():
            from worker.quantizer.command import quantize_files

        return quantize_files(task, run, reached=failpoints.reach)
    if isinstance(task, EvaluateTask):
        with _loading():
            from worker.quantizer.evaluation.command import evaluate_task

        return evaluate_task(task, run)
    if isinstance(task, InspectModelTask):
        with _loading():
            from worker.quantizer.intake.made import validate

        return validate(task)
    if isinstance(task, InspectDatasetTask):
        with _loading():
            from worker.quantizer.data import inspect_dataset

        output = None if task.output_dir is None else Path(task.output_dir)
        summary = inspect_dataset(Path(task.path), task.preprocessing, thumbnails=output)
        if task.format is not None and summary.file_format != task.format:
            raise DatasetFormatError(
                f"The file is {summary.file_format}, but {task.format} was declared.",
                hint=f"Create the dataset again with format: {summary.file_format}.",
                pointer="/format",
            )
        return DatasetResult(summary=summary)
    if isinstance(task, InspectTargetTask):
        with _loading():
            from worker.quantizer.modes.planning import inspect_file

        run.progress("inspect")
        found = inspect_file(Path(task.model_path), task.config, threads=task.threads)
        return InspectionResult(inspection=found)
    raise TypeError(f"no such task: {task!r}")


def execute(
    task: RunnerTask,
    send: Callable[[RunnerLine], None],
    stop: Callable[[], CanceledError | None],
    trials: TrialProcesses | None = None,
) -> int:
    """Run one task to its exit code; the last line sent is its result or its error.

    An unexpected exception is not caught by type: its traceback goes to stderr and the code says crash.
    """
    run = LineRun(send, stop, trials=trials)
    try:
        run.check()
        result = perform(task, run)
        run.flush()
        send(result)
    except InterruptedRunError:
        return EXIT_INTERRUPTED
    except CanceledError as error:
        send(ErrorLine(problem=error.problem()))
        return EXIT_CANCELED
    except BrokenPipeError:
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last frame of the process: every kind is reported, none is swallowed
        fault = storage_fault(error, Path.cwd())
        if fault is not None:
            send(ErrorLine(problem=fault.problem()))
            return EXIT_INSTALLATION
        limit = resource_limit(error)
        if limit is not None:
            send(ErrorLine(problem=limit.problem()))
            return EXIT_RESOURCE_LIMIT
        if isinstance(error, QuantmillError):
            send(ErrorLine(problem=error.problem()))
            return EXIT_USER_ERROR
        traceback.print_exc()
        if not has_room(Path.cwd()):  # libraries that write files themselves do not say that they could not
            send(ErrorLine(problem=no_room(Path.cwd()).problem()))
            return EXIT_INSTALLATION
        return EXIT_NOT_STARTED if isinstance(error, NotLoadedError) else EXIT_CRASH
    return EXIT_OK


def end_group() -> None:
    """End this process at once, with all that it started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_INTERRUPTED)  # a person started it in a group of theirs


def wait_for_job(threads: int) -> str:
    """Load what any task needs, and wait for one; its file.

    Args:
        threads: that it is going to use.
    """
    set_threads(threads)
    for module in _ENGINE:
        import_module(module)
    return await_assignment(sys.stdin.fileno())


def main(arguments: list[str]) -> int:
    """Entry of the process; see the module's head."""
    if arguments[:1] == [SPARE]:
        arguments = [wait_for_job(int(arguments[1]))]
    if len(arguments) != 1:
        print("usage: python -m worker.runner TASK.json", file=sys.stderr)  # noqa: T201 - not a user's command
        return 2
    # Without a try: on a full disk the module would look for another folder, and say only that there is none.
    tempfile.tempdir = os.environ.get("TMPDIR")
    task_file = Path(arguments[0])
    stop = StopSignal(task_file.with_name(CANCEL_FLAG))
    stop.install()
    trials = TrialProcesses()
    ParentWatch(sys.stdin.fileno(), end_group, trials.ended).start()
    document: Any = json.loads(task_file.read_bytes())
    set_threads(int(document.get("threads", 1)))
    task = TASK_ADAPTER.validate_python(document)
    with os.fdopen(LINE_FD, "wb", closefd=False) as stream:
        return execute(task, LineWriter(stream), stop, trials)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Skips the teardown of native libraries: everything that matters has been written.
    os._exit(code)
