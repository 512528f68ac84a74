"""All collectors, shared by ``quantmill gc`` and the reconciler.

Whatever grows belongs here: a new folder gets one more ``Collector`` in this list, and a table of rows that age one in
``OLD_ROWS``; and with it its count, its line in ``quantmill gc`` and its loop.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from service.db import Database
from service.settings import Settings
from service.storage import Store, StoredFile
from service.uploads.places import Leftover
from worker.materials import settled_checkpoints
from worker.quantizer.run.cache import LOCK_FILE
from worker.upkeep import garbage
from worker.upkeep.collector import Collector, Tally, children, in_batches, tally_of
from worker.upkeep.repository import OLD_ROWS, OldRows

_MINUTE = 60.0
_HOUR = 3600.0
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
# Files of a round of the reconciler, which has other things to do as well.
ROUND_ITEMS = 2000


def collectors(settings: Settings, database: Database, store: Store) -> tuple[Collector, ...]:
    """All collectors over one installation; those of local folders see the ones of this host."""
    return (
        Collector(
            "uploads",
            "uploads, including the received bytes of unfinished ones",
            f"{words(settings.upload_expiry_seconds)} after their last bytes; resources created from them are kept",
            _MINUTE,
            lambda: garbage.count_expired_uploads(database, store),
            lambda limit: garbage.expire_uploads(database, store, limit, expiry_seconds=settings.upload_expiry_seconds),
        ),
        *(_rows(settings, database, rows) for rows in OLD_ROWS),
        Collector(
            "files",
            "stored files, moved to the trash",
            f"when no row refers to them, {words(settings.garbage_age_seconds)} after they were stored",
            _HOUR / 6,
            lambda: _tally(garbage.unnamed_files(database, store, age_seconds=settings.garbage_age_seconds)),
            lambda limit: garbage.discard_garbage(database, store, limit, age_seconds=settings.garbage_age_seconds),
        ),
        Collector(
            "trash",
            "files in the trash, permanently",
            f"after {words(settings.trash_seconds)}, if still no row refers to them",
            _HOUR / 6,
            lambda: _tally(store.old_trash(settings.trash_seconds)),
            lambda limit: garbage.empty_trash(database, store, limit, age_seconds=settings.trash_seconds),
        ),
        Collector(
            "leftovers",
            "parts of interrupted uploads and copies",
            f"after {words(garbage.LEFTOVER_AGE_SECONDS)}",
            _HOUR,
            lambda: _tally(garbage.leftovers(database, store)),
            lambda limit: garbage.remove_leftovers(database, store, limit),
        ),
        _folders(
            "scratch",
            "working folders on this host",
            f"of attempts that are not running, after {words(garbage.SCRATCH_AGE_SECONDS)}",
            lambda: garbage.idle_scratch(database, settings.scratch_dir),
        ),
        _folders(
            "checkpoints",
            "checkpoints, in the shared folder and on this host",
            "when their job has ended",
            lambda: settled_checkpoints(settings, database),
        ),
        Collector(
            "cache",
            "cached results of jobs (total size)",
            f"by the jobs that use the cache, least recently used first, beyond {settings.cache_bytes} bytes",
            _HOUR,
            lambda: tally_of(
                path for scope in children(settings.cache_dir) for path in children(scope) if path.name != LOCK_FILE
            ),
            None,
        ),
    )


def collect_everything(found: Collector) -> Tally:
    """Round after round, until there is nothing left that may go."""
    return Tally() if found.collect is None else in_batches(sys.maxsize, ROUND_ITEMS, found.collect)


def words(seconds: float) -> str:
    """A time span for people: ``90 minutes``, ``7 days``."""
    for unit, word in _UNITS:
        if seconds >= 2 * unit or seconds == unit:
            return f"{seconds / unit:g} {word if seconds != unit else word.removesuffix('s')}"
    return f"{seconds:g} seconds"


def _tally(found: Iterable[StoredFile | Leftover]) -> Tally:
    return sum((Tally(1, one.size_bytes) for one in found), Tally())


def _folders(name: str, removes: str, rule: str, unneeded: Callable[[], list[Path]]) -> Collector:
    return Collector(
        name,
        removes,
        rule,
        _MINUTE,
        lambda: tally_of(unneeded()),
        lambda limit: garbage.remove_folders(unneeded()[:limit]),
    )


def _rows(settings: Settings, database: Database, rows: OldRows) -> Collector:
    age_seconds: float | None = getattr(settings, rows.setting)
    if age_seconds is None:
        rule = f"never: QUANTMILL_{rows.setting.upper()} is not set"
        return Collector(rows.name, rows.removes, rule, _HOUR, Tally, None)
    # A repeated request must not be answered with a job that is gone.
    asked_seconds = settings.idempotency_seconds if rows.setting == "job_retention_seconds" else 0.0
    old_seconds = max(age_seconds, asked_seconds)

    def count() -> Tally:
        with database.read() as session:
            return Tally(rows.count(session, old_seconds))

    def collect(limit: int) -> Tally:
        with database.write() as session:
            return Tally(rows.delete(session, old_seconds, limit))

    rule = rows.rule.format(words(old_seconds))
    return Collector(rows.name, rows.removes, rule, _HOUR, count, lambda limit: in_batches(limit, rows.batch, collect))
