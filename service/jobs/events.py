"""The log of a job: append-only, numbered from 1 without gaps, written in the transaction that it tells of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.jobs.errors import JobNotFoundError
from service.tables import Base, Job, JobEvent

EventType = Literal["state", "progress", "log", "metric"]
# What an event is and what it tells.
Entry = tuple[EventType, dict[str, Any]]

# In one INSERT: databases have a limit of parameters.
_ROWS = 200
_INSERT = insert(Base.metadata.tables[JobEvent.__tablename__]).values(created_at=db_now())


def append(session: Session, job_id: str, attempt: int, type: EventType, data: dict[str, Any]) -> int:  # noqa: A002
    """Append one event; the job's row is locked until the transaction ends, which keeps the numbers gap-free.

    Returns:
        The event's number.

    Raises:
        JobNotFoundError: there is no such job.
    """
    return append_all(session, job_id, attempt, [(type, data)])


def append_all(session: Session, job_id: str, attempt: int, entries: Sequence[Entry]) -> int:
    """Append events in their order, at least one, some hundred by a statement.

    Returns:
        The number of the last one.

    Raises:
        JobNotFoundError: there is no such job.
    """
    last = session.scalar(
        update(Job)
        .where(Job.id == job_id)
        .values(last_seq=Job.last_seq + len(entries))
        .returning(Job.last_seq)
        .execution_options(synchronize_session=False)
    )
    if last is None:
        raise JobNotFoundError(job_id)
    rows = [
        {"job_id": job_id, "seq": seq, "attempt": attempt, "type": kind, "data": data, "created_at": db_now()}
        for seq, (kind, data) in enumerate(entries, start=last - len(entries) + 1)
    ]
    for first in range(0, len(rows), _ROWS):
        session.execute(insert(JobEvent).values(rows[first : first + _ROWS]))
    return last


def record(session: Session, job_id: str, seq: int, attempt: int, type: EventType, data: dict[str, Any]) -> None:  # noqa: A002
    """Insert the event whose number ``seq`` was just drawn from the job's row, in the same transaction."""
    session.execute(_INSERT, {"job_id": job_id, "seq": seq, "attempt": attempt, "type": type, "data": data})


def list_after(session: Session, job_id: str, seq: int, limit: int) -> list[JobEvent]:
    """Events with numbers above ``seq``, oldest first, at most ``limit``."""
    statement = (
        select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.seq > seq).order_by(JobEvent.seq).limit(limit)
    )
    return list(session.scalars(statement))
