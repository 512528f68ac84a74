"""With what the command line ends: one number for each thing that a script may want to tell from others."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of ``quantmill``. They stay as they are; docs/cli.md lists them."""

    DONE = 0
    ERROR = 1  # told with a code, a place and a hint
    USAGE = 2
    GATE_FAILED = 3
    GATE_UNDECIDED = 4
    WAIT_TIMEOUT = 5
    NOT_VERIFIED = 6
    INTERNAL = 70  # a fault of ours, as in sysexits.h
    INTERRUPTED = 130


# Errors that have a number of their own, by code.
EXITS_BY_CODE = {
    "wait-timeout": ExitCode.WAIT_TIMEOUT,
    "not-verified": ExitCode.NOT_VERIFIED,
    "attestation-unreadable": ExitCode.NOT_VERIFIED,
    "not-reproduced": ExitCode.NOT_VERIFIED,
}
GATE_EXITS = {"fail": ExitCode.GATE_FAILED, "undecided": ExitCode.GATE_UNDECIDED}
