"""Tells the workers of a job that was just committed. Failing is no failure: the row is the outbox."""

from __future__ import annotations

import logging

from sqlalchemy.exc import SQLAlchemyError

from service.deps import Desk
from service.jobs import transitions
from service.jobs.errors import DispatchError
from service.tables import Job

log = logging.getLogger(__name__)


def publish(desk: Desk, job: Job) -> None:
    """Send the message of a committed job and note that it was sent; what fails here is made up for later."""
    try:
        desk.dispatcher.publish(job.id, job.queue)
        with desk.database.write() as session:
            transitions.mark_dispatched(session, job.id)
    except DispatchError as error:
        log.warning("dispatch.failed job_id=%s: %s", job.id, error.detail)
    except SQLAlchemyError as error:
        # the job is committed: the client must learn its id, whatever else happens now
        log.warning("dispatch.not_noted job_id=%s: %s", job.id, error)
