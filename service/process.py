"""This process: its loopback addresses, and protecting its memory from other processes.

A user's processes may read one another's ``/proc/PID/environ`` and trace one another, as long as nothing stands against
it; a runner that was taken over is such a process. So whatever holds addresses with passwords, or keys, says to the
kernel that it is not to be dumped, and where it has read its settings, forgets those that it was given by the
environment.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
from collections.abc import Iterable
from pathlib import Path


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a listener on ``host``: every address that it stands for is loopback."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)  # noqa: S104 - what "" means
    except OSError:
        return False
    return all(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)


_PR_SET_DUMPABLE = 4
_STAT = Path("/proc/self/stat")
# Fields of it (man 5 proc_pid_stat), counted from the one behind the program's name: where the environment lies that
# the process was started with.
_ENV_START, _ENV_END = 47, 48


def hide_process() -> bool:
    """Let no process of this user trace this one, or read its memory and environment; nor is there a core dump.

    Processes that it starts are not hidden by that. False where the system knows no such thing.
    """
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except AttributeError:  # no Linux
        return False
    return bool(prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0)


def forget_variables(names: Iterable[str]) -> None:
    """Remove variables from the environment of this process, also from the block that ``/proc/self/environ`` shows.

    Whoever needs their values must have read them before. Processes that are started from now on do not get them.
    """
    wanted = {name.encode() for name in names}
    for name in wanted:
        os.environb.pop(name, None)  # and with it the C library's pointer into the block
    block = _initial_block()
    if block is None:
        return
    start, size = block
    offset = 0
    for entry in ctypes.string_at(start, size).split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name in wanted:
            ctypes.memset(start + offset + len(name) + 1, 0, len(value))
        offset += len(entry) + 1


def _initial_block() -> tuple[int, int] | None:
    """Address and size in bytes of the environment that this process was started with; None where nobody says."""
    try:
        fields = _STAT.read_text().rpartition(")")[2].split()
    except OSError:
        return None
    start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
    return (start, end - start) if 0 < start < end else None
