"""The outbox of hand-overs, and who sends for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.db import Database
from service.hand_overs import repository
from service.settings import Settings
from service.storage import FileStore
from worker.reconcile.outboxes import Outbox

if TYPE_CHECKING:
    from worker.reconcile.handing_over import Carrier

log = logging.getLogger(__name__)


def _carrier(settings: Settings, database: Database, store: FileStore, on_end: Callable[[], None]) -> Carrier | None:
    """None where URLs cannot be read; what is due waits for a reconciler that can."""
    # cryptography and a client of HTTP: most installations send nothing
    from service.hand_overs.errors import HandOverUnavailableError
    from service.hand_overs.secrets import Vault
    from worker.reconcile.handing_over import Carrier

    try:
        vault = Vault.of(settings)
    except HandOverUnavailableError as error:
        log.warning("hand_overs.not_sent: %s %s", error.detail, error.hint)
        return None
    return Carrier(settings, database, store, vault, on_end=on_end)


HAND_OVERS = Outbox("hand_over", repository.any_due, _carrier)
