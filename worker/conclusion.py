"""The end of an attempt: performs the transition of its outcome, with retries until it succeeds."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.contracts.errors import Problem
from service.failpoints import reach
from service.jobs import transitions
from service.jobs.outcome import Outcome as JobOutcome
from service.jobs.schemas import Waiting
from service.quarantine import suspects as quarantine
from service.settings import Settings
from service.storage import StorageAwayError, StorageFullError, Store, StoredFileMissingError
from service.tables import Job
from worker.counting import count_end
from worker.faults import storage_fault
from worker.guard import StopClock
from worker.lease import DATABASE_AWAY, Lease, Timing
from worker.outcome import DATABASE_AWAY as PUT_BACK
from worker.outcome import (
    NOT_STARTED,
    SHUTDOWN,
    Canceled,
    Failed,
    Fenced,
    Interrupted,
    Outcome,
    Retry,
    Succeeded,
    waiting_for,
)
from worker.publication import name_published
from worker.runner_input import boot_seconds

log = logging.getLogger(__name__)

WORKER_FAULT = "worker-fault"
# The longest pause before the next attempt, by what is wrong and not over yet; other interruptions need none.
PAUSE_SECONDS = {StorageFullError.code: 60.0, StorageAwayError.code: 60.0, NOT_STARTED: 60.0, WORKER_FAULT: 600.0}
_MOST_DOUBLINGS = 10
# Database or store refuse just now; what was asked of them may be asked again.
_PASSING = (*DATABASE_AWAY, OSError, StoredFileMissingError, StorageAwayError)


def worker_fault(error: Exception, attempt: int) -> Interrupted:
    """The attempt was interrupted by an error of the worker, or of its host, that means nothing known."""
    said = type(error).__name__
    if isinstance(error, OSError) and error.errno is not None:
        said += f": {os.strerror(error.errno)}"
    return Interrupted(
        Waiting(
            code=WORKER_FAULT,
            message=f"The worker, not the job, failed in attempt {attempt}: {said}.",
            hint="See the worker's log for details. The job is retried at increasing intervals.",
        )
    )


LONGEST_SECONDS = 30.0


class QueueBackoff:
    """By queue, when the slots of this process take jobs again; any number of threads may use it.

    A worker whose host fails its jobs must not take one after the other and put each back at once: others take them
    meanwhile. The pause is over after a while, grows with each failure, and ends with a success.

    Args:
        clock: seconds that only grow.
        longest_seconds: of a pause.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, longest_seconds: float = LONGEST_SECONDS
    ) -> None:
        self._clock = clock
        self._longest = longest_seconds
        self._lock = threading.Lock()
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def note(self, queue: str, *, failed: bool) -> None:
        """A job of the queue has ended; ``failed``: by what is wrong with this host."""
        with self._lock:
            now = self._clock()
            if not failed:
                self._failures.pop(queue, None)
                self._until.pop(queue, None)
            elif now >= self._until.get(queue, now):  # what several slots met at once counts once
                failures = self._failures.get(queue, 0)
                self._failures[queue] = failures + 1
                self._until[queue] = now + min(2.0 ** min(failures, _MOST_DOUBLINGS), self._longest)

    def ready(self, queues: Collection[str]) -> tuple[str, ...]:
        """Those of the queues that jobs may be taken from now."""
        with self._lock:
            now = self._clock()
            return tuple(queue for queue in queues if now >= self._until.get(queue, now))


class Conclusion:
    """Writes how attempts end; any number of threads may call it.

    Args:
        settings: places.
        store: where files are.
        timing: periods.
        stop: of this process.
    """

    def __init__(self, settings: Settings, store: Store, *, timing: Timing, stop: StopClock) -> None:
        self._settings = settings
        self._store = store
        self._timing = timing
        self._stop = stop

    def write(self, job: Job, lease: Lease, outcome: Outcome, published: JobOutcome | None) -> Outcome:
        """End the attempt with its transition, unless the job is no longer ours.

        A database that is away or has no room, and a store whose files cannot be seen, are tried again. What still
        refuses after a lease and the time for which a runner is kept puts the job back, uncharged; so does an error
        that means nothing known.

        Returns:
            What it ended with in the end.
        """
        refused = _Refused(self._timing)
        while not isinstance(outcome, Fenced):
            try:
                done = self._try(job, lease, outcome, published)
            except _PASSING as error:
                log.warning("job.not_concluded job_id=%s attempt=%d: %s", job.id, job.attempt, error)
                if self._stop.for_seconds(2 * self._timing.shutdown_grace):
                    if published is None or lease.over():
                        log.warning("job.left_behind job_id=%s attempt=%d", job.id, job.attempt)
                        return outcome
                    outcome, published = SHUTDOWN, None
                elif lease.cancel_requested and published is not None:
                    outcome, published = Canceled(), None
                elif refused.for_good(lease) and not isinstance(outcome, Interrupted):
                    outcome, published = self._put_back(error), None
                time.sleep(self._timing.again)
            except Exception as error:
                log.exception("job.end_refused job_id=%s attempt=%d", job.id, job.attempt)
                if isinstance(outcome, Interrupted):
                    raise  # its lease runs out
                outcome, published = worker_fault(error, job.attempt), None
            else:
                if done:
                    count_end(job, outcome, published)
                    log.info(
                        "job.concluded job_id=%s attempt=%d outcome=%s", job.id, job.attempt, type(outcome).__name__
                    )
                    return outcome
                break
        log.warning("job.fenced job_id=%s attempt=%d", job.id, job.attempt)
        count_end(job, Fenced(), published)
        return Fenced()

    @staticmethod
    def is_lasting(outcome: Outcome) -> bool:
        """True if what ended the attempt is wrong with this host, and not over yet."""
        return (
            isinstance(outcome, Interrupted) and outcome.waiting is not None and outcome.waiting.code in PAUSE_SECONDS
        )

    def pause_seconds(self, job: Job, code: str) -> float:
        """Before the next look at what keeps the job from running: longer each time, up to a bound."""
        longest = PAUSE_SECONDS.get(code, 0.0)
        return min(self._timing.backoff(min(job.interruptions + 1, _MOST_DOUBLINGS)), longest)

    def _try(self, job: Job, lease: Lease, outcome: Outcome, published: JobOutcome | None) -> bool:
        done = lease.conclude(lambda session: self._transition(session, job, outcome, published))
        if done and published is not None:
            reach("after_succeed_commit")
        return done

    def _put_back(self, error: Exception) -> Interrupted:
        """What the job waits for, whose end could not be written."""
        fault = storage_fault(error, self._settings.storage_dir)
        if isinstance(error, DBAPIError):
            if not isinstance(fault, StorageFullError):
                return PUT_BACK
            fault = StorageFullError(
                "The disk of the database is full.",
                hint="Free disk space, or enlarge the disk; the job then continues automatically.",
            )
        elif fault is None:
            fault = StorageAwayError(
                f"The job's stored results are no longer accessible: {error}",
                hint="Check the storage folder; the job then continues automatically.",
            )
        return waiting_for(fault.problem())

    def _transition(self, session: Session, job: Job, outcome: Outcome, published: JobOutcome | None) -> bool:
        match outcome:
            case Succeeded() if published is not None:
                return self._succeed(session, job, published)
            case Failed(problem, suspicion):
                if suspicion is not None:
                    problem = _note_crash(session, job, suspicion, problem) or problem
                return transitions.fail(session, job.id, job.attempt, problem=problem)
            case Retry():
                return self._crashed(session, job, outcome)
            case Interrupted(waiting) if waiting is not None:
                delay = self.pause_seconds(job, waiting.code)
                return transitions.interrupt(session, job.id, job.attempt, delay_seconds=delay, waiting=waiting)
            case Interrupted():
                return transitions.requeue(
                    session, job.id, job.attempt, delay_seconds=0, charged=False, reason="the runner was asked to stop"
                )
            case Canceled():
                return transitions.finish_cancel(session, job.id, job.attempt)
        raise TypeError(f"no transition for {outcome!r}")

    def _succeed(self, session: Session, job: Job, published: JobOutcome) -> bool:
        name_published(session, self._store, published)
        # A cancel that came after the runner's end still wins: nothing was promised yet.
        done = transitions.succeed(session, job.id, job.attempt, result=published) or transitions.finish_cancel(
            session, job.id, job.attempt
        )
        if done:
            quarantine.clear(session, job)
        reach("before_succeed_commit")
        return done

    def _crashed(self, session: Session, job: Job, crash: Retry) -> bool:
        if crash.deadly:
            problem = _note_crash(session, job, crash.reason, crash.poison)
            if problem is not None:
                return transitions.fail(session, job.id, job.attempt, problem=problem)
        charged = job.attempt - job.interruptions
        if charged >= job.max_attempts:
            return transitions.fail(session, job.id, job.attempt, problem=crash.poison)
        delay = self._timing.backoff(charged)
        return transitions.requeue(session, job.id, job.attempt, delay_seconds=delay, charged=True, reason=crash.reason)


def _note_crash(session: Session, job: Job, reason: str, problem: Problem) -> Problem | None:
    """Count it against the model; what the job fails with if that brings it into quarantine."""
    found = quarantine.note_crash(session, job, reason, problem)
    if found is not None:
        log.warning("model.quarantined model_id=%s job_id=%s", job.model_id, job.id)
    return found


class _Refused:
    """Since when the end cannot be written although the lease can be renewed: this is no database that is away."""

    def __init__(self, timing: Timing) -> None:
        self._bound = timing.lease + timing.frozen
        self._since: float | None = None

    def for_good(self, lease: Lease) -> bool:
        """True if it was refused again, and for so long that it is not waited for any more."""
        now = boot_seconds()
        self._since = None if lease.over() else self._since or now
        return self._since is not None and now - self._since > self._bound
