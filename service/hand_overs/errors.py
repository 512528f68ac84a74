"""Errors around hand-overs."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


class HandOverUnavailableError(QuantmillError):
    """The installation has no pepper, by which the URLs of hand-overs are encrypted."""

    code = "hand-over-unavailable"
    title = "The service cannot keep URLs of hand-overs"
    status = 409


class HandOverUnreadableError(QuantmillError):
    """The stored URL was encrypted under another pepper, or is damaged."""

    code = "hand-over-unreadable"
    title = "The hand-over's URL cannot be read"
    status = 409


class HandOverRefusedError(QuantmillError):
    """Nothing of this job can be handed over, whatever is done."""

    code = "hand-over-refused"
    title = "Nothing of this job can be handed over"
    status = 409


class TooManyHandOversError(QuantmillError):
    """The job has as many hand-overs as it may."""

    code = "too-many-hand-overs"
    title = "The job has too many hand-overs"
    status = 409

    def __init__(self, job_id: str, most: int) -> None:
        super().__init__(
            f"The job {job_id} would have more than {most} hand-overs, those that have ended among them.",
            hint="Download its files, or retry the job: the new one has none.",
        )


class ArtifactNotThereError(QuantmillError):
    """The job has no file of this kind."""

    code = "artifact-not-there"
    title = "The job has no such file"
    status = 422
