"""``celery control revoke``: the job of a task that is revoked is canceled, whether it waits or runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from service.db import Database
from service.dispatch.broker import job_of_task
from service.jobs import transitions
from worker.repository import tenant_of_attempt

log = logging.getLogger(__name__)


def cancel_revoked(database: Database, task_ids: Sequence[str]) -> list[str]:
    """Cancel the jobs of these tasks; returns the ids of those for which it was asked.

    A task is one attempt: that of an attempt which is over says nothing of the next one. Every worker is told of a
    revocation; who comes second changes nothing.

    Args:
        database: where jobs are.
        task_ids: any.
    """
    named = [found for found in map(job_of_task, task_ids) if found is not None]
    canceled = []
    for job_id, attempt in sorted(named):
        with database.write() as session:
            tenant_id = tenant_of_attempt(session, job_id, attempt)
            if tenant_id is not None:
                transitions.request_cancel(session, tenant_id, job_id)
                canceled.append(job_id)
    if canceled:
        log.warning("task.revoked job_ids=%s", ",".join(canceled))
    return canceled
