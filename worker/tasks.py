"""The one Celery task. It is thin: the database decides whether there is anything to do, and which job comes first."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from service.jobs.dispatch import TASK_NAME
from worker.slots import Slots


class Received:
    """Counts the messages that have come; one that hears none is deaf."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self) -> int:
        """How many so far."""
        return self._count

    def note(self) -> None:
        """One has come. Two at once may count as one: it matters only whether any came."""
        self._count += 1


def register(app: Celery, slots: Slots, stopping: Callable[[], bool], received: Received) -> None:
    """Add ``run_job(job_id)`` to the application; once ``stopping`` it leaves messages to other workers.

    The message wakes the worker, no more: it runs the job whose turn it is, which may be another. All are counted.
    """

    @app.task(name=TASK_NAME, ignore_result=True)
    def run_job(job_id: str) -> None:
        received.note()
        if stopping():
            raise Reject("the worker shuts down", requeue=True)
        slots.work()
