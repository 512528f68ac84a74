"""The event log of a job, append-only and numbered without gaps; and its metric events as curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from sqlalchemy import ColumnElement, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.errors import JobNotFoundError
from service.jobs.schemas import EventOut
from service.repository import owned
from service.tables import Base, Job, JobEvent
from service.webhooks.repository import anybody_enabled

EventType = Literal["state", "progress", "log", "metric"]
# What an event is and what it tells.
Entry = tuple[EventType, dict[str, Any]]
_INSERT = insert(Base.metadata.tables[JobEvent.__tablename__]).values(created_at=db_now())
# The answer comes with the row: asking by itself would cost each transition another way to the database and back.
_INSERT_AND_ASK = _INSERT.returning(anybody_enabled(bindparam("of_tenant")))


@dataclass(frozen=True)
class EventKey:
    """Where an event stands: in whose job's log, under which number, of which attempt."""

    tenant_id: str
    job_id: str
    seq: int
    attempt: int

    @classmethod
    def newest(cls, job: Job) -> Self:
        """That of the number that was drawn last from the job's row."""
        return cls(job.tenant_id, job.id, job.last_seq, job.attempt)


def append(session: Session, job_id: str, attempt: int, type: EventType, data: dict[str, Any]) -> int:  # noqa: A002
    """Append one event; the job's row is locked until the transaction ends, which keeps the numbers gap-free.

    Returns:
        The event's number.

    Raises:
        JobNotFoundError: there is no such job.
    """
    return append_all(session, job_id, attempt, [(type, data)])


def append_all(session: Session, job_id: str, attempt: int, entries: Sequence[Entry]) -> int:
    """Append events in their order, at least one.

    Returns:
        The number of the last one.

    Raises:
        JobNotFoundError: there is no such job.
    """
    drawn = session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(last_seq=Job.last_seq + len(entries))
        .returning(Job.tenant_id, Job.last_seq)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if drawn is None:
        raise JobNotFoundError(job_id)
    tenant_id, last = drawn
    of_all = {"tenant_id": tenant_id, "job_id": job_id, "attempt": attempt}
    first = last - len(entries) + 1
    rows = [{**of_all, "seq": seq, "type": kind, "data": data} for seq, (kind, data) in enumerate(entries, start=first)]
    session.execute(_INSERT, rows)
    return last


def record(session: Session, place: EventKey, type: EventType, data: dict[str, Any]) -> None:  # noqa: A002
    """Insert the event whose number was just drawn from the job's row, in the same transaction."""
    session.execute(_INSERT, {**vars(place), "type": type, "data": data})


def record_state(session: Session, job: Job, data: dict[str, Any]) -> bool:
    """As ``record``, for a change of the job's state: under the number that was drawn last from its row.

    Returns:
        Whether the tenant has webhooks at all, which may be told of it.
    """
    place = {"tenant_id": job.tenant_id, "job_id": job.id, "seq": job.last_seq, "attempt": job.attempt}
    row = {**place, "type": "state", "data": data, "of_tenant": job.tenant_id}
    return bool(session.execute(_INSERT_AND_ASK, row).scalar_one())


def list_after(
    session: Session, tenant_id: str, job_id: str, seq: int, limit: int, *, only: EventType | None = None
) -> list[JobEvent]:
    """Events of the tenant's job with numbers above ``seq``, oldest first, at most ``limit``; of one type or of all."""
    statement = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > seq, owned(JobEvent, tenant_id))
    if only is not None:
        statement = statement.where(JobEvent.type == only)
    return list(session.scalars(statement.order_by(JobEvent.seq).limit(limit)))


def _of_kind(tenant_id: str, job_id: str, kind: EventType) -> tuple[ColumnElement[bool], ...]:
    """Conditions that events of a type of the tenant's job meet."""
    return JobEvent.job_id == job_id, JobEvent.type == kind, owned(JobEvent, tenant_id)


def newest(session: Session, tenant_id: str, job_id: str, kind: EventType, *, upto: int, limit: int) -> list[JobEvent]:
    """The last ``limit`` events of a type with numbers up to ``upto``, oldest first."""
    statement = select(JobEvent).where(*_of_kind(tenant_id, job_id, kind), JobEvent.seq <= upto)
    return list(session.scalars(statement.order_by(JobEvent.seq.desc()).limit(limit)))[::-1]


def newest_seq(session: Session, tenant_id: str, job_id: str, kind: EventType) -> int:
    """The number of the last event of a type; 0: there is none."""
    statement = select(JobEvent.seq).where(*_of_kind(tenant_id, job_id, kind))
    return session.scalar(statement.order_by(JobEvent.seq.desc()).limit(1)) or 0


def latest_figures(
    session: Session, tenant_id: str, job_id: str, *, most: int, stage: str | None = None
) -> list[JobEvent]:
    """The last event of figures of each step of each stage, oldest first, or those of one stage.

    A step that another attempt did again, or that told more later, is told once. Of a stage of more than ``most`` steps
    every n-th is given, with its last one.
    """
    wanted = [*_of_kind(tenant_id, job_id, "metric")]
    name, step = JobEvent.data["stage"].as_string(), JobEvent.data["step"].as_integer()
    if stage is not None:
        wanted.append(name == stage)
    order = func.row_number().over(partition_by=(name, step), order_by=(JobEvent.attempt.desc(), JobEvent.seq.desc()))
    told = select(JobEvent.seq, name.label("stage"), step.label("step"), order.label("place")).where(*wanted).subquery()
    rows = (
        select(
            told.c.seq,
            func.row_number().over(partition_by=told.c.stage, order_by=told.c.step.desc()).label("from_end"),
            func.count().over(partition_by=told.c.stage).label("total"),
        )
        .where(told.c.place == 1)
        .subquery()
    )
    every = (rows.c.total + most - 1) // most
    chosen = select(JobEvent).join(rows, rows.c.seq == JobEvent.seq).where(JobEvent.job_id == job_id)
    chosen = chosen.where((rows.c.from_end - 1) % every == 0)
    return list(session.scalars(chosen.order_by(JobEvent.seq)))


def last_of_stages(session: Session, tenant_id: str, job_id: str, *, upto: int) -> list[JobEvent]:
    """What each stage of the newest attempt that told any progress told last, in the order in which they began."""
    told = (*_of_kind(tenant_id, job_id, "progress"), JobEvent.seq <= upto)
    newest_attempt = select(func.max(JobEvent.attempt)).where(*told).scalar_subquery()
    stages = (
        select(func.max(JobEvent.seq).label("last"), func.min(JobEvent.seq).label("first"))
        .where(*told, JobEvent.attempt == newest_attempt)
        .group_by(JobEvent.data["stage"].as_string())
        .subquery()
    )
    statement = select(JobEvent).join(stages, stages.c.last == JobEvent.seq).where(*told)
    return list(session.scalars(statement.order_by(stages.c.first)))


def log_like(session: Session, tenant_id: str, job_id: str, pattern: str, *, limit: int) -> list[JobEvent]:
    """The first ``limit`` entries of the log whose messages are LIKE the pattern, oldest first."""
    message = JobEvent.data["message"].as_string()
    statement = select(JobEvent).where(*_of_kind(tenant_id, job_id, "log"), message.like(pattern))
    return list(session.scalars(statement.order_by(JobEvent.seq).limit(limit)))


# Metric events of a job as curves: what a step told, by the last attempt that did it.


def latest_metrics(events: Iterable[EventOut]) -> dict[str, dict[int, dict[str, float | None]]]:
    """The figures of every step, by stage and step, in the order of steps.

    An attempt that goes on after another may do steps again that the other had told of. Stage and step are the same
    then and the attempt is higher: what it told takes the place of the earlier figures.

    Args:
        events: of one job, of any types and in any order.
    """
    found: dict[tuple[str, int], EventOut] = {}
    for event in events:
        if event.type == "metric":
            key = event.data["stage"], event.data["step"]
            before = found.get(key)
            if before is None or (event.attempt, event.seq) > (before.attempt, before.seq):
                found[key] = event
    curves: dict[str, dict[int, dict[str, float | None]]] = {}
    for stage, step in sorted(found):
        data = found[stage, step].data
        figures = {name: value for name, value in data.items() if name not in ("stage", "step")}
        curves.setdefault(stage, {})[step] = figures
    return curves
