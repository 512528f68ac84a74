"""A thread that delivers events to webhooks, beside the loops: a receiver that is slow holds up none of them."""

from __future__ import annotations

import logging
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from service.db import Database
from service.settings import Settings
from service.webhooks.deliveries import repository
from worker.lease import DATABASE_AWAY

if TYPE_CHECKING:
    from worker.reconcile.delivering import Deliverer

log = logging.getLogger(__name__)


class DeliveryThread:
    """Deliveries in the background of a process; a context manager. What is under way at its end is waited for.

    Args:
        settings: bounds and periods.
        database: where the outbox is.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._stopping = False
        self._wake = threading.Event()
        self._deliverer: Deliverer | None = None
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)

    def __enter__(self) -> DeliveryThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping = True
        self._wake.set()
        self._thread.join()
        if self._deliverer is not None:
            self._deliverer.close()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            try:
                self._round()
            except DATABASE_AWAY as error:
                log.warning("reconcile.database_away loop=deliver_webhooks: %s", error)
            except Exception:  # a fault must not end all deliveries; it is logged whole, and tried again
                log.exception("reconcile.failed loop=deliver_webhooks")
            # an end of a delivery makes room for the next
            self._wake.wait(self._settings.reconcile_seconds)

    def _round(self) -> None:
        if not _any_due(self._database):
            return
        if self._deliverer is None:
            self._deliverer = _deliverer(self._settings, self._database, self._wake)
        if self._deliverer is not None:
            self._deliverer.round()


def deliver_once(settings: Settings, database: Database) -> int:
    """Send what is due, as much as goes at once, and wait for the end; returns how much."""
    deliverer = _deliverer(settings, database, threading.Event()) if _any_due(database) else None
    if deliverer is None:
        return 0
    try:
        return deliverer.round()
    finally:
        deliverer.close()


def _any_due(database: Database) -> bool:
    with database.read() as session:
        return repository.any_due(session)


def _deliverer(settings: Settings, database: Database, wake: threading.Event) -> Deliverer | None:
    """None where the secrets of webhooks cannot be read; what is due waits for a reconciler that can."""
    # cryptography and a client of HTTP: most installations send nothing
    from service.webhooks.errors import WebhooksUnavailableError
    from service.webhooks.secrets import Vault
    from worker.reconcile.delivering import Deliverer

    try:
        vault = Vault.of(settings)
    except WebhooksUnavailableError as error:
        log.warning("webhooks.not_sent: %s %s", error.detail, error.hint)
        return None
    return Deliverer(settings, database, vault, on_end=wake.set)
