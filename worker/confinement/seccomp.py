"""The filter of system calls that a runner lives under: a program for the kernel's classic BPF machine.

It is assembled here, once for a worker, and loaded by the launcher. A call is allowed, or refused with EPERM, or does
not exist (ENOSYS, upon which libraries take the older way); nothing ends the process but calls of a foreign
architecture. The kernel remembers which calls are allowed whatever their arguments (since Linux 5.11), so these cost
next to nothing.

No process comes of a runner: ``clone`` makes threads alone, and ``execve`` is left to whoever listens on the filter.
The launcher listens for one moment, lets its own call through and closes the listener with it; from then on there is
none, and the kernel refuses. So there is nothing that a daemon could be made of, and no group, session or subreaper to
escape.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from worker.confinement import syscalls

# linux/audit.h
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
# linux/seccomp.h
_KILL, _ALLOW, _NOTIFY, _ERRNO = 0x80000000, 0x7FFF0000, 0x7FC00000, 0x00050000
_REFUSED, _UNKNOWN = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
# Where struct seccomp_data has what.
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
# linux/bpf_common.h: load a word; jump if equal, if greater, if any bit is set; return.
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_INSTRUCTION = struct.Struct("=HBBI")

_CLONE_THREAD = 0x00010000
# Every flag by which clone makes a namespace (linux/sched.h).
_CLONE_NAMESPACES = 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x80
# Names and figures of the process itself. Not among them: the death signal, dumpable, the memory map.
_PRCTL = (3, 7, 15, 16, 21, 23, 27, 30, 39, 0x53564D41)
# Requests that are refused; all others are allowed. ioctl: characters into a terminal's input (CVE-2017-5226 and its
# kin), acts on a console. Both: who gets the signal of a descriptor, and which one; by that any process of the user is
# killed.
_REQUESTS_REFUSED = {"ioctl": (0x5412, 0x541C, 0x8901, 0x8902), "fcntl": (8, 10, 15, 1026)}


@dataclass(frozen=True)
class Filter:
    """An assembled filter.

    Attributes:
        program: struct sock_filter, one after the other.
        pid_at: offsets in ``program``, in bytes, of the words that become the process id of whoever loads it.
    """

    program: bytes
    pid_at: tuple[int, ...]


class _Assembler:
    def __init__(self) -> None:
        self.instructions: list[tuple[int, int, int, int]] = []
        self.pid_at: list[int] = []

    def add(self, code: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        self.instructions.append((code, if_true, if_false, value))

    def argument(self, number: int, *, high: bool = False) -> None:
        """Load half of an argument; both architectures keep the low half first."""
        self.add(_LOAD, _ARGUMENTS_AT + 8 * number + 4 * high)

    def own_pid(self, otherwise: int) -> None:
        """Skip ``otherwise`` instructions unless the loaded word is the process id."""
        self.pid_at.append(_INSTRUCTION.size * len(self.instructions) + 4)
        self.add(_EQUAL, 0, 0, otherwise)

    def end(self, action: int) -> None:
        self.add(_RETURN, action)


@cache
def filter_for(machine: str | None = None, *, exec_once: bool = True, narrows: bool = False) -> Filter:
    """The filter of a runner.

    Args:
        machine: as ``os.uname().machine`` says; None: this one.
        exec_once: ``execve`` is left to the listener; False: it is allowed, for kernels without listeners.
        narrows: the runner may still load rules of Landlock, and another filter, over those that it has.

    Raises:
        KeyError: nothing is known of this machine.
    """
    machine = os.uname().machine if machine is None else machine
    program = _Assembler()
    program.add(_LOAD, _ARCHITECTURE_AT)
    program.add(_EQUAL, _ARCHITECTURES[machine], 1, 0)
    program.end(_KILL)
    program.add(_LOAD, _NUMBER_AT)
    allowed = syscalls.allowed(machine) + (syscalls.narrowing(machine) if narrows else [])
    for low, high in _runs(sorted(allowed)):
        if low == high:
            program.add(_EQUAL, low, 0, 1)
        elif low == 0:
            program.add(_GREATER, high, 1, 0)
        else:
            program.add(_GREATER, high, 2, 0)
            program.add(_GREATER, low - 1, 0, 1)
        program.end(_ALLOW)
    for name, number in syscalls.judged(machine).items():
        rule = _Assembler()
        _judge(rule, name, _NOTIFY if exec_once else _ALLOW)
        # The rule ends by itself, whatever it finds: past it the word that is loaded is still the call's number.
        program.add(_EQUAL, number, 0, len(rule.instructions))
        start = _INSTRUCTION.size * len(program.instructions)
        program.pid_at += [start + offset for offset in rule.pid_at]
        program.instructions += rule.instructions
    program.add(_GREATER, syscalls.NEWEST, 0, 1)
    program.end(_UNKNOWN)
    program.end(_REFUSED)
    words = (_INSTRUCTION.pack(*instruction) for instruction in program.instructions)
    return Filter(b"".join(words), tuple(program.pid_at))


def _judge(rule: _Assembler, name: str, execute: int) -> None:
    """The instructions that decide over one call; the last one returns."""
    if name == "clone":
        rule.argument(0)
        rule.add(_ANY_BIT, _CLONE_NAMESPACES, 2, 0)
        rule.add(_ANY_BIT, _CLONE_THREAD, 0, 1)
        rule.end(_ALLOW)
    elif name == "clone3":
        rule.end(_UNKNOWN)  # its flags lie in memory, where no filter can look; the C library takes clone then
        return
    elif name in {"execve", "execveat"}:
        rule.end(execute)
        return
    elif name in {"kill", "tgkill", "prlimit64", "sched_setaffinity"}:
        rule.argument(0)
        if name != "tgkill":
            rule.add(_EQUAL, 0, 1, 0)  # itself; of kill: its group, in which nobody else is
        rule.own_pid(1)
        rule.end(_ALLOW)
    elif name == "prctl":
        rule.argument(0)
        for option in _PRCTL:
            rule.add(_EQUAL, option, 0, 1)
            rule.end(_ALLOW)
    elif name in _REQUESTS_REFUSED:
        rule.argument(1)
        for request in _REQUESTS_REFUSED[name]:
            rule.add(_EQUAL, request, 0, 1)
            rule.end(_REFUSED)
        rule.end(_ALLOW)
        return
    elif name == "utimensat":
        # Of an open file alone: by name it would reach files that Landlock does not let it open.
        rule.argument(1)
        rule.add(_EQUAL, 0, 0, 3)
        rule.argument(1, high=True)
        rule.add(_EQUAL, 0, 0, 1)
        rule.end(_ALLOW)
    rule.end(_REFUSED)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as runs of neighbours, first and last of each."""
    first = last = numbers[0]
    for number in numbers[1:]:
        if number != last + 1:
            yield first, last
            first = number
        last = number
    yield first, last
