"""Files as collectors see them: they may be gone at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Folders of jobs that the database does not know: of another installation on the same disk, for all anybody can tell,
# until nothing was put into them for so long.
STRANGE_SECONDS = 7 * 86_400.0


def children(folder: Path) -> Iterator[Path]:
    """What lies in a folder; nothing if it is not there."""
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        yield from (Path(entry.path) for entry in entries)


def age_seconds_of(path: Path) -> float:
    """Seconds since the last change; 0 for what is gone meanwhile."""
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0


def size_bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed, what is gone meanwhile has none."""
    if path.is_dir() and not path.is_symlink():
        return sum(size_bytes_of(child) for child in children(path))
    try:
        return path.lstat().st_size
    except FileNotFoundError:
        return 0
