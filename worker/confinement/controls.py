"""The kernel controls that confine a runner, and which of them are available to this process.

What is here is found out by trying, in a process that does nothing else. A runner is started under all that was found,
or not at all. What is missing is told: in the worker's log, by ``quantmill doctor``, and by a worker that is to have
them all and refuses to start.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from service.contracts.command_errors import SandboxIncompleteError
from worker import launcher
from worker.confinement.seccomp import filter_for

Mode = Literal["auto", "require", "off"]
_PROBE_SECONDS = 60.0


@dataclass(frozen=True)
class Control:
    """One control."""

    name: str  # word for logs, and that of the launcher
    stops: str  # what a runner cannot do under it
    needs: str  # what it takes
    required: bool = True  # a worker that is to have all controls does not start without it


NAMESPACES = Control(
    "namespaces",
    "access to any network, even if a socket was opened despite seccomp; shared memory of others",
    "CAP_SYS_ADMIN, or user namespaces for plain users (sysctl, AppArmor and a container's filter may forbid them)",
    required=False,
)
CAPABILITIES = Control("capabilities", "acting as root, even if the worker does", "any Linux")
NO_NEW_PRIVILEGES = Control("no_new_privileges", "gaining privileges with set-user-id programs", "Linux 3.5")
LANDLOCK = Control(
    "landlock",
    "reading or writing files other than its inputs and its scratch folder, tracing processes, reading "
    "their environment",
    "Linux 5.13 with landlock among its security modules (lsm=)",
)
SECCOMP = Control(
    "seccomp",
    "sockets, new processes and sessions, signals to others, links, file modes, rare system calls",
    "Linux 3.17 with CONFIG_SECCOMP_FILTER, on x86-64 or 64-bit Arm",
)
EXEC = Control("exec", "executing another program", "Linux 5.5, with seccomp")
CONTROLS = (NAMESPACES, CAPABILITIES, NO_NEW_PRIVILEGES, LANDLOCK, SECCOMP, EXEC)


@dataclass(frozen=True)
class Found:
    """What was found."""

    missing: Mapping[str, str]  # why a control is not here, by its name; those that are not named are

    def has(self, control: Control) -> bool:
        """True if it is here."""
        return control.name not in self.missing

    @property
    def held(self) -> tuple[str, ...]:
        """Names of the controls that are here."""
        return tuple(control.name for control in CONTROLS if self.has(control))

    def require(self) -> None:
        """Make sure that runners can be held as they must be.

        Raises:
            SandboxIncompleteError: a control is missing without which they are not; names it.
        """
        missing = [control for control in CONTROLS if control.required and not self.has(control)]
        if missing:
            told = "; ".join(f"{control.name} ({self.missing[control.name]})" for control in missing)
            raise SandboxIncompleteError(
                f"QUANTMILL_SANDBOX is require, but these controls are not available for runners: {told}.",
                hint=f"{missing[0].name} requires {missing[0].needs}. `quantmill doctor` shows all controls; "
                "with QUANTMILL_SANDBOX=auto the worker starts without the missing ones.",
                missing=[control.name for control in missing],
            )

    def spec(self, rules: list[tuple[str, int, bool]], *, narrows: bool = False) -> dict[str, Any]:
        """What the launcher takes, see ``worker.launcher``.

        Args:
            rules: of Landlock, see ``worker.confinement.places``.
            narrows: the runner is going to put itself under ``narrowed`` rules.
        """
        needs = _needs(rules, exec_once=self.has(EXEC), narrows=narrows)
        return {name: value for name, value in needs.items() if name not in self.missing}

    def narrowed(self, rules: list[tuple[str, int, bool]]) -> dict[str, Any]:
        """What a runner applies itself that was started under ``spec(..., narrows=True)``, as the launcher does.

        From then on it is held as one that was started under ``spec(rules)``, and can narrow nothing more.
        """
        both = {name: needs for name, needs in self.spec(rules).items() if name in (LANDLOCK.name, SECCOMP.name)}
        if SECCOMP.name in both:
            both[SECCOMP.name]["exec_once"] = False  # it has been let through, and its listener is gone
        return both


def switched_off() -> Found:
    """As if there were no control at all, because somebody wants none."""
    return Found({control.name: "QUANTMILL_SANDBOX is off" for control in CONTROLS})


@cache
def find_controls() -> Found:
    """Try all controls, once for this process.

    Raises:
        OSError: no process could be made.
    """
    if os.uname().machine not in launcher.SECCOMP_NUMBERS:
        unknown = f"its system calls are not known on {os.uname().machine}"
        return Found({**_probed(_needs([], exec_once=None)), SECCOMP.name: unknown, EXEC.name: unknown})
    missing = _probed(_needs([], exec_once=True))
    if SECCOMP.name not in missing:
        return Found(missing)
    # Without a listener the kernel may still have filters: then only exec is left open.
    why = missing[SECCOMP.name]
    return Found({**_probed(_needs([], exec_once=False)), EXEC.name: why})


def _needs(rules: list[tuple[str, int, bool]], *, exec_once: bool | None, narrows: bool = False) -> dict[str, Any]:
    needs: dict[str, Any] = dict.fromkeys((NAMESPACES.name, CAPABILITIES.name, NO_NEW_PRIVILEGES.name))
    needs[LANDLOCK.name] = rules
    if exec_once is not None and os.uname().machine in launcher.SECCOMP_NUMBERS:
        found = filter_for(exec_once=exec_once, narrows=narrows)
        program = base64.b64encode(found.program).decode()
        needs[SECCOMP.name] = {"program": program, "pid_at": found.pid_at, "exec_once": exec_once}
    return needs


def _probed(needs: dict[str, Any]) -> dict[str, str]:
    """Names of the controls that cannot be had, and why.

    Raises:
        OSError: no process could be made, or it did not answer.
    """
    spec = json.dumps({"probe": True, "controls": needs})
    command = [sys.executable, "-I", "-S", launcher.__file__, spec]
    libraries = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, env=libraries, check=False)
    if done.returncode != 0:
        raise OSError(f"the runner controls cannot be tested: exit code {done.returncode}: {done.stderr[-1000:]}")
    found: dict[str, str | None] = json.loads(done.stdout)
    return {name: why for name, why in found.items() if why is not None}
