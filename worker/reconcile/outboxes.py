"""What is sent beside the loops, by a thread for each outbox: a receiver that is slow holds up none of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from service.db import Database
from service.hand_overs import repository as hand_overs
from service.settings import Settings
from service.storage import FileStore
from service.webhooks import repository as webhooks
from worker.reconcile.loops import attempted

if TYPE_CHECKING:
    from worker.reconcile.sending import OutboxSender

log = logging.getLogger(__name__)


# By the name of its loop: whether there is anything to send, a look that writes nothing.
OUTBOXES: dict[str, Callable[[Session], bool]] = {
    "deliver_webhooks": webhooks.OUTBOX.any_due,
    "hand_over": hand_overs.OUTBOX.any_due,
}


def _is_due(outbox: str, database: Database) -> bool:
    with database.read() as session:
        return OUTBOXES[outbox](session)


def _opened(
    outbox: str, settings: Settings, database: Database, store: FileStore, on_end: Callable[[], None]
) -> OutboxSender[Any] | None:
    """Who sends; calls ``on_end`` whenever it has room for more. None where this process cannot decrypt: what is due
    waits for one that can.
    """
    # cryptography and a client of HTTP: most installations send nothing
    from worker.reconcile.hand_overs import HandOverSender
    from worker.reconcile.webhooks import WebhookSender

    senders: dict[str, type[OutboxSender[Any]]] = {"deliver_webhooks": WebhookSender, "hand_over": HandOverSender}
    sender = senders[outbox]
    try:
        return sender(settings, database, store, on_end=on_end)
    except sender.vault.unavailable as error:
        log.warning("%ss.not_sent: %s %s", sender.name, error.detail, error.hint)
        return None


@contextmanager
def sending(outbox: str, settings: Settings, database: Database, store: FileStore) -> Iterator[None]:
    """Send what an outbox holds, in the background, while the block runs. What is under way at its end is waited for,
    or left to another process where it would last.
    """
    stopping, wake = Event(), Event()
    sender: OutboxSender[Any] | None = None

    def send() -> int:
        nonlocal sender
        if not _is_due(outbox, database):
            return 0
        sender = sender or _opened(outbox, settings, database, store, wake.set)
        return 0 if sender is None else sender.round()

    def run() -> None:
        while not stopping.is_set():
            wake.clear()
            attempted(outbox, send)
            wake.wait(settings.reconcile_seconds)  # an end makes room for the next

    thread = Thread(target=run, name=outbox, daemon=True)
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


def send_once(outbox: str, settings: Settings, database: Database, store: FileStore) -> int:
    """Send what is due, as much as goes at once, and wait for the end; returns how much."""
    due = _is_due(outbox, database)
    sender = _opened(outbox, settings, database, store, lambda: None) if due else None
    if sender is None:
        return 0
    with closing(sender):
        return sender.round()
