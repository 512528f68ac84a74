"""The outbox of webhooks, and who sends for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.db import Database
from service.settings import Settings
from service.storage import FileStore
from service.webhooks.deliveries import repository
from worker.reconcile.outboxes import Outbox

if TYPE_CHECKING:
    from worker.reconcile.delivering import Deliverer

log = logging.getLogger(__name__)


def _deliverer(settings: Settings, database: Database, _: FileStore, on_end: Callable[[], None]) -> Deliverer | None:
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
    return Deliverer(settings, database, vault, on_end=on_end)


WEBHOOKS = Outbox("deliver_webhooks", repository.any_due, _deliverer)
