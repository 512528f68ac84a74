"""The filter of system calls as a program: every number and argument comes to the end that the lists say."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.each import each
from worker.confinement import seccomp
from worker.confinement.seccomp import Filter, filter_for

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL, NOTIFY, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x7FC00000, 0x00050001, 0x00050026
PID = 4711
HEADERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
THREAD, NEW_NAMESPACE = 0x00010000, 0x10000000

words = st.integers(0, 2**64 - 1)


def outcome(found: Filter, number: int, *arguments: int, architecture: int) -> int:
    """What the kernel's machine would return: it knows loads, three jumps and the end."""
    code = bytearray(found.program)
    for offset in found.pid_at:
        struct.pack_into("=I", code, offset, PID)
    given_arguments = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *given_arguments)
    at = value = 0
    while True:
        operation, if_true, if_false, constant = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, constant)
        elif operation == 0x06:
            return constant
        else:
            met = {0x15: value == constant, 0x25: value > constant, 0x45: bool(value & constant)}[operation]
            at += if_true if met else if_false


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 2**32 - 1) | st.integers(0, 600), arguments=st.lists(words, min_size=6, max_size=6))
def test_every_number_has_the_end_that_the_list_says(machine: str, number: int, arguments: list[int]) -> None:
    judged = seccomp.judged(machine)
    if number in judged.values():
        return
    expected = ALLOW if number in seccomp.named(machine).values() else ENOSYS if number > seccomp.NEWEST else EPERM
    assert outcome(filter_for(machine), number, *arguments, architecture=MACHINES[machine]) == expected


@pytest.mark.parametrize("machine", MACHINES)
@given(number=st.integers(0, 600), architecture=st.integers(0, 2**32 - 1))
def test_calls_of_another_architecture_end_the_process(machine: str, number: int, architecture: int) -> None:
    if architecture != MACHINES[machine]:
        assert outcome(filter_for(machine), number, architecture=architecture) == KILL


@pytest.mark.parametrize("machine", MACHINES)
@given(flags=st.integers(0, 2**32 - 1))
def test_clone_makes_threads_and_nothing_else(machine: str, flags: int) -> None:
    namespaces = flags & 0x7E020080
    expected = ALLOW if flags & THREAD and not namespaces else EPERM
    number = seccomp.judged(machine)["clone"]
    assert outcome(filter_for(machine), number, flags, architecture=MACHINES[machine]) == expected
    assert outcome(filter_for(machine), number, THREAD | NEW_NAMESPACE, architecture=MACHINES[machine]) == EPERM


@pytest.mark.parametrize("machine", MACHINES)
@given(pid=st.integers(0, 2**32 - 1))
def test_a_runner_reaches_itself_alone(machine: str, pid: int) -> None:
    for call, also in (("kill", 0), ("prlimit64", 0), ("sched_setaffinity", 0), ("tgkill", PID)):
        number = seccomp.judged(machine)[call]
        for aim in (pid, 0, PID):
            expected = ALLOW if aim in (PID, also) else EPERM
            assert outcome(filter_for(machine), number, aim, architecture=MACHINES[machine]) == expected, (call, aim)


@each(
    ("call", "arguments", "expected"),
    [
        ("clone3", (0, 88), ENOSYS),
        ("execve", (), NOTIFY),
        ("execveat", (), NOTIFY),
        ("utimensat", (3, 0), ALLOW),
        ("utimensat", (3, 1), EPERM),
        ("utimensat", (3, 1 << 32), EPERM),
        ("prctl", (15,), ALLOW),
        ("prctl", (1,), EPERM),
        ("prctl", (4,), EPERM),
        ("ioctl", (0, 0x5401), ALLOW),
        ("ioctl", (0, 0x5412), EPERM),
        ("ioctl", (0, 0x100005412), EPERM),
        ("fcntl", (0, 3), ALLOW),
        ("fcntl", (0, 8), EPERM),
        ("fcntl", (0, 10), EPERM),
    ],
)
def test_arguments_decide(call: str, arguments: tuple[int, ...], expected: int) -> None:
    for machine, architecture in MACHINES.items():
        number = seccomp.judged(machine)[call]
        assert outcome(filter_for(machine), number, *arguments, architecture=architecture) == expected, machine


def test_without_a_listener_exec_is_left_to_landlock() -> None:
    number = seccomp.judged("x86_64")["execve"]
    assert outcome(filter_for("x86_64", exec_once=False), number, architecture=MACHINES["x86_64"]) == ALLOW


def test_the_numbers_are_those_of_the_headers() -> None:
    if not HEADERS.exists():
        pytest.skip(f"NO KERNEL HEADERS: {HEADERS} is not here")
    known = {name: int(number) for name, number in re.findall(r"#define __NR_(\w+) (\d+)", HEADERS.read_text())}
    ours = {**seccomp.judged("x86_64"), **seccomp.named("x86_64")}
    assert {name: number for name, number in ours.items() if known.get(name, number) != number} == {}
    assert len(set(ours.values())) == len(ours)
