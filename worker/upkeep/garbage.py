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
from itertools import islice
from pathlib import Path

from service.db import Database
from service.failpoints import reach
from service.files import repository as files
from service.ids import is_id
from service.settings import Settings
from service.storage import FileStore, is_sha256
from service.uploads import repository as uploads
from service.uploads.writer import part_files, unwritten
from worker import repository
from worker.materials import collect_checkpoints
from worker.supervisor import scratch_name
from worker.upkeep.collector import BATCH, STRANGE_SECONDS, Tally, age_seconds_of, children, in_batches, tally_of

log = logging.getLogger(__name__)

# Temporary files of the store have no row at any time, and are written to for as long as they are needed.
LEFTOVER_AGE_SECONDS = 24 * 3600.0
SCRATCH_AGE_SECONDS = 60.0


def unnamed_files(database: Database, store: FileStore, *, age_seconds: float) -> Iterator[Path]:
    """Stored files that no row names, and that are older."""
    for batch in _old_files(store, age_seconds):
        yield from _unnamed(database, batch)


def discard_garbage(database: Database, store: FileStore, limit: int, *, age_seconds: float) -> Tally:
    """Move stored files that no row names, and that are older, to the trash; ``limit`` at most."""
    done = Tally()
    for batch in _old_files(store, age_seconds):
        suspects = _unnamed(database, batch)[: limit - done.items]
        if suspects:
            done += _discard(database, store, suspects, age_seconds)
        if done.items >= limit:
            break
    return done


def old_trash(store: FileStore, *, age_seconds: float) -> Iterator[Path]:
    """What has been in the trash for longer."""
    return (path for path in children(store.trash) if is_sha256(path.name) and age_seconds_of(path) > age_seconds)


def empty_trash(database: Database, store: FileStore, limit: int, *, age_seconds: float) -> Tally:
    """Remove for good what has been in the trash for longer, ``limit`` files at most.

    One that a row names after all, such as a row of a database that was set back, returns to its place.
    """
    done = Tally()
    for path in islice(old_trash(store, age_seconds=age_seconds), limit):
        with store.collecting() as free, database.write() as session:
            if not free or not files.hold_folder(session, path.name[:2]):
                continue
            if files.named(session, [path.name]):
                log.warning("garbage.taken_back sha256=%s", path.name)
                store.take_back(path.name)
                continue
            reach("before_trash_emptied")
            done += _removed([path])
    return done


def leftovers(database: Database, store: FileStore, *, age_seconds: float = LEFTOVER_AGE_SECONDS) -> list[Path]:
    """What uploads and copies that were cut off have left, and is older."""
    old = [path for path in children(store.incoming) if age_seconds_of(path) > age_seconds]
    # "ID.anew" belongs to the upload ID
    owners = {path: path.name.partition(".")[0] for path in old}
    known: set[str] = set()
    ids = sorted(set(owners.values()))
    with database.read() as session:
        for first in range(0, len(ids), BATCH):
            known |= uploads.known(session, ids[first : first + BATCH])
    return [path for path in old if owners[path] not in known]


def remove_leftovers(
    database: Database, store: FileStore, limit: int, *, age_seconds: float = LEFTOVER_AGE_SECONDS
) -> Tally:
    """Remove what uploads and copies that were cut off have left; ``limit`` files at most."""
    done = Tally()
    for path in leftovers(database, store, age_seconds=age_seconds)[:limit]:
        with unwritten(path) as idle:
            if idle and age_seconds_of(path) > age_seconds:
                done += _removed([path])
    return done


def count_expired_uploads(database: Database, store: FileStore) -> Tally:
    """How many uploads are past their expiry, and the bytes that were received of those not finished."""
    with database.read() as session:
        ids = uploads.expired(session)
    return Tally(len(ids), tally_of(_parts(store, ids)).size_bytes)


def expire_uploads(database: Database, store: FileStore, limit: int, *, expiry_seconds: float) -> Tally:
    """Forget uploads past their expiry, with the bytes that were received; ``limit`` at most.

    One that is being written to starts its time anew, as it does whenever bytes arrive: it has ``expiry_seconds`` from
    now on. The file's lock is kept from the look until the row and the file are gone: a writer that comes too late
    finds no upload.
    """

    def expire(wanted: int) -> Tally:
        with database.read() as session:
            due = uploads.expired(session, wanted)
        with ExitStack() as stack:
            idle = {upload_id for upload_id in due if stack.enter_context(unwritten(store.incoming / upload_id))}
            with database.write() as session:
                gone = uploads.delete_expired(session, idle)
                for upload_id in set(due) - idle:
                    uploads.prolong(session, upload_id, expiry_seconds=expiry_seconds)
                reach("before_uploads_forgotten")
            return Tally(len(gone), _removed(_parts(store, gone)).size_bytes)

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


def _old_files(store: FileStore, age_seconds: float) -> Iterator[list[Path]]:
    """Stored files that are older, each folder by itself, some at a time."""
    for folder in sorted(children(store.blobs)):
        old = (path for path in children(folder) if is_sha256(path.name) and age_seconds_of(path) > age_seconds)
        while batch := list(islice(old, BATCH)):
            yield batch


def _unnamed(database: Database, paths: Sequence[Path]) -> list[Path]:
    """Those that no row names at this moment: a first look, which holds up nobody."""
    with database.read() as session:
        named = files.named(session, [path.name for path in paths])
    return [path for path in paths if path.name not in named]


def _discard(database: Database, store: FileStore, suspects: Sequence[Path], age_seconds: float) -> Tally:
    """The second look, which counts: nobody names one of these files between it and their removal."""
    with store.collecting() as free, database.write() as session:
        if not free or not files.hold_folder(session, suspects[0].name[:2]):
            return Tally()
        named = files.named(session, [path.name for path in suspects])
        garbage = [path for path in suspects if path.name not in named and age_seconds_of(path) > age_seconds]
        removed = tally_of(garbage)
        reach("before_files_discarded")
        for path in garbage:
            store.discard(path.name)
    return removed


def _parts(store: FileStore, upload_ids: Sequence[str]) -> list[Path]:
    found = (path for upload_id in upload_ids for path in part_files(store.incoming / upload_id))
    return [path for path in found if path.exists()]


def _removed(paths: Sequence[Path]) -> Tally:
    removed = tally_of(paths)
    for path in paths:
        path.unlink(missing_ok=True)
    return removed
