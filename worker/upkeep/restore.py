"""Restores a data directory from a backup, completely or not at all.

It is built beside its place, every file is verified on its way, and it is renamed when it is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from service.contracts.base import VERSION
from service.contracts.command_errors import (
    BackupDamagedError,
    BackupUnsupportedError,
    BackupVersionError,
    DataDirNotEmptyError,
)
from service.db import Database, is_known_revision, migrate
from service.files import repository as files
from service.jobs import transitions
from service.jobs.schemas import Waiting
from service.settings import Settings
from service.storage import BLOCK_BYTES, sync_folder
from service.storage.opening import open_store
from worker.embedded import LOCK_FILE, lock_data_dir
from worker.repository import running_attempts
from worker.upkeep import backup
from worker.upkeep.backup import BackupManifest, CopiedFile
from worker.upkeep.collector import children

RESTORED = Waiting(
    code="restored",
    message="It was running when the backup was made that this service was restored from.",
    hint="It will run again automatically.",
)


def restore_backup(settings: Settings, folder: Path) -> BackupManifest:
    """Make the data directory of the backup in ``folder``; what the backup consists of.

    Jobs stay as they were; those that ran are queued again, and nothing is charged for it. The time since the backup
    does not count against anybody's deadline.

    Args:
        settings: name the data directory, which must not be there, or be empty.
        folder: the backup; nothing is written there.

    Raises:
        BackupUnsupportedError: the settings name a database or a store elsewhere, or the place is a mount.
        DataDirInUseError: a service runs on the data directory, or another restore makes it.
        DataDirNotEmptyError: something is there.
        BackupPlaceError: there is no backup in the folder.
        BackupVersionError: a newer version wrote it.
        BackupDamagedError: a file of it is missing, or is not what was written; names it.
        OSError: a disk refused.
    """
    backup.require_embedded(settings, store=True)
    target = settings.data_dir.resolve()
    _check_empty(target)
    folder = folder.expanduser().absolute()
    manifest = backup.read_manifest(folder)
    if not is_known_revision(manifest.revision):
        raise BackupVersionError(
            f"The backup was created by version {manifest.version}; this version, {VERSION}, does not "
            f"support its schema {manifest.revision}.",
            hint="Restore it with the version that created it, or a newer one.",
        )
    with backup.held(folder, writing=False), _built_beside(target) as place:
        database = place / backup.DATABASE_FILE
        _copy_verified(backup.database_path(folder, manifest.database.sha256), manifest.database, database)
        backup.sync_file(database)
        local = settings.model_copy(update={"storage_dir": place / backup.STORE_FOLDER})
        store = open_store(local, may_begin=lambda: True)
        for file in manifest.files:
            part = store.incoming / file.sha256
            _copy_verified(backup.stored_path(folder, file.sha256), file, part)
            store.put_file(part, sha256=file.sha256)
        _bring_up_to_date(f"sqlite:///{database}", manifest)
    return manifest


def _check_empty(target: Path) -> None:
    if (target / LOCK_FILE).exists():
        lock_data_dir(target).close()
    if target.exists() and (not target.is_dir() or any(children(target))):
        raise _not_empty(target)
    if target.is_mount():
        raise BackupUnsupportedError(
            f"{target} is a mount point, so it cannot be replaced atomically.",
            hint="Give a new folder inside it with --data-dir, and configure the service to use that folder.",
        )


@contextmanager
def _built_beside(target: Path) -> Iterator[Path]:
    """A folder that takes the place of ``target`` at the end of the block; none is left if the block raises."""
    place = target.with_name(f".{target.name}.restoring")
    place.mkdir(parents=True, exist_ok=True)
    # the lock goes with the folder: no service starts on it before this is over
    with lock_data_dir(place):
        try:
            for path in children(place):  # of a restore that was killed
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != LOCK_FILE:
                    path.unlink()
            yield place
            for folder, _, _ in os.walk(place):
                sync_folder(Path(folder))
            _rename(place, target)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise


def _rename(place: Path, target: Path) -> None:
    try:
        place.rename(target)
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
            raise _not_empty(target) from None
        raise
    sync_folder(target.parent)


def _copy_verified(source: Path, file: CopiedFile, target: Path) -> None:
    """Copy a file of the backup, and digest it on the way: a large one is read once."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with source.open("rb") as read, target.open("wb") as written:
            while block := read.read(BLOCK_BYTES):
                digest.update(block)
                size_bytes += written.write(block)
    except FileNotFoundError:
        raise _damaged(source, "is missing") from None
    copied = CopiedFile(sha256=digest.hexdigest(), size_bytes=size_bytes)
    if copied != file:
        raise _damaged(source, f"is damaged: it has {copied.size_bytes} bytes with sha256 {copied.sha256}")


def _bring_up_to_date(url: str, manifest: BackupManifest) -> None:
    migrate(url)
    with closing(Database(url)) as database, database.write() as session:
        named = {file.sha256 for file in files.list_named(session)}
        if lost := named - {file.sha256 for file in manifest.files} - {file.sha256 for file in manifest.missing}:
            raise BackupDamagedError(
                f"The database of the backup refers to {min(lost)}, which is missing from the backup.",
                hint="Create another backup.",
            )
        for job_id, attempt in sorted(running_attempts(session)):
            transitions.interrupt(session, job_id, attempt, delay_seconds=0.0, waiting=RESTORED)
        transitions.defer_deadlines(session, manifest.created_at)


def _damaged(path: Path, how: str) -> BackupDamagedError:
    return BackupDamagedError(
        f"{path} {how}. Nothing was restored.",
        hint="Restore another backup, or repair this one with quantmill backup --verify while its service is running.",
    )


def _not_empty(target: Path) -> DataDirNotEmptyError:
    return DataDirNotEmptyError(
        f"{target} is not empty. Nothing was restored.",
        hint="Give a new folder with --data-dir, or move this one away.",
    )
