"""Copies the embedded data directory elsewhere, while the service runs.

First a consistent snapshot of the database, then every stored file that the snapshot names. Nothing is collected
meanwhile, so all of them are there for as long as it takes. What the last backup into the same folder has copied is not
copied again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from service.contracts.command_errors import BackupDamagedError, BackupPlaceError, FileAccessError
from service.contracts.version import VERSION
from service.db import Database
from service.files import repository as files
from service.files.repository import NamedFile
from service.schema import require_current
from service.settings import Settings
from service.storage import FileStore, StoredFile, StoredFileMissingError, file_sha256, sync_folder
from worker.upkeep import repository
from worker.upkeep.copies import (
    STORE_FOLDER,
    CopiedFile,
    Manifest,
    MissingFile,
    SourceUnreadableError,
    copy_file,
    database_path,
    held,
    is_own_name,
    require_embedded,
    require_own_folder,
)
from worker.upkeep.folders import children


@dataclass(frozen=True)
class BackupDone:
    """A backup that was made: what it consists of, and how much of that was copied this time."""

    manifest: Manifest
    copied: int
    copied_bytes: int


@dataclass(frozen=True)
class _Snapshot:
    """The copied database, and what it says."""

    taken_at: datetime
    file: CopiedFile
    revision: str
    named: list[NamedFile]
    open_uploads: int


def make_backup(
    settings: Settings,
    folder: Path,
    *,
    verify: bool = False,
    on_file: Callable[[str], None] = lambda sha256: None,
) -> BackupDone:
    """Copy the data directory into ``folder``: a new one, an empty one, or an earlier backup.

    Args:
        settings: of the installation; its service may run.
        folder: where to; cut off at any moment it is the backup that it was before.
        verify: read what the earlier backup has, too, and copy anew what is damaged there.
        on_file: called with the digest of each file before it is looked at.

    Raises:
        BackupUnsupportedError: the database is elsewhere.
        BackupPlaceError: the folder holds something else, or lies within what is to be copied.
        BackupVersionError: it holds a newer version's backup.
        BackupDamagedError: the database itself is damaged, or the manifest of the earlier backup is.
        FileAccessError: there is no database.
        SchemaBehindError: it was not brought up to date.
        OSError: a disk refused.
    """
    database = require_embedded(settings, store=False)
    if not database.is_file():
        raise FileAccessError(
            f"{settings.data_dir} is not the data directory of a service: there is no {database.name}.",
            hint="Name it by --data-dir or QUANTMILL_DATA_DIR.",
        )
    folder = folder.expanduser().absolute()
    _check_place(settings, folder)
    folder.mkdir(parents=True, exist_ok=True)
    store = FileStore(settings.storage_dir)
    with held(folder, writing=True), store.pinned():
        copies = FileStore(folder / STORE_FOLDER)
        snapshot = _copy_database(database, folder)
        copier = _Copier(store, copies, verify=verify)
        for file in snapshot.named:
            on_file(file.sha256)
            copier.copy(file.sha256)
        manifest = Manifest(
            created_at=snapshot.taken_at,
            version=VERSION,
            revision=snapshot.revision,
            database=snapshot.file,
            files=copier.files,
            missing=copier.missing,
            open_uploads=snapshot.open_uploads,
        )
        manifest.write(folder)
        _forget_others(folder, copies, manifest)
    return BackupDone(manifest, copier.copied, copier.copied_bytes)


class _Copier:
    """Brings files into the backup, and notes which are there."""

    def __init__(self, store: FileStore, copies: FileStore, *, verify: bool) -> None:
        self._store = store
        self._copies = copies
        self._verify = verify
        self.files: list[CopiedFile] = []
        self.missing: list[MissingFile] = []
        self.copied = 0
        self.copied_bytes = 0

    def copy(self, sha256: str) -> None:
        """See to it that the file is in the backup; one that is damaged or gone is noted."""
        size_bytes = self._size_there(sha256)
        if size_bytes is None:
            try:
                copied = self._copied(sha256)
            except StoredFileMissingError:
                self.missing.append(MissingFile(sha256=sha256, damage="missing"))
                return
            except SourceUnreadableError:
                self.missing.append(MissingFile(sha256=sha256, damage="unreadable"))
                return
            if copied is None:
                self.missing.append(MissingFile(sha256=sha256, damage="digest"))
                return
            size_bytes = copied.size_bytes
            self.copied, self.copied_bytes = self.copied + 1, self.copied_bytes + size_bytes
        self.files.append(CopiedFile(sha256=sha256, size_bytes=size_bytes))

    def _size_there(self, sha256: str) -> int | None:
        """Size of the copy that an earlier backup has made; None: there is none, or it is of no use."""
        path = self._copies.path(sha256)
        try:
            size_bytes = path.stat().st_size
            whole = not self._verify or file_sha256(path) == sha256
        except FileNotFoundError:
            return None
        return size_bytes if whole else None

    def _copied(self, sha256: str) -> StoredFile | None:
        """The file, copied now; None if its bytes are not those of its name."""
        part = self._copies.incoming / sha256
        part.unlink(missing_ok=True)  # of a backup that was cut off
        with self._store.open(sha256) as source:
            copied = copy_file(source, part)
        if copied.sha256 != sha256:
            part.unlink()
            return None
        return self._copies.put_file(part, sha256=sha256)


def _check_place(settings: Settings, folder: Path) -> None:
    real = folder.resolve()
    for source in (settings.data_dir.resolve(), settings.storage_dir.resolve()):
        if real.is_relative_to(source):
            raise BackupPlaceError(
                f"{folder} lies within {source}, which is to be copied.", hint="Give a folder on another disk."
            )
    require_own_folder(folder)


def _copy_database(path: Path, folder: Path) -> _Snapshot:
    """Take a consistent snapshot into the backup, under its digest; what it says."""
    place = folder / "database"
    place.mkdir(exist_ok=True)
    part = place / "new.part"
    for left in (part, *(part.with_name(part.name + suffix) for suffix in ("-wal", "-shm", "-journal"))):
        left.unlink(missing_ok=True)
    taken_at = datetime.now(UTC)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source, closing(sqlite3.connect(part)) as to:
        # in one step: in steps it would begin anew whenever somebody commits; nobody waits for a reader
        source.backup(to)
        verdict = str(to.execute("PRAGMA quick_check(1)").fetchone()[0])
        if verdict != "ok":
            raise BackupDamagedError(
                f"The database {path} is damaged: {verdict}", hint="Restore an earlier backup; keep this one apart."
            )
    copy = Database(f"sqlite:///{part}")
    try:
        revision = require_current(copy)
        with copy.read() as session:
            named, open_uploads = files.list_named(session), repository.count_open_uploads(session)
    finally:
        copy.close()
    # reading has given it a log beside, which is no part of a backup
    with closing(sqlite3.connect(part)) as to:
        to.execute("PRAGMA journal_mode=DELETE")
    file = CopiedFile(sha256=file_sha256(part), size_bytes=part.stat().st_size)
    with part.open("rb") as stream:
        os.fsync(stream.fileno())
    part.replace(database_path(folder, file))
    sync_folder(place)
    return _Snapshot(taken_at, file, revision, named, open_uploads)


def _forget_others(folder: Path, copies: FileStore, manifest: Manifest) -> None:
    """Remove what only earlier backups into this folder were of, and what was cut off."""
    kept = {file.sha256 for file in manifest.files}
    for place in children(copies.blobs):
        for path in children(place):
            if path.name not in kept and is_own_name(path):
                path.unlink()
    current = database_path(folder, manifest.database)
    for path in (*children(current.parent), *children(copies.incoming)):
        if path != current and is_own_name(path):
            path.unlink()
