"""API schemas of queues."""

from __future__ import annotations

from pydantic import BaseModel, Field


class QueuedOut(BaseModel):
    """Queued jobs."""

    due: int = Field(description="Jobs that can start now and are waiting for a slot.")
    delayed: int = Field(description="Jobs that can only start later, for example after a crash.")


class SlotsOut(BaseModel):
    """Slots of the live workers."""

    total: int = Field(
        description="Number of jobs that the workers can run at a time. A worker of several queues counts in each of "
        "them."
    )
    busy: int = Field(description="Slots that are currently running a job, from any queue.")
    free: int
    short: int = Field(default=0, description="Of the total, slots that are kept for short jobs.")


class OwnJobsOut(BaseModel):
    """Jobs of the key's own tenant in a queue."""

    queued: QueuedOut
    running: int
    oldest_due_age_seconds: float | None = Field(
        description="Seconds that the tenant's oldest job that can start now has been waiting; null if there is none."
    )


class QueueOut(BaseModel):
    """A queue, with its current figures for all tenants."""

    name: str
    queued: QueuedOut
    running: int
    oldest_due_age_seconds: float | None = Field(
        description="Seconds that the oldest job that can start now has been waiting; null if there is none."
    )
    workers: int = Field(description="Workers of this queue that were seen within the last minute.")
    deaf_workers: int = Field(
        description="Workers of this queue that receive no messages although jobs were released to them; they will "
        "end soon."
    )
    slots: SlotsOut
    # A service of an older version says nothing of these.
    wanted_slots: int = Field(
        default=0,
        description="Number of slots needed, for autoscalers: running jobs plus jobs that could start now if there "
        "were enough slots, within their tenants' limits of running jobs.",
    )
    waited_seconds: float = Field(
        default=0.0, description="Seconds that the first job that can start now has been waiting; 0 if there is none."
    )
    own: OwnJobsOut | None = Field(default=None, description="Of these, the jobs of the key's own tenant.")


class QueueList(BaseModel):
    """All queues."""

    items: list[QueueOut]
