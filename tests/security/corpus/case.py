"""What a case of the corpus is: the files of one upload, and how looking into them has to end."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

READY = "ready"
# A file's bytes; or what makes the file, at a path.
Content = bytes | Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One upload: its files, the main one first, and how it ends: a code of an error or READY, and the limit broken.

    In the files the canary's path is put in the place of CANARY.
    """

    name: str
    kind: Literal["model", "dataset", "state"]
    files: dict[str, Content]
    code: str
    limit: str | None = None

    def lay_out(self, folder: Path, canary: Path) -> Path:
        """Write the files into a folder; gives the main one."""
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content.replace(CANARY, os.fsencode(canary)))
            else:
                content(path)
        return folder / next(iter(self.files))


# As long as what stands in its place must be: lengths in front of it are right then.
CANARY = b"/dev/shm/canary-canary-canary-canary"


def symlink(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)
