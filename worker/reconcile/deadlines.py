"""Fails jobs whose time is over, and gives validation of uploads more of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from service import repository
from service.db import Database
from service.jobs import transitions

log = logging.getLogger(__name__)


def expire_deadlines(database: Database, *, is_behind: Callable[[float], bool] = lambda now: False) -> int:
    """Fail jobs whose deadline has passed, or queue them again; returns how many.

    Args:
        database: where jobs are.
        is_behind: told the time by the database's clock; True while deadlines have yet to be put off by an absence.
    """
    with database.write() as session:
        if is_behind(repository.now_seconds(session)):
            return 0
        jobs = transitions.expire_deadlines(session)
    for job in jobs:
        log.warning("job.deadline_passed job_id=%s attempt=%d state=%s", job.id, job.attempt, job.state)
    return len(jobs)
