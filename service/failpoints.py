"""Named places where a test makes a process fail: killed, out of disk space, or late.

A process reaches a failpoint by ``reach("name")``. That does nothing unless ``QUANTMILL_FAILPOINTS`` was set when the
process started, which only the tests of faults do:

    QUANTMILL_FAILPOINTS="before_commit=kill;after_rename=sleep:2@3"

kills the process the first time it reaches ``before_commit``, and lets it sleep for 2 s the third time it reaches
``after_rename``. Every action is done once, but for ``wait:PATH``, which holds whoever comes by while there is such a
file, and says so by a file PATH.reached. An unknown name or action ends the process at once: a test of a failpoint
that is not there would prove nothing.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

VARIABLE = "QUANTMILL_FAILPOINTS"
# Places in the order in which a job reaches them.
JOB_NAMES = (
    "before_submit_commit",
    "after_submit_commit",
    "after_release",
    "after_publish",
    "after_claim",
    "after_inputs",
    "after_runner_start",
    "after_layer",
    "after_runner_end",
    "before_artifact_fsync",
    "after_artifact_rename",
    "before_succeed_commit",
    "after_succeed_commit",
)
# Places where rows that name files are made, and where files and uploads are collected: each of the latter has decided
# what goes, and has not yet done it.
FILE_NAMES = (
    "before_files_named",
    "after_files_named",
    "before_files_discarded",
    "before_trash_emptied",
    "before_uploads_forgotten",
)
# Between the receiver's answer and the note of it.
SENDING_NAMES = ("after_webhook_sent", "after_hand_over_sent")
NAMES = JOB_NAMES + FILE_NAMES + SENDING_NAMES


@dataclass
class _Armed:
    action: Callable[[], None]
    countdown: int
    lasting: bool


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _full() -> None:
    raise OSError(errno.ENOSPC, "no space left (failpoint)")


def _wait_while(path: Path) -> None:
    """Goes on once the file is gone; a file beside it says that somebody is held."""
    if path.exists():
        path.with_name(f"{path.name}.reached").touch()
    while path.exists():
        time.sleep(0.01)


_ACTIONS: dict[str, Callable[[str], Callable[[], None]]] = {
    "kill": lambda _: _kill,
    "full": lambda _: _full,
    "sleep": lambda seconds: partial(time.sleep, float(seconds)),
    "wait": lambda path: partial(_wait_while, Path(path)),
}


def _parsed(text: str) -> dict[str, _Armed]:
    """What ``QUANTMILL_FAILPOINTS`` arms.

    Raises:
        ValueError: an unknown name or action.
    """
    armed: dict[str, _Armed] = {}
    for entry in filter(None, text.split(";")):
        name, _, rest = entry.partition("=")
        action, _, times = rest.partition("@")
        verb, _, argument = action.partition(":")
        if name not in NAMES or verb not in _ACTIONS:
            raise ValueError(f"{VARIABLE}: no failpoint or action like {entry!r}")
        armed[name] = _Armed(_ACTIONS[verb](argument), int(times or 1), verb == "wait")
    return armed


def waiting_places() -> list[Path]:
    """Folders in which ``wait:PATH`` says that somebody is held: a process that may write little has to write there."""
    entries = os.environ.get(VARIABLE, "").split(";")
    actions = [entry.partition("=")[2].partition("@")[0].partition(":") for entry in entries]
    return [Path(argument).parent for verb, _, argument in actions if verb == "wait"]


_lock = threading.Lock()
_armed = _parsed(os.environ.get(VARIABLE, ""))


def reach(name: str) -> None:
    """Do what the environment armed for this place, if anything; see the module's head."""
    if not _armed:
        return
    with _lock:
        found = _armed.get(name)
        if found is None:
            return
        found.countdown -= 1
        if found.countdown > 0:
            return
        if not found.lasting:
            del _armed[name]
    found.action()
