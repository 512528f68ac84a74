"""A control group of a test's own with little memory, in which the kernel's OOM killer is real."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.worker.workbench import wait_for

_ROOT = Path("/sys/fs/cgroup")
# Files of the limit and of the members, by the folder of the version's root.
_LIMITS = {_ROOT / "memory": "memory.limit_in_bytes", _ROOT: "memory.max"}
_MEMBERS = "cgroup.procs"


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A group below the one of this process; whoever writes its pid into the file that is given joins it.

    The test is skipped where no such group can be made: that takes the right to, and a kernel that counts memory there.
    """
    home, limit = _home()
    folder = home / f"quantmill-test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory group can be made in {home}: {error}")
    try:
        try:
            (folder / limit).write_text(str(limit_bytes))
        except OSError as error:
            pytest.skip(f"the group {folder} takes no limit of memory: {error}")
        yield folder / _MEMBERS
    finally:
        wait_for(lambda: not (folder / _MEMBERS).read_text(), message="a process is left in the group")
        wait_for(lambda: _removed(folder), message="the group cannot be removed")


def _home() -> tuple[Path, str]:
    """The folder of this process's own group, and the file that limits memory there."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(",") or not controllers:
            root = _ROOT / "memory" if controllers else _ROOT
            # in a container the path may be that of the host
            home = root / path.lstrip("/")
            return (home if home.is_dir() else root), _LIMITS[root]
    pytest.skip("this kernel has no control groups for memory")


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except OSError:  # what its processes held is being given back
        return False
    return True
