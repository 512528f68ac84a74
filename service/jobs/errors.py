"""Errors of jobs."""

from __future__ import annotations

from service.contracts.errors import QuantmillError
from service.resources import ResourceNotFoundError


class JobNotFoundError(
    ResourceNotFoundError,
    word="job",
    code="job-not-found",
    title="Job not found",
    listed="List all jobs with GET /v1/jobs.",
):
    """The job does not exist or belongs to another tenant."""


class JobNotEndedError(QuantmillError, code="job-not-ended", title="Job has not ended", status=409):
    """The operation requires a job that has ended."""

    def __init__(self, job_id: str, state: str, *, hint: str) -> None:
        super().__init__(f"Job {job_id} is {state}.", hint=hint)


class JobInUseError(QuantmillError, code="job-in-use", title="Job in use", status=409):
    """The job cannot be deleted because another object refers to it."""


class NotRepeatableError(QuantmillError, code="job-not-repeatable", title="Job cannot be repeated", status=409):
    """The job cannot be submitted again with its original request."""


class RangesNotUsableError(QuantmillError, code="ranges-not-usable", title="Ranges cannot be reused", status=422):
    """The source job has no calibrated ranges, or none for this graph."""


class NoGpuWorkerError(QuantmillError, code="no-gpu-worker", title="No GPU worker available", status=409):
    """The job needs a GPU, but no live worker takes jobs from the queue gpu."""


class AttemptsExhaustedError(QuantmillError, code="attempts-exhausted", title="All attempts failed", status=500):
    """All attempts of the job failed because of crashes or other transient errors."""


class LeaseExpiredError(QuantmillError, code="lease-expired", title="Worker lost", status=500):
    """The worker of the last attempt stopped renewing its lease."""


class DeadlineExceededError(QuantmillError, code="deadline-exceeded", title="Job deadline exceeded", status=504):
    """The job did not end before its deadline."""


class DispatchError(QuantmillError, code="dispatch-failed", title="Broker unreachable", status=503):
    """The broker did not accept the message; the job stays queued and the message is sent again later."""
