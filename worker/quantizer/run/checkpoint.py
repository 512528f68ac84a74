"""Finished pieces of work, kept on disk, so that nobody does them again who needs the very same.

    FOLDER/IDENTITY/KEY                     for the attempts of one run
    CACHE_FOLDER/sha256 of the scope/KEY    for the runs of one tenant

One store serves two lifetimes. What is saved lies in a folder that lives as long as its job may have another attempt,
wherever that is; what is shared is put into the cache as well, where it stays until it is the least recently used.

Everything has a content key (``worker.quantizer.run.identity``): what depends on all of a run, one of its identity and
a name. So what was kept by a run with another config, model, data, engine or number of threads is never found. Nothing
that is found is trusted further than its checksum: whoever loads a checkpoint reads plain arrays or JSON from it, never
pickled objects.
"""

from __future__ import annotations

import copy
import errno
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from worker.quantizer.run.cache import (
    HEADER_BYTES,
    KEY_FORM,
    Cache,
    DamagedFileError,
    read_sealed,
    remove_parts,
    state_of,
    write_sealed,
)
from worker.quantizer.run.identity import content_key
from worker.quantizer.run.interface import Run, SilentRun

T = TypeVar("T")
Arrays = dict[str, np.ndarray[Any, Any]]

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# With less a run cannot write its temporary files and its result.
_ROOM_BYTES = 1024**2


class CheckpointStore:
    """What one run has finished, by key.

    A checkpoint saves time and decides nothing: trouble with one is told, and the run goes on without it. The exception
    is a full disk that leaves the run no room for its own files either: it could not end well, and every piece that is
    finished from then on would be lost with it. So it ends at once, while everything that was finished is kept.

    Two attempts may use one folder at once, as one does that has lost its job: both write the same.

    Args:
        folder: exists; None: nothing is kept for other attempts.
        identity: of the run, a hex digest: what was kept by a run with another config, model, data, engine or number of
            threads is never found under a name.
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
        self._scope = ""
        self._run = SilentRun() if run is None else run
        self._limit = limit_bytes
        self._shared = Cache(None) if shared is None else shared
        # why, by key; and why nothing is kept at all
        self._lost: dict[str, str] = {}
        self._refusal: str | None = None
        self._told: set[str] = set()
        if folder is not None:
            self._open(folder, folder / identity)

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

    def scoped(self, scope: str) -> CheckpointStore:
        """This store for one of several pieces of work that use the same names: ``scope`` is put before each."""
        part = copy.copy(self)
        part._scope = self._scope + scope
        return part

    def load(self, name: str) -> bytes | None:
        """What was saved under ``name`` by an attempt of the same run, or shared by another run with its identity.

        None if there is nothing that can be used.
        """
        return self._find(self._key(name), name)

    def save(self, name: str, data: bytes, *, shared: bool = False) -> None:
        """Keep ``data`` under ``name``, durably; it takes the place of what was there.

        Args:
            name: any text that no other piece of this run's work has.
            data: any bytes.
            shared: the data depend on the run's identity and the name alone, not on time or place: another job with the
                same inputs may take them over.

        Raises:
            OSError: the disk is full, and the disk of the run's own files as well.
        """
        self.keep(self._key(name), data, shared=shared)

    def find(self, key: str) -> bytes | None:
        """What any run has kept under a key of ``content_key``; None if there is nothing that can be used."""
        return self._find(key, key)

    def keep(self, key: str, data: bytes, *, shared: bool = True) -> None:
        """Keep ``data`` for all runs that need it, durably for the attempts of this run.

        Args:
            key: of ``content_key``: a digest of everything that the data depend on.
            data: any bytes; they take the place of what was there.
            shared: False: they are for attempts of this run only.

        Raises:
            OSError: as ``save``.
        """
        if self._folder is not None:
            self._keep_own(self._folder / key, key, data)
        if shared:
            self._shared.put(key, data)

    def load_as(self, name: str, decode: Callable[[bytes], T]) -> T | None:
        """``load``, decoded; None as well, and told, if that cannot be done."""
        return self._decoded(name, self.load(name), decode)

    def find_as(self, key: str, decode: Callable[[bytes], T]) -> T | None:
        """``find``, decoded; None as well, and told, if that cannot be done."""
        return self._decoded(key, self.find(key), decode)

    def _key(self, name: str) -> str:
        return content_key("checkpoint", self._identity, self._scope + name)

    def _decoded(self, name: str, data: bytes | None, decode: Callable[[bytes], T]) -> T | None:
        if data is None:
            return None
        try:
            return decode(data)
        except (ValueError, TypeError, LookupError) as error:
            self._run.log(f"checkpoint {name!r} is not used: unexpected content: {error}", "warning")
            return None

    def _find(self, key: str, name: str) -> bytes | None:
        data = None if self._folder is None else self._find_own(self._folder / key, key, name)
        if data is not None:
            self._tell("found", "reusing results of an earlier attempt", "info")
            return data
        data = self._shared.get(key)
        if data is not None:
            self._tell("shared", "reusing results of an earlier job", "info")
        return data

    def _find_own(self, path: Path, key: str, name: str) -> bytes | None:
        try:
            return read_sealed(path, key)
        except FileNotFoundError:
            return None
        except (DamagedFileError, OSError) as error:
            self._run.log(f"the checkpoint {name!r} is not used: {error}", "warning")
            return None

    def _keep_own(self, path: Path, key: str, data: bytes) -> None:
        if self._limit is not None and not _fits(path, HEADER_BYTES + len(data), self._limit):
            self._lost[key] = f"they would take more than {self._limit} bytes"
            self._tell("limit", f"no more checkpoints are kept: {self._lost[key]}", "warning")
            return
        try:
            write_sealed(path, key, data, durable=True)
            self._lost.pop(key, None)
        except OSError as error:
            if error.errno in _FULL and not _disk_has_room(Path(tempfile.gettempdir())):
                raise
            self._lost[key] = error.strerror or str(error)
            self._tell("write", f"checkpoints cannot be kept: {self._lost[key]}", "warning")

    def _open(self, folder: Path, own: Path) -> None:
        try:
            strangers = [path for path in folder.iterdir() if path != own and KEY_FORM.fullmatch(path.name)]
            own.mkdir(exist_ok=True)
            remove_parts(own)
        except OSError as error:
            self._folder, self._refusal = None, str(error)
            self._tell("write", f"checkpoints cannot be kept: {error}", "warning")
            return
        if strangers:
            self._run.log("checkpoints of another config, model, data or engine are there and not used")

    def _tell(self, what: str, message: str, level: Literal["info", "warning"]) -> None:
        """Say it once, not once per layer."""
        if what not in self._told:
            self._told.add(what)
            self._run.log(message, level)


def _fits(path: Path, size_bytes: int, limit_bytes: int) -> bool:
    """True if a file of this size at ``path`` keeps its folder, with what others wrote meanwhile, within the limit."""
    try:
        others = (state for other in path.parent.iterdir() if other != path and (state := state_of(other)) is not None)
        return sum(state.st_size for state in others) + size_bytes <= limit_bytes
    except OSError:
        return True  # the folder is gone or out of reach, which writing will tell


def _disk_has_room(folder: Path) -> bool:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize >= _ROOM_BYTES


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


def pack(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """The inverse of ``unpack``: named arrays as bytes, in the form of safetensors.

    Args:
        arrays: of plain numbers, under any names but ``__metadata__``.

    Raises:
        ValueError: an array is of another kind.
    """
    try:
        return safetensors.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    except SafetensorError as error:
        raise ValueError(f"these arrays cannot be kept: {error}") from error


def unpack(data: bytes) -> Arrays:
    """Arrays that can be written to, from what ``pack`` made of them, in any order.

    Raises:
        ValueError: these are other bytes.
    """
    try:
        return safetensors.load(data)
    except SafetensorError as error:
        raise ValueError(f"no packed arrays: {error}") from error
