"""What every store of files can do: a file's name is its sha256, so its bytes never change and are never stored twice.

A file that no row of the database names any more goes in two steps: it is discarded to the trash, from where it can be
taken back, and later purged. Whoever collects makes sure that no row names it, see ``service.files.repository``.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

from service.storage.digests import BLOCK_BYTES, is_sha256
from service.storage.errors import StoredFileMissingError

# What tells one version of a stored file from the one that replaces it.
Identity = tuple[int | str, ...]
Damage = Literal["missing", "digest", "unreadable"]
Check = Callable[[], None]
# The disk is there and cannot give the bytes of a file: its sectors, or what the file system keeps of it, are damaged.
_UNREADABLE = frozenset({errno.EIO, errno.EBADMSG, errno.EUCLEAN})
_COLLECT_LOCK = "collect.lock"


@dataclass(frozen=True)
class StoredFile:
    """A file in the store: lowercase hex sha256 and size."""

    sha256: str
    size_bytes: int


class Read(NamedTuple):
    """What reading a stored file has shown: what is wrong with it, if anything; its bytes; and which file it was."""

    damage: Damage | None
    size_bytes: int
    identity: Identity | None


def no_check() -> None:
    """For whoever may wait for ever."""


class Store(ABC):
    """Files by their digests.

    Args:
        root: a folder on a local disk; made if it is not there.
    """

    files_at_once = 100  # that are discarded while a transaction keeps others waiting

    def __init__(self, root: Path) -> None:
        self.root = root
        self.incoming = root / "incoming"  # what is on its way and has to lie on this host
        self.incoming.mkdir(parents=True, exist_ok=True)

    @abstractmethod
    def open(self, sha256: str, size_bytes: int | None = None) -> IO[bytes]:
        """Open a stored file for reading.

        Args:
            sha256: its digest.
            size_bytes: the size it must have, if known.

        Raises:
            StoredFileMissingError: it is not there.
            StoredFileCorruptError: its size is not the one given.
            StorageAwayError: the store is not there.
        """

    @abstractmethod
    def identity_of(self, stream: IO[bytes]) -> Identity:
        """Which file one that ``open`` has opened is."""

    @abstractmethod
    def identity(self, sha256: str) -> Identity | None:
        """Which file lies in its place; None: none."""

    @abstractmethod
    def check_there(self) -> None:
        """Make sure that the store is there, and not what is left where it was.

        Raises:
            StorageAwayError: it is not.
        """

    @abstractmethod
    def probe(self) -> str:
        """Use the store, and say in a few words what that has shown.

        Raises:
            StorageAwayError: it is not there.
            OSError: the disk refused.
        """

    @abstractmethod
    def put_file(self, path: Path, *, sha256: str | None = None, check: Check = no_check) -> StoredFile:
        """Move a file into the store; it is stored for good when this returns.

        Args:
            path: the file; it is gone from there afterwards.
            sha256: its digest, if the caller has just computed it.
            check: called every now and then; what it raises ends the move.

        Raises:
            OSError: the disk refused.
            StorageAwayError: the store is not there.
        """

    @abstractmethod
    def ensure(self, sha256: str) -> None:
        """Make sure that a file lies in its place; what had gone to the trash is taken back.

        Raises:
            StoredFileMissingError: it is nowhere.
        """

    @abstractmethod
    def copy_to(self, sha256: str, destination: Path, check: Check = no_check) -> None:
        """Write a copy, verified on its way.

        Raises:
            StoredFileMissingError: there is none.
            StoredFileCorruptError: these are not its bytes.
            StorageAwayError: the store is not there.
        """

    @abstractmethod
    def lend(self, sha256: str, check: Check = no_check) -> AbstractContextManager[Path]:
        """Where the file lies on this host, verified just now, for as long as the block runs.

        Raises:
            StoredFileMissingError: there is none.
            StoredFileCorruptError: these are not its bytes.
            StorageAwayError: the store is not there.
        """

    @abstractmethod
    def old_files(self, age_seconds: float) -> Iterator[list[StoredFile]]:
        """Files that were stored longer ago and are not in the trash, those whose digests begin with the same two
        digits together.
        """

    @abstractmethod
    def discard(self, sha256: str, *, age_seconds: float) -> bool:
        """Move a file to the trash, where it ages from now on; False: it is gone, or was stored anew since."""

    @abstractmethod
    def take_back(self, sha256: str) -> bool:
        """Return a file from the trash to its place; False if it is not in the trash."""

    @abstractmethod
    def old_trash(self, age_seconds: float) -> Iterator[StoredFile]:
        """What has been in the trash for longer."""

    @abstractmethod
    def purge(self, sha256: str, check: Check = no_check) -> None:
        """Remove a file of the trash for good; one that was stored anew meanwhile stays.

        Args:
            sha256: of the file.
            check: called right before; raises if the caller does not keep others from naming the file any more.
        """

    @abstractmethod
    def free_bytes(self) -> int | None:
        """Space left for stored files; None: nobody knows a bound."""

    def signed_url(self, sha256: str, seconds: float) -> str | None:
        """An address where whoever has it may read the file for so long; None: the store has none."""
        return None

    def local_free_bytes(self) -> int:
        """Space left on this host's disk for what is on its way."""
        return shutil.disk_usage(self.root).free

    def read_through(self, sha256: str, on_block: Callable[[bytes], object]) -> Read:
        """Read a stored file to its end; ``on_block`` is called with each of its blocks.

        Raises:
            OSError: the disk is away: that says nothing of the file.
            StorageAwayError: the store is.
        """
        try:
            stream = self.open(sha256)
        except StoredFileMissingError:
            return Read("missing", 0, None)
        digest, size_bytes = hashlib.sha256(), 0
        with stream:
            identity = self.identity_of(stream)
            while True:
                try:
                    block = stream.read(BLOCK_BYTES)
                except OSError as error:
                    if error.errno in _UNREADABLE:
                        return Read("unreadable", size_bytes, identity)
                    raise
                if not block:
                    break
                digest.update(block)
                size_bytes += len(block)
                on_block(block)
        return Read(None if digest.hexdigest() == sha256 else "digest", size_bytes, identity)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Nothing is collected from this store on this host while the block runs; ends with the process, too."""
        with (self.root / _COLLECT_LOCK).open("a") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH)
            yield

    @contextmanager
    def collecting(self) -> Iterator[bool]:
        """Whether files may be collected while the block runs: False while somebody has the store pinned."""
        with (self.root / _COLLECT_LOCK).open("a") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


def file_name(sha256: str) -> str:
    """Where the file of this digest lies below the root of a folder or the prefix of a bucket."""
    if not is_sha256(sha256):
        raise ValueError(f"not a sha256: {sha256!r}")
    return f"sha256/{sha256[:2]}/{sha256}"
