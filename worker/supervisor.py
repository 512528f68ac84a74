"""Takes one job from its claim to its end: scratch folder, runner process, outcome, publication, transition.

Whatever goes wrong here itself (a bug, a database that stays away) leaves the job running with a lease that runs out:
the reconciler puts it back into the queue.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.orm import Session

from service.contracts.errors import QuantmillError
from service.db import Database
from service.jobs import transitions
from service.jobs.outcome import Outcome as JobOutcome
from service.settings import Settings
from service.storage import FileStore
from service.tables import Job
from worker import repository
from worker.attempt import DATABASE_AWAY, Lease, Timing, Watch
from worker.checkpoints import collect_checkpoints, open_checkpoints
from worker.materials import OUTPUT_FOLDER, Keeping, Materials
from worker.outcome import (
    Canceled,
    Ending,
    Failed,
    Fenced,
    Interrupted,
    Outcome,
    Retry,
    Succeeded,
    classify,
    resource_outcome,
)
from worker.publication import publish
from worker.runner import resource_limit
from worker.sandbox import Limits, Sandbox, machine_memory_bytes

log = logging.getLogger(__name__)

SCRATCH_MODE = 0o700
# CPU time that a runner may use beyond its share of the deadline.
SPARE_CPU_SECONDS = 60
COMMIT_PAUSE_SECONDS = 0.5
CLAIM_TRIES = 3


def scratch_name(job_id: str, attempt: int) -> str:
    """Name of an attempt's scratch folder."""
    return f"{job_id}.{attempt}"


def new_worker_id() -> str:
    """A name for this worker process that no other has."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"[:255]


class Supervisor:
    """Runs jobs, one per call of ``run``; any number of threads may call it.

    Args:
        settings: places, limits and periods.
        database: where jobs are.
        store: where files are.
        sandbox: starts the runners.
        worker_id: name of this worker in the leases.
        timing: periods; default: from the settings.
        backoff_seconds: delay before the attempt after this one.
        stopping: True once the worker shuts down: no job is claimed any more, and running ones are put back.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: FileStore,
        *,
        sandbox: Sandbox | None = None,
        worker_id: str | None = None,
        timing: Timing | None = None,
        backoff_seconds: Callable[[int], float] = transitions.backoff_seconds,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._sandbox = sandbox or Sandbox()
        self._worker_id = worker_id or new_worker_id()
        self._timing = timing or Timing(lease=settings.lease_seconds, renew=settings.renew_seconds)
        self._backoff_seconds = backoff_seconds
        self._stopping = stopping

    def run(self, job_id: str) -> bool:
        """Claim the job and see it through one attempt; False if it was not to be had."""
        if self._stopping():
            return False
        claimed_at = time.monotonic()
        with self._database.write() as session:
            job = transitions.claim(session, job_id, worker_id=self._worker_id, lease_seconds=self._timing.lease)
        if job is None:
            log.info("job.not_claimed job_id=%s", job_id)
            return False
        log.info("job.claimed job_id=%s kind=%s attempt=%d", job.id, job.kind, job.attempt)
        lease = Lease(self._database, job, self._timing, claimed_at=claimed_at)
        with self._scratch(job) as scratch:
            outcome = self._attempt(job, lease, scratch)
            self._conclude(job, lease, outcome, scratch)
        self._collect_checkpoints()
        return True

    def run_next(self, queues: Collection[str]) -> bool:
        """Run the job whose turn it is in these queues; False if there is none.

        For a worker that was woken in vain: messages of canceled jobs may stand before those of jobs that can start.
        """
        for _ in range(CLAIM_TRIES):
            if self._stopping():
                return False
            with self._database.read() as session:
                job_id = repository.next_due(session, queues)
            if job_id is None:
                return False
            if self.run(job_id):
                return True
        return False  # other workers were faster every time: they do what there is to do

    @contextmanager
    def _scratch(self, job: Job) -> Iterator[Path]:
        folder = self._settings.scratch_dir / scratch_name(job.id, job.attempt)
        folder.mkdir(mode=SCRATCH_MODE, parents=True)
        try:
            yield folder
        finally:
            # What cannot be removed now is garbage that the reconciler collects.
            shutil.rmtree(folder, ignore_errors=True)

    def _keeping(self, job: Job) -> Keeping:
        """Where the runner of ``job`` finds what was kept.

        Raises:
            OSError: the disk refused.
        """
        if job.kind != "quantize":
            return Keeping()
        settings, folder = self._settings, None
        if settings.checkpoint_bytes:
            folder = open_checkpoints(settings.scratch_dir, job.id, limit_bytes=settings.checkpoint_bytes)
        return Keeping(
            extra_bytes=settings.extra_bytes,
            checkpoint_dir=folder,
            checkpoint_bytes=settings.checkpoint_bytes,
            cache_dir=settings.cache_dir if settings.cache_bytes else None,
            cache_bytes=settings.cache_bytes,
        )

    def _collect_checkpoints(self) -> None:
        try:
            collect_checkpoints(self._settings.scratch_dir, self._database)
        except DATABASE_AWAY as error:
            log.warning("checkpoints.database_away: %s", error)  # they go after the next attempt on this host

    def _attempt(self, job: Job, lease: Lease, scratch: Path) -> Outcome:
        """Prepare, start the runner, and watch it to its end."""
        try:
            with self._database.read() as session:
                materials = Materials(
                    scratch,
                    self._store,
                    threads=self._settings.threads,
                    keeping=self._keeping(job),
                    allow_pt2=self._settings.allow_pt2,
                )
                task_file = materials.prepare(session, job)
        except QuantmillError as error:
            return Failed(error.problem())
        except OSError as error:
            return _disk_trouble(job, error)
        remaining = _remaining_seconds(job)
        process = self._sandbox.start(task_file, scratch=scratch, limits=self._limits(job, remaining))
        log.info("runner.started job_id=%s attempt=%d pid=%d", job.id, job.attempt, process.pid)
        watch = Watch(
            process,
            lease,
            job,
            timing=self._timing,
            deadline_seconds=remaining,
            stopping=self._stopping,
            flag_folder=scratch,
        )
        ending = watch.to_end()
        outcome = classify(ending)
        _log_ending(job, ending, outcome)
        return outcome

    def _conclude(self, job: Job, lease: Lease, outcome: Outcome, scratch: Path) -> None:
        """Store what there is and end the attempt with its transition, unless the job is no longer ours."""
        published: JobOutcome | None = None
        if isinstance(outcome, Succeeded):
            lease.write()  # storing may take a while
            if lease.lost:
                outcome = Fenced()
            else:
                try:
                    published = publish(
                        outcome.result, scratch / OUTPUT_FOLDER, self._store, extra_bytes=self._settings.extra_bytes
                    )
                except QuantmillError as error:
                    outcome = Failed(error.problem())
                except OSError as error:
                    outcome = _disk_trouble(job, error)
        if isinstance(outcome, Fenced) or not self._commit(job, lease, outcome, published):
            log.warning("job.fenced job_id=%s attempt=%d", job.id, job.attempt)
            return
        log.info("job.concluded job_id=%s attempt=%d outcome=%s", job.id, job.attempt, type(outcome).__name__)

    def _commit(self, job: Job, lease: Lease, outcome: Outcome, published: JobOutcome | None) -> bool:
        """Do the transition; a database that is away is tried again for as long as the lease can last."""
        while True:
            try:
                with self._database.write() as session:
                    return self._transition(session, job, outcome, published)
            except DATABASE_AWAY as error:
                log.warning("job.database_away job_id=%s attempt=%d: %s", job.id, job.attempt, error)
                if lease.run_out():
                    return False
                time.sleep(COMMIT_PAUSE_SECONDS)

    def _transition(self, session: Session, job: Job, outcome: Outcome, published: JobOutcome | None) -> bool:
        match outcome:
            case Succeeded() if published is not None:
                # A cancel that came after the runner's end still wins: nothing was promised yet.
                return transitions.succeed(session, job.id, job.attempt, result=published) or transitions.finish_cancel(
                    session, job.id, job.attempt
                )
            case Failed(problem):
                return transitions.fail(session, job.id, job.attempt, problem=problem)
            case Retry(reason):
                delay = self._backoff_seconds(job.attempt - job.interruptions)
                return transitions.requeue(
                    session, job.id, job.attempt, delay_seconds=delay, charged=True, reason=reason
                )
            case Interrupted():
                return transitions.requeue(
                    session, job.id, job.attempt, delay_seconds=0, charged=False, reason="the worker shut down"
                )
            case Canceled():
                return transitions.finish_cancel(session, job.id, job.attempt)
        raise TypeError(f"no transition for {outcome!r}")

    def _limits(self, job: Job, remaining_seconds: float | None) -> Limits:
        cpu = None if remaining_seconds is None else int(remaining_seconds * self._settings.threads) + SPARE_CPU_SECONDS
        # CUDA reserves far more address space than it uses: a limit on it would forbid every GPU job.
        memory = None if job.queue == "gpu" else self._settings.job_memory_bytes or machine_memory_bytes()
        return Limits(memory_bytes=memory, cpu_seconds=cpu)


def _remaining_seconds(job: Job) -> float | None:
    """Time from the claim to the deadline, by the database's clock."""
    return None if job.deadline_at is None else max(0.0, (job.deadline_at - job.updated_at).total_seconds())


def _disk_trouble(job: Job, error: OSError) -> Outcome:
    """A full disk is a resource limit; any other trouble is not for us to explain away."""
    limit = resource_limit(error)
    if limit is None:
        raise error
    return resource_outcome(limit.problem(), job.attempt - job.interruptions, job.max_attempts)


def _log_ending(job: Job, ending: Ending, outcome: Outcome) -> None:
    words = type(outcome).__name__
    log.info("runner.ended job_id=%s attempt=%d exit=%d outcome=%s", job.id, job.attempt, ending.returncode, words)
    if ending.stderr_tail and not isinstance(outcome, Succeeded):
        log.warning("runner.stderr job_id=%s attempt=%d\n%s", job.id, job.attempt, ending.stderr_tail)
