"""The outcome of a runner process for its job: ``TABLE``, read from the top, is the only definition.

Known exit codes fail the job or end it as asked; what the installation did to the job is not charged, however often;
everything else is a crash, which is charged and tried again until the attempts are used up.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from service.contracts.errors import PoisonError, Problem, ResourceLimitError, StalledError
from service.contracts.runner import (
    EXIT_CANCELED,
    EXIT_CRASH,
    EXIT_INSTALLATION,
    EXIT_INTERRUPTED,
    EXIT_NOT_IMPORTED,
    EXIT_NOT_STARTED,
    EXIT_OK,
    EXIT_RESOURCE_LIMIT,
    EXIT_USER_ERROR,
    DatasetResult,
    ErrorLine,
    EvaluateResult,
    InspectionResult,
    ModelResult,
    QuantizeResult,
)
from service.jobs.errors import DeadlineExceededError
from service.jobs.schemas import Waiting
from service.jobs.transitions import LATE_VALIDATION
from worker.sandbox import InspectionBudget

NOT_STARTED = "runner-not-started"
Result = QuantizeResult | EvaluateResult | ModelResult | DatasetResult | InspectionResult


# Signals that a process brings upon itself by what it works on. A SIGKILL comes from elsewhere, and tells nothing of
# the model; nor do SIGILL and SIGSYS: the host has no such instruction, or forbids the system call, to every model.
_FAULTS = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP})


class StopReason(Enum):
    """Why the supervisor ended the runner."""

    CANCELED = "canceled"
    SHUTDOWN = "shutdown"
    FENCED = "fenced"
    DEADLINE = "deadline"
    STALLED = "stalled"
    PROTOCOL = "protocol"
    MEMORY = "memory"
    BUDGET = "budget"
    AWAY = "away"


@dataclass(frozen=True)
class Succeeded:
    """The runner gave a result."""

    result: Result


@dataclass(frozen=True)
class Failed:
    """The job has failed for good."""

    problem: Problem  # what its owner is told
    # how the process was killed by what it did, in words, so that what it works on is under suspicion; None: it was not
    suspicion: str | None = None


@dataclass(frozen=True)
class Retry:
    """The attempt crashed; another one may not."""

    reason: str  # how it ended, in words
    deadly: bool  # the process was killed by what it did, and what it works on is under suspicion
    poison: Problem  # what the job fails with if it gets no other attempt


@dataclass(frozen=True)
class Interrupted:
    """The attempt ended through no fault of the job; it is not charged."""

    waiting: Waiting | None = None  # what the job waits for; None: for nothing but its turn


@dataclass(frozen=True)
class Canceled:
    """The owner canceled the job."""


@dataclass(frozen=True)
class Fenced:
    """The job belongs to somebody else by now: nothing may be written."""


Outcome = Succeeded | Failed | Retry | Interrupted | Canceled | Fenced

SHUTDOWN = Interrupted(
    Waiting(code="worker-shutdown", message="The worker shut down.", hint="Another worker will continue the job.")
)
DATABASE_AWAY = Interrupted(
    Waiting(
        code="database-away",
        message="The worker could not reach the database for longer than it may keep a job.",
        hint="The job continues automatically; see the worker's log for the cause.",
    )
)


@dataclass(frozen=True)
class Ending:
    """How one runner process ended."""

    returncode: int  # exit code, or minus the signal's number
    last_line: Result | ErrorLine | None  # result or error that it sent, if any
    stopped: StopReason | None  # why the supervisor ended it; None if it ended by itself
    stderr_tail: str  # last part of its standard error
    charged_attempts: int  # attempts used so far, this one included
    max_attempts: int  # attempts that the job may use
    validates: bool = False  # the job validates an upload
    lease_over: bool = False  # it ended while there was no lease: by itself, as it must
    memory: Problem | None = None  # what to tell where memory is what it ended for; None: it is not
    storage: Problem | None = None  # what to tell where its disk has no room left; None: there is room
    heard: bool = True  # it has sent a line, of whatever kind
    # it held far less memory than its share: whatever else had the machine's, this job had not
    within_share: bool = False
    budget: InspectionBudget | None = None  # of an inspection; None: it is none
    cpu_seconds: float = 0.0  # that it had used when its time on the clock was over


@dataclass(frozen=True)
class OutcomeRow:
    """One line of the table."""

    name: str  # one word or two
    sign: str  # how it is recognized, in words
    meaning: str  # what becomes of the job, in words
    holds: Callable[[Ending], bool]  # whether an ending is of this kind
    outcome: Callable[[Ending], Outcome]  # what it means


def classify(ending: Ending) -> Outcome:
    """The meaning of ``ending``: that of the first row that holds; the last one always does."""
    return next(row.outcome(ending) for row in TABLE if row.holds(ending))


def waiting_for(problem: Problem) -> Interrupted:
    """The attempt was interrupted by a fault of the installation."""
    return Interrupted(
        Waiting(code=problem.code, message=problem.detail, hint=problem.hint or "The job continues automatically.")
    )


def _stopped(reason: StopReason) -> Callable[[Ending], bool]:
    return lambda ending: ending.stopped is reason


def _told(code: int) -> Callable[[Ending], bool]:
    return lambda ending: ending.returncode == code and isinstance(ending.last_line, ErrorLine)


def _problem(ending: Ending) -> Problem:
    assert isinstance(ending.last_line, ErrorLine)  # noqa: S101 - see _told
    return ending.last_line.problem


def _result(ending: Ending) -> Outcome:
    assert isinstance(ending.last_line, Result)  # noqa: S101 - see TABLE
    return Succeeded(ending.last_line)


def _deadline(_: Ending) -> Outcome:
    error = DeadlineExceededError(
        "The job did not end before its deadline.",
        hint="Use fewer samples, or raise QUANTMILL_JOB_DEADLINE_SECONDS.",
    )
    return Failed(error.problem())


def _stalled(_: Ending) -> Outcome:
    error = StalledError(
        "The runner made no progress for too long and was stopped.",
        hint="Submit the job again; if it stalls again, report the model and the config.",
    )
    return Failed(error.problem())


def _memory(ending: Ending, suspicion: str | None = None) -> Outcome:
    assert ending.memory is not None  # noqa: S101 - see TABLE
    return Failed(_beyond_memory(ending, ending.memory), suspicion)


def _beyond_memory(ending: Ending, problem: Problem) -> Problem:
    return problem if ending.budget is None else ending.budget.judged(problem)


def _over_time(ending: Ending) -> Outcome:
    problem = None if ending.budget is None else ending.budget.overrun(ending.cpu_seconds)
    return Interrupted(LATE_VALIDATION) if problem is None else Failed(problem)


def _starved(ending: Ending) -> Outcome:
    assert ending.memory is not None  # noqa: S101 - see TABLE
    return Retry("the kernel killed it because the machine ran out of memory", deadly=False, poison=ending.memory)


def _storage(ending: Ending) -> Outcome:
    assert ending.storage is not None  # noqa: S101 - see TABLE
    return waiting_for(ending.storage)


def _not_started(ending: Ending) -> Outcome:
    return Interrupted(
        Waiting(
            code=NOT_STARTED,
            message=f"The runner process could not be started: {describe_end(ending)}.",
            hint="Check the worker's log and repair its installation; the job then continues automatically.",
        )
    )


def _cpu(ending: Ending) -> Outcome:
    if ending.budget is not None:
        return Failed(ending.budget.cpu_problem())
    error = ResourceLimitError(
        "The job exceeded its CPU time limit.",
        hint="Use fewer calibration samples, or raise QUANTMILL_JOB_DEADLINE_SECONDS.",
        resource="cpu",
    )
    return Failed(error.problem())


def _crash(ending: Ending) -> Outcome:
    words = describe_end(ending)
    error = PoisonError(
        f"The runner process crashed in each of {ending.charged_attempts} attempts, most recently: {words}.",
        hint="The model or its data crashes the runtime. Try another model or config, and report this one.",
        exit=words,
        attempts=ending.charged_attempts,
        stderr=ending.stderr_tail or None,
    )
    deadly = -ending.returncode in _FAULTS and ending.stopped is None
    if not deadly and ending.charged_attempts >= ending.max_attempts:
        return Failed(error.problem())
    return Retry(words, deadly=deadly, poison=error.problem())


def describe_end(ending: Ending) -> str:
    """The end in words: an exit code, a signal, or a broken protocol."""
    if ending.stopped is StopReason.PROTOCOL:
        return "it wrote invalid output"
    if ending.returncode < 0:
        try:
            return f"ended by {signal.Signals(-ending.returncode).name}"
        except ValueError:
            return f"ended by signal {-ending.returncode}"
    if ending.returncode == EXIT_OK:
        return "ended without a result"
    return f"exit code {ending.returncode}"


# Order matters: what was asked for or is done comes before what it looks like.
TABLE = (
    OutcomeRow(
        "fenced",
        "the database shows that another attempt owns the job",
        "nothing is written",
        _stopped(StopReason.FENCED),
        lambda _: Fenced(),
    ),
    OutcomeRow(
        "canceled", "cancellation was requested", "canceled", _stopped(StopReason.CANCELED), lambda _: Canceled()
    ),
    OutcomeRow(
        "result",
        f"exit code {EXIT_OK} and a result",
        "succeeded",
        lambda ending: ending.returncode == EXIT_OK and isinstance(ending.last_line, Result),
        _result,
    ),
    OutcomeRow(
        "late validation",
        "validating an upload, still running at the job's deadline",
        "queued again, not charged, waiting: validation-overdue",
        lambda ending: ending.validates and ending.stopped is StopReason.DEADLINE,
        lambda _: Interrupted(LATE_VALIDATION),
    ),
    OutcomeRow(
        "deadline",
        "still running at the job's deadline",
        "failed: deadline-exceeded",
        _stopped(StopReason.DEADLINE),
        _deadline,
    ),
    OutcomeRow(
        "inspection time limit",
        "an inspection, still running at its wall-clock time limit",
        "failed: too-complex, if it used at least three quarters of its CPU time; otherwise queued again, "
        "not charged, with twice the time, waiting: validation-overdue",
        _stopped(StopReason.BUDGET),
        _over_time,
    ),
    OutcomeRow("stalled", "no output for an hour", "failed: stalled", _stopped(StopReason.STALLED), _stalled),
    OutcomeRow(
        "memory",
        "stopped at its memory limit",
        "failed: resource-limit; too-complex for an inspection that exceeds the memory allowed for its file size",
        lambda ending: ending.stopped is StopReason.MEMORY,
        _memory,
    ),
    OutcomeRow(
        "user error",
        f"exit code {EXIT_USER_ERROR} and an error",
        "failed: the error",
        _told(EXIT_USER_ERROR),
        lambda ending: Failed(_problem(ending)),
    ),
    OutcomeRow(
        "resource limit",
        f"exit code {EXIT_RESOURCE_LIMIT} and an error: memory, GPU memory, file size, files beside the model",
        "failed: resource-limit, or too-complex as above",
        _told(EXIT_RESOURCE_LIMIT),
        lambda ending: Failed(_beyond_memory(ending, _problem(ending))),
    ),
    OutcomeRow(
        "installation",
        f"exit code {EXIT_INSTALLATION} and an error: the disk is full, the storage is unavailable",
        "queued again, not charged, waiting: storage-full or storage-away",
        _told(EXIT_INSTALLATION),
        lambda ending: waiting_for(_problem(ending)),
    ),
    OutcomeRow(
        "database unreachable",
        "without a lease for as long as a stopped runner is kept",
        "queued again, not charged, waiting: database-away",
        _stopped(StopReason.AWAY),
        lambda _: DATABASE_AWAY,
    ),
    OutcomeRow(
        "shutdown",
        "the worker was asked to stop",
        "queued again, not charged",
        _stopped(StopReason.SHUTDOWN),
        lambda _: SHUTDOWN,
    ),
    OutcomeRow(
        "interrupted",
        f"exit code {EXIT_INTERRUPTED}: stopped by another process; SIGTERM: before it could report an error",
        "queued again, not charged, after a pause if no work was done yet",
        lambda ending: ending.returncode in (EXIT_INTERRUPTED, -signal.SIGTERM),
        lambda _: Interrupted(),
    ),
    OutcomeRow(
        "lease expired",
        "SIGKILL while it had no lease: the runner kills itself",
        "queued again, not charged, waiting: database-away",
        lambda ending: ending.lease_over and ending.returncode == -signal.SIGKILL,
        lambda _: DATABASE_AWAY,
    ),
    OutcomeRow(
        "CPU time",
        "SIGXCPU",
        "failed: resource-limit; too-complex for an inspection",
        lambda ending: ending.returncode == -signal.SIGXCPU,
        _cpu,
    ),
    OutcomeRow(
        "machine out of memory",
        "SIGKILL by the kernel (its count of out-of-memory kills increased), with memory far below its limit",
        "charged and queued again; failed: resource-limit after the last attempt",
        lambda ending: ending.memory is not None and ending.within_share and ending.returncode == -signal.SIGKILL,
        _starved,
    ),
    OutcomeRow(
        "out of memory",
        "SIGKILL by another process, with memory near its limit",
        "failed: resource-limit; counts towards the model's quarantine, like a fault",
        lambda ending: ending.memory is not None and ending.returncode == -signal.SIGKILL,
        lambda ending: _memory(ending, "the kernel killed it because of its memory use"),
    ),
    OutcomeRow(
        "mapped file",
        "SIGBUS while the disk of the scratch folder is full",
        "queued again, not charged, waiting: storage-full",
        lambda ending: ending.storage is not None and ending.returncode == -signal.SIGBUS,
        _storage,
    ),
    OutcomeRow(
        "not started",
        f"exit code {EXIT_NOT_STARTED}, or {EXIT_NOT_IMPORTED} before any output: its program cannot be run or loaded",
        "queued again, not charged, after a pause, waiting: runner-not-started",
        lambda ending: (
            ending.returncode == EXIT_NOT_STARTED or (ending.returncode == EXIT_NOT_IMPORTED and not ending.heard)
        ),
        _not_started,
    ),
    OutcomeRow(
        "crash",
        f"everything else: another signal, exit code {EXIT_CRASH}, invalid output, {EXIT_CANCELED} without "
        "cancellation",
        "charged and queued again; failed: poison after the last attempt, or after two faults in a row "
        "(SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGTRAP), which quarantine the model",
        lambda _: True,
        _crash,
    ),
)
