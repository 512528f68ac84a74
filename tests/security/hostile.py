"""A runner that was taken over: it tries everything that a runner must not do, and says of each how it went.

Started by the tests as the command of a sandbox. The task file holds what it aims at (addresses, paths, pids); the
answer is one line of the runner's protocol for each try, ``NAME: refused ERROR`` or ``NAME: DONE what came of it``.
What is refused by the kernel is an OSError; whatever else happens counts as done.
"""

# ruff: noqa: PTH101, PTH104, PTH108, PTH123, PTH208, PTH211 - what is tried are calls of the kernel, by their own names

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
AIM: dict[str, Any] = json.loads(Path(sys.argv[-1]).read_text())
TRIES: dict[str, Callable[[], object]] = {}
# Numbers on x86-64, of each kind of call that no runner needs; on other machines these tries are left out.
RARE = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_open": 434, "pidfd_getfd": 438,
    "process_madvise": 440, "io_uring_setup": 425, "bpf": 321, "keyctl": 250, "userfaultfd": 323,
    "perf_event_open": 298, "mount": 165, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
    "mknodat": 259, "open_by_handle_at": 304, "init_module": 175, "kexec_load": 246, "settimeofday": 164, "iopl": 172,
    "syslog": 103, "personality": 135, "shmget": 29, "memfd_secret": 447, "setuid": 105, "capset": 126,
    "setpriority": 141, "sched_setscheduler": 144, "inotify_init1": 294, "landlock_create_ruleset": 444, "seccomp": 317,
    "splice": 275, "rt_sigqueueinfo": 129, "tkill": 200, "fsetxattr": 190, "truncate": 76, "utimes": 235,
    "a call of the future": 900,
}  # fmt: skip


def attempt(name: str) -> Callable[[Callable[[], object]], Callable[[], object]]:
    def keep(function: Callable[[], object]) -> Callable[[], object]:
        TRIES[name] = function
        return function

    return keep


def checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def call(number: int, *arguments: object) -> int:
    return checked(LIBC.syscall(ctypes.c_long(number), *arguments))


def read(path: str) -> str:
    with open(path, "rb") as stream:
        return repr(stream.read(200))


def overwrite(path: str) -> str:
    with open(path, "r+b") as stream:
        stream.write(b"taken over")
    return "written"


def connect(family: int, kind: int, address: Any) -> str:
    with socket.socket(family, kind) as link:
        link.settimeout(5)
        link.connect(address)
    return "connected"


# Secrets: what its supervisor and others hold.
for what in ("environ", "maps", "mem", "cmdline", "fd", "cwd/", "root/etc/passwd", "stack"):
    TRIES[f"read {what} of the parent"] = lambda what=what: (
        os.listdir(path) if Path(path := f"/proc/{os.getppid()}/{what}").is_dir() else read(path)
    )
TRIES["read environ of init"] = lambda: read("/proc/1/environ")
TRIES["read cmdline of init"] = lambda: read("/proc/1/cmdline")
TRIES["list all processes"] = lambda: os.listdir("/proc")

# Files of others.
for name, path in AIM["secrets"].items():
    TRIES[f"read {name}"] = lambda path=path: read(path)
    TRIES[f"write {name}"] = lambda path=path: overwrite(path)
for name, path in AIM["folders"].items():
    TRIES[f"list {name}"] = lambda path=path: os.listdir(path)
    TRIES[f"create in {name}"] = lambda path=path: Path(path, "planted").write_text("x")
    TRIES[f"remove {name}"] = lambda path=path: os.rename(path, "stolen")
TRIES["write an input"] = lambda: overwrite(AIM["input"])
TRIES["make an input writable"] = lambda: os.chmod(AIM["input"], 0o777)
TRIES["remove an input"] = lambda: os.unlink(AIM["target"])
TRIES["shorten an input"] = lambda: os.truncate(AIM["input"], 0)
TRIES["touch a file of others"] = lambda: os.utime(AIM["secrets"]["canary"])
TRIES["make a folder of others accessible"] = lambda: os.chmod(AIM["folders"]["store"], 0o777)
TRIES["give a file away"] = lambda: os.chown(sys.argv[-1], 12345, 12345)
TRIES["set the user id bit"] = lambda: os.chmod(sys.argv[-1], 0o4755)
TRIES["set an attribute"] = lambda: os.setxattr(AIM["input"], "user.taken", b"over")
TRIES["hard link into scratch"] = lambda: os.link(AIM["input"], "linked")
TRIES["hard link of a secret"] = lambda: os.link(AIM["secrets"]["canary"], "linked")
TRIES["symlink in the output"] = lambda: os.symlink(AIM["secrets"]["canary"], "report.json")
TRIES["rename across"] = lambda: os.rename(sys.argv[-1], Path(AIM["folders"]["store"], "moved"))
TRIES["write through /proc/self/root"] = lambda: overwrite("/proc/self/root" + AIM["secrets"]["canary"])
TRIES["read /etc/passwd"] = lambda: read("/etc/passwd")
TRIES["read /etc/shadow"] = lambda: read("/etc/shadow")
TRIES["write outside scratch"] = lambda: Path(AIM["outside"], "planted").write_text("x")
TRIES["write to /tmp"] = lambda: os.close(os.open("/tmp", os.O_TMPFILE | os.O_RDWR))
TRIES["write to /dev/shm"] = lambda: os.close(os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR))
TRIES["make a named pipe"] = lambda: os.mkfifo("pipe")
TRIES["make a device"] = lambda: os.mknod("device", 0o600 | 0o020000, os.makedev(1, 1))
TRIES["open own package for writing"] = lambda: os.close(os.open(AIM["package"], os.O_RDWR))
TRIES["lower its oom score"] = lambda: Path("/proc/self/oom_score_adj").write_text("-1000")
TRIES["open a disk"] = lambda: [read(f"/dev/{name}") for name in ("vda", "sda", "nvme0n1", "mem", "kmsg")]

# The network.
for name, (family, kind, address) in AIM["addresses"].items():
    aim = tuple(address) if isinstance(address, list) else address
    aim = "\0" + aim[1:] if isinstance(aim, str) and aim.startswith("@") else aim
    TRIES[f"connect to {name}"] = lambda family=family, kind=kind, aim=aim: connect(family, kind, aim)
TRIES["send by UDP"] = lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53))
TRIES["resolve a name"] = lambda: socket.getaddrinfo("example.org", 443)
TRIES["listen"] = lambda: socket.create_server(("127.0.0.1", 0))
TRIES["socketpair"] = lambda: socket.socketpair()
for family in ("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "AF_ALG", "AF_INET6"):
    TRIES[f"socket {family}"] = lambda family=family: socket.socket(getattr(socket, family), socket.SOCK_RAW)

# Processes.
TRIES["fork"] = lambda: os.fork() or os._exit(0)
TRIES["spawn"] = lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", "pass"], {})
TRIES["run a program"] = lambda: subprocess.run(["/bin/true"], check=True)
TRIES["become another program"] = lambda: os.execv("/bin/true", ["/bin/true"])
TRIES["become its own interpreter"] = lambda: os.execv(sys.executable, [sys.executable, "-c", "pass"])
TRIES["execute from memory"] = lambda: os.execve(os.memfd_create("x"), ["x"], {})
TRIES["clone a process"] = lambda: call(56, 17, 0, 0, 0, 0) or os._exit(0)
TRIES["clone3"] = lambda: call(435, (ctypes.c_uint64 * 8)(0, 0, 0, 0, 17), 64) or os._exit(0)
TRIES["clone into namespaces"] = lambda: call(56, 0x10000 | 0x800 | 0x100 | 0x20000, 0, 0, 0, 0)
TRIES["leave the session"] = lambda: os.setsid()
TRIES["leave the group"] = lambda: os.setpgid(0, 0)
TRIES["outlive the parent"] = lambda: checked(LIBC.prctl(1, 0, 0, 0, 0))
TRIES["be traced by anybody"] = lambda: checked(LIBC.prctl(0x59616D61, -1, 0, 0, 0))
TRIES["adopt orphans"] = lambda: checked(LIBC.prctl(36, 1, 0, 0, 0))
TRIES["kill the parent"] = lambda: os.kill(os.getppid(), 0)
TRIES["kill everybody"] = lambda: os.kill(-1, 0)
TRIES["kill the parent's group"] = lambda: os.killpg(os.getpgid(os.getppid()), 0)
TRIES["kill a bystander"] = lambda: os.kill(AIM["bystander"], signal.SIGKILL)
TRIES["signal a bystander's thread"] = lambda: call(234, AIM["bystander"], AIM["bystander"], 9)
TRIES["limit a bystander"] = lambda: resource.prlimit(AIM["bystander"], resource.RLIMIT_NOFILE, (0, 0))
TRIES["pin a bystander"] = lambda: os.sched_setaffinity(AIM["bystander"], {0})
TRIES["raise a limit"] = lambda: checked(LIBC.setrlimit(resource.RLIMIT_CORE, (ctypes.c_uint64 * 2)(1, 1)))
TRIES["trace the parent"] = lambda: call(101, 16, os.getppid(), 0, 0)
TRIES["be traced by the parent"] = lambda: call(101, 0, 0, 0, 0)
TRIES["type into a terminal"] = lambda: fcntl.ioctl(0, 0x5412, b"x")


@attempt("have a descriptor's signal kill a bystander")
def own_signal() -> str:
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETOWN, AIM["bystander"])
    fcntl.fcntl(reading, 10, signal.SIGKILL)  # F_SETSIG
    fcntl.fcntl(reading, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writing, b"x")
    return "sent"


@attempt("regain capabilities")
def capabilities() -> str:
    sets = [line.split() for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Cap")]
    if any(int(bits, 16) for _, bits in sets if _ != "CapBnd:") or (os.getuid() == 0 and int(sets[3][1], 16)):
        return str(sets)
    raise PermissionError(1, "it has none")


@attempt("get new privileges")
def privileges() -> str:
    if "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        raise PermissionError(1, "no_new_privs")
    return "it may"


if os.uname().machine == "x86_64":
    for name, number in RARE.items():
        TRIES[f"call {name}"] = lambda number=number: call(number, *(ctypes.c_long(0),) * 6)


def say(told: str) -> None:
    os.write(3, (json.dumps({"line": "log", "message": told}) + "\n").encode())


def main() -> None:
    # An honest runner has threads, files of its own, and its input.
    thread = threading.Thread(target=Path("made").write_text, args=("by a thread",))
    thread.start()
    thread.join()
    say(f"honest: {read('made')} {read(AIM['input'])}")
    for name in AIM["only"] or TRIES:
        try:
            came = TRIES[name]()
        except OSError as error:
            told = f"{name}: refused {error}"
        else:
            told = f"{name}: DONE {str(came)[:200]}"
        say(told)


main()
