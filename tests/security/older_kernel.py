"""Runs a command as on a kernel that lacks some system calls: ``python older_kernel.py 444,445 COMMAND...``.

A filter of its own lets the calls with these numbers fail with ENOSYS, for the command and all that it starts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
# By name: those of x86-64 and of 64-bit Arm.
CALLS = {
    "landlock": {"x86_64": (444, 445, 446), "aarch64": (444, 445, 446)},
    "unshare": {"x86_64": (272,), "aarch64": (97,)}, "seccomp": {"x86_64": (317,), "aarch64": (277,)},
}  # fmt: skip


def numbers(*names: str) -> str:
    return ",".join(str(number) for name in names for number in CALLS[name][os.uname().machine])


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def lack(missing: list[int]) -> None:
    code = [(LOAD, 0, 0, 0)]
    for number in missing:
        code += [(EQUAL, 0, 1, number), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
    code.append((RETURN, 0, 0, ALLOW))
    packed = b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(packed, len(packed))
    assert LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    program = Program(len(code), ctypes.addressof(buffer))
    assert LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0) == 0


if __name__ == "__main__":
    lack([int(number) for number in sys.argv[1].split(",") if number])
    os.execv(sys.argv[2], sys.argv[2:])
