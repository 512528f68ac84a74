"""What a backup of the embedded data directory is: its folder, its manifest, and how a file gets there and back.

A backup is a folder with ``manifest.json``, ``database/DIGEST.db`` and ``store/sha256/ab/abcd...``. The manifest is
written last and replaced at once: until then the folder is the backup that it was before.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from service.contracts.command_errors import (
    BackupDamagedError,
    BackupPlaceError,
    BackupUnsupportedError,
    BackupVersionError,
)
from service.settings import Settings
from service.storage import BLOCK_BYTES, StoredFile, is_unreadable, sync_folder
from worker.upkeep.folders import children

FORMAT: Final = 1
MANIFEST_FILE = "manifest.json"
DATABASE_FILE = "service.db"
STORE_FOLDER = "store"
LOCK_FILE = "backup.lock"
_OWN_FOLDER = {MANIFEST_FILE, f"{MANIFEST_FILE}.part", LOCK_FILE, STORE_FOLDER, "database"}
_SHA256 = r"^[0-9a-f]{64}$"


class CopiedFile(BaseModel):
    """A file of the backup; its digest is its name, and cannot lead out of the folder."""

    model_config = ConfigDict(frozen=True)

    sha256: str = Field(pattern=_SHA256)
    size_bytes: int = Field(ge=0)


class MissingFile(BaseModel):
    """A file that rows name and that could not be copied whole; ``damage`` as ``quantmill scrub`` tells it."""

    model_config = ConfigDict(frozen=True)

    sha256: str = Field(pattern=_SHA256)
    damage: Literal["missing", "digest", "unreadable"]


class Manifest(BaseModel):
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
        text = json.dumps({"sha256": _digest(content), **content}, indent=1)
        part = folder / f"{MANIFEST_FILE}.part"
        with part.open("w") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(folder / MANIFEST_FILE)
        sync_folder(folder)


def read_manifest(folder: Path) -> Manifest:
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
            f"{folder} holds no backup: there is no {MANIFEST_FILE}.",
            hint="Give the folder that quantmill backup wrote; one that was cut off the first time is none yet.",
        ) from None
    try:
        content = json.loads(data)
        if not isinstance(content, dict):
            raise _damaged(path)
        written = content.pop("sha256", None)
        if written != _digest(content):
            raise _damaged(path)
        if content.get("format") != FORMAT:
            raise BackupVersionError(
                f"{folder} is a backup in format {content.get('format')}; this version reads format {FORMAT}.",
                hint="Restore it with the version that wrote it, or a newer one.",
            )
        return Manifest.model_validate(content)
    except (ValueError, ValidationError):
        raise _damaged(path) from None


def is_own_name(path: Path) -> bool:
    """True for names that a backup gives to the files in its folders, whole or cut off."""
    return re.fullmatch(r"[0-9a-f]{64}(\.db)?|[0-9a-f]{16}\.copy|new\.part(-wal|-shm|-journal)?", path.name) is not None


def require_own_folder(folder: Path) -> None:
    """Nothing but an earlier backup lies there, or what is left of a first one that was cut off.

    Raises:
        BackupPlaceError: something else does.
        BackupVersionError: a newer version's backup does.
        BackupDamagedError: a manifest that is none of ours, or not what was written.
    """
    found = {path.name for path in children(folder)}
    if found - _OWN_FOLDER or (found and not found & {MANIFEST_FILE, LOCK_FILE}):
        raise BackupPlaceError(
            f"{folder} is not empty, and holds no backup.", hint="Give a new folder, or that of an earlier backup."
        )
    if MANIFEST_FILE in found:
        read_manifest(folder)


def database_path(folder: Path, file: CopiedFile | StoredFile) -> Path:
    """Where the copy of the database lies in a backup."""
    return folder / "database" / f"{file.sha256}.db"


def stored_path(folder: Path, sha256: str) -> Path:
    """Where the copy of a stored file lies in a backup."""
    return folder / STORE_FOLDER / "sha256" / sha256[:2] / sha256


class SourceUnreadableError(OSError):
    """The disk cannot give the bytes of the file that is to be copied."""


def _blocks(source: IO[bytes]) -> Iterator[bytes]:
    try:
        while block := source.read(BLOCK_BYTES):
            yield block
    except OSError as error:
        raise (SourceUnreadableError(*error.args) if is_unreadable(error) else error) from error


def copy_file(source: IO[bytes], target: Path) -> StoredFile:
    """Write all of ``source`` into the new file ``target``, durably; what it was.

    Raises:
        SourceUnreadableError: the disk cannot give what is to be copied; ``target`` is gone then.
        OSError: a disk refused; likewise.
    """
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with target.open("xb") as stream:
            for block in _blocks(source):
                digest.update(block)
                size_bytes += len(block)
                stream.write(block)
            stream.flush()
            os.fsync(stream.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    return StoredFile(digest.hexdigest(), size_bytes)


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
            f"The database is not the SQLite file of the data directory {settings.data_dir}.",
            hint="Copy the database by its own means (PostgreSQL: pg_dump) first and then the store, "
            f"{settings.storage_dir}; or unset QUANTMILL_DATABASE_URL, if this data directory is meant.",
        )
    if store and settings.storage_dir != settings.data_dir / STORE_FOLDER:
        raise BackupUnsupportedError(
            f"The store is not in the data directory, but at {settings.storage_dir}.",
            hint=f"Unset QUANTMILL_STORAGE_DIR and restore; then move the folder {STORE_FOLDER} to where it belongs.",
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
                    f"Another process works on the backup {folder}.", hint="Wait until it has ended."
                ) from None
        yield


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _damaged(path: Path) -> BackupDamagedError:
    return BackupDamagedError(f"{path} is damaged: it is not what was written.", hint="Take another backup.")
