"""Workers that say now and then that they are alive."""

from __future__ import annotations

from sqlalchemy import text
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Moment, Name


class Worker(Base):
    """One worker process, by queue that it takes jobs of: a row each.

    ``deaf_since`` is set while no message reaches it although jobs wait.
    """

    __tablename__ = "workers"

    id: Mapped[Name] = mapped_column(primary_key=True)
    queue: Mapped[Name] = mapped_column(primary_key=True)
    slots: Mapped[int] = mapped_column(server_default=text("1"))
    seen_at: Mapped[Moment]
    deaf_since: Mapped[Moment | None]
