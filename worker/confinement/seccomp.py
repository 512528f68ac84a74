"""The seccomp filter of a runner: allowed system calls, by name and number.

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

# System calls that a runner may make, by name, with their numbers on x86-64 and on 64-bit Arm.
#
# An allow-list, for what nobody thought of is the attack: io_uring, bpf, userfaultfd, perf_event_open, keyctl and
# whatever the next kernel brings are refused because they do not stand here. The numbers are the kernel's promise to
# user space and never change (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h); "-" where
# there is no such call.

# Names in groups, each as NAME:NUMBER ON X86-64:NUMBER ON ARM.
_ALLOWED = (
    # Memory of its own, and code made at run time.
    """
    mmap:9:222 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214 mlock:149:228
    mlock2:325:284 munlock:150:229 msync:26:227 mincore:27:232 mbind:237:235 get_mempolicy:239:236
    set_mempolicy:238:237 set_mempolicy_home_node:450:450 pkey_alloc:330:289 pkey_free:331:290
    pkey_mprotect:329:288 membarrier:324:283 memfd_create:319:279 mseal:462:462 map_shadow_stack:453:453
    """,
    # Files: which ones is Landlock's business. No links, modes, owners, attributes or times by name: Landlock does not
    # watch over these.
    """
    read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 preadv:295:69 pwritev:296:70
    preadv2:327:286 pwritev2:328:287 open:2:- openat:257:56 openat2:437:437 creat:85:- close:3:57
    close_range:436:436 lseek:8:62 stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 statfs:137:43
    fstatfs:138:44 access:21:- faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:-
    getdents64:217:61 getcwd:79:17 chdir:80:49 fchdir:81:50 mkdir:83:- mkdirat:258:34 rmdir:84:- unlink:87:-
    unlinkat:263:35 rename:82:- renameat:264:38 renameat2:316:276 ftruncate:77:46 fallocate:285:47 fsync:74:82
    fdatasync:75:83 sync_file_range:277:84 fadvise64:221:223 readahead:187:213 flock:73:32 dup:32:23 dup2:33:-
    dup3:292:24 pipe:22:- pipe2:293:59 umask:95:166 copy_file_range:326:285 sendfile:40:71 cachestat:451:451
    """,
    # Itself: its threads, its signals, its limits.
    """
    exit:60:93 exit_group:231:94 futex:202:98 futex_waitv:449:449 futex_wake:454:454 futex_wait:455:455
    futex_requeue:456:456 set_robust_list:273:99 get_robust_list:274:100 rseq:334:293 set_tid_address:218:96
    gettid:186:178 getpid:39:172 getppid:110:173 getpgrp:111:- getpgid:121:155 getsid:124:156 getuid:102:174
    geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158 getresuid:118:148 getresgid:120:150
    capget:125:90 sched_yield:24:124 sched_getaffinity:204:123 sched_getparam:143:121 sched_getscheduler:145:120
    sched_get_priority_max:146:125 sched_get_priority_min:147:126 getpriority:140:141 wait4:61:260 waitid:247:95
    rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigtimedwait:128:137
    rt_sigsuspend:130:133 sigaltstack:131:132 restart_syscall:219:128 arch_prctl:158:- getrlimit:97:163
    setrlimit:160:164 getrusage:98:165 sysinfo:99:179 uname:63:160 getrandom:318:278 getcpu:309:168
    """,
    # Time.
    """
    nanosleep:35:101 clock_nanosleep:230:115 clock_gettime:228:113 clock_getres:229:114 gettimeofday:96:169
    time:201:- times:100:153 alarm:37:- pause:34:- getitimer:36:102 setitimer:38:103 timer_create:222:107
    timer_settime:223:110 timer_gettime:224:108 timer_getoverrun:225:109 timer_delete:226:111
    timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87
    """,
    # Waiting.
    """
    poll:7:- ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21
    epoll_wait:232:- epoll_pwait:281:22 epoll_pwait2:441:441 eventfd:284:- eventfd2:290:19
    """,
)
# Of a runner that has yet to confine itself further.
_NARROWING = "landlock_create_ruleset:444:444 landlock_add_rule:445:445 landlock_restrict_self:446:446 seccomp:317:277"
# Allowed with some arguments, see ``worker.confinement.seccomp``.
_JUDGED = """
    clone:56:220 clone3:435:435 execve:59:221 execveat:322:281 kill:62:129 tgkill:234:131 prlimit64:302:261
    sched_setaffinity:203:122 prctl:157:167 ioctl:16:29 fcntl:72:25 utimensat:280:88
"""
# Machine as the kernel names it -> which of the two numbers counts.
_COLUMNS = {"x86_64": 0, "aarch64": 1}
# The newest call of these tables' kernels: whatever is newer does not exist for a runner.
NEWEST = 462


def named(machine: str) -> dict[str, int]:
    """Numbers of the calls that are allowed whatever their arguments, by name.

    Args:
        machine: as ``os.uname().machine`` says.

    Raises:
        KeyError: nothing is known of this machine.
    """
    return _numbers(" ".join(_ALLOWED), _COLUMNS[machine])


def judged(machine: str) -> dict[str, int]:
    """Numbers of the calls whose arguments decide, by name; those that the machine has.

    Args:
        machine: as ``os.uname().machine`` says.

    Raises:
        KeyError: nothing is known of this machine.
    """
    return _numbers(_JUDGED, _COLUMNS[machine])


def _numbers(group: str, column: int) -> dict[str, int]:
    entries = (entry.split(":") for entry in group.split())
    return {name: int(numbers[column]) for name, *numbers in entries if numbers[column] != "-"}


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
    """An assembled filter."""

    program: bytes  # struct sock_filter, one after the other
    # offsets in ``program``, in bytes, of the words that become the process id of whoever loads it
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
    may_call = named(machine) | (_numbers(_NARROWING, _COLUMNS[machine]) if narrows else {})
    for low, high in _runs(sorted(may_call.values())):
        if low == high:
            program.add(_EQUAL, low, 0, 1)
        elif low == 0:
            program.add(_GREATER, high, 1, 0)
        else:
            program.add(_GREATER, high, 2, 0)
            program.add(_GREATER, low - 1, 0, 1)
        program.end(_ALLOW)
    for name, number in judged(machine).items():
        rule = _Assembler()
        _judge(rule, name, _NOTIFY if exec_once else _ALLOW)
        # The rule ends by itself, whatever it finds: past it the word that is loaded is still the call's number.
        program.add(_EQUAL, number, 0, len(rule.instructions))
        start = _INSTRUCTION.size * len(program.instructions)
        program.pid_at += [start + offset for offset in rule.pid_at]
        program.instructions += rule.instructions
    program.add(_GREATER, NEWEST, 0, 1)
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
