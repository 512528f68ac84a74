"""What is sent beside the loops, by a thread for each outbox: a receiver that is slow holds up none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from service.db import Database
from service.hand_overs import repository as hand_overs
from service.settings import Settings
from service.storage import FileStore
from service.webhooks.deliveries import repository as deliveries
from worker.reconcile.loops import attempted

if TYPE_CHECKING:
    from service.sealing import Vault
    from worker.reconcile.sending import Sender

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outbox:
    """An outbox and who sends for it.

    Attributes:
        name: of the loop, for logs.
        any_due: whether there is anything to send; a look that writes nothing.
        load: who sends, and what decrypts for it.
    """

    name: str
    any_due: Callable[[Session], bool]
    load: Callable[[], tuple[type[Sender[Any, Any]], type[Vault]]]

    def is_due(self, database: Database) -> bool:
        """Whether there is anything to send."""
        with database.read() as session:
            return self.any_due(session)

    def opened(
        self, settings: Settings, database: Database, store: FileStore, on_end: Callable[[], None]
    ) -> Sender[Any, Any] | None:
        """Who sends, loaded once there is something; it calls ``on_end`` whenever it has room for more. None where this
        process cannot decrypt: what is due waits for one that can.
        """
        sender, vault = self.load()
        try:
            return sender(settings, database, store, vault.of(settings), on_end=on_end)
        except vault.unavailable as error:
            log.warning("%ss.not_sent: %s %s", sender.name, error.detail, error.hint)
            return None


# Both load cryptography and a client of HTTP: most installations send nothing.
def _webhooks() -> tuple[type[Sender[Any, Any]], type[Vault]]:
    from service.webhooks.secrets import Vault
    from worker.reconcile.webhooks import WebhookSender

    return WebhookSender, Vault


def _hand_overs() -> tuple[type[Sender[Any, Any]], type[Vault]]:
    from service.hand_overs.secrets import Vault
    from worker.reconcile.hand_overs import HandOverSender

    return HandOverSender, Vault


OUTBOXES = (
    Outbox("deliver_webhooks", deliveries.any_due, _webhooks),
    Outbox("hand_over", hand_overs.any_due, _hand_overs),
)


@contextmanager
def sending(outbox: Outbox, settings: Settings, database: Database, store: FileStore) -> Iterator[None]:
    """Send what an outbox holds, in the background, while the block runs. What is under way at its end is waited for,
    or left to another process where it would last.
    """
    stopping, wake = Event(), Event()
    sender: Sender[Any, Any] | None = None

    def send() -> int:
        nonlocal sender
        if not outbox.is_due(database):
            return 0
        sender = sender or outbox.opened(settings, database, store, wake.set)
        return 0 if sender is None else sender.round()

    def run() -> None:
        while not stopping.is_set():
            wake.clear()
            attempted(outbox.name, send)
            wake.wait(settings.reconcile_seconds)  # an end makes room for the next

    thread = Thread(target=run, name=outbox.name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        wake.set()
        thread.join()
        if sender is not None:
            sender.interrupt()
            sender.close()


def send_once(outbox: Outbox, settings: Settings, database: Database, store: FileStore) -> int:
    """Send what is due, as much as goes at once, and wait for the end; returns how much."""
    due = outbox.is_due(database)
    sender = outbox.opened(settings, database, store, lambda: None) if due else None
    if sender is None:
        return 0
    with closing(sender):
        return sender.round()
