"""Deals with schedules that are due, and judges what their jobs have come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.db import Database
from service.dispatch.dispatcher import Dispatcher
from service.schedules import repository
from service.settings import Settings
from service.storage import FileStore

if TYPE_CHECKING:
    from service.deps import Desk

# Of a round: the other loops have their turn as well.
BATCH = 200


class ScheduleKeeper:
    """The loops of schedules. What they need is loaded once there is something to do: most installations have none.

    Args:
        settings: bounds.
        database: where schedules are.
        store: where results by sample are.
        dispatcher: is woken where jobs are submitted; None: workers look for themselves.
    """

    def __init__(self, settings: Settings, database: Database, store: FileStore, dispatcher: Dispatcher | None) -> None:
        self._given = (settings, database, store, dispatcher)
        self._database = database
        self._desk: Desk | None = None

    def fire(self) -> int:
        """One round of what is due, and of runs that waited for the one before; returns how many were dealt with."""
        with self._database.read() as session:
            due = bool(repository.due(session, 1))
            ahead = bool(repository.planned_ahead(session, 1))
            waiting = bool(repository.waiting(session, 1))
        if not (due or ahead or waiting):
            return 0
        from service.schedules import firing

        desk = self._open()
        done = firing.bring_forward(desk, BATCH) if ahead else 0
        done += firing.submit_waiting(desk, BATCH) if waiting else 0
        return done + (firing.fire_due(desk, BATCH) if due else 0)

    def settle(self) -> int:
        """One round of runs whose jobs have ended; returns how many were judged."""
        with self._database.read() as session:
            if not repository.ended(session, 1):
                return 0
        from service.schedules import settling

        return settling.settle_ended(self._open(), BATCH)

    def _open(self) -> Desk:
        if self._desk is None:
            from service.deps import Desk

            self._desk = Desk.over(*self._given)
        return self._desk
