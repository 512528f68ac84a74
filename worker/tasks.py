"""The one Celery task. It is thin: the database decides whether there is anything to do."""

from __future__ import annotations

from collections.abc import Callable, Collection

from celery import Celery
from celery.exceptions import Reject

from service.jobs.dispatch import TASK_NAME
from worker.supervisor import Supervisor


def register(app: Celery, supervisor: Supervisor, queues: Collection[str], stopping: Callable[[], bool]) -> None:
    """Add ``run_job(job_id)`` to the application; once ``stopping`` it leaves messages to other workers.

    A message whose job is not to be had makes the worker look for the next job of its ``queues`` itself.
    """

    @app.task(name=TASK_NAME, ignore_result=True)
    def run_job(job_id: str) -> None:
        if stopping():
            raise Reject("the worker shuts down", requeue=True)
        if not supervisor.run(job_id):
            supervisor.run_next(queues)
