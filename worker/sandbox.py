"""Starts the runner as a fresh process under limits, and ends it with everything it started.

The child is a new session and process group with an environment from an allow-list, the scratch folder as working
directory, rlimits, the controls of ``worker.confinement``, a death signal bound to this process, and three channels:
standard input (the end of the lease, see ``worker.runner_input``), descriptor 3 (RunnerLines) and standard error (kept
up to a cap).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from service import failpoints
from service.contracts.errors import Problem, TooComplexError
from service.settings import Settings
from service.tables import Job
from worker import launcher
from worker.confinement.controls import LANDLOCK, Found, Mode, find_controls, switched_off
from worker.confinement.places import PACKAGE_ROOT, Places, Rule, import_root, rules_before, rules_for
from worker.quantizer.graph.sizes import VARIABLE as LARGE_VARIABLE
from worker.runner_process import RunnerProcess, StartedRunner

# -P: the scratch folder is the working directory and holds files that users named; nothing is imported from there.
RUNNER_COMMAND = (sys.executable, "-P", "-m", "worker.runner")
# Of the process in which a written model is tried; not by an import: that loads onnxruntime, which no supervisor does.
TRIAL_COMMAND = (sys.executable, "-P", str(Path(launcher.__file__).with_name("quantizer") / "written" / "program.py"))
DEFAULT_FILE_BYTES = 64 * 1024**3
DEFAULT_OPEN_FILES = 1024
# Threads that a runner may have beside all that runs on the machine when it starts: the kernel counts those of the
# user.
DEFAULT_MORE_THREADS = 4096
# Virtual memory that a process reserves on top of what a job uses: libraries, thread stacks, allocator arenas.
RESERVED_BYTES = 2 * 1024**3
# How often a model may be mapped at once: by the job, by sessions of the runtime, and as what is made of it.
MAPPINGS = 8
# Of 1000: where memory runs out, the kernel ends a runner, not its worker or the database.
OOM_SCORE_ADJUSTMENT = 500
_KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "VIRTUAL_ENV",
    failpoints.VARIABLE,  # set by tests of faults only
    LARGE_VARIABLE,  # by tests of large models only
)
# Both CUDA and ROCm heed it.
GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"
NO_GPUS = {GPU_VARIABLE: ""}
# Numbers of GPUs are those of nvidia-smi; CUDA's own are by speed.
GPU_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
_LOADAVG = Path("/proc/loadavg")


@dataclass(frozen=True)
class SandboxLimits:
    """Limits of one runner process; None means none."""

    # memory that the job itself may use; the address space limit is this plus RESERVED_BYTES, and what it maps
    memory_bytes: int | None = None
    # address space for files that are mapped, whose pages the kernel takes back where it needs them
    mapped_bytes: int = 0
    cpu_seconds: int | None = None  # CPU time over all threads
    file_bytes: int = DEFAULT_FILE_BYTES  # largest file it may write
    open_files: int = DEFAULT_OPEN_FILES  # descriptors it may hold
    # threads that its user may have beside those that the machine has now; root may have any number
    more_threads: int = DEFAULT_MORE_THREADS
    gpus: bool = True  # False: it sees none
    niceness: int = 0  # how far it stands back where CPU time is short (man 2 nice)

    def rlimits(self) -> dict[str, int]:
        """Names and values for setrlimit."""
        limits = {"RLIMIT_CORE": 0, "RLIMIT_FSIZE": self.file_bytes, "RLIMIT_NOFILE": self.open_files}
        # the load average names the threads of all processes of this machine behind the slash (man 5 proc_loadavg)
        limits["RLIMIT_NPROC"] = int(_LOADAVG.read_text().split()[3].partition("/")[2]) + self.more_threads
        if self.memory_bytes is not None:
            limits["RLIMIT_AS"] = self.memory_bytes + RESERVED_BYTES + self.mapped_bytes
        if self.cpu_seconds is not None:
            limits["RLIMIT_CPU"] = max(1, self.cpu_seconds)
        return limits


@dataclass(frozen=True)
class Terms:
    """Under which a runner works."""

    command: list[str]  # what it is
    environment: dict[str, str]  # the whole of it
    limits: dict[str, int]  # see ``SandboxLimits.rlimits``
    rules: list[Rule]  # of Landlock; none where there is no Landlock


class Sandbox:
    """Knows how to start runners.

    Args:
        command: what to start; the task file's path is appended.
        variables: environment variables given to the runner in addition to the allow-list.
        cores: numbers of the cores that it is bound to; none: it may use all that this process may.
        mode: auto and require: under all controls that are here; off: under limits alone.
        places: what every runner may reach beside its scratch folder.
    """

    def __init__(
        self,
        command: Sequence[str] = RUNNER_COMMAND,
        *,
        variables: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
        mode: Mode = "auto",
        places: Places | None = None,
    ) -> None:
        self._command = tuple(command)
        self._variables = dict(variables or {})
        self._cores = tuple(cores)
        self._mode = mode
        self._places = Places() if places is None else places

    def controls(self) -> Found:
        """Those that hold the runners.

        Raises:
            OSError: they could not be looked for.
        """
        return switched_off() if self._mode == "off" else find_controls()

    def environment(self, scratch: Path, *, confined: bool = False) -> dict[str, str]:
        """The runner's whole environment: no settings, no keys, no addresses of ours."""
        environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        environment |= {
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "PYTHONPATH": str(import_root(scratch) if confined else PACKAGE_ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            # On a machine with many cores the allocator would reserve more address space than the limit leaves.
            "MALLOC_ARENA_MAX": "8",
            "ORT_DISABLE_TELEMETRY": "1",  # see worker.quantizer
        }
        return environment | self._variables

    def start(
        self,
        task_file: Path,
        *,
        scratch: Path,
        limits: SandboxLimits,
        places: Places | None = None,
    ) -> RunnerProcess:
        """Start a runner on ``task_file``, with ``scratch`` as its working directory.

        Args:
            task_file: what it is to do.
            scratch: exists.
            limits: see Limits.
            places: what this one may reach beside its scratch folder.

        Raises:
            OSError: no process or pipe could be made.
        """
        terms = self.terms(task_file, scratch=scratch, limits=limits, places=places)
        controls = self.controls().spec(terms.rules)
        return self.begin(terms, cwd=scratch, controls=controls, niceness=limits.niceness).runner()

    def start_trial(self, folder: Path, *, scratch: Path, limits: SandboxLimits) -> RunnerProcess:
        """Start a process that tries the written model in ``folder``: under the limits of its runner, but without GPUs.

        Raises:
            OSError: no process or pipe could be made.
        """
        trials = Sandbox(
            TRIAL_COMMAND, variables=self._variables, cores=self._cores, mode=self._mode, places=self._places
        )
        return trials.start(folder, scratch=scratch, limits=replace(limits, gpus=False))

    def terms(self, task_file: Path, *, scratch: Path, limits: SandboxLimits, places: Places | None) -> Terms:
        """Under which a runner works on ``task_file``; arguments as of ``start``."""
        command = [*self._command, str(task_file)]
        reached = self._reached(places or Places())
        confined = self.controls().has(LANDLOCK)
        environment = self.environment(scratch, confined=confined) | ({} if limits.gpus else NO_GPUS)
        rules = rules_for(command, scratch, reached, gpus=limits.gpus) if confined else []
        return Terms(command, environment, limits.rlimits(), rules)

    def terms_before(self, options: Sequence[str], *, scratch_root: Path, places: Places) -> Terms:
        """Under which a runner waits for its task file, that of any job within these places; see ``rules_before``.

        Args:
            options: take the place of the task file.
            scratch_root: the folder in which its own will be.
            places: what else it may reach then.
        """
        command = [*self._command, *options]
        confined = self.controls().has(LANDLOCK)
        rules = rules_before(command, scratch_root, self._reached(places)) if confined else []
        return Terms(command, self.environment(scratch_root), {"RLIMIT_CORE": 0}, rules)

    def begin(self, terms: Terms, *, cwd: Path, controls: Mapping[str, Any], niceness: int = 0) -> StartedRunner:
        """Start a process under these terms.

        Args:
            terms: but for their rules, which are among the controls.
            cwd: its working directory.
            controls: as the launcher takes them.
            niceness: how far it stands back.

        Raises:
            OSError: no process or pipe could be made.
        """
        read_fd, write_fd = os.pipe()
        try:
            told_fd, stdin_fd = os.pipe()
        except OSError:
            os.close(read_fd)
            os.close(write_fd)
            raise
        os.set_blocking(stdin_fd, False)
        spec: dict[str, Any] = {
            "parent": os.getpid(),
            "death_signal": signal.SIGKILL,
            "limits": terms.limits,
            "line_fd": write_fd,
            "oom_score_adj": OOM_SCORE_ADJUSTMENT,
            "cores": self._cores,
            "niceness": niceness,
            "controls": controls,
        }
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", launcher.__file__, json.dumps(spec), *terms.command],
                cwd=cwd,
                env=terms.environment,
                stdin=told_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        except BaseException:
            os.close(read_fd)
            os.close(stdin_fd)
            raise
        finally:
            os.close(write_fd)
            os.close(told_fd)
        return StartedRunner(process, read_fd, stdin_fd)

    def _reached(self, places: Places) -> Places:
        return self._places + places + Places(writable=tuple(failpoints.waiting_places()))


# What one inspection may take, by the size of what it looks at: time of a CPU, time on the clock, memory.
#
# A file of a kilobyte can ask for hours of work; whoever uploads it must not hold up the others. Time of a CPU is the
# file's own doing: beyond it, or beyond memory, the file is rejected as too complex. Time on the clock may be the
# machine's doing: where it runs out before the CPU was used, the inspection is tried again, with twice the time.

_100MB = 100 * 10**6
# Seconds per 100 MB, of each second that a small file has: a dataset is read to its end, its pictures are decoded.
_PER_100MB = {"inspect_model": 1 / 6, "inspect_target": 1 / 6, "inspect_dataset": 1 / 2}
# An exported program is traced and converted by torch, and only where its owner is trusted.
_PROGRAM_FACTOR = 10
_PROGRAM_SUFFIX = ".pt2"
# Parsed, in the engine's form, in the runtime's, and as prepared: none of them holds the weights more than twice.
_FREE_BYTES, _BYTES_PER_BYTE = 2 << 30, 8
# An inspection that had a CPU for so much of its time had the machine.
_BUSY_SHARE = 0.75
_MOST_DOUBLINGS = 6
_HINT = "Simplify the file, or ask the operator to raise QUANTMILL_INSPECTION_SECONDS or the memory of workers."


@dataclass(frozen=True)
class InspectionBudget:
    """Of one attempt."""

    cpu_seconds: float  # over all threads
    wall_seconds: float  # from the runner's start
    memory_bytes: int  # see ``worker.memory``; at most the job's share
    memory_is_own: bool  # it is smaller than the job's share, so that the machine is not what was too small

    def overrun(self, cpu_seconds: float) -> Problem | None:
        """What the inspection's owner is told once its time on the clock is over; None: it lacked the machine.

        Args:
            cpu_seconds: that it has used.
        """
        if cpu_seconds < _BUSY_SHARE * self.cpu_seconds:
            return None
        return self.cpu_problem(cpu_seconds)

    def cpu_problem(self, found_seconds: float | None = None) -> Problem:
        """It used its time of a CPU."""
        most = round(self.cpu_seconds, 1)
        found = most if found_seconds is None else round(found_seconds, 1)
        return _problem("cpu_seconds", "seconds of CPU time", found, most)

    def judged(self, problem: Problem) -> Problem:
        """A limit that it met, as it is; for memory of its own, that the file is too complex."""
        if not self.memory_is_own or problem.where.get("resource") != "memory":
            return problem
        return _problem(
            "memory_bytes", "bytes of memory", problem.where.get("used_bytes", self.memory_bytes), self.memory_bytes
        )


def budget_of(job: Job, folder: Path, settings: Settings, share_bytes: int) -> InspectionBudget | None:
    """The budget of an attempt; None for a job that is no inspection.

    Args:
        job: as claimed.
        folder: its scratch folder, with all that it looks at.
        settings: say what a small file may take.
        share_bytes: memory of any job.
    """
    per_100mb = _PER_100MB.get(job.kind)
    if per_100mb is None:
        return None
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    seconds = settings.inspection_seconds * (1 + per_100mb * size / _100MB)
    own = _FREE_BYTES + _BYTES_PER_BYTE * size
    if any(path.suffix == _PROGRAM_SUFFIX for path in files):
        seconds *= _PROGRAM_FACTOR
        own = share_bytes
    return InspectionBudget(
        cpu_seconds=seconds,
        wall_seconds=seconds * 2 ** min(job.interruptions, _MOST_DOUBLINGS),
        memory_bytes=min(own, share_bytes),
        memory_is_own=own < share_bytes,
    )


def _problem(limit: str, words: str, found: float, most: float) -> Problem:
    error = TooComplexError(
        f"Inspecting the file requires more than {most} {words}: it had used {found} when it was stopped.",
        hint=_HINT,
        limit=limit,
        found=found,
        most=most,
    )
    return error.problem()
