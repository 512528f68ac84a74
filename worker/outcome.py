"""What the end of a runner process means for its job: the one table of exit codes, signals and reasons to stop.

Known exit codes fail the job or end it as asked; interruptions are not charged; everything else is a crash, which is
charged and tried again until the attempts are used up.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import Enum

from service.contracts.errors import PoisonError, Problem, ResourceLimitError, StalledError
from service.contracts.runner import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RESOURCE_LIMIT,
    EXIT_USER_ERROR,
    DatasetResult,
    ErrorLine,
    InspectionResult,
    ModelResult,
    QuantizeResult,
)
from service.jobs.errors import DeadlineExceededError

Result = QuantizeResult | ModelResult | DatasetResult | InspectionResult

# A limit that may be gone next time (a full disk) is worth one more attempt.
TRANSIENT_ATTEMPTS = 2


class StopReason(Enum):
    """Why the supervisor ended the runner."""

    CANCELED = "canceled"
    SHUTDOWN = "shutdown"
    FENCED = "fenced"
    DEADLINE = "deadline"
    STALLED = "stalled"
    PROTOCOL = "protocol"


@dataclass(frozen=True)
class Succeeded:
    """The runner gave a result."""

    result: Result


@dataclass(frozen=True)
class Failed:
    """The job has failed for good."""

    problem: Problem


@dataclass(frozen=True)
class Retry:
    """The attempt failed in a way that another one may not."""

    reason: str


@dataclass(frozen=True)
class Interrupted:
    """The attempt ended through no fault of the job; it is not charged."""


@dataclass(frozen=True)
class Canceled:
    """The owner canceled the job."""


@dataclass(frozen=True)
class Fenced:
    """The job belongs to somebody else by now: nothing may be written."""


Outcome = Succeeded | Failed | Retry | Interrupted | Canceled | Fenced


@dataclass(frozen=True)
class Ending:
    """How one runner process ended.

    Attributes:
        returncode: exit code, or minus the signal's number.
        last_line: result or error that it sent, if any.
        stopped: why the supervisor ended it; None if it ended by itself.
        stderr_tail: last part of its standard error.
        charged_attempts: attempts used so far, this one included.
        max_attempts: attempts that the job may use.
    """

    returncode: int
    last_line: Result | ErrorLine | None
    stopped: StopReason | None
    stderr_tail: str
    charged_attempts: int
    max_attempts: int


def classify(ending: Ending) -> Outcome:
    """The meaning of ``ending``."""
    if ending.stopped is StopReason.FENCED:
        return Fenced()
    if ending.stopped is StopReason.CANCELED:
        return Canceled()
    # Reached before the stop took effect: what is done is done.
    if ending.returncode == EXIT_OK and isinstance(ending.last_line, Result):
        return Succeeded(ending.last_line)
    if ending.stopped is StopReason.DEADLINE:
        return Failed(
            DeadlineExceededError(
                "The job did not end before its deadline.",
                hint="Use fewer samples, or raise QUANTMILL_JOB_DEADLINE_SECONDS.",
            ).problem()
        )
    if ending.stopped is StopReason.STALLED:
        return Failed(
            StalledError(
                "The runner showed no progress for too long and was ended.",
                hint="Submit the job again; if it stalls again, report the model and the config.",
            ).problem()
        )
    if isinstance(ending.last_line, ErrorLine):
        if ending.returncode == EXIT_USER_ERROR:
            return Failed(ending.last_line.problem)
        if ending.returncode == EXIT_RESOURCE_LIMIT:
            return resource_outcome(ending.last_line.problem, ending.charged_attempts, ending.max_attempts)
    if ending.stopped is StopReason.SHUTDOWN or ending.returncode == EXIT_INTERRUPTED:
        return Interrupted()
    if ending.returncode == -signal.SIGXCPU:
        return Failed(
            ResourceLimitError(
                "The job used more CPU time than its limit.",
                hint="Use fewer calibration samples, or raise QUANTMILL_JOB_DEADLINE_SECONDS.",
                resource="cpu",
            ).problem()
        )
    return _crash(ending)


def resource_outcome(problem: Problem, charged_attempts: int, max_attempts: int) -> Outcome:
    """A limit that was reached fails the job, unless it is marked as transient and there is an attempt left for it."""
    again = problem.where.get("transient") is True and charged_attempts < min(TRANSIENT_ATTEMPTS, max_attempts)
    return Retry(problem.detail) if again else Failed(problem)


def _crash(ending: Ending) -> Outcome:
    words = describe_end(ending)
    if ending.charged_attempts < ending.max_attempts:
        return Retry(words)
    return Failed(
        PoisonError(
            f"The runner process crashed in each of {ending.charged_attempts} attempts; the last time: {words}.",
            hint="The model or its data makes the runtime crash. Try another model or config, and report this one.",
            exit=words,
            attempts=ending.charged_attempts,
            stderr=ending.stderr_tail or None,
        ).problem()
    )


def describe_end(ending: Ending) -> str:
    """The end in words: an exit code, a signal, or a broken protocol."""
    if ending.stopped is StopReason.PROTOCOL:
        return "it wrote something that cannot be read"
    if ending.returncode < 0:
        try:
            return f"ended by {signal.Signals(-ending.returncode).name}"
        except ValueError:
            return f"ended by signal {-ending.returncode}"
    if ending.returncode == EXIT_OK:
        return "ended without a result"
    return f"exit code {ending.returncode}"
