"""Whether the database has the schema that this code was written for."""

from __future__ import annotations

import logging
import re
import time

from sqlalchemy import inspect
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.contracts.command_errors import TransientError
from service.db import Database, current_revision, head_revision, is_known_revision
from service.tables import Base

_PAUSE_SECONDS = 0.5
# Our revisions begin with their date: a newer version's are of the same day, or later.
_REVISION = re.compile(r"(\d{8})_\w+$")
_AWAY = (OperationalError, InterfaceError, PoolTimeoutError)
log = logging.getLogger(__name__)


class SchemaBehindError(TransientError, code="schema-behind", title="Database not migrated"):
    """The database was not migrated to the schema that this version requires."""

    retry_after_seconds = 5

    def __init__(self, current: str | None, head: str) -> None:
        at = "is empty" if current is None else f"is at {current}"
        super().__init__(
            f"the schema {at}, but this version requires {head}: run `quantmill migrate`",
            hint="Run `quantmill migrate` to update the database.",
        )


class SchemaAheadError(TransientError, code="schema-ahead", title="Database newer than this version"):
    """The database was migrated for a newer version: an update is in progress, or this process was not updated."""

    retry_after_seconds = 5

    def __init__(self, current: str, head: str) -> None:
        super().__init__(
            f"the schema is at {current}, which is newer than {head} of this version; it continues to run, update it",
            hint="Start the version that the database was migrated for.",
        )


def is_ahead(database: Database, current: str | None) -> bool:
    """Whether ``current`` is a newer version's schema, which has all tables of this one; no older, no foreign one."""
    if current is None or is_known_revision(current):
        return False
    found, own = _REVISION.match(current), _REVISION.match(head_revision())
    is_later = found is not None and own is not None and found[1] >= own[1]
    return is_later and set(Base.metadata.tables) <= set(inspect(database.engine).get_table_names())


def require_current(database: Database) -> str:
    """The schema's revision, which is the one that this version needs.

    Raises:
        SchemaAheadError: it is that of a newer one.
        SchemaBehindError: it is another.
    """
    current, head = current_revision(database), head_revision()
    if current is not None and is_ahead(database, current):
        raise SchemaAheadError(current, head)
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
            if current == head or is_ahead(database, current):
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
