"""Sends the messages of queued jobs, and those that were lost once more."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from service.db import Database
from service.jobs import transitions
from service.jobs.dispatch import Dispatcher
from service.jobs.errors import DispatchError
from service.jobs.transitions import Due
from worker.broker import QueueDepths

log = logging.getLogger(__name__)

# By queue and round: one that has thousands of jobs must not keep the message of another waiting.
BATCH = 100


def redispatch(database: Database, dispatcher: Dispatcher, depths: QueueDepths, *, redispatch_seconds: float) -> int:
    """Send the message of every queued job that has none, or whose message counts as lost; queue by queue.

    While as many messages wait in a queue as were sent for its jobs, none is lost: sending more would let the queue
    grow for as long as the workers are busy.

    Returns:
        How many were sent.
    """
    with database.read() as session:
        backlogs = transitions.backlogs(session, redispatch_seconds=redispatch_seconds)
    sent = 0
    try:
        fresh = {backlog.queue: _send_unsent(database, dispatcher, backlog.queue) for backlog in backlogs}
        sent += sum(fresh.values())
        for backlog in backlogs:
            if backlog.late and depths.waiting(backlog.queue) < backlog.sent + fresh[backlog.queue]:
                sent += _send_again(database, dispatcher, backlog.queue, redispatch_seconds)
    except DispatchError as error:
        log.warning("dispatch.failed due=%d: %s", sum(b.fresh + b.late for b in backlogs), error.detail)
    return sent


def _send_unsent(database: Database, dispatcher: Dispatcher, queue: str) -> int:
    with database.read() as session:
        due = transitions.unsent(session, queue, BATCH)
    return _send(database, dispatcher, due)


def _send_again(database: Database, dispatcher: Dispatcher, queue: str, redispatch_seconds: float) -> int:
    with database.read() as session:
        due = transitions.overdue(session, queue, BATCH, redispatch_seconds=redispatch_seconds)
    return _send(database, dispatcher, due)


def _send(database: Database, dispatcher: Dispatcher, jobs: Sequence[Due]) -> int:
    for job in jobs:
        dispatcher.publish(job.job_id, job.queue)
        with database.write() as session:
            transitions.mark_dispatched(session, job.job_id)
    return len(jobs)
