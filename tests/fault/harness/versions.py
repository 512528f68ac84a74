"""The version before this one, from the history of the repository: its code, for processes to run on."""

from __future__ import annotations

import re
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from service.db import head_revision
from tests.worker.running import ROOT

_REVISION = re.compile(r"^revision = ['\"](\w+)['\"]", re.MULTILINE)
_BEFORE = re.compile(r"^down_revision = ['\"](\w+)['\"]", re.MULTILINE)


@dataclass(frozen=True)
class Version:
    """Code that knows the schema up to a revision."""

    code: Path
    revision: str
    commit: str


def history_trouble() -> str | None:
    """Why there is no version before this one; None if there is one."""
    newest = _migration()
    done = _git("log", "--diff-filter=A", "--format=%H", "--", str(newest.relative_to(ROOT)))
    if done.returncode != 0 or not done.stdout.strip():
        return "no git history with the newest migration in it: the version before it is not tried"
    parent = f"{_added(newest)}^"
    return None if _git("cat-file", "-e", parent).returncode == 0 else f"git has no {parent}: fetch the whole history"


def version_before(folder: Path) -> Version:
    """The commit before the one that added the newest migration, unpacked into ``folder``."""
    newest = _migration()
    commit = _git("rev-parse", f"{_added(newest)}^").stdout.decode().strip()
    archive = _git("archive", "--format=tar", commit, "--", "service", "worker", "quantmill", "migrations")
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    found = _BEFORE.search(newest.read_text())
    assert found is not None, f"{newest.name} says not what it comes after"
    return Version(folder, found[1], commit)


def _migration() -> Path:
    """The file of the newest one."""
    for path in (ROOT / "migrations" / "versions").glob("*.py"):
        found = _REVISION.search(path.read_text())
        if found is not None and found[1] == head_revision():
            return path
    raise AssertionError(f"no file has the migration {head_revision()}")


def _added(path: Path) -> str:
    return _git("log", "--diff-filter=A", "--format=%H", "--", str(path.relative_to(ROOT))).stdout.decode().split()[0]


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
