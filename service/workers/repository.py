"""Statements about workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import and_, delete, or_, select, update
from sqlalchemy.orm import Session

from service.db import db_now
from service.repository import upsert
from service.tables import Worker

ANNOUNCE_SECONDS = 10.0
# A worker that was not seen for so long is taken for gone.
ALIVE_SECONDS = 60.0
_FORGOTTEN_SECONDS = 24 * 3600.0


def announce(session: Session, worker_id: str, offers: Mapping[str, int], *, short_slots: int = 0) -> None:
    """Note that a worker is alive and what it takes; workers that are long gone are forgotten.

    Only the worker itself writes its rows.

    Args:
        session: of a transaction.
        worker_id: which worker.
        offers: jobs that it runs at a time, by queue; none: it is gone.
        short_slots: of these, those that are kept for short jobs.
    """
    now = db_now()
    for queue, slots in sorted(offers.items()):
        row = {"id": worker_id, "queue": queue, "seen_at": now, "slots": slots, "short_slots": short_slots}
        upsert(session, Worker, row, {"seen_at": now, "slots": slots, "short_slots": short_slots})
    gone = or_(
        and_(Worker.id == worker_id, Worker.queue.not_in(sorted(offers))), Worker.seen_at < now - _FORGOTTEN_SECONDS
    )
    session.execute(delete(Worker).where(gone).execution_options(synchronize_session=False))


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
