"""Which queued job a slot takes next: a few looks into indexes, however many jobs wait."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import CTE, ColumnElement, Double, Select, TextClause, bindparam, func, or_, select, text, type_coerce
from sqlalchemy.orm import Session

from service.db import db_now
from service.tables import Job
from service.tables.jobs import IS_QUEUED, IS_QUEUED_SHORT, IS_RUNNING


class _Head(NamedTuple):
    """The job of a tenant in a queue that would be next, and how the tenant stands there."""

    running: int
    started_at: float
    not_before: float
    id: str


def next_due(
    session: Session, queues: Collection[str], *, short_only: bool = False, without: Collection[str] = ()
) -> str | None:
    """Id of the queued job of these queues whose turn it is; None if no job may start now.

    The highest priority comes first. Within it tenants take turns: first the one with the fewest running jobs in the
    queue, then the one whose last start there is longest ago, then the one whose job has waited longest. A tenant's own
    jobs go by the time from which they may start.

    Args:
        session: reads.
        queues: that the slot serves.
        short_only: leave long jobs to other slots.
        without: tenants whose jobs may not start now.
    """
    left_out = {"without": sorted(without)} if without else {}
    names = tuple(sorted(set(queues)))
    waiting = IS_QUEUED_SHORT if short_only else IS_QUEUED
    while names:
        tops = dict(
            zip(names, session.execute(_top_priorities(names, waiting, bool(left_out)), left_out).one(), strict=True)
        )
        found = [priority for priority in tops.values() if priority is not None]
        if not found:
            return None
        heads = [
            _Head(running, started_at or 0.0, not_before, job_id)
            for queue in names
            if tops[queue] == max(found)
            for job_id, not_before, running, started_at in session.execute(
                _heads(queue, max(found), waiting, bool(left_out)), left_out
            )
            if job_id is not None  # all of this tenant's may only start later
        ]
        if heads:
            return min(heads).id
        # Others have just taken all that there was of this priority.
    return None


def _due(not_before: Any = Job.not_before) -> tuple[ColumnElement[bool], ...]:
    now = db_now()
    return not_before <= now, or_(Job.deadline_at.is_(None), Job.deadline_at > now)


def _let_in(some_left_out: bool) -> tuple[ColumnElement[bool], ...]:
    return (Job.tenant_id.not_in(bindparam("without", expanding=True)),) if some_left_out else ()


# Workers ask all the time, and building a statement takes longer than the database does for the answer.
@cache
def _top_priorities(queues: tuple[str, ...], waiting: str, some_left_out: bool) -> Select[Any]:
    """One row: for each queue the highest priority of a job that may start, by a look into the index of its own."""
    # The sum keeps SQLite from taking the index by this time, of which it would have to sort all that is due.
    due = (*_due(Job.not_before + 0), *_let_in(some_left_out))
    tops = (
        select(Job.priority).where(text(waiting), Job.queue == queue, *due).order_by(Job.priority.desc()).limit(1)
        for queue in queues
    )
    return select(*(top.scalar_subquery() for top in tops))


@cache
def _heads(queue: str, priority: int, waiting: str, some_left_out: bool) -> Select[Any]:
    """One row per tenant with jobs of this priority: its next job and since when it may start, the number of its
    running jobs, and its last start.
    """
    is_waiting = text(waiting)
    tenants = _tenants(queue, priority, is_waiting, some_left_out)
    tenant = tenants.c.tenant_id
    of_tenant = (Job.queue == queue, Job.priority == priority, Job.tenant_id == tenant)
    mine = select(Job.id).where(is_waiting, *of_tenant, *_due())
    first = mine.order_by(Job.not_before, Job.id).limit(1)
    running = select(func.count()).select_from(Job).where(text(IS_RUNNING), Job.queue == queue, Job.tenant_id == tenant)
    last_start = select(func.max(type_coerce(Job.started_at, Double))).where(
        Job.tenant_id == tenant, Job.queue == queue
    )
    return select(
        first.scalar_subquery(),
        first.with_only_columns(type_coerce(Job.not_before, Double)).scalar_subquery(),
        running.scalar_subquery(),
        last_start.scalar_subquery(),
    ).where(tenant.is_not(None))


def _tenants(queue: str, priority: int, waiting: TextClause, some_left_out: bool) -> CTE:
    """The tenants with jobs of this priority, one look into the index for each: jobs are not counted through."""
    least = select(Job.tenant_id).where(waiting, Job.queue == queue, Job.priority == priority, *_let_in(some_left_out))
    least = least.order_by(Job.tenant_id).limit(1)
    found = select(least.scalar_subquery().label("tenant_id")).cte("tenants", recursive=True)
    following = least.where(Job.tenant_id > found.c.tenant_id).scalar_subquery()
    return found.union_all(select(following).where(found.c.tenant_id.is_not(None)))
