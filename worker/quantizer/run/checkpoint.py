"""Finished pieces of work, kept on disk, so that the next attempt of the same run need not do them again.

    FOLDER/IDENTITY/sha256 of the key

Every run has an identity (``worker.quantizer.run.identity``): what was kept by a run with another config, model, data,
engine or number of threads is never found. Nothing that is found is trusted further than its checksum: whoever loads a
checkpoint reads plain arrays or JSON from it, never pickled objects.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Literal

from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.run.sealed import (
    HEADER_BYTES,
    DamagedFileError,
    read_sealed,
    remove_parts,
    sealed_size,
    write_sealed,
)

# A part that old belongs to a writer that was killed.
_PART_AGE_SECONDS = 3600.0
_IDENTITY = re.compile(r"[0-9a-f]{64}")


class CheckpointStore:
    """What one run has finished, by key.

    A checkpoint saves time and decides nothing: trouble with one is told, and the run goes on without it.

    Args:
        folder: exists; None: nothing is kept and nothing is found.
        identity: of the run, a hex digest.
        limit_bytes: that the run's checkpoints may take; None: no limit.
        run: takes what a person may want to read.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: str = "0" * 64,
        *,
        limit_bytes: int | None = None,
        run: Run | None = None,
    ) -> None:
        self._folder = None if folder is None else folder / identity
        self._identity = identity
        self._run = SilentRun() if run is None else run
        self._limit = limit_bytes
        self._taken = 0
        self._told: set[str] = set()
        if folder is not None:
            self._open(folder)

    @property
    def is_kept(self) -> bool:
        """False if nothing is kept: then nothing need be made for it."""
        return self._folder is not None

    def load(self, key: str) -> bytes | None:
        """What was saved under ``key`` by an attempt of the same run; None if there is nothing that can be used."""
        if self._folder is None:
            return None
        try:
            data = read_sealed(self._path(key), self._label(key))
        except FileNotFoundError:
            return None
        except (DamagedFileError, OSError) as error:
            self._run.log(f"the checkpoint {key!r} is not used: {error}", "warning")
            return None
        self._tell("found", "work that an earlier attempt has finished is taken over", "info")
        return data

    def save(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``, durably; it takes the place of what was there."""
        if self._folder is None:
            return
        path = self._path(key)
        before, after = sealed_size(path), HEADER_BYTES + len(data)
        if self._limit is not None and self._taken - before + after > self._limit:
            message = f"no more checkpoints are kept: they would take more than {self._limit} bytes"
            self._tell("limit", message, "warning")
            return
        try:
            write_sealed(path, self._label(key), data, durable=True)
        except OSError as error:
            self._tell("write", f"checkpoints cannot be kept: {error.strerror or error}", "warning")
            return
        self._taken += after - before

    def _open(self, folder: Path) -> None:
        assert self._folder is not None  # noqa: S101 - the caller looked
        try:
            strangers = [path for path in folder.iterdir() if path != self._folder and _IDENTITY.fullmatch(path.name)]
            self._folder.mkdir(exist_ok=True)
            remove_parts(self._folder, _PART_AGE_SECONDS)
            self._taken = sum(path.lstat().st_size for path in self._folder.iterdir())
        except OSError as error:
            self._tell("write", f"checkpoints cannot be kept: {error}", "warning")
            self._folder = None
            return
        if strangers:
            self._run.log("checkpoints of another config, model, data or engine are there and not used")

    def _path(self, key: str) -> Path:
        assert self._folder is not None  # noqa: S101 - the caller looked
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _label(self, key: str) -> str:
        return f"checkpoint {self._identity} {key}"

    def _tell(self, what: str, message: str, level: Literal["info", "warning"]) -> None:
        """Say it once, not once per layer."""
        if what not in self._told:
            self._told.add(what)
            self._run.log(message, level)


class ScopedCheckpoints(CheckpointStore):
    """A part of a store, for one of several pieces of work that use the same keys.

    Args:
        store: the whole.
        scope: put before every key.
    """

    def __init__(self, store: CheckpointStore, scope: str) -> None:
        self._store = store
        self._scope = scope

    @property
    def is_kept(self) -> bool:
        """See ``CheckpointStore.is_kept``."""
        return self._store.is_kept

    def load(self, key: str) -> bytes | None:
        """See ``CheckpointStore.load``."""
        return self._store.load(self._scope + key)

    def save(self, key: str, data: bytes) -> None:
        """See ``CheckpointStore.save``."""
        self._store.save(self._scope + key, data)
