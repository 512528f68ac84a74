"""Statements about workers."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, insert, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.tables import Worker

ANNOUNCE_SECONDS = 10.0
# A worker that was not seen for so long is taken for gone.
ALIVE_SECONDS = 60.0
_FORGOTTEN_SECONDS = 24 * 3600.0


def announce(session: Session, worker_id: str, queues: Collection[str], *, slots: int = 1) -> None:
    """Note that a worker is alive and what it takes; workers that are long gone are forgotten.

    Only the worker itself writes its rows.
    """
    now = db_now()
    seen = update(Worker).where(Worker.id == worker_id).values(seen_at=now, slots=slots).returning(Worker.queue)
    known = set(session.scalars(seen.execution_options(synchronize_session=False)))
    for queue in sorted(set(queues) - known):
        session.execute(insert(Worker).values(id=worker_id, queue=queue, seen_at=now, slots=slots))
    session.execute(
        delete(Worker).where(Worker.seen_at < now - _FORGOTTEN_SECONDS).execution_options(synchronize_session=False)
    )


def note_deaf(session: Session, worker_id: str, *, deaf: bool) -> None:
    """Note that no messages reach a worker although jobs wait, or that they do again."""
    since = db_now() if deaf else None
    session.execute(
        update(Worker)
        .where(Worker.id == worker_id)
        .values(deaf_since=since)
        .execution_options(synchronize_session=False)
    )


def live_queues(session: Session, queues: Collection[str]) -> set[str]:
    """Which of the ``queues`` some worker takes jobs from."""
    statement = select(Worker.queue).where(Worker.queue.in_(queues), Worker.seen_at > db_now() - ALIVE_SECONDS)
    return set(session.scalars(statement.distinct()))


def alive(session: Session) -> list[Worker]:
    """Workers that were seen within the last minute, a row for each of their queues."""
    statement = select(Worker).where(Worker.seen_at > db_now() - ALIVE_SECONDS).order_by(Worker.id, Worker.queue)
    return list(session.scalars(statement))
