"""Queues as seen over HTTP."""

from __future__ import annotations

from pydantic import BaseModel, Field


class QueuedOut(BaseModel):
    """Jobs that wait."""

    due: int = Field(description="That may start now, and wait for a slot.")
    delayed: int = Field(description="That may only start later, such as after a crash.")


class SlotsOut(BaseModel):
    """Slots of the workers that are alive."""

    total: int = Field(description="Jobs that they run at a time. A worker of several queues counts in each of them.")
    busy: int = Field(description="Of these, those that run a job now, of whatever queue.")
    free: int


class QueueOut(BaseModel):
    """A queue. Its figures are of one moment, over all tenants."""

    name: str
    queued: QueuedOut
    running: int
    oldest_due_age_seconds: float | None = Field(
        description="For how long the job has waited that may start for the longest time; null where none is due."
    )
    workers: int = Field(description="That were seen within the last minute and take jobs of this queue.")
    deaf_workers: int = Field(
        description="Of these, those that no message reaches although jobs were released to them; they end soon."
    )
    slots: SlotsOut
    # A service of an older version says nothing of these.
    wanted_slots: int = Field(
        default=0,
        description="For autoscalers: jobs that run, or are due and would run if there were slots enough, as far as "
        "their tenants' limits of running jobs let them.",
    )
    waited_seconds: float = Field(
        default=0.0, description="For how long the first of those that are due has waited; 0 where there is none."
    )


class QueueList(BaseModel):
    """All queues."""

    items: list[QueueOut]
