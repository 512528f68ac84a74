"""First step of a child process: bind it to its parent, set its limits, confine it, then become the real command.

Runs as a plain script (``python -I -S launcher.py SPEC COMMAND...``), so that nothing has to be done between fork and
exec of a parent that has threads. SPEC is a JSON object:

    parent          pid of the parent; if it is gone already, nothing is started
    death_signal    signal the kernel sends to the command when the parent's starting thread ends
    limits          {"RLIMIT_AS": bytes, ...}, set as soft and hard limit
    line_fd         descriptor that becomes number 3 of the command, or null
    oom_score_adj   how much sooner than others the kernel ends the command when memory runs out; null: as its parent
    cores           numbers of the cores that the command is bound to; left out or empty: those of the parent
    niceness        how far the command stands back behind its parent where CPU time is short; left out: not at all
    controls        {name: what it needs}, see CONTROLS; what stands here must hold, or nothing is started
    probe           true: apply each control, print {name: why it is not here, or null} and start nothing

The kernel is spoken to directly, through ctypes: Landlock is three calls and a filter is one, while the bindings on
PyPI are libraries to be imported in every start (this interpreter has no site-packages, which saves half of its own
start), want libseccomp on the host, or know no Landlock beyond its first versions. Numbers and structures are the
kernel's promise to user space (linux/landlock.h, linux/seccomp.h, linux/capability.h, linux/prctl.h).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
from _thread import start_new_thread
from base64 import b64decode

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes long to import
    from collections.abc import Callable
    from typing import Any

LINE_FD = 3
EXIT_NOT_STARTED = 127
CPU_GRACE_SECONDS = 5
_AUTOGROUP_TRIES, _AUTOGROUP_SECONDS = 5, 0.1
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 1, 38, 23, 24, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
# The same numbers on every architecture but alpha.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446
_LANDLOCK_CREATE_RULESET_VERSION, _LANDLOCK_RULE_PATH_BENEATH = 1, 1
SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_NEW_LISTENER = 1, 8
# _IOWR('!', 0, struct seccomp_notif), _IOWR('!', 1, struct seccomp_notif_resp); sizes of both
_NOTIF_RECV, _NOTIF_SEND = 0xC0502100, 0xC0182101
_NOTIF_BYTES = 80
_SECCOMP_USER_NOTIF_FLAG_CONTINUE = 1

# Rights of Landlock by the version that brought them (man 7 landlock): all of a version's are ruled over.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: _REFER, 3: TRUNCATE, 5: IOCTL_DEV}
_OF_ONE_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = READ_FILE | READ_DIR
# No devices, sockets, pipes or links are made, and nothing is executed.
WRITE = READ | WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | TRUNCATE
# To bind and to connect TCP; abstract UNIX sockets and signals of processes outside.
_NETWORK_RIGHTS, _NETWORK_SINCE = 3, 4
_SCOPES, _SCOPES_SINCE = 3, 6

_libc = ctypes.CDLL(None, use_errno=True)


def bind_to_parent(parent: int, death_signal: int) -> None:
    """Have the kernel send ``death_signal`` to this process when ``parent`` ends.

    Raises:
        OSError: the kernel refused.
        ProcessLookupError: the parent has ended already.
    """
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0))
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


def stand_back(niceness: int, pid: int = 0) -> None:
    """Get less of the CPU time where it is short (man 2 nice; man 7 sched, "The autogroup feature").

    A session of its own, as every runner has, is weighed as a whole where the kernel groups by sessions: what its
    processes say counts between themselves alone.

    Args:
        niceness: how much further than now.
        pid: of a process with one thread; 0: this one.

    Raises:
        OSError: there is no such process.
    """
    os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid) + niceness)
    reached = os.getpriority(os.PRIO_PROCESS, pid)
    for _ in range(_AUTOGROUP_TRIES):
        try:
            _write(f"/proc/{pid or 'self'}/autogroup", str(reached))
        except BlockingIOError:
            time.sleep(_AUTOGROUP_SECONDS)  # plain users may do so ten times a second, all together
        except OSError:
            return  # the kernel does not group, or nobody may say so here: it costs others time, and no more
        else:
            return


def leave_network(_: object) -> None:
    """Go into namespaces of its own for network and IPC: no interface, no abstract socket, no shared memory of others.

    Raises:
        OSError: neither the rights for it are there, nor a user namespace that would give them.
    """
    if _libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC) == 0:
        return
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_CLONE_NEWUSER))
    # The same numbers inside and outside, so that files keep their owner.
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        _write(f"/proc/self/{name}", text)
    _checked(_libc.unshare(_CLONE_NEWNET | _CLONE_NEWIPC))


def drop_capabilities(_: object) -> None:
    """Give up every capability for good: also for root, also across exec.

    Raises:
        OSError: the kernel refused.
    """
    number = 0
    while _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) >= 0:
        _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)  # a plain user may not; it has none to lose
        number += 1
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()))


def refuse_new_privileges(_: object) -> None:
    """No exec gives this process or its children more rights than it has.

    Raises:
        OSError: the kernel refused.
    """
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def landlock_version() -> int:
    """Version of Landlock in this kernel.

    Raises:
        OSError: it has none, or it is switched off.
    """
    return _checked(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION))


def restrict_files(rules: list[tuple[str, int, bool]]) -> None:
    """Have Landlock refuse every file but those of ``rules``, all TCP, and signals and abstract sockets of others.

    Args:
        rules: path, rights to what lies there and below it, and whether it has to be there.

    Raises:
        OSError: the kernel has no Landlock, or a path that has to be there is not.
    """
    version = landlock_version()
    handled = sum(rights for since, rights in _FILE_RIGHTS.items() if version >= since)
    ruled = [
        handled,
        _NETWORK_RIGHTS if version >= _NETWORK_SINCE else 0,
        _SCOPES if version >= _SCOPES_SINCE else 0,
    ]
    # Earlier kernels take the longer structure as long as what they do not know is zero.
    attributes = (ctypes.c_uint64 * 3)(*ruled)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    ruleset = _checked(_libc.syscall(_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, 0))
    for path, rights, required in rules:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            if required:
                raise
            continue
        if not os.path.isdir(path):  # noqa: PTH112 - pathlib takes long to import
            rights &= _OF_ONE_FILE
        # struct landlock_path_beneath_attr is packed: 8 bytes of rights, 4 of the descriptor
        beneath = (rights & handled).to_bytes(8, sys.byteorder) + descriptor.to_bytes(4, sys.byteorder)
        _checked(_libc.syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, beneath, 0))
        os.close(descriptor)
    # Rules hold on to inodes, and those of /proc are made anew once nobody has them open: the command keeps its own.
    os.set_inheritable(os.open("/proc/self", os.O_PATH), True)
    _checked(_libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def filter_calls(needs: dict[str, Any]) -> None:
    """Load the filter of system calls; with ``exec_once`` the next exec is the last one.

    Args:
        needs: ``program`` and ``pid_at`` of ``worker.confinement.seccomp.Filter``, the first in base64; ``exec_once``.

    Raises:
        OSError: the kernel refused.
    """
    program = bytearray(b64decode(needs["program"]))
    for offset in needs["pid_at"]:
        program[offset : offset + 4] = os.getpid().to_bytes(4, sys.byteorder)
    code = (ctypes.c_char * len(program)).from_buffer(program)

    class FilterProgram(ctypes.Structure):  # struct sock_fprog
        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    loaded = FilterProgram(len(program) // 8, ctypes.addressof(code))
    flags = _SECCOMP_FILTER_FLAG_NEW_LISTENER if needs["exec_once"] else 0
    number = ctypes.c_long(SECCOMP_NUMBERS[os.uname().machine])
    listener = _checked(_libc.syscall(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(loaded)))
    if needs["exec_once"]:
        start_new_thread(_let_one_through, (listener,))


def _let_one_through(listener: int) -> None:
    """Let the next call that the filter reports go on, which is the exec, and none after it.

    Without a listener the kernel refuses the call, also this one if it could not be answered: nothing hangs.
    """
    try:
        notice = (ctypes.c_char * _NOTIF_BYTES)()
        _checked(_libc.ioctl(listener, ctypes.c_ulong(_NOTIF_RECV), notice))
        # struct seccomp_notif_resp: id, value, error, flags
        answer = notice.raw[:8] + bytes(12) + _SECCOMP_USER_NOTIF_FLAG_CONTINUE.to_bytes(4, sys.byteorder)
        _checked(_libc.ioctl(listener, ctypes.c_ulong(_NOTIF_SEND), answer))
    finally:
        os.close(listener)


# In this order: a namespace is made with rights that are dropped next, and without new privileges anybody may go on.
CONTROLS: dict[str, Callable[[Any], None]] = {
    "namespaces": leave_network,
    "capabilities": drop_capabilities,
    "no_new_privileges": refuse_new_privileges,
    "landlock": restrict_files,
    "seccomp": filter_calls,
}


def confine(controls: dict[str, Any]) -> None:
    """Apply the controls.

    Raises:
        OSError: one of them is not to be had.
    """
    for name, apply in CONTROLS.items():
        if name in controls:
            try:
                apply(controls[name])
            except OSError as error:
                raise OSError(error.errno, f"{name}: {error.strerror}", error.filename) from None


def probe(controls: dict[str, Any]) -> dict[str, str | None]:
    """Apply each of the controls; why it cannot be had, or None."""
    found: dict[str, str | None] = {}
    for name, apply in CONTROLS.items():
        if name in controls:
            try:
                apply(controls[name])
            except OSError as error:
                found[name] = error.strerror
            else:
                found[name] = None
    return found


def become(command: list[str]) -> None:
    """Exec ``command``; the thread that lets it through goes on meanwhile.

    Raises:
        OSError: it cannot be executed.
    """
    # Not os.execv, which keeps the interpreter's lock. The environment is the one that this process was given.
    arguments = (ctypes.c_char_p * (len(command) + 1))(*map(os.fsencode, command), None)
    _checked(_libc.execv(arguments[0], arguments))


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def main(arguments: list[str]) -> int:
    """Apply the spec and exec the command; returns only if that failed, or if it was a probe."""
    spec: dict[str, Any] = json.loads(arguments[0])
    command = arguments[1:]
    controls = spec.get("controls", {})
    if spec.get("probe"):
        print(json.dumps(probe(controls)), flush=True)  # noqa: T201 - whoever probes reads it
        os._exit(0)
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
        if spec.get("niceness"):
            stand_back(spec["niceness"])
        confine(controls)
        become(command)
    except OSError as error:
        print(f"launcher: cannot start {command[0]}: {error}", file=sys.stderr)  # noqa: T201 - stderr is this script's only voice
    return EXIT_NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
