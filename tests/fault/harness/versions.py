"""A version before this one, from the history of the repository: its code, for processes to run on.

QUANTMILL_TEST_VERSION_BEFORE   a commit; default: the last one whose schema is an earlier one
"""

from __future__ import annotations

import os
import re
import subprocess
import tarfile
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from tests.worker.running import ROOT

_FOLDER = "migrations/versions"
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
    return None if _commit() is not None else "no git history with another schema: no version before is tried"


def version_before(folder: Path) -> Version:
    """Its code, unpacked into ``folder``."""
    commit = _commit()
    assert commit is not None
    archive = _git("archive", "--format=tar", commit, "--", "service", "worker", "quantmill", "migrations")
    assert archive.returncode == 0, archive.stderr.decode()
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as tar:
        tar.extractall(folder, filter="data")
    texts = [path.read_text() for path in (folder / _FOLDER).glob("2*.py")]
    before = {found[1] for text in texts if (found := _BEFORE.search(text)) is not None}
    (revision,) = {found[1] for text in texts if (found := _REVISION.search(text)) is not None} - before
    return Version(folder, revision, commit)


def _commit() -> str | None:
    if given := os.environ.get("QUANTMILL_TEST_VERSION_BEFORE"):
        return given
    ours = {f"{_FOLDER}/{path.name}" for path in (ROOT / _FOLDER).glob("2*.py")}
    for commit in _git("log", "--first-parent", "-m", "--format=%H", "--", _FOLDER).stdout.decode().split():
        names = _git("ls-tree", "--name-only", commit, f"{_FOLDER}/").stdout.decode().split()
        if {name for name in names if Path(name).name.startswith("2")} < ours:
            return commit
    return None


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
