"""Small idempotent loops that make the stored truth come true: any number of reconcilers may run, at any time.

Each loop is a function of a ``Reconciler`` that does one round and says how much it did. Nothing here holds a lock
while it talks to the broker or the disk, and nothing breaks if two do the same.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from service.db import Database
from service.jobs import transitions
from service.jobs.dispatch import Dispatcher
from service.jobs.errors import DispatchError
from service.jobs.transitions import Due
from service.settings import Settings
from service.storage import FileStore
from worker import repository
from worker.attempt import DATABASE_AWAY
from worker.broker import QueueDepths
from worker.checkpoints import SUFFIX, collect_checkpoints
from worker.supervisor import scratch_name

log = logging.getLogger(__name__)

BATCH = 100
GARBAGE_AGE_SECONDS = 24 * 3600.0
SCRATCH_AGE_SECONDS = 60.0
NEVER_SECONDS = 1e9
UPLOADS_PERIOD_SECONDS = 60.0
GARBAGE_PERIOD_SECONDS = 3600.0
SCRATCH_PERIOD_SECONDS = 60.0
# Polls of the stop flag, so that a stop does not wait for the period.
TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Loop:
    """One loop: its name, the seconds between its rounds, and the round, which returns how much it did."""

    name: str
    period_seconds: float
    round: Callable[[], int]


class Reconciler:
    """The loops over one database, store and broker.

    Args:
        settings: places and periods.
        database: where jobs are.
        store: where files are.
        dispatcher: sends messages.
        depths: counts messages that wait in the broker.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: FileStore,
        dispatcher: Dispatcher,
        depths: QueueDepths,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._dispatcher = dispatcher
        self._depths = depths
        self.loops = (
            Loop("expire_leases", settings.reconcile_seconds, self.expire_leases),
            Loop("expire_deadlines", settings.reconcile_seconds, self.expire_deadlines),
            Loop("redispatch", settings.reconcile_seconds, self.redispatch),
            Loop("expire_uploads", UPLOADS_PERIOD_SECONDS, self.expire_uploads),
            Loop("forget_answers", GARBAGE_PERIOD_SECONDS, self.forget_answers),
            Loop("collect_scratch", SCRATCH_PERIOD_SECONDS, self.collect_scratch),
            Loop("collect_garbage", GARBAGE_PERIOD_SECONDS, self.collect_garbage),
        )

    def expire_leases(self) -> int:
        """Take running jobs away from workers that fell silent."""
        with self._database.write() as session:
            jobs = transitions.expire_leases(session)
        for job in jobs:
            log.warning("job.lease_expired job_id=%s attempt=%d state=%s", job.id, job.attempt, job.state)
        return len(jobs)

    def expire_deadlines(self) -> int:
        """Fail jobs whose time is over."""
        with self._database.write() as session:
            jobs = transitions.expire_deadlines(session)
        for job in jobs:
            log.warning("job.deadline_passed job_id=%s attempt=%d", job.id, job.attempt)
        return len(jobs)

    def redispatch(self) -> int:
        """Send the message of every queued job that has none, or whose message counts as lost.

        While at least as many messages wait in a queue as jobs are late, none is lost: sending more would let the queue
        grow for as long as the workers are busy.
        """
        with self._database.read() as session:
            fresh = transitions.due_for_dispatch(session, BATCH, redispatch_seconds=NEVER_SECONDS)
            due = transitions.due_for_dispatch(session, BATCH, redispatch_seconds=self._settings.redispatch_seconds)
        late: dict[str, list[Due]] = {}
        for job in due:
            if job not in fresh:
                late.setdefault(job.queue, []).append(job)
        sent = 0
        try:
            sent += self._send(fresh)
            for queue, jobs in late.items():
                if len(jobs) > self._depths.waiting(queue):
                    sent += self._send(jobs)
        except DispatchError as error:
            log.warning("dispatch.failed due=%d: %s", len(due), error.detail)
        return sent

    def _send(self, jobs: Sequence[Due]) -> int:
        for job in jobs:
            self._dispatcher.publish(job.job_id, job.queue)
            with self._database.write() as session:
                transitions.mark_dispatched(session, job.job_id)
        return len(jobs)

    def expire_uploads(self) -> int:
        """Forget uploads past their expiry, with the bytes that were received."""
        with self._database.write() as session:
            ids = repository.delete_expired_uploads(session, BATCH)
        for upload_id in ids:
            with suppress(FileNotFoundError):
                (self._store.incoming / upload_id).unlink()
        return len(ids)

    def forget_answers(self) -> int:
        """Forget the answers kept for repeated requests once they are too old."""
        with self._database.write() as session:
            return repository.delete_old_idempotency_keys(session, self._settings.idempotency_seconds)

    def collect_scratch(self, age_seconds: float = SCRATCH_AGE_SECONDS) -> int:
        """Remove scratch folders of attempts that are not running, and checkpoints of jobs that have ended."""
        return collect_scratch(self._settings, self._database, age_seconds)

    def collect_garbage(self, age_seconds: float = GARBAGE_AGE_SECONDS) -> int:
        """Remove stored files that no row names, and leftovers of uploads that have no row."""
        removed = 0
        blobs = (path for folder in _children(self._store.blobs) for path in _children(folder))
        old = (path for path in blobs if _age_seconds(path) > age_seconds)
        while batch := list(islice(old, BATCH)):
            with self._database.read() as session:
                kept = repository.referenced_digests(session, [path.name for path in batch])
            removed += sum(_remove(path, age_seconds) for path in batch if path.name not in kept)
        leftovers = [path for path in _children(self._store.incoming) if _age_seconds(path) > age_seconds]
        with self._database.read() as session:
            known = repository.known_uploads(session, [path.name for path in leftovers])
        return removed + sum(_remove(path, age_seconds) for path in leftovers if path.name not in known)


def collect_scratch(settings: Settings, database: Database, age_seconds: float = SCRATCH_AGE_SECONDS) -> int:
    """Remove what this host has no use for any more; returns how many folders.

    Those are scratch folders of attempts that are not running, and checkpoints of jobs that have ended.
    """
    collected = collect_checkpoints(settings.scratch_dir, database)
    aged = [path for path in _children(settings.scratch_dir) if _age_seconds(path) > age_seconds]
    folders = [path for path in aged if not path.name.endswith(SUFFIX)]
    if not folders:
        return collected
    with database.read() as session:
        running = {scratch_name(*pair) for pair in repository.running_attempts(session)}
    garbage = [folder for folder in folders if folder.name not in running]
    for folder in garbage:
        shutil.rmtree(folder, ignore_errors=True)
    return collected + len(garbage)


def run_once(reconciler: Reconciler) -> dict[str, int]:
    """One round of every loop; returns what each did. An error ends it."""
    return {loop.name: loop.round() for loop in reconciler.loops}


def run_forever(reconciler: Reconciler, stopping: Callable[[], bool]) -> None:
    """Rounds of every loop, each in its period, until ``stopping``.

    One loop's trouble must not starve the others: it is logged, and the loop has its next round in time.
    """
    due_at = dict.fromkeys((loop.name for loop in reconciler.loops), 0.0)
    while not stopping():
        for loop in reconciler.loops:
            now = time.monotonic()
            if now < due_at[loop.name] or stopping():
                continue
            due_at[loop.name] = now + loop.period_seconds
            _round(loop)
        time.sleep(TICK_SECONDS)


def _round(loop: Loop) -> None:
    try:
        done = loop.round()
    except DATABASE_AWAY as error:
        log.warning("reconcile.database_away loop=%s: %s", loop.name, error)
    except Exception:  # a fault in one loop must not stop the others; it is logged whole, and the loop tries again
        log.exception("reconcile.failed loop=%s", loop.name)
    else:
        if done:
            log.info("reconcile.done loop=%s count=%d", loop.name, done)


def _children(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries)


def _age_seconds(path: Path) -> float:
    """Seconds since the last change; 0 for what is gone meanwhile."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def _remove(path: Path, age_seconds: float) -> bool:
    """Remove a file, unless it was touched meanwhile: somebody is about to name it."""
    if _age_seconds(path) <= age_seconds:
        return False
    with suppress(FileNotFoundError):
        path.unlink()
    return True
