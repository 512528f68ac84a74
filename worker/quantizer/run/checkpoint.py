"""Finished pieces of work, kept on disk, so that nobody does them again who needs the very same.

    FOLDER/IDENTITY/sha256 of the key       for the attempts of one run
    CACHE_FOLDER/sha256 of the scope/KEY    for the runs of one tenant: ``worker.quantizer.run.cache``

One store serves two lifetimes. What is saved lies in a folder that lives as long as its job may have another attempt,
wherever that is; what is shared is put into the cache as well, where it stays until it is the least recently used.

Every run has an identity (``worker.quantizer.run.identity``): what was kept by a run with another config, model, data,
engine or number of threads is never found. A piece that depends on less than all of that is kept by its content key.
Nothing that is found is trusted further than its checksum: whoever loads a checkpoint reads plain arrays or JSON from
it, never pickled objects.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from worker.quantizer.run.cache import Cache
from worker.quantizer.run.identity import content_key
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.run.sealed import (
    HEADER_BYTES,
    DamagedFileError,
    read_sealed,
    remove_parts,
    sealed_size,
    write_sealed,
)

T = TypeVar("T")

# A part that old belongs to a writer that was killed.
_PART_AGE_SECONDS = 3600.0
# Above this share of the limit what others have written meanwhile is counted, too.
_WATCHED_SHARE = 0.25
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# With less a run cannot write its temporary files and its result.
_ROOM_BYTES = 1024**2
_IDENTITY = re.compile(r"[0-9a-f]{64}")


class CheckpointStore:
    """What one run has finished, by key.

    A checkpoint saves time and decides nothing: trouble with one is told, and the run goes on without it. The exception
    is a full disk that leaves the run no room for its own files either: it could not end well, and every piece that is
    finished from then on would be lost with it. So it ends at once, while everything that was finished is kept.

    Two attempts may use one folder at once, as one does that has lost its job: entries appear whole, and both write the
    same.

    Args:
        folder: exists; None: nothing is kept for other attempts.
        identity: of the run, a hex digest.
        limit_bytes: that the run's checkpoints may take; None: no limit.
        run: takes what a person may want to read.
        shared: takes what other runs may find; None: nothing is shared.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: str = "0" * 64,
        *,
        limit_bytes: int | None = None,
        run: Run | None = None,
        shared: Cache | None = None,
    ) -> None:
        self._folder = None if folder is None else folder / identity
        self._identity = identity
        self._run = SilentRun() if run is None else run
        self._limit = limit_bytes
        self._shared = Cache(None) if shared is None else shared
        self._taken = 0
        # why, by key; and why nothing is kept at all
        self._lost: dict[str, str] = {}
        self._refusal: str | None = None
        self._told: set[str] = set()
        if folder is not None:
            self._open(folder)

    @property
    def is_kept(self) -> bool:
        """False if nothing is kept: then nothing need be made for it."""
        return self._folder is not None or self._shared.is_kept

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the run's report should know of pieces that could not be kept."""
        if self._refusal is not None:
            return (f"no finished work could be kept for another attempt: {self._refusal}",)
        if not self._lost:
            return ()
        why = ", ".join(dict.fromkeys(self._lost.values()))
        return (f"pieces of finished work that could not be kept for another attempt: {len(self._lost)} ({why})",)

    def for_others(self, run: Run) -> CheckpointStore:
        """The store of another run on the same model and data, which has no attempts: only what is shared is in it."""
        return CheckpointStore(None, run=run, shared=self._shared)

    def load(self, key: str) -> bytes | None:
        """What was saved under ``key`` by an attempt of the same run, or shared by another run with its identity.

        None if there is nothing that can be used.
        """
        return self._load(key, self._shared_key(key))

    def save(self, key: str, data: bytes, *, shared: bool = False) -> None:
        """Keep ``data`` under ``key``, durably; it takes the place of what was there.

        Args:
            key: any text that no other piece of this run's work has.
            data: any bytes.
            shared: the data depend on the run's identity and the key alone, not on time or place: another job with the
                same inputs may take them over.

        Raises:
            OSError: the disk is full, and the disk of the run's own files as well.
        """
        self._save(key, data, self._shared_key(key) if shared else None)

    def find(self, content: str) -> bytes | None:
        """What was kept under a content key by any attempt, or run; None if there is nothing that can be used.

        Args:
            content: of ``content_key``.
        """
        return self._load(content, content)

    def keep(self, content: str, data: bytes, *, shared: bool = True) -> None:
        """Keep ``data`` for all who need it, durably for the attempts of this run.

        Args:
            content: of ``content_key``: a digest of everything that the data depend on.
            data: any bytes; they take the place of what was there.
            shared: False: they are for attempts of this run only.

        Raises:
            OSError: as ``save``.
        """
        self._save(content, data, content if shared else None)

    def load_as(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """``load``, decoded; None as well, and told, if that cannot be done."""
        return self._decoded(key, self.load(key), decode)

    def find_as(self, content: str, decode: Callable[[bytes], T]) -> T | None:
        """``find``, decoded; None as well, and told, if that cannot be done."""
        return self._decoded(content, self.find(content), decode)

    def _decoded(self, key: str, data: bytes | None, decode: Callable[[bytes], T]) -> T | None:
        if data is None:
            return None
        try:
            return decode(data)
        except (ValueError, TypeError, LookupError) as error:
            self._run.log(f"the checkpoint {key!r} is not used: it holds something else: {error}", "warning")
            return None

    def _load(self, key: str, shared_key: str) -> bytes | None:
        data = self._own(key)
        if data is not None:
            self._tell("found", "work that an earlier attempt has finished is taken over", "info")
            return data
        data = self._shared.get(shared_key)
        if data is not None:
            self._tell("shared", "work that an earlier job has finished is taken over", "info")
        return data

    def _own(self, key: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            return read_sealed(self._path(key), self._label(key))
        except FileNotFoundError:
            return None
        except (DamagedFileError, OSError) as error:
            self._run.log(f"the checkpoint {key!r} is not used: {error}", "warning")
            return None

    def _save(self, key: str, data: bytes, shared_key: str | None) -> None:
        if self._folder is not None and self._has_room(key, HEADER_BYTES + len(data)):
            path = self._path(key)
            before = sealed_size(path)
            try:
                write_sealed(path, self._label(key), data, durable=True)
                self._taken += HEADER_BYTES + len(data) - before
                self._lost.pop(key, None)
            except OSError as error:
                if error.errno in _FULL and not _disk_has_room(Path(tempfile.gettempdir())):
                    raise
                self._lost[key] = error.strerror or str(error)
                self._tell("write", f"checkpoints cannot be kept: {self._lost[key]}", "warning")
        if shared_key is not None:
            self._shared.put(shared_key, data)

    def _has_room(self, key: str, size: int) -> bool:
        if self._limit is None:
            return True
        more = size - sealed_size(self._path(key))
        if self._taken + more > self._limit * _WATCHED_SHARE:
            self._taken = self._measured()
        if self._taken + more <= self._limit:
            return True
        self._lost[key] = f"they would take more than {self._limit} bytes"
        message = f"no more checkpoints are kept: {self._lost[key]}"
        self._tell("limit", message, "warning")
        return False

    def _measured(self) -> int:
        assert self._folder is not None  # noqa: S101 - the caller looked
        try:
            return sum(sealed_size(path) for path in self._folder.iterdir())
        except OSError:
            return self._taken  # the folder is gone or out of reach, which writing will tell

    def _open(self, folder: Path) -> None:
        assert self._folder is not None  # noqa: S101 - the caller looked
        try:
            strangers = [path for path in folder.iterdir() if path != self._folder and _IDENTITY.fullmatch(path.name)]
            self._folder.mkdir(exist_ok=True)
            remove_parts(self._folder, _PART_AGE_SECONDS)
        except OSError as error:
            self._folder, self._refusal = None, str(error)
            self._tell("write", f"checkpoints cannot be kept: {error}", "warning")
            return
        self._taken = self._measured()
        if strangers:
            self._run.log("checkpoints of another config, model, data or engine are there and not used")

    def _path(self, key: str) -> Path:
        assert self._folder is not None  # noqa: S101 - the caller looked
        return self._folder / hashlib.sha256(key.encode()).hexdigest()

    def _label(self, key: str) -> str:
        return f"checkpoint {self._identity} {key}"

    def _shared_key(self, key: str) -> str:
        return content_key("checkpoint", self._identity, key)

    def _tell(self, what: str, message: str, level: Literal["info", "warning"]) -> None:
        """Say it once, not once per layer."""
        if what not in self._told:
            self._told.add(what)
            self._run.log(message, level)


def _disk_has_room(folder: Path) -> bool:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize >= _ROOM_BYTES


class ScopedCheckpoints(CheckpointStore):
    """A part of a store, for one of several pieces of work that use the same keys.

    Args:
        store: the whole.
        scope: put before every key but those of contents.
    """

    def __init__(self, store: CheckpointStore, scope: str) -> None:
        self._store = store
        self._scope = scope
        self._run = store._run

    @property
    def is_kept(self) -> bool:
        """See ``CheckpointStore.is_kept``."""
        return self._store.is_kept

    @property
    def notes(self) -> tuple[str, ...]:
        """See ``CheckpointStore.notes``."""
        return self._store.notes

    def for_others(self, run: Run) -> CheckpointStore:
        """See ``CheckpointStore.for_others``."""
        return self._store.for_others(run)

    def load(self, key: str) -> bytes | None:
        """See ``CheckpointStore.load``."""
        return self._store.load(self._scope + key)

    def save(self, key: str, data: bytes, *, shared: bool = False) -> None:
        """See ``CheckpointStore.save``."""
        self._store.save(self._scope + key, data, shared=shared)

    def find(self, content: str) -> bytes | None:
        """See ``CheckpointStore.find``."""
        return self._store.find(content)

    def keep(self, content: str, data: bytes, *, shared: bool = True) -> None:
        """See ``CheckpointStore.keep``."""
        self._store.keep(content, data, shared=shared)


class Pace:
    """How often to save what grows: saving takes at most a share of the time.

    Args:
        share: of the time, 0 to 1.
        first_seconds: before the first time.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, share: float, *, first_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._share, self._clock = share, clock
        self._not_before = clock() + first_seconds if first_seconds else 0.0

    @property
    def is_due(self) -> bool:
        """True if it is time to save again."""
        return self._clock() >= self._not_before

    def spent(self, began: float) -> None:
        """Saving began at ``began``, by the clock, and has just ended."""
        self._not_before = began + (self._clock() - began) / self._share

    def wait(self, seconds: float) -> None:
        """It is not worth it for so long."""
        self._not_before = self._clock() + seconds
