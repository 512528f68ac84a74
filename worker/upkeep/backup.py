"""Copies the embedded data directory elsewhere, while the service runs.

First a consistent snapshot of the database, then every stored file that the snapshot names. Nothing is collected
meanwhile, so all of them are there for as long as it takes. What the last backup into the same folder has copied is not
copied again.

A backup is a folder with ``manifest.json``, ``database/DIGEST.db`` and ``store/sha256/ab/abcd...``. The manifest is
written last and replaced at once: until then the folder is the backup that it was before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.contracts.base import VERSION
from service.contracts.command_errors import (
    BackupDamagedError,
    BackupPlaceError,
    BackupUnsupportedError,
    BackupVersionError,
    FileAccessError,
)
from service.db import Database
from service.files import repository as files
from service.schema import require_current
from service.settings import Settings
from service.storage import Damage, FileStore, Store, file_sha256, sync_folder
from service.storage.opening import open_store
from service.uploads import repository as uploads
from worker.upkeep.collector import children

FORMAT: Final = 1
MANIFEST_FILE = "manifest.json"
DATABASE_FILE = "service.db"
STORE_FOLDER = "store"
LOCK_FILE = "backup.lock"
_OWN_FOLDER = {MANIFEST_FILE, f"{MANIFEST_FILE}.part", LOCK_FILE, STORE_FOLDER, "database"}
_OWN_NAME = re.compile(r"[0-9a-f]{64}(\.db)?|[0-9a-f]{16}\.copy|new\.part(-wal|-shm|-journal)?")
_SHA256 = r"^[0-9a-f]{64}$"
_OBJECT = TypeAdapter(dict[str, Any])


class CopiedFile(BaseModel):
    """A file of the backup; its digest is its name, and cannot lead out of the folder."""

    model_config = ConfigDict(frozen=True)

    sha256: str = Field(pattern=_SHA256)
    size_bytes: int = Field(ge=0)


class MissingFile(BaseModel):
    """A file that rows name and that could not be copied whole; ``damage`` as ``quantmill scrub`` tells it."""

    model_config = ConfigDict(frozen=True)

    sha256: str = Field(pattern=_SHA256)
    damage: Damage


class BackupManifest(BaseModel):
    """What a backup consists of. ``open_uploads`` have no bytes in it: their clients send them anew."""

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = FORMAT
    created_at: datetime
    version: str
    revision: str
    database: CopiedFile
    files: list[CopiedFile]
    missing: list[MissingFile]
    open_uploads: int = Field(ge=0)

    def write(self, folder: Path) -> None:
        """Make this the manifest of the backup in ``folder``, durably and at once."""
        content = self.model_dump(mode="json")
        part = folder / f"{MANIFEST_FILE}.part"
        part.write_text(json.dumps({"sha256": _digest(content), **content}, indent=1))
        sync_file(part)
        part.replace(folder / MANIFEST_FILE)
        sync_folder(folder)


@dataclass(frozen=True)
class BackupDone:
    """A backup that was made: what it consists of, and how much of that was copied this time."""

    manifest: BackupManifest
    copied: int
    copied_bytes: int


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
            f"{settings.data_dir} is not the data directory of a service: {database.name} is missing.",
            hint="Set the data directory with --data-dir or QUANTMILL_DATA_DIR.",
        )
    folder = folder.expanduser().absolute()
    _check_place(settings, folder)
    folder.mkdir(parents=True, exist_ok=True)
    store = open_store(settings)
    with held(folder, writing=True), store.pinned():
        copies = FileStore(folder / STORE_FOLDER)
        manifest, named = _copy_database(database, folder)
        there, copied, missing = list[CopiedFile](), list[CopiedFile](), list[MissingFile]()
        for sha256 in named:
            on_file(sha256)
            if (size_bytes := _size_there(copies, sha256, verify=verify)) is not None:
                there.append(CopiedFile(sha256=sha256, size_bytes=size_bytes))
            elif isinstance(found := _copy(store, copies, sha256), CopiedFile):
                copied.append(found)
            else:
                missing.append(found)
        every = sorted(there + copied, key=lambda file: file.sha256)
        manifest = manifest.model_copy(update={"files": every, "missing": missing})
        manifest.write(folder)
        _forget_others(folder, copies, manifest)
    return BackupDone(manifest, len(copied), sum(file.size_bytes for file in copied))


def read_manifest(folder: Path) -> BackupManifest:
    """The manifest of the backup in ``folder``.

    Raises:
        BackupPlaceError: there is none.
        BackupVersionError: a newer version wrote it.
        BackupDamagedError: it is not what was written.
    """
    path = folder / MANIFEST_FILE
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise BackupPlaceError(
            f"{folder} contains no backup: {MANIFEST_FILE} is missing.",
            hint="Use the folder that quantmill backup created; if the first backup to it was interrupted, "
            "it is incomplete.",
        ) from None
    try:
        content = _OBJECT.validate_json(data)
        if content.pop("sha256", None) != _digest(content):
            raise _damaged(path)
        if content.get("format") != FORMAT:
            raise BackupVersionError(
                f"{folder} is a backup in format {content.get('format')}; this version supports format {FORMAT}.",
                hint="Restore it with the version that created it, or a newer one.",
            )
        return BackupManifest.model_validate(content)
    except ValueError:  # no JSON, no object, or not what a manifest has
        raise _damaged(path) from None


def require_embedded(settings: Settings, *, store: bool) -> Path:
    """The database's file.

    Args:
        settings: of the installation.
        store: whether the store must be in the data directory, too.

    Raises:
        BackupUnsupportedError: the database, or the store, is elsewhere.
    """
    path = settings.data_dir / DATABASE_FILE
    if settings.database_url != f"sqlite:///{path}":
        raise BackupUnsupportedError(
            f"The database is not the SQLite file in the data directory {settings.data_dir}.",
            hint="Back up the database with its own tools (PostgreSQL: pg_dump) first and then the store, "
            f"{settings.storage_url or settings.storage_dir}; or unset QUANTMILL_DATABASE_URL to back up this data "
            "directory.",
        )
    if store and not settings.storage_url and settings.storage_dir != settings.data_dir / STORE_FOLDER:
        raise BackupUnsupportedError(
            f"The store is not in the data directory, but at {settings.storage_dir}.",
            hint=f"Unset QUANTMILL_STORAGE_DIR and restore, then move the folder {STORE_FOLDER} to that place.",
        )
    return path


@contextmanager
def held(folder: Path, *, writing: bool) -> Iterator[None]:
    """Nobody else writes this backup while the block runs; a reader needs no right to write.

    Raises:
        BackupPlaceError: another process writes or reads it.
    """
    with ExitStack() as stack:
        with suppress(FileNotFoundError):  # a copy of a backup has no lock, and no writer
            stream = stack.enter_context((folder / LOCK_FILE).open("a" if writing else "r"))
            try:
                fcntl.flock(stream, (fcntl.LOCK_EX if writing else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupPlaceError(
                    f"Another process is using the backup {folder}.", hint="Wait until it has ended."
                ) from None
        yield


def database_path(folder: Path, sha256: str) -> Path:
    """Where the copy of the database lies in a backup."""
    return folder / "database" / f"{sha256}.db"


def stored_path(folder: Path, sha256: str) -> Path:
    """Where the copy of a stored file lies in a backup."""
    return folder / STORE_FOLDER / "sha256" / sha256[:2] / sha256


def sync_file(path: Path) -> None:
    """Make what was written to the file durable."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


def _check_place(settings: Settings, folder: Path) -> None:
    """Nothing but an earlier backup lies there, or what is left of a first one that was cut off."""
    for source in (settings.data_dir.resolve(), settings.storage_dir.resolve()):
        if folder.resolve().is_relative_to(source):
            raise BackupPlaceError(
                f"{folder} is inside {source}, which is to be backed up.", hint="Use a folder on another disk."
            )
    found = {path.name for path in children(folder)}
    if found - _OWN_FOLDER or (found and not found & {MANIFEST_FILE, LOCK_FILE}):
        raise BackupPlaceError(
            f"{folder} is not empty and contains no backup.",
            hint="Use a new folder, or the folder of an earlier backup.",
        )
    if MANIFEST_FILE in found:
        read_manifest(folder)


def _copy_database(path: Path, folder: Path) -> tuple[BackupManifest, list[str]]:
    """Take a consistent snapshot into the backup, under its digest; its manifest, still without files, and the digests
    of the files that it names.
    """
    place = folder / "database"
    place.mkdir(exist_ok=True)
    part = place / "new.part"
    for suffix in ("", "-wal", "-shm", "-journal"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)
    taken_at = datetime.now(UTC)
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as source, closing(sqlite3.connect(part)) as to:
        # in one step: in steps it would begin anew whenever somebody commits; nobody waits for a reader
        source.backup(to)
        verdict = str(to.execute("PRAGMA quick_check(1)").fetchone()[0])
        if verdict != "ok":
            raise BackupDamagedError(
                f"The database {path} is damaged: {verdict}",
                hint="Restore an earlier backup, and keep this database for analysis.",
            )
    with closing(Database(f"sqlite:///{part}")) as copy, copy.read() as session:
        revision = require_current(copy)
        named = [file.sha256 for file in files.list_named(session)]
        open_uploads = uploads.count_open(session)
    # reading has given it a log beside, which is no part of a backup
    with closing(sqlite3.connect(part)) as to:
        to.execute("PRAGMA journal_mode=DELETE")
    sync_file(part)
    file = CopiedFile(sha256=file_sha256(part), size_bytes=part.stat().st_size)
    part.replace(database_path(folder, file.sha256))
    sync_folder(place)
    manifest = BackupManifest(
        created_at=taken_at,
        version=VERSION,
        revision=revision,
        database=file,
        files=[],
        missing=[],
        open_uploads=open_uploads,
    )
    return manifest, named


def _size_there(copies: FileStore, sha256: str, *, verify: bool) -> int | None:
    """Size of the copy that an earlier backup has made; None: there is none, or it is of no use."""
    path = copies.path(sha256)
    try:
        return None if verify and file_sha256(path) != sha256 else path.stat().st_size
    except FileNotFoundError:
        return None


def _copy(store: Store, copies: FileStore, sha256: str) -> CopiedFile | MissingFile:
    """The file, copied now; one that is damaged or gone is noted."""
    part = copies.incoming / sha256
    part.unlink(missing_ok=True)  # of a backup that was cut off
    try:
        with part.open("wb") as stream:
            read = store.read_through(sha256, stream.write)
        if read.damage is not None:
            return MissingFile(sha256=sha256, damage=read.damage)
        copies.put_file(part, sha256=sha256)
        return CopiedFile(sha256=sha256, size_bytes=read.size_bytes)
    finally:
        part.unlink(missing_ok=True)


def _forget_others(folder: Path, copies: FileStore, manifest: BackupManifest) -> None:
    """Remove what only earlier backups into this folder were of, and what was cut off. Other names are not ours."""
    kept = {copies.path(file.sha256) for file in manifest.files} | {database_path(folder, manifest.database.sha256)}
    for place in (*children(copies.blobs), folder / "database", copies.incoming):
        for path in children(place):
            if path not in kept and _OWN_NAME.fullmatch(path.name):
                path.unlink()


def _damaged(path: Path) -> BackupDamagedError:
    return BackupDamagedError(
        f"{path} is damaged: its content differs from what was written.", hint="Create another backup."
    )


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
