"""What an attempt costs, and how long a job waits before the next one.

An attempt is charged unless its end was no fault of the job. Interruptions are not capped: a worker may be restarted
every night, and the deadline ends what never comes to an end. One that came before the attempt had told of any
progress is followed by a pause, so that a host whose workers end as soon as they have started does not spin.

Where it is the installation that cannot go on, and an operator who has to act, the time that a job loses by that does
not count against its deadline.
"""

from __future__ import annotations

import random

from service.contracts.errors import QuantmillError
from service.jobs.errors import AttemptsExhaustedError
from service.jobs.schemas import Waiting
from service.tables import Job

MAX_ATTEMPTS = 3
_BACKOFF_CAP_SECONDS = 60.0
# Validation that was lost with its worker again and again: the worker may have died of it, so it is tried more rarely.
_SILENCE_CAP_SECONDS = 600.0
# What is wrong with the installation as a whole. An error of a worker's own may come from the job: its deadline stands.
_INSTALLATION = ("storage-full", "storage-away", "database-away", "runner-not-started")
# 2 to the power of this is above every cap.
_MOST_DOUBLINGS = 10


def backoff_seconds(attempt: int, *, cap_seconds: float = _BACKOFF_CAP_SECONDS) -> float:
    """Delay before the next attempt: 2, 4, 8 ... seconds, at most the cap, with 20 % jitter."""
    growing = 2.0 ** min(attempt, _MOST_DOUBLINGS)
    return min(cap_seconds, growing) * random.uniform(0.8, 1.2)  # noqa: S311 - no secret


def silence_seconds(attempt: int) -> float:
    """Delay before validation whose workers fell silent is tried once more."""
    return backoff_seconds(attempt, cap_seconds=_SILENCE_CAP_SECONDS)


def interruption_seconds(job: Job) -> float:
    """Delay before the next attempt of a job that is being interrupted: none if this attempt has come anywhere."""
    return 0.0 if job.stage is not None else backoff_seconds(job.interruptions + 1)


def defers_deadline(waiting: Waiting) -> bool:
    """True if a job that waits for this has longer by what it loses."""
    return waiting.code in _INSTALLATION


def spent(job: Job) -> bool:
    """True if the running attempt, once it is charged, is the last that the job may have."""
    return job.attempt - job.interruptions >= job.max_attempts


def exhausted(job: Job, reason: str) -> QuantmillError:
    """What a job fails with when its last attempt was used up by passing trouble."""
    return AttemptsExhaustedError(
        f"The job failed on each of its {job.max_attempts} attempts, last because: {reason}",
        hint="The worker's log tells more; if the model makes the runtime crash, leave out the node that does it.",
        stage=job.stage,
        attempt=job.attempt,
    )
