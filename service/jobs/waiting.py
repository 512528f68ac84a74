"""Why a queued job does not start."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.orm import Session

from service import repository
from service.contracts.base import read_stored
from service.jobs.schemas import Waiting
from service.queues import repository as workers
from service.tables import Job

NO_WORKER = "no-worker"


def waiting_for(session: Session, jobs: Sequence[Job], *, watched_seconds: float) -> dict[str, Waiting]:
    """By id, those of the ``jobs`` that a fault of the installation put back, or that no worker will take.

    Of missing workers nothing is said before one that is only now starting would have been seen.

    Args:
        session: of the database.
        jobs: any.
        watched_seconds: how long this process has been there to see workers.
    """
    queued = [job for job in jobs if job.state == "queued"]
    told = {job.id: read_stored(Waiting, job.waiting) for job in queued if job.waiting is not None}
    if not queued or watched_seconds < workers.ALIVE_SECONDS:
        return told
    now = repository.now_seconds(session)
    waiting = [job for job in queued if now - max(job.queued_at, job.not_before).timestamp() > workers.ALIVE_SECONDS]
    alive = workers.live_queues(session, {job.queue for job in waiting})
    idle = {
        job.id: Waiting(
            code=NO_WORKER,
            message=f"No live worker takes jobs from the queue {job.queue}.",
            hint=f"Start a worker: quantmill worker --queues {job.queue}",
        )
        for job in waiting
        if job.queue not in alive
    }
    return told | idle
