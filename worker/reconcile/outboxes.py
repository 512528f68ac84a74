"""A thread that sends what an outbox holds, beside the loops: a receiver that is slow holds up none of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from sqlalchemy.orm import Session

from service.db import Database
from service.settings import Settings
from service.storage import FileStore
from worker.lease import DATABASE_AWAY
from worker.reconcile.sending import Sender

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outbox:
    """An outbox and who sends for it.

    Attributes:
        name: of the loop, for logs.
        any_due: whether there is anything to send; a look that writes nothing.
        opened: who sends, loaded once there is something; it calls the function whenever it has room for more. None
            where this process cannot: what is due waits for one that can.
    """

    name: str
    any_due: Callable[[Session], bool]
    opened: Callable[[Settings, Database, FileStore, Callable[[], None]], Sender | None]

    def is_due(self, database: Database) -> bool:
        """Whether there is anything to send."""
        with database.read() as session:
            return self.any_due(session)


class OutboxThread:
    """Sends in the background of a process; a context manager. What is under way at its end is waited for, or left to
    another process where it would last.

    Args:
        outbox: what is sent.
        settings: bounds and periods.
        database: where the outbox is.
        store: where files are.
    """

    def __init__(self, outbox: Outbox, settings: Settings, database: Database, store: FileStore) -> None:
        self._outbox = outbox
        self._settings = settings
        self._database = database
        self._store = store
        self._stopping = False
        self._wake = threading.Event()
        self._sender: Sender | None = None
        self._thread = threading.Thread(target=self._run, name=outbox.name, daemon=True)

    def __enter__(self) -> OutboxThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()
        if self._sender is not None:
            self._sender.interrupt()
            self._sender.close()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self._round()
            except DATABASE_AWAY as error:
                log.warning("reconcile.database_away loop=%s: %s", self._outbox.name, error)
            except Exception:  # a fault must not end all sending; it is logged whole, and tried again
                log.exception("reconcile.failed loop=%s", self._outbox.name)
            # an end makes room for the next
            self._wake.wait(self._settings.reconcile_seconds)

    def _round(self) -> None:
        if not self._outbox.is_due(self._database):
            return
        if self._sender is None:
            self._sender = self._outbox.opened(self._settings, self._database, self._store, self._wake.set)
        if self._sender is not None:
            self._sender.round()


def send_once(outbox: Outbox, settings: Settings, database: Database, store: FileStore) -> int:
    """Send what is due, as much as goes at once, and wait for the end; returns how much."""
    due = outbox.is_due(database)
    sender = outbox.opened(settings, database, store, lambda: None) if due else None
    if sender is None:
        return 0
    try:
        return sender.round()
    finally:
        sender.close()
