"""Queues as seen over HTTP."""

from __future__ import annotations

from pydantic import BaseModel, Field, computed_field


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

    @computed_field(description="Jobs that run or are due: as many slots would be busy, were there enough.")
    def wanted_slots(self) -> int:
        """For autoscalers."""
        return self.running + self.queued.due

    @computed_field(description="As oldest_due_age_seconds, but 0 where none is due: for autoscalers.")
    def waited_seconds(self) -> float:
        """For autoscalers."""
        return self.oldest_due_age_seconds or 0.0


class QueueList(BaseModel):
    """All queues."""

    items: list[QueueOut]
