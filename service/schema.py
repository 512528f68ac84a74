"""Whether the database has the schema that this code was written for."""

from __future__ import annotations

import logging
import time

from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.contracts.http_errors import TransientError
from service.db import Database, current_revision, head_revision, is_known_revision

_PAUSE_SECONDS = 0.5
_AWAY = (OperationalError, InterfaceError, PoolTimeoutError)
log = logging.getLogger(__name__)


class SchemaBehindError(TransientError):
    """The database was not migrated to the schema that this version needs."""

    code = "schema-behind"
    title = "The database is not migrated"
    retry_after_seconds = 5

    def __init__(self, current: str | None, head: str) -> None:
        at = "is empty" if current is None else f"is at {current}"
        super().__init__(
            f"the schema {at}, this version needs {head}: run `quantmill migrate`",
            hint="quantmill migrate brings the database up to date.",
        )


def require_current(database: Database) -> str:
    """The schema's revision, which is the one that this version needs.

    Raises:
        SchemaBehindError: it is another.
    """
    current, head = current_revision(database), head_revision()
    if current != head:
        raise SchemaBehindError(current, head)
    return head


def require_migrated(database: Database, wait_seconds: float) -> None:
    """Refuse to start on a database that lacks tables or columns; wait for its migration at most ``wait_seconds``.

    A database that does not answer is no reason: it is waited for while the process runs. Nor is a schema that is newer
    than this code, in the middle of an update.

    Raises:
        SchemaBehindError: the database was not migrated in time.
    """
    ends = time.monotonic() + wait_seconds
    told = False
    while True:
        try:
            current, head = current_revision(database), head_revision()
            if current == head or (current is not None and not is_known_revision(current)):
                return
            refusal: Exception = SchemaBehindError(current, head)
        except _AWAY as error:
            refusal = error
        if time.monotonic() > ends:
            break
        if not told:
            log.warning("schema.waiting seconds=%g: %s", wait_seconds, refusal)
            told = True
        time.sleep(_PAUSE_SECONDS)
    if isinstance(refusal, SchemaBehindError):
        raise refusal
    log.warning("schema.unknown: the database does not answer: %s", refusal)
