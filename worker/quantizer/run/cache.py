"""What runs have computed, kept on disk for later runs that need the very same: one file per key.

    FOLDER/sha256 of the scope/KEY

A key is a digest of everything that the content depends on (``worker.quantizer.run.identity.content_key``), so nothing
here ever grows stale. Any number of processes may use one folder: what another process evicts or replaces meanwhile is
a miss or the same bytes.

Files say themselves whether they are whole: each has a header with what it is and the sha256 of its bytes. They are
written under another name and renamed, so that a reader sees all of a file or none of it, and two writers of the same
file do no harm. Checkpoints (``worker.quantizer.run.checkpoint``) are such files as well.

The scope keeps tenants apart: contents are derived from what a tenant has uploaded, and a hit that somebody else's
upload caused would tell, by the time that a job takes, that they have the same model and data.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from worker.quantizer.run.interface import Run, SilentRun

LOCK_FILE = ".lock"
MAGIC = b"QMSEAL1\n"
HEADER_BYTES = len(MAGIC) + 2 * hashlib.sha256().digest_size
PART_PREFIX = ".part-"
# A part that old belongs to a writer that was killed.
_PART_AGE_SECONDS = 3600.0
# What is left after an eviction, as a share of the limit: the next few entries need none.
_KEPT_SHARE = 0.9
# Entries are counted anew once this process has put in so much more, as a share of the limit.
_UNCOUNTED_SHARE = 0.01
KEY_FORM = re.compile(r"[0-9a-f]{64}")


class Cache:
    """Bytes by key; the least recently used go when there are too many.

    A cache saves time and decides nothing: trouble with it is told, and the run goes on without it.

    Args:
        folder: made if it is not there; None: nothing is kept and nothing is found.
        scope: whose contents these are; another scope finds none of them.
        limit_bytes: that this scope may take; None: no limit. Over all scopes whoever owns the folder keeps it, see
            ``evict``: a run may reach no scope but its own.
        run: takes what a person may want to read.
    """

    def __init__(
        self, folder: Path | None, *, scope: str = "", limit_bytes: int | None = None, run: Run | None = None
    ) -> None:
        self._root = folder
        self._scope = scope
        self._limit = limit_bytes
        self._run = SilentRun() if run is None else run
        self._refused = False
        self._uncounted: int | None = None

    @property
    def is_kept(self) -> bool:
        """False if nothing is kept: then nothing need be made for it."""
        return self._root is not None

    def get(self, key: str) -> bytes | None:
        """What is kept under ``key``; None if there is nothing, or nothing whole.

        Args:
            key: lowercase hex sha256.

        Raises:
            ValueError: the key is no sha256.
        """
        if self._root is None:
            return None
        path = self._path(self._root, key)
        try:
            data = read_sealed(path, self._label(key))
            with path.open("rb") as stream:
                os.utime(stream.fileno())  # used just now: among the last to be evicted
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            self._run.log(f"the cache entry {path} is dropped: {error}", "warning")
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        except OSError as error:
            self._refuse(error)
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        """Keep ``data`` under ``key``.

        Args:
            key: lowercase hex sha256 of everything that ``data`` depends on.
            data: any bytes.

        Raises:
            ValueError: the key is no sha256.
        """
        if self._root is None:
            return
        path = self._path(self._root, key)
        if self._limit is not None and HEADER_BYTES + len(data) > self._limit:
            self._run.log(f"{len(data)} bytes are not cached: the limit of the cache is {self._limit}")
            return
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_sealed(path, self._label(key), data, durable=False)
            if self._limit is not None and self._is_to_be_counted(HEADER_BYTES + len(data), self._limit):
                _evict([path.parent], self._limit, lock=path.parent / LOCK_FILE, keep=path)
        except OSError as error:
            self._refuse(error)

    def _is_to_be_counted(self, more_bytes: int, limit_bytes: int) -> bool:
        """True for the first entry, and then whenever the rest may have grown by much: looking at all takes time."""
        uncounted = None if self._uncounted is None else self._uncounted + more_bytes
        counts = uncounted is None or uncounted > limit_bytes * _UNCOUNTED_SHARE
        self._uncounted = 0 if counts else uncounted
        return counts

    def _path(self, root: Path, key: str) -> Path:
        if not KEY_FORM.fullmatch(key):
            raise ValueError(f"not a sha256: {key!r}")
        return scope_folder(root, self._scope) / key

    def _label(self, key: str) -> str:
        return f"cache {self._scope} {key}"

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            self._run.log(f"the cache {self._root} cannot be used: {error.strerror or error}", "warning")


def scope_folder(root: Path, scope: str) -> Path:
    """Where the contents of a scope lie."""
    return root / hashlib.sha256(scope.encode()).hexdigest()


def evict(root: Path, limit_bytes: int) -> None:
    """Keep the folder of a cache below its size: of all scopes, what was not used for longest goes.

    Args:
        root: exists.
        limit_bytes: that it may take over all scopes.

    Raises:
        OSError: the disk refused.
    """
    folders = [entry for entry in root.iterdir() if entry.is_dir() and not entry.is_symlink()]
    _evict(folders, limit_bytes, lock=root / LOCK_FILE)


def _evict(folders: Sequence[Path], limit_bytes: int, *, lock: Path, keep: Path | None = None) -> None:
    """Remove what was not used for longest until all entries fit, unless another process is doing so just now."""
    with _lock(lock) as ours:
        if not ours:
            return
        found = []
        for folder in folders:
            remove_parts(folder)
            entries = (path for path in folder.iterdir() if path.name != LOCK_FILE)
            found += [(path, state) for path in entries if (state := state_of(path)) is not None]
        total = sum(state.st_size for _, state in found)
        if total <= limit_bytes:
            return
        for path, state in sorted(found, key=lambda entry: entry[1].st_mtime_ns):
            if total <= limit_bytes * _KEPT_SHARE:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                total -= state.st_size


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[bool]:
    """Whether the eviction is this process's to do."""
    with path.open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                raise
            # a shared folder without locks: two that evict at once remove more than they need, and no more harm
        yield True


class DamagedFileError(Exception):
    """The file is not what was written under this label; says in words what is wrong with it."""


def write_sealed(path: Path, label: str, data: bytes, *, durable: bool) -> None:
    """Write ``data`` to ``path``, whole or not at all.

    Args:
        path: in a folder that exists.
        label: what it is; a reader has to ask for the same.
        data: any bytes.
        durable: it is on the disk for good when this returns.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=PART_PREFIX)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(MAGIC + _digest(label.encode()) + _digest(data))
            stream.write(data)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    if durable:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def read_sealed(path: Path, label: str) -> bytes:
    """What was written to ``path`` under ``label``.

    Raises:
        FileNotFoundError: nothing is there.
        DamagedFileError: it is no regular file, of another kind, for another label, cut off or changed.
        OSError: it cannot be read.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DamagedFileError("it is no regular file")
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
        header, data = stream.read(HEADER_BYTES), stream.read()
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        raise DamagedFileError("it was not written by this program")
    seal = header[len(MAGIC) :]
    half = len(seal) // 2
    if seal[:half] != _digest(label.encode()):
        raise DamagedFileError("it belongs to something else")
    if seal[half:] != _digest(data):
        raise DamagedFileError("its bytes are not the ones that were written")
    return data


def state_of(path: Path) -> os.stat_result | None:
    """Of the file itself, where it is a link; None if nothing is there."""
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def remove_parts(folder: Path) -> None:
    """Remove what writers that were killed have left in ``folder``, once nobody can be writing it any more."""
    for part in folder.glob(PART_PREFIX + "*"):
        state = state_of(part)
        if state is not None and time.time() - state.st_mtime > _PART_AGE_SECONDS:
            part.unlink(missing_ok=True)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
