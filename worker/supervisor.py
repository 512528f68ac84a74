"""Runs one job from its claim to its end: scratch folder, runner process, outcome, publication, transition.

A fault of the installation (a full disk, a database that is away) interrupts the attempt and costs the job nothing; nor
does an error here, of this host or a bug of ours. A host on which attempts end that way takes no jobs for a while, see
``worker.conclusion``.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from service import tracing
from service.contracts.errors import QuantmillError
from service.contracts.runner import LogLine, MetricLine, RunnerTask
from service.db import Database
from service.failpoints import reach
from service.jobs import transitions
from service.jobs.outcome import Outcome as JobOutcome
from service.jobs.queues import GPU_QUEUE
from service.logs import bound
from service.quarantine import suspects as quarantine
from service.quotas import repository as usage
from service.quotas import service as quotas
from service.settings import Settings
from service.storage.opening import open_store
from service.tables import Job
from worker.attempt import AttemptWatch
from worker.conclusion import Conclusion, QueueBackoff, worker_fault
from worker.confinement.controls import LANDLOCK
from worker.counting import count_claim, count_ending
from worker.faults import storage_fault
from worker.gpu_memory import GpuWatch
from worker.guard import Guard, StopClock, StoppedError
from worker.lease import DATABASE_AWAY, Lease, Timing
from worker.materials import OUTPUT_FOLDER, Keeping, Materials, collect_checkpoints, model_bytes, open_checkpoints
from worker.memory import MemoryWatch, job_memory_bytes
from worker.outcome import Ending, Failed, Outcome, Retry, Succeeded, classify, waiting_for
from worker.publication import publish
from worker.quantizer.run.cache import evict
from worker.repository import jobs_of_worker, tenant_if_released
from worker.resource_limits import resource_limit
from worker.runner_input import boot_seconds
from worker.sandbox import MAPPINGS, InspectionBudget, Sandbox, SandboxLimits, budget_of
from worker.spares import Spares

log = logging.getLogger(__name__)

SCRATCH_MODE = 0o700
# CPU time that a runner may use beyond its share of the deadline.
SPARE_CPU_SECONDS = 60
# One step of nice is worth so much CPU time (man 7 sched; sched_prio_to_weight in the kernel's kernel/sched/core.c).
_SHARE_PER_NICE = 1.25
# A bucket that is away is asked again for so long before the attempt is put back.
_PATIENCE_SECONDS = 120.0


def scratch_name(job_id: str, attempt: int) -> str:
    """Name of an attempt's scratch folder."""
    return f"{job_id}.{attempt}"


def new_worker_id(name: str = "") -> str:
    """A name for this worker process that no other has; it begins with ``name``, or else with the host's."""
    return f"{name or socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"[-255:]


@dataclass
class _Used:
    """What an attempt has cost."""

    cpu_seconds: float = 0.0


class Supervisor:
    """Runs jobs, one per call of ``run``; any number of threads may call it.

    Args:
        settings: places, limits and periods.
        database: where jobs are.
        sandbox: starts the runners.
        spares: of the same sandbox, for the runners of jobs; None: each is started for its job.
        worker_id: name of this worker in the leases.
        timing: periods; default: from the settings.
        stopping: True once the worker shuts down: no job is claimed any more, and running ones are put back.
        queue_backoff: of all supervisors of this process.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        sandbox: Sandbox | None = None,
        spares: Spares | None = None,
        worker_id: str | None = None,
        timing: Timing | None = None,
        stopping: Callable[[], bool] = lambda: False,
        queue_backoff: QueueBackoff | None = None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = open_store(settings, patience_seconds=_PATIENCE_SECONDS)
        self._sandbox = sandbox or Sandbox(mode=settings.sandbox)
        self._spares = spares
        self._worker_id = worker_id or new_worker_id()
        self._timing = timing or Timing(lease=settings.lease_seconds, renew=settings.renew_seconds)
        self._stop = StopClock(stopping)
        self._queue_backoff = queue_backoff or QueueBackoff()
        self._conclusion = Conclusion(settings, self._store, timing=self._timing, stop=self._stop)
        self._memory_bytes = job_memory_bytes(settings)

    def run(self, job_id: str, attempt: int) -> Outcome | None:
        """Claim the job and see it through one attempt; None if it was not to be had.

        Args:
            job_id: that was released.
            attempt: for which it was.
        """
        if self._stop():
            return None
        with bound({"job_id": job_id, "attempt": attempt, "worker_id": self._worker_id}):
            claimed_at = boot_seconds()
            with self._database.write() as session:
                job = self._claim(session, job_id, attempt)
            count_claim(job)
            if job is None:
                log.info("job.not_claimed job_id=%s attempt=%d", job_id, attempt)
                return None
            return self._traced(job, claimed_at)

    def _traced(self, job: Job, claimed_at: float) -> Outcome:
        """See the attempt through as a part of the trace of the job's submission, however long ago that was."""
        told: tracing.Attributes = {"attempt": job.attempt, "job_id": job.id, "worker_id": self._worker_id}
        parent, kind = tracing.remote(job.trace_context), tracing.SpanKind.CONSUMER
        with (
            bound({"request_id": job.request_id, "tenant_id": job.tenant_id}),
            tracing.span("job.attempt", told, parent=parent, kind=kind) as attempt,
        ):
            outcome = self._see_through(job, claimed_at)
            attempt.set_attribute("quantmill.outcome", type(outcome).__name__.lower())
            if isinstance(outcome, Failed | Retry):
                tracing.failed(attempt, outcome.problem.code if isinstance(outcome, Failed) else "crash")
            return outcome

    def _see_through(self, job: Job, claimed_at: float) -> Outcome:
        log.info("job.claimed job_id=%s kind=%s attempt=%d", job.id, job.kind, job.attempt)
        with Lease(self._database, job, self._timing, claimed_at=claimed_at) as lease:
            reach("after_claim")
            folder, used = self._settings.scratch_dir / scratch_name(job.id, job.attempt), _Used()
            try:
                outcome, published = self._work(job, lease, folder, claimed_at, used)
            finally:
                # Before the end is written: it may need the room. What cannot be removed now the reconciler collects.
                shutil.rmtree(folder, ignore_errors=True)
            with tracing.span("job.conclude", {}):
                outcome = self._conclusion.write(job, lease, outcome, published)
        self._count_cpu(job, used.cpu_seconds)
        self._collect_cache()
        self._queue_backoff.note(job.queue, failed=self._conclusion.is_lasting(outcome))
        self._collect_checkpoints()
        return outcome

    def _claim(self, session: Session, job_id: str, attempt: int) -> Job | None:
        """The job; None: it is not to be had, or was not released for this attempt, whatever a message says."""
        tenant_id = tenant_if_released(session, job_id, attempt)
        if tenant_id is None or not quotas.may_start(session, self._settings, tenant_id):
            return None
        return transitions.claim(session, job_id, worker_id=self._worker_id, lease_seconds=self._timing.lease)

    def _keeping(self, job: Job, lease: Lease) -> Keeping:
        """Where the runner of ``job`` finds what was kept.

        Raises:
            OSError: the disk refused.
        """
        if job.kind == "evaluate":
            return Keeping(extra_bytes=self._settings.extra_bytes)
        if job.kind != "quantize":
            return Keeping()
        settings, folder = self._settings, None
        if settings.checkpoint_bytes:
            folder = open_checkpoints(settings.checkpoint_dir, job.id, limit_bytes=settings.checkpoint_bytes)
            if folder is None:
                told = (
                    "checkpoints cannot be saved because their storage is unavailable or full; another "
                    "attempt would start from the beginning"
                )
                lease.tell(LogLine(level="warning", message=told))
        return Keeping(
            extra_bytes=settings.extra_bytes,
            checkpoint_dir=folder,
            checkpoint_bytes=settings.checkpoint_bytes,
            cache_dir=settings.cache_dir if settings.cache_bytes else None,
            cache_bytes=settings.cache_bytes,
        )

    def _collect_cache(self) -> None:
        """Keep the cache below its size over all tenants; a runner sees that of its own alone."""
        settings = self._settings
        if settings.cache_bytes and settings.cache_dir.is_dir():
            try:
                evict(settings.cache_dir, settings.cache_bytes)
            except OSError as error:
                log.warning("cache.unavailable: %s", error)  # the next attempt tries again

    def _collect_checkpoints(self) -> None:
        try:
            collect_checkpoints(self._settings, self._database)
        except DATABASE_AWAY as error:
            log.warning("checkpoints.database_away: %s", error)  # they go after the next attempt on this host

    def _work(
        self, job: Job, lease: Lease, scratch: Path, claimed_at: float, used: _Used
    ) -> tuple[Outcome, JobOutcome | None]:
        """Prepare, run and publish; what is wrong with the host interrupts the attempt, wherever it shows."""
        try:
            outcome = self._attempt(job, lease, scratch, claimed_at, used)
            published = self._publish(outcome, lease, scratch) if isinstance(outcome, Succeeded) else None
        except StoppedError as stop:
            return stop.outcome, None
        except Exception as error:  # noqa: BLE001 - logged whole, told on the job; the worker has other jobs
            return self._trouble(job, error), None
        return outcome, published

    def _trouble(self, job: Job, error: Exception) -> Outcome:
        """What an error here means for the attempt.

        One that means nothing known is no news of the job: it is told as the worker's, and in its log as a whole.
        """
        fault = storage_fault(error, self._settings.scratch_dir, self._settings.storage_dir)
        if fault is not None:
            log.warning("storage.fault code=%s: %s", fault.code, fault.detail)
            return waiting_for(fault.problem())
        if isinstance(error, QuantmillError):
            return Failed(error.problem())
        limit = resource_limit(error) if isinstance(error, OSError) else None
        if limit is not None:
            return Failed(limit.problem())
        log.error("worker.fault job_id=%s attempt=%d", job.id, job.attempt, exc_info=error)
        return worker_fault(error, job.attempt)

    def _attempt(self, job: Job, lease: Lease, scratch: Path, claimed_at: float, used: _Used) -> Outcome:
        """Prepare, start the runner, and watch it to its end."""
        guard = Guard(lease, self._stop)
        with closing(self._materials(job, lease, guard, scratch)) as materials:
            with tracing.span("job.prepare", {}):
                task_file = materials.lay_out(self._read(job, materials, guard))
            places = materials.places
            reach("after_inputs")
            remaining = _remaining_seconds(job)
            budget = budget_of(job, scratch, self._settings, self._memory_bytes)
            guard.await_lease(self._timing.frozen)
            limits = self._limits(job, remaining, budget, scratch)
            with tracing.span("job.start", {}):
                runner = self._spares and self._spares.take(
                    task_file, scratch=scratch, limits=limits, places=places, check=guard.check
                )
                runner = runner or self._sandbox.start(task_file, scratch=scratch, limits=limits, places=places)
            runner.tell_lease(lease.ends_at)
            runner.allow_trials(partial(self._sandbox.start_trial, scratch=scratch, limits=limits))
            with closing(runner) as process, tracing.span("job.run", {}):
                held = ",".join(self._sandbox.controls().held) or "none"
                log.info("runner.started job_id=%s attempt=%d pid=%d held=%s", job.id, job.attempt, process.pid, held)
                reach("after_runner_start")
                memory = MemoryWatch(process.groups, self._memory_bytes if budget is None else budget.memory_bytes)
                watch = AttemptWatch(
                    process,
                    lease,
                    job,
                    deadline_at=None if remaining is None else claimed_at + remaining,
                    stopping=self._stop,
                    scratch=scratch,
                    memory=memory,
                    budget=budget,
                )
                with GpuWatch(process.groups) if limits.gpus else nullcontext() as gpu:
                    ending = watch.to_end()
        used.cpu_seconds = memory.cpu_seconds
        if gpu is not None and gpu.peak_bytes is not None:
            lease.tell(MetricLine(stage="gpu", step=job.attempt, values={"peak_memory_bytes": gpu.peak_bytes}))
        reach("after_runner_end")
        count_ending(ending)
        outcome = classify(ending)
        _log_ending(job, ending, outcome)
        return outcome

    def _count_cpu(self, job: Job, seconds: float) -> None:
        if not seconds:
            return  # no runner was started
        try:
            with self._database.write() as session:
                usage.add_cpu_seconds(session, job.tenant_id, seconds)
        except DATABASE_AWAY as error:
            log.warning("quota.cpu_not_counted job_id=%s seconds=%.1f: %s", job.id, seconds, error)

    def _materials(self, job: Job, lease: Lease, guard: Guard, scratch: Path) -> Materials:
        """What lays out the scratch folder, while no transaction is open."""
        scratch.mkdir(mode=SCRATCH_MODE, parents=True)
        return Materials(
            scratch,
            self._store,
            threads=self._settings.threads,
            keeping=self._keeping(job, lease),
            allow_pt2=self._settings.allow_pt2,
            borrow=self._sandbox.controls().has(LANDLOCK),
            check=guard.check,
        )

    def _read(self, job: Job, materials: Materials, guard: Guard) -> RunnerTask:
        """The task; a database that is away is asked again."""
        while True:
            try:
                with self._database.read() as session:
                    quarantine.refuse_job(session, job)
                    return materials.read(session, job)
            except DATABASE_AWAY as error:
                log.warning("job.database_away job_id=%s attempt=%d: %s", job.id, job.attempt, error)
            time.sleep(self._timing.again)
            guard.check()
            guard.await_lease(self._timing.frozen)

    def _publish(self, outcome: Succeeded, lease: Lease, scratch: Path) -> JobOutcome:
        guard = Guard(lease, self._stop, grace_seconds=2 * self._timing.shutdown_grace)
        with tracing.span("job.publish", {}):
            return publish(
                outcome.result,
                scratch / OUTPUT_FOLDER,
                self._store,
                extra_bytes=self._settings.extra_bytes,
                check=guard.check,
            )

    def _limits(
        self, job: Job, remaining_seconds: float | None, budget: InspectionBudget | None, scratch: Path
    ) -> SandboxLimits:
        mapped_bytes, gpus = MAPPINGS * model_bytes(scratch), job.queue == GPU_QUEUE
        if budget is not None:
            cpu_seconds = math.ceil(budget.cpu_seconds)
            return SandboxLimits(
                memory_bytes=budget.memory_bytes,
                mapped_bytes=mapped_bytes,
                cpu_seconds=cpu_seconds,
                gpus=gpus,
                niceness=self._niceness(job.tenant_id),
            )
        cpu = None if remaining_seconds is None else int(remaining_seconds * self._settings.threads) + SPARE_CPU_SECONDS
        # CUDA reserves far more address space than it uses: a limit on it would forbid every GPU job.
        memory = None if gpus else self._memory_bytes
        return SandboxLimits(memory_bytes=memory, mapped_bytes=mapped_bytes, cpu_seconds=cpu, gpus=gpus)

    def _niceness(self, tenant_id: str) -> int:
        """How far each of a tenant's inspections here stands back: all of them together weigh as much as one."""
        with self._database.read() as session:
            return round(math.log(max(1, jobs_of_worker(session, self._worker_id, tenant_id)), _SHARE_PER_NICE))


def _remaining_seconds(job: Job) -> float | None:
    """From the claim to the deadline, both by the database's clock."""
    return None if job.deadline_at is None else max(0.0, (job.deadline_at - job.updated_at).total_seconds())


def _log_ending(job: Job, ending: Ending, outcome: Outcome) -> None:
    words = type(outcome).__name__
    log.info("runner.ended job_id=%s attempt=%d exit=%d outcome=%s", job.id, job.attempt, ending.returncode, words)
    if ending.stderr_tail and not isinstance(outcome, Succeeded):
        log.warning("runner.stderr job_id=%s attempt=%d\n%s", job.id, job.attempt, ending.stderr_tail)
