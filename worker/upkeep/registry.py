"""Every collector there is. ``quantmill gc`` and the reconciler run the same ones.

Whatever grows belongs here: a new table of rows that age, or a new folder, gets one
more ``Collector`` in this list, and with it its count, its line in ``quantmill gc`` and its loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy.orm import Session

from service.audit import repository as audit
from service.db import Database
from service.settings import Settings
from service.storage import FileStore
from worker.checkpoints import settled_checkpoints
from worker.quantizer.run.cache import LOCK_FILE
from worker.upkeep import garbage, repository, scratch, uploads
from worker.upkeep.collector import Collector, Tally, in_batches, tally_of
from worker.upkeep.folders import children

_MINUTE = 60.0
_HOUR = 3600.0
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
# Files of a round of the reconciler, which has other things to do as well.
ROUND_ITEMS = 2000


def collectors(settings: Settings, database: Database, store: FileStore) -> tuple[Collector, ...]:
    """All collectors over one installation; those of local folders see the ones of this host."""
    return (
        Collector(
            "uploads",
            "uploads, with the bytes received of unfinished ones",
            f"{words(settings.upload_expiry_seconds)} after their last bytes; what was made of them stays",
            _MINUTE,
            lambda: uploads.count_expired_uploads(database, store),
            lambda limit: uploads.expire_uploads(database, store, limit, expiry_seconds=settings.upload_expiry_seconds),
        ),
        _rows(
            database,
            "answers",
            "answers kept for repeated requests",
            f"after {words(settings.idempotency_seconds)}",
            settings.idempotency_seconds,
            repository.count_old_answers,
            repository.delete_old_answers,
        ),
        _rows(
            database,
            "progress",
            "progress events; states, logs and metrics stay",
            f"{words(settings.progress_retention_seconds)} after the end of their job",
            settings.progress_retention_seconds,
            repository.count_old_progress,
            repository.delete_old_progress,
        ),
        _rows(
            database,
            "deliveries",
            "events for webhooks, sent or not",
            f"after {words(settings.webhook_retention_seconds)}",
            settings.webhook_retention_seconds,
            repository.count_old_deliveries,
            repository.delete_old_deliveries,
        ),
        _rows(
            database,
            "runs",
            "runs of schedules that have ended; their jobs stay",
            f"after {words(settings.schedule_run_retention_seconds)}",
            settings.schedule_run_retention_seconds,
            repository.count_old_runs,
            repository.delete_old_runs,
        ),
        _jobs(settings, database),
        _batches(settings, database),
        _audit(settings, database),
        Collector(
            "files",
            "stored files, to the trash",
            f"once no row names them, {words(settings.garbage_age_seconds)} after they were stored",
            _HOUR / 6,
            lambda: garbage.count_garbage(database, store, age_seconds=settings.garbage_age_seconds),
            lambda limit: garbage.discard_garbage(database, store, limit, age_seconds=settings.garbage_age_seconds),
        ),
        Collector(
            "trash",
            "files in the trash, for good",
            f"after {words(settings.trash_seconds)}, if still no row names them",
            _HOUR / 6,
            lambda: garbage.count_trash(store, age_seconds=settings.trash_seconds),
            lambda limit: garbage.empty_trash(database, store, limit, age_seconds=settings.trash_seconds),
        ),
        Collector(
            "leftovers",
            "parts of uploads and copies that were cut off",
            f"after {words(garbage.LEFTOVER_AGE_SECONDS)}",
            _HOUR,
            lambda: garbage.count_leftovers(database, store),
            lambda limit: garbage.remove_leftovers(database, store, limit),
        ),
        Collector(
            "scratch",
            "working folders on this host",
            f"of attempts that do not run, after {words(scratch.SCRATCH_AGE_SECONDS)}",
            _MINUTE,
            lambda: tally_of(scratch.idle_scratch(database, settings.scratch_dir)),
            lambda limit: scratch.remove_folders(scratch.idle_scratch(database, settings.scratch_dir)[:limit]),
        ),
        Collector(
            "checkpoints",
            "checkpoints, in the shared folder and on this host",
            "once their job has ended",
            _MINUTE,
            lambda: tally_of(settled_checkpoints(settings, database)),
            lambda limit: scratch.remove_folders(settled_checkpoints(settings, database)[:limit]),
        ),
        Collector(
            "cache",
            "what jobs computed for later ones: all there is",
            f"by its users, least recently used first, beyond {settings.cache_bytes} bytes",
            _HOUR,
            lambda: tally_of(_cached(settings.cache_dir)),
            None,
        ),
    )


def _cached(cache_dir: Path) -> Iterator[Path]:
    return (path for scope in children(cache_dir) for path in children(scope) if path.name != LOCK_FILE)


def collect_everything(found: Collector) -> Tally:
    """Round after round, until there is nothing left that may go."""
    done = Tally()
    while found.collect is not None:
        removed = found.collect(ROUND_ITEMS)
        done += removed
        if removed.items < ROUND_ITEMS:
            break
    return done


def words(seconds: float) -> str:
    """A time span for people: ``90 minutes``, ``7 days``."""
    for unit, word in _UNITS:
        if seconds >= 2 * unit or seconds == unit:
            return f"{seconds / unit:g} {word if seconds != unit else word.removesuffix('s')}"
    return f"{seconds:g} seconds"


def _kept_for_ever(name: str, removes: str, setting: str) -> Collector:
    return Collector(name, removes, f"never: QUANTMILL_{setting}_RETENTION_SECONDS is not set", _HOUR, Tally, None)


def _jobs(settings: Settings, database: Database) -> Collector:
    asked, removes = settings.job_retention_seconds, "jobs with events, report and artifacts"
    if asked is None:
        return _kept_for_ever("jobs", removes, "JOB")
    # A repeated request must not be answered with a job that is gone.
    age_seconds = max(asked, settings.idempotency_seconds)
    rule = f"{words(age_seconds)} after their end, unless something refers to them"
    return _rows(database, "jobs", removes, rule, age_seconds, repository.count_old_jobs, repository.delete_old_jobs)


def _batches(settings: Settings, database: Database) -> Collector:
    asked, removes = settings.job_retention_seconds, "batches"
    if asked is None:
        return _kept_for_ever("batches", removes, "JOB")
    age_seconds = max(asked, settings.idempotency_seconds)
    rule = f"{words(age_seconds)} after they were made, once none of their jobs is there"
    count, delete = repository.count_old_batches, repository.delete_old_batches
    return _rows(database, "batches", removes, rule, age_seconds, count, delete)


def _audit(settings: Settings, database: Database) -> Collector:
    asked, removes = settings.audit_retention_seconds, "rows of the audit; the chain of the others begins behind them"
    if asked is None:
        return _kept_for_ever("audit", removes, "AUDIT")
    return _rows(database, "audit", removes, f"after {words(asked)}", asked, audit.count_old, audit.delete_old)


def _rows(
    database: Database,
    name: str,
    removes: str,
    rule: str,
    age_seconds: float,
    count: Callable[[Session, float], int],
    delete: Callable[[Session, float, int], int],
) -> Collector:
    """A collector of rows that are older than ``age_seconds``."""

    def counted() -> Tally:
        with database.read() as session:
            return Tally(count(session, age_seconds))

    def batch(limit: int) -> int:
        with database.write() as session:
            return delete(session, age_seconds, limit)

    return Collector(name, removes, rule, _HOUR, counted, lambda limit: in_batches(limit, batch))
