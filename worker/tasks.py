"""The one Celery task. It is thin: the database decides whether there is anything to do."""

from __future__ import annotations

from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from service.jobs.dispatch import TASK_NAME
from worker.supervisor import Supervisor


def register(app: Celery, supervisor: Supervisor, stopping: Callable[[], bool]) -> None:
    """Add ``run_job(job_id)`` to the application; once ``stopping`` it leaves messages to other workers."""

    @app.task(name=TASK_NAME, ignore_result=True, throws=(Reject,))  # no trace for what is meant
    def run_job(job_id: str) -> None:
        if stopping():
            raise Reject("the worker shuts down", requeue=True)
        supervisor.run(job_id)
