"""Errors around jobs."""

from __future__ import annotations

from service.contracts.errors import QuantmillError
from service.resources import ResourceNotFoundError


class JobNotFoundError(
    ResourceNotFoundError,
    word="job",
    code="job-not-found",
    title="No such job",
    listed="GET /v1/jobs lists them.",
):
    """There is no such job (or it belongs to somebody else)."""


class JobNotEndedError(QuantmillError, code="job-not-ended", title="The job has not ended", status=409):
    """What was asked for is done to jobs that have ended."""

    def __init__(self, job_id: str, state: str, *, hint: str) -> None:
        super().__init__(f"The job {job_id} is {state}.", hint=hint)


class JobInUseError(QuantmillError, code="job-in-use", title="The job is still needed", status=409):
    """Something that is still there refers to the job."""


class NotRepeatableError(QuantmillError, code="job-not-repeatable", title="The job cannot be repeated", status=409):
    """The job cannot be asked for once more as it was."""


class RangesNotUsableError(
    QuantmillError, code="ranges-not-usable", title="The ranges of that job cannot be taken over", status=422
):
    """The job whose ranges were to be taken over has none, or none for this graph."""


class NoGpuWorkerError(QuantmillError, code="no-gpu-worker", title="No worker with a GPU is there", status=409):
    """The job needs a GPU, and no worker is alive that takes jobs of the queue gpu."""


class AttemptsExhaustedError(
    QuantmillError, code="attempts-exhausted", title="The job failed on every attempt", status=500
):
    """Every attempt that the job had was used up by crashes or other passing trouble."""


class LeaseExpiredError(QuantmillError, code="lease-expired", title="The worker fell silent", status=500):
    """The worker of the last attempt fell silent."""


class DeadlineExceededError(QuantmillError, code="deadline-exceeded", title="The job missed its deadline", status=504):
    """The job did not end before its deadline."""


class DispatchError(QuantmillError, code="dispatch-failed", title="The broker cannot be reached", status=503):
    """The broker did not take the message; the job row stays queued and is sent again later."""
