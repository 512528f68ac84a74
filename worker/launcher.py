"""First step of a child process: bind its life to the parent's, set its limits, then become the real command.

Runs as a plain script (``python -I -S launcher.py SPEC COMMAND...``), so that nothing has to be done between fork and
exec of a parent that has threads. SPEC is a JSON object:

    parent          pid of the parent; if it is gone already, nothing is started
    death_signal    signal the kernel sends to the command when the parent's starting thread ends
    limits          {"RLIMIT_AS": bytes, ...}, set as soft and hard limit
    line_fd         descriptor that becomes number 3 of the command, or null
    oom_score_adj   how much sooner than others the kernel ends the command when memory runs out; null: as its parent
    cores           numbers of the cores that the command is bound to; left out or empty: those of the parent
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
from typing import Any

LINE_FD = 3
EXIT_NOT_STARTED = 127
CPU_GRACE_SECONDS = 5
_PR_SET_PDEATHSIG = 1


def bind_to_parent(parent: int, death_signal: int) -> None:
    """Have the kernel send ``death_signal`` to this process when ``parent`` ends.

    Raises:
        OSError: the kernel refused.
        ProcessLookupError: the parent has ended already.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise ProcessLookupError(f"parent {parent} has ended")


def set_limits(limits: dict[str, int]) -> None:
    """Set each limit, soft and hard, but never above the hard limit that is already there."""
    for name, value in limits.items():
        kind: int = getattr(resource, name)
        _, ceiling = resource.getrlimit(kind)
        # The soft CPU limit sends SIGXCPU, which can be told from a kill; the hard one would only say SIGKILL.
        wanted = value + CPU_GRACE_SECONDS if kind == resource.RLIMIT_CPU else value
        hard = wanted if ceiling == resource.RLIM_INFINITY else min(wanted, ceiling)
        resource.setrlimit(kind, (min(value, hard), hard))


def prefer_for_oom(adjustment: int) -> None:
    """Have the kernel's OOM killer take this process before others, never after those it would take now.

    Raises:
        OSError: the kernel refused.
    """
    with open("/proc/self/oom_score_adj", "r+") as stream:  # noqa: PTH123 - pathlib takes long to import
        adjustment = max(adjustment, int(stream.read()))
        stream.seek(0)
        stream.write(str(adjustment))


def main(arguments: list[str]) -> int:
    """Apply the spec and exec the command; returns only if that failed."""
    spec: dict[str, Any] = json.loads(arguments[0])
    command = arguments[1:]
    try:
        bind_to_parent(spec["parent"], spec["death_signal"])
        line_fd = spec.get("line_fd")
        if line_fd is not None and line_fd != LINE_FD:
            os.dup2(line_fd, LINE_FD, inheritable=True)
            os.close(line_fd)
        if spec.get("oom_score_adj") is not None:
            prefer_for_oom(spec["oom_score_adj"])
        set_limits(spec.get("limits", {}))
        if spec.get("cores"):
            os.sched_setaffinity(0, spec["cores"])
        os.execv(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        print(f"launcher: cannot start {command[0]}: {error}", file=sys.stderr)  # noqa: T201 - stderr is this script's only voice
    return EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
