"""What the reconciler does to leases of jobs that go on running: they end neither too early nor too late."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.transitions import rows, table
from service.jobs.transitions.table import Transition
from service.tables import Job


def spare_leases(session: Session, *, lease_seconds: float) -> int:
    """T13 running -> running: let no lease end before ``lease_seconds`` from now. Returns how many are longer.

    After a time in which nobody could renew them. What is written there holds for every reconciler, and for one that
    is started again.
    """
    until = db_now() + lease_seconds
    return _set(session, table.SPARE, until, [Job.lease_until < until])


def try_to_write(session: Session, *, lease_seconds: float) -> None:
    """T13, too: one lease of which half has passed without a word becomes a millisecond longer.

    A database that has no room, or takes no writes, lets nobody renew them. This tells of it before they end. A job
    that somebody holds is passed over: whoever hangs with it must not keep other leases from ending.
    """
    silent = select(Job.id).where(*table.SPARE.conditions(None), Job.lease_until < db_now() + lease_seconds / 2)
    job_id = session.scalar(silent.limit(1).with_for_update(skip_locked=True))
    if job_id is not None:
        _set(session, table.SPARE, Job.lease_until + 0.001, [Job.id == job_id])


def leased_ahead(session: Session, *, lease_seconds: float) -> bool:
    """True if there are leases longer than ``lease_seconds``: the database's clock was put back since they were given.

    Whoever holds a job with longer leases, by other settings, renews them in time.
    """
    ahead = select(Job.id).where(*table.SHORTEN.conditions(None), *_ahead(lease_seconds))
    return session.scalar(ahead.limit(1)) is not None


def shorten_leases(session: Session, *, lease_seconds: float) -> int:
    """T14 running -> running: leases that a clock gave that was ahead last as long as one given now."""
    return _set(session, table.SHORTEN, db_now() + lease_seconds, _ahead(lease_seconds))


def _ahead(lease_seconds: float) -> list[ColumnElement[bool]]:
    return [Job.lease_until > db_now() + lease_seconds + table.OVERLAP_SECONDS]


def _set(session: Session, transition: Transition, until: ColumnElement[Any], which: list[ColumnElement[bool]]) -> int:
    statement = (
        update(Job)
        .where(rows.in_order(*transition.conditions(None), *which))
        .values(lease_until=until)
        .returning(Job.id)
        .execution_options(synchronize_session=False)
    )
    return len(session.scalars(statement).all())
