"""Selects the next queued job to release, and for which slots; a few index lookups, however many jobs are queued."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import (
    CTE,
    ColumnElement,
    CompoundSelect,
    Double,
    Select,
    TextClause,
    bindparam,
    func,
    literal,
    or_,
    select,
    text,
    type_coerce,
    union_all,
)
from sqlalchemy.orm import Session

from service.db import db_now
from service.dispatch.slots import Crew, FreeSlots, Started
from service.jobs.queues import QUEUES
from service.queues.repository import ALIVE_SECONDS
from service.tables import Job, Worker
from service.tables.jobs import IS_QUEUED, IS_RUNNING, IS_WAITING, IS_WAITING_SHORT


class _Head(NamedTuple):
    """The job of a tenant in a queue that would be next, and how the tenant stands there."""

    started: int
    started_at: float
    not_before: float
    id: str


def next_due(
    session: Session,
    queues: Mapping[str, bool],
    *,
    released: Mapping[tuple[str, str], int] = MappingProxyType({}),
    without: Collection[str] = (),
) -> str | None:
    """Id of the job of these queues whose turn it is, of those that are not released; None if none may start now.

    The highest priority comes first. Within it tenants take turns: first the one with the fewest jobs in the queue that
    run or are released, then the one whose last start there is longest ago, then the one whose job has waited longest.
    A tenant's own jobs go by the time from which they may start.

    Args:
        session: reads.
        queues: those with a free slot; True: for short jobs alone.
        released: by queue and tenant, how many jobs are released already.
        without: tenants whose jobs may not start now.
    """
    left_out = {"without": sorted(without)} if without else {}
    conditions = tuple((name, IS_WAITING_SHORT if queues[name] else IS_WAITING) for name in sorted(queues))
    while conditions:
        row = session.execute(_top_priorities(conditions, bool(left_out)), left_out).one()
        tops = dict(zip(conditions, row, strict=True))
        found = [priority for priority in tops.values() if priority is not None]
        if not found:
            return None
        heads = [
            _Head(running + released.get((condition[0], tenant_id), 0), started_at or 0.0, not_before, job_id)
            for condition in conditions
            if tops[condition] == max(found)
            for job_id, tenant_id, not_before, running, started_at in session.execute(
                _heads(*condition, max(found), bool(left_out)), left_out
            )
            if job_id is not None  # all of this tenant's may only start later
        ]
        if heads:
            return min(heads).id
        # Others have just taken all that there was of this priority.
    return None


def _due(not_before: Any = Job.not_before) -> tuple[ColumnElement[bool], ...]:
    now = db_now()
    in_time = or_(Job.deadline_at.is_(None), Job.deadline_at > now)
    return not_before <= now, in_time


def _let_in(some_left_out: bool) -> tuple[ColumnElement[bool], ...]:
    return (Job.tenant_id.not_in(bindparam("without", expanding=True)),) if some_left_out else ()


# It is asked all the time, and building a statement takes longer than the database does for the answer.
@cache
def _top_priorities(conditions: tuple[tuple[str, str], ...], some_left_out: bool) -> Select[Any]:
    """One row: for each queue the highest priority of a job that may start, by a look into the index of its own."""
    # The sum keeps SQLite from taking the index by this time, of which it would have to sort all that is due.
    due = (*_due(Job.not_before + 0), *_let_in(some_left_out))
    tops = (
        select(Job.priority).where(text(waiting), Job.queue == queue, *due).order_by(Job.priority.desc()).limit(1)
        for queue, waiting in conditions
    )
    return select(*(top.scalar_subquery() for top in tops))


@cache
def _heads(queue: str, waiting: str, priority: int, some_left_out: bool) -> Select[Any]:
    """One row per tenant with jobs of this priority: its next job, the tenant, since when that may start, the number of
    the tenant's running jobs, and its last start.
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
        tenant,
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


def started(session: Session) -> tuple[dict[str, list[Started]], list[Started]]:
    """Jobs that run, by worker; and those that were released and that no worker has claimed yet."""
    running: dict[str, list[Started]] = {}
    waiting: list[Started] = []
    for runs, worker_id, *jobs in session.execute(_STARTED):
        of_worker = running.setdefault(worker_id, []) if runs else waiting
        of_worker.append(Started(*jobs))
    return running, waiting


def of_workers(session: Session) -> FreeSlots:
    """Free slots of all workers that are alive, less what was released to them already."""
    running, waiting = started(session)
    queues: dict[str, set[str]] = {}
    alive = session.execute(_ALIVE).all()
    for row in alive:
        queues.setdefault(row.id, set()).add(row.queue)
    crews = {
        row.id: Crew(
            frozenset(queues[row.id]),
            row.slots - sum(each.jobs for each in running.get(row.id, ())),
            row.slots,
            row.short_slots,
        )
        for row in alive
    }
    free = FreeSlots(list(crews.values()), chain.from_iterable(running.values()), waiting)
    for each in waiting:
        for _ in range(each.jobs):
            free.take(each.queue)
    return free


# Statements that are executed all the time are built once: that takes longer than the database does for the answer.
_KIND = (Job.queue, Job.tenant_id, Job.size_class)
# Queues are named one by one, so that SQLite goes by the index that begins with them.
_IS_RELEASED = (text(IS_QUEUED), Job.queue.in_(QUEUES), Job.dispatched_at > 0)
_STARTED: CompoundSelect[Any] = union_all(
    select(literal(1), Job.worker_id, *_KIND, func.count()).where(text(IS_RUNNING)).group_by(Job.worker_id, *_KIND),
    select(literal(0), literal(""), *_KIND, func.count()).where(*_IS_RELEASED).group_by(*_KIND),
)
_ALIVE = select(Worker.id, Worker.queue, Worker.slots, Worker.short_slots).where(
    Worker.seen_at > db_now() - ALIVE_SECONDS, Worker.slots > 0
)
