"""Files that go: stored ones that no row names, first to the trash, then away; uploads past their expiry; what was cut
off; and folders that this host has no use for any more.

Never is a file collected that a running upload, job or alias needs, however slow or paused: see
``service.files.repository`` for the lock that the look at the rows and the naming of a file exclude each other by. Ages
decide nothing here but when it is worth to look: a young file belongs to somebody who is about to name it, and what
lies in the trash for a while can be taken back by whoever named it in spite of all.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from sqlalchemy.orm import Session

from service.db import Database
from service.failpoints import reach
from service.files import repository as files
from service.ids import is_id
from service.settings import Settings
from service.storage import Store, StoredFile
from service.uploads import repository as uploads
from service.uploads.places import Leftover, place_of
from worker import repository
from worker.materials import collect_checkpoints
from worker.supervisor import scratch_name
from worker.upkeep.collector import BATCH, STRANGE_SECONDS, Tally, age_seconds_of, children, in_batches, tally_of

log = logging.getLogger(__name__)

# Temporary files of the store have no row at any time, and are written to for as long as they are needed.
LEFTOVER_AGE_SECONDS = 24 * 3600.0
SCRATCH_AGE_SECONDS = 60.0


def unnamed_files(database: Database, store: Store, *, age_seconds: float) -> Iterator[StoredFile]:
    """Stored files that no row names, and that are older."""
    for old in store.old_files(age_seconds):
        for first in range(0, len(old), BATCH):
            yield from _unnamed(database, old[first : first + BATCH])


def discard_garbage(database: Database, store: Store, limit: int, *, age_seconds: float) -> Tally:
    """Move stored files that no row names, and that are older, to the trash; ``limit`` at most."""
    done = Tally()
    for old in store.old_files(age_seconds):
        for first in range(0, len(old), store.files_at_once):
            suspects = _unnamed(database, old[first : first + store.files_at_once])[: limit - done.items]
            if suspects:
                done += _discard(database, store, suspects, age_seconds)
            if done.items >= limit:
                return done
    return done


def empty_trash(database: Database, store: Store, limit: int, *, age_seconds: float) -> Tally:
    """Remove for good what has been in the trash for longer, ``limit`` files at most.

    One that a row names after all, such as a row of a database that was set back, returns to its place.
    """
    done = Tally()
    for file in islice(store.old_trash(age_seconds), limit):
        with store.collecting() as free, database.write() as session:
            if not free or not files.hold_folder(session, file.sha256[:2]):
                continue
            if files.named(session, [file.sha256]):
                log.warning("garbage.taken_back sha256=%s", file.sha256)
                store.take_back(file.sha256)
                continue
            reach("before_trash_emptied")
            store.purge(file.sha256, partial(_still_held, session, file.sha256[:2]))
            done += Tally(1, file.size_bytes)
    return done


def _still_held(session: Session, folder: str) -> None:
    """Raises if the transaction, and its lock with it, is gone, as after a long pause of this process."""
    files.hold_folder(session, folder)


def leftovers(database: Database, store: Store, *, age_seconds: float = LEFTOVER_AGE_SECONDS) -> list[Leftover]:
    """What uploads and copies that were cut off have left, and is older."""

    def known(ids: Sequence[str]) -> set[str]:
        found: set[str] = set()
        with database.read() as session:
            for first in range(0, len(ids), BATCH):
                found |= uploads.known(session, ids[first : first + BATCH])
        return found

    return place_of(store, database).leftovers(age_seconds, known)


def remove_leftovers(
    database: Database, store: Store, limit: int, *, age_seconds: float = LEFTOVER_AGE_SECONDS
) -> Tally:
    """Remove what uploads and copies that were cut off have left; ``limit`` files at most."""
    done, place = Tally(), place_of(store, database)
    for found in leftovers(database, store, age_seconds=age_seconds)[:limit]:
        if place.remove_leftover(found, age_seconds):
            done += Tally(1, found.size_bytes)
    return done


def count_expired_uploads(database: Database, store: Store) -> Tally:
    """How many uploads are past their expiry, and the bytes that were received of those not finished."""
    with database.read() as session:
        ids = uploads.expired(session)
    return Tally(len(ids), place_of(store, database).size_bytes(ids))


def expire_uploads(database: Database, store: Store, limit: int, *, expiry_seconds: float) -> Tally:
    """Forget uploads past their expiry, with the bytes that were received; ``limit`` at most.

    One that is being written to starts its time anew, as it does whenever bytes arrive: it has ``expiry_seconds`` from
    now on. The file's lock is kept from the look until the row and the file are gone: a writer that comes too late
    finds no upload.
    """
    place = place_of(store, database)

    def expire(wanted: int) -> Tally:
        with database.read() as session:
            due = uploads.expired(session, wanted)
        with ExitStack() as stack:
            idle = {upload_id for upload_id in due if stack.enter_context(place.idle(upload_id))}
            with database.write() as session:
                gone = uploads.delete_expired(session, idle)
                for upload_id in set(due) - idle:
                    uploads.prolong(session, upload_id, expiry_seconds=expiry_seconds)
                reach("before_uploads_forgotten")
            return Tally(len(gone), place.remove(gone))

    return in_batches(limit, BATCH, expire)


def collect_scratch(settings: Settings, database: Database) -> int:
    """Remove what a killed predecessor has left on this host; returns how many folders.

    Those are scratch folders of attempts that are not running, and checkpoints of jobs that have ended.
    """
    collected = collect_checkpoints(settings, database)
    return collected + remove_folders(idle_scratch(database, settings.scratch_dir)).items


def idle_scratch(database: Database, scratch_dir: Path) -> list[Path]:
    """Scratch folders of attempts that are not running, and that are older.

    The folder may be shared with anything: what is not named as a scratch folder is nobody's business here, and one of
    a job that this database does not know may be another installation's, and running.
    """
    folders = {path: found[0] for path in children(scratch_dir) if (found := attempt_of(path.name)) is not None}
    old = {path: job_id for path, job_id in folders.items() if age_seconds_of(path) > SCRATCH_AGE_SECONDS}
    if not old:
        return []
    with database.read() as session:
        running = {scratch_name(*pair) for pair in repository.running_attempts(session)}
        known = repository.known_jobs(session, set(old.values()))
    return [
        path
        for path, job_id in old.items()
        if path.name not in running and (job_id in known or age_seconds_of(path) > STRANGE_SECONDS)
    ]


def attempt_of(name: str) -> tuple[str, int] | None:
    """Job and attempt whose scratch folder has this name, the reverse of ``scratch_name``; None: it is no such name."""
    job_id, _, attempt = name.partition(".")
    return (job_id, int(attempt)) if is_id(job_id, "job") and attempt.isascii() and attempt.isdigit() else None


def remove_folders(folders: Sequence[Path]) -> Tally:
    """Remove folders with all that is in them; what cannot be removed now is looked at again next time."""
    removed = tally_of(folders)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return removed


def _unnamed(database: Database, found: Sequence[StoredFile]) -> list[StoredFile]:
    """Those that no row names at this moment: a first look, which holds up nobody."""
    with database.read() as session:
        named = files.named(session, [file.sha256 for file in found])
    return [file for file in found if file.sha256 not in named]


def _discard(database: Database, store: Store, suspects: Sequence[StoredFile], age_seconds: float) -> Tally:
    """The second look, which counts: nobody names one of these files between it and their removal."""
    removed = Tally()
    with store.collecting() as free, database.write() as session:
        if not free or not files.hold_folder(session, suspects[0].sha256[:2]):
            return removed
        named = files.named(session, [file.sha256 for file in suspects])
        reach("before_files_discarded")
        for file in suspects:
            if file.sha256 not in named and store.discard(file.sha256, age_seconds=age_seconds):
                removed += Tally(1, file.size_bytes)
    return removed
