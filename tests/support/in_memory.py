"""Files of a test run lie in memory where there is room: the disk of a shared machine may stand still for seconds.

Whoever sets TMPDIR chooses the place. What a run leaves is removed at its end, or by the next run if a test failed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_PREFIX = "quantmill-tests-"
# A whole run needs less than half of it.
_LEAST_FREE_BYTES = 4 << 30


def use() -> Path | None:
    """Let this process and all that it starts make their temporary files in memory; gives the folder made, if any."""
    if "TMPDIR" in os.environ or not _has_room():
        return None
    for old in _MEMORY.glob(f"{_PREFIX}*"):
        if not Path("/proc", old.name.removeprefix(_PREFIX)).exists():
            shutil.rmtree(old, ignore_errors=True)
    folder = _MEMORY / f"{_PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o755, exist_ok=True)  # servers run as another user
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def _has_room() -> bool:
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK)):
        return False
    return shutil.disk_usage(_MEMORY).free >= _LEAST_FREE_BYTES
