"""Forgets uploads past their expiry, unless bytes are coming in or something is being made of them."""

from __future__ import annotations

from contextlib import ExitStack

from service.db import Database
from service.failpoints import reach
from service.storage import FileStore
from service.uploads import repository as uploads
from service.uploads.writer import part_files, unwritten
from worker.upkeep import repository
from worker.upkeep.collector import BATCH, Tally, tally_of


def count_expired_uploads(database: Database, store: FileStore) -> Tally:
    """How many uploads are past their expiry, and the bytes that were received of those not finished."""
    with database.read() as session:
        ids = repository.expired_uploads(session)
    parts = tally_of(path for upload_id in ids for path in part_files(store.incoming / upload_id) if path.exists())
    return Tally(len(ids), parts.size_bytes)


def expire_uploads(database: Database, store: FileStore, limit: int, *, expiry_seconds: float) -> Tally:
    """Forget uploads past their expiry, with the bytes that were received.

    One that is being written to starts its time anew, as it does whenever bytes arrive. The file's lock is kept from
    the look until the row and the file are gone: a writer that comes too late finds no upload.

    Args:
        database: where uploads are.
        store: where their bytes are.
        limit: uploads at most.
        expiry_seconds: time that an upload in use has from now on.
    """
    done = Tally()
    while done.items < limit:
        wanted = min(BATCH, limit - done.items)
        with database.read() as session:
            due = repository.expired_uploads(session, wanted)
        removed = _expire(database, store, due, expiry_seconds)
        done += removed
        if removed.items < wanted:
            break
    return done


def _expire(database: Database, store: FileStore, due: list[str], expiry_seconds: float) -> Tally:
    with ExitStack() as stack:
        idle = {upload_id for upload_id in due if stack.enter_context(unwritten(store.incoming / upload_id))}
        with database.write() as session:
            gone = repository.delete_expired_uploads(session, idle)
            for upload_id in set(due) - idle:
                uploads.prolong(session, upload_id, expiry_seconds=expiry_seconds)
            reach("before_uploads_forgotten")
        files = [path for upload_id in gone for path in part_files(store.incoming / upload_id) if path.exists()]
        removed = tally_of(files)
        for path in files:
            path.unlink(missing_ok=True)
    return Tally(len(gone), removed.size_bytes)
