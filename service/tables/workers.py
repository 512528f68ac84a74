"""Workers that say now and then that they are alive, and reconcilers that have looked after their leases."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Moment, Name, Word


class Worker(Base):
    """One worker process, by queue that it takes jobs of: a row each.

    ``deaf_since`` is set while no message reaches it although jobs wait.
    """

    __tablename__ = "workers"

    id: Mapped[Name] = mapped_column(primary_key=True)
    queue: Mapped[Name] = mapped_column(primary_key=True)
    slots: Mapped[int] = mapped_column(server_default=text("1"))
    # Of these, those that are kept for short jobs.
    short_slots: Mapped[int] = mapped_column(server_default=text("0"))
    seen_at: Mapped[Moment]
    deaf_since: Mapped[Moment | None]


class LeaseRound(Base):
    """When a reconciler, whichever, has last looked for leases that ran out: a row for all of them.

    ``spared_at`` is when leases were last made good again for an absence that nobody saw, until they had the time to
    end after it.
    """

    __tablename__ = "lease_rounds"

    name: Mapped[Word] = mapped_column(primary_key=True)
    served_at: Mapped[Moment]
    spared_at: Mapped[Moment | None]
