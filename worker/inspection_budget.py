"""What one inspection may take, by the size of what it looks at: time of a CPU, time on the clock, memory.

A file of a kilobyte can ask for hours of work; whoever uploads it must not hold up the others. Time of a CPU is the
file's own doing: beyond it, or beyond memory, the file is rejected as too complex. Time on the clock may be the
machine's doing: where it runs out before the CPU was used, the inspection is tried again, with twice the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from service.contracts.errors import Problem, TooComplexError
from service.settings import Settings
from service.tables import Job

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
_HINT = "Simplify the file, or have the operator raise QUANTMILL_INSPECTION_SECONDS or the memory of workers."


@dataclass(frozen=True)
class InspectionBudget:
    """Of one attempt.

    Attributes:
        cpu_seconds: over all threads.
        wall_seconds: from the runner's start.
        memory_bytes: see ``worker.memory``; at most the job's share.
        memory_is_own: it is smaller than the job's share, so that the machine is not what was too small.
    """

    cpu_seconds: float
    wall_seconds: float
    memory_bytes: int
    memory_is_own: bool

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
        f"To look into the file takes more than {most} {words}: it had used {found} when it was stopped.",
        hint=_HINT,
        limit=limit,
        found=found,
        most=most,
    )
    return error.problem()
