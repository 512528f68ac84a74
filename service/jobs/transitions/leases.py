"""What the reconciler does to leases of jobs that go on running: they end neither too early nor too late."""

from __future__ import annotations

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.transitions import table
from service.jobs.transitions.table import Transition
from service.tables import Job


def spare_leases(session: Session, *, lease_seconds: float) -> int:
    """T13 running -> running: let no lease end before ``lease_seconds`` from now. Returns how many are longer.

    After a time in which nobody could renew them. What is written there holds for every reconciler, and for one that
    is started again.
    """
    return _set(session, table.SPARE, lease_seconds, [Job.lease_until < db_now() + lease_seconds])


def leased_ahead(session: Session, *, lease_seconds: float) -> bool:
    """True if there are leases longer than ``lease_seconds``: the database's clock was put back since they were given.

    Whoever holds a job with longer leases, by other settings, renews them in time.
    """
    ahead = select(Job.id).where(*table.SHORTEN.conditions(None), *_ahead(lease_seconds))
    return session.scalar(ahead.limit(1)) is not None


def shorten_leases(session: Session, *, lease_seconds: float) -> int:
    """T14 running -> running: leases that a clock gave that was ahead last as long as one given now."""
    return _set(session, table.SHORTEN, lease_seconds, _ahead(lease_seconds))


def _ahead(lease_seconds: float) -> list[ColumnElement[bool]]:
    return [Job.lease_until > db_now() + lease_seconds + table.OVERLAP_SECONDS]


def _set(session: Session, transition: Transition, lease_seconds: float, which: list[ColumnElement[bool]]) -> int:
    statement = (
        update(Job)
        .where(*transition.conditions(None), *which)
        .values(lease_until=db_now() + lease_seconds)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(session.scalars(statement).all())
