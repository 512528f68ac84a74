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
    """A mounted tmpfs.

    Args:
        folder: where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no room."""
        with self._ballast.open("ab", buffering=0) as stream:
            for size in (_BLOCK_BYTES, 4096, 1):
                try:
                    while stream.write(b"\1" * size):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(size_mib: int) -> Iterator[SmallDisk]:
    """A disk of its own; the test is skipped where none can be mounted (that takes root)."""
    folder = Path(tempfile.mkdtemp(prefix="quantmill-disk-"))
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_mib}m,mode=0777", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
        if mounted.returncode != 0:
            pytest.skip(f"no disk to fill: {mounted.stderr.strip()} (mounting one takes root)")
        try:
            yield SmallDisk(folder)
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
