"""A small disk of a test's own that can be filled to the last byte."""

from __future__ import annotations

import errno
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_BLOCK_BYTES = 64 * 1024


class SmallDisk:
    """A tmpfs that is mounted on ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "full"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as stream:
            for size in (_BLOCK_BYTES, 4096, 1):
                try:
                    while stream.write(b"\1" * size):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", str(self.folder)], check=True)


@contextmanager
def small_disk(size_mib: int, folder: Path | None = None) -> Iterator[SmallDisk]:
    """A disk on a folder, or in a place of its own; the test is skipped where none can be mounted."""
    own = None if folder else tempfile.mkdtemp(prefix="quantmill-disk-")
    place = folder or Path(str(own))
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0777", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"no disk to fill: {mounted.stderr.strip()} (mounting one takes root)")
        try:
            yield SmallDisk(place)
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)
    finally:
        if own is not None:
            shutil.rmtree(own, ignore_errors=True)
