"""PostgreSQL client timeouts: a server that stops responding blocks callers only for seconds."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Connection, Dialect, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from service.contracts.command_errors import MigrationBlockedError
from service.timeouts import DatabaseTimeouts

_Got = TypeVar("_Got")
log = logging.getLogger(__name__)
# What the standard counts as errors of the caller's transaction, though it is the server that takes none now: it only
# reads (a standby, a disk that ran full), or it has closed the connection for its age.
_AWAY_STATES = frozenset({"25006", "25P03", "25P04"})
# A lock was not to be had in time, or would have been a deadlock.
_KEPT_WAITING = frozenset({"55P03", "40P01"})
# Pauses of a migration that found a table in use: the first, and the longest.
MIGRATION_RETRY_SECONDS = (1.0, 10.0)
# Where the triggers of the schema tell which rows have changed; each as TABLE:ID.
_LISTEN, _NOTIFY = "LISTEN quantmill", "SELECT pg_notify('quantmill', %s)"
# While nothing comes, the caller has a turn as often, and the server is asked whether it is still there.
TURN_SECONDS, ASK_SECONDS = 1.0, 10.0
# In which a notice has to come back that is sent at the beginning.
PROOF_SECONDS = 2.0
# Longer than a turn: between two turns no answer is waited for.
_LISTENER = DatabaseTimeouts(answer_seconds=5.0)


@dataclass(frozen=True)
class Pulse:
    """How the kernels at both ends find out that the other host, or the way to it, is gone; in seconds."""

    idle: int = 5  # silence after which a kernel asks
    interval: int = 2  # until it asks again
    count: int = 3  # questions without an answer after which the connection counts as broken

    @property
    def gone_seconds(self) -> int:
        """Time for which what was sent may stay unacknowledged, too: a kernel that sends asks no questions."""
        return self.idle + self.interval * self.count


# Far below a lease: whoever renews one has the time to connect again.
PULSE = Pulse()


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that gives the server a bounded time per answer.

    The server's own ``statement_timeout`` helps only while the server runs, and TCP's timeouts only while its kernel
    does not answer: a stopped process holds its connections open and says nothing.
    """

    answer_seconds: float | None = None

    def wait(self, gen: PQGen[_Got], *arguments: Any, **options: Any) -> _Got:
        """Consume ``gen`` as psycopg does.

        Raises:
            psycopg.OperationalError: the server was silent for ``answer_seconds``; the connection is closed.
        """
        if self.answer_seconds is None:
            return super().wait(gen, *arguments, **options)
        try:
            return super().wait(_until(gen, time.monotonic() + self.answer_seconds), *arguments, **options)
        except _SilentServerError:
            self.close()
            raise


class _SilentServerError(psycopg.OperationalError):
    pass


def _until(gen: PQGen[_Got], ends: float) -> PQGen[_Got]:
    """``gen``, given up once the clock has passed ``ends``; psycopg comes by ten times a second."""
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > ends:
                gen.close()
                raise _SilentServerError("the server accepted a statement and did not answer in time")
            state = gen.send(ready)
    except StopIteration as end:
        got: _Got = end.value
        return got


def connect_arguments(timeouts: DatabaseTimeouts) -> dict[str, Any]:
    """What libpq and the server are told of locks, statements and silence."""
    pulse = PULSE
    told = {
        "lock_timeout": _milliseconds(timeouts.lock_seconds),
        "timezone": "UTC",
        # of a host that is gone the server would keep the open transaction, with its locks, for hours
        "tcp_keepalives_idle": pulse.idle,
        "tcp_keepalives_interval": pulse.interval,
        "tcp_keepalives_count": pulse.count,
        "tcp_user_timeout": _milliseconds(pulse.gone_seconds),
    }
    if timeouts.answer_seconds is not None:
        told["statement_timeout"] = _milliseconds(timeouts.answer_seconds)
    return {
        "connect_timeout": round(timeouts.connect_seconds),
        "application_name": "quantmill",
        "options": " ".join(f"-c {name}={value}" for name, value in told.items()),
        "keepalives": 1,
        "keepalives_idle": pulse.idle,
        "keepalives_interval": pulse.interval,
        "keepalives_count": pulse.count,
        "tcp_user_timeout": _milliseconds(pulse.gone_seconds),
    }


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def bound_answers(engine: Engine, answer_seconds: float | None) -> None:
    """Give every connection of ``engine`` a bounded time per answer, beyond what the server itself allows."""

    @event.listens_for(engine, "do_connect")
    def _connect(
        dialect: Dialect, entry: ConnectionPoolEntry, arguments: list[Any], options: dict[str, Any]
    ) -> BoundedConnection:
        connection: BoundedConnection = BoundedConnection.connect(*arguments, **options)
        # the server is to say itself that a statement took too long, if it can
        connection.answer_seconds = None if answer_seconds is None else answer_seconds + 0.5
        return connection


def tell_away(engine: Engine) -> None:
    """Let a server that takes no writes count as one that is away: whoever asks may ask again.

    Its connections are not used again: the one that took its place as the primary may have the same address.
    """

    @event.listens_for(engine, "handle_error")
    def _classify(context: ExceptionContext) -> OperationalError | None:
        error = context.original_exception
        if not isinstance(error, psycopg.Error) or error.sqlstate not in _AWAY_STATES:
            return None
        context.is_disconnect = True
        return OperationalError(context.statement, context.parameters, error, connection_invalidated=True)


def is_silent(error: BaseException | None) -> bool:
    """True for an error by which the server did not answer at all, rather than answered that something failed."""
    return isinstance(error, psycopg.OperationalError) and error.sqlstate is None


def is_kept_waiting(error: BaseException | None) -> bool:
    """True for an error by which other transactions held what this one wanted to lock."""
    return isinstance(error, psycopg.Error) and error.sqlstate in _KEPT_WAITING


def notices(engine: Engine) -> Iterator[list[str]]:
    """Payloads of the schema's notices in the order of their commits, on a connection of its own; [] now and then.

    The first are there once it is sure that notices come: from then on none is left out.

    Raises:
        psycopg.Error: the server is away, or its notices do not come here.
    """
    with closing(_connected(engine, "quantmill listener")) as connection:
        connection.execute(_LISTEN)
        _prove(engine, connection)
        yield []
        asked_at = time.monotonic()
        while True:
            yield [notice.payload for notice in connection.notifies(timeout=TURN_SECONDS, stop_after=1)]
            if time.monotonic() - asked_at > ASK_SECONDS:
                connection.execute("SELECT 1")
                asked_at = time.monotonic()


def _prove(engine: Engine, listening: BoundedConnection) -> None:
    """Hear a notice from another connection.

    A pooler that lends a connection for each transaction takes LISTEN, and then nothing ever comes.
    """
    token = secrets.token_hex(8)
    with closing(_connected(engine, "quantmill")) as other:
        other.execute(_NOTIFY, [token])
    if all(notice.payload != token for notice in listening.notifies(timeout=PROOF_SECONDS)):
        raise psycopg.OperationalError("LISTEN was taken and no notice comes: is there a pooler before the server?")


def _connected(engine: Engine, name: str) -> BoundedConnection:
    """A connection beside the pool, told the same as those in it but for its name."""
    arguments, options = engine.dialect.create_connect_args(engine.url)
    told = {**options, **connect_arguments(_LISTENER), "application_name": name, "autocommit": True}
    connection: BoundedConnection = BoundedConnection.connect(*arguments, **told)
    connection.answer_seconds = _LISTENER.answer_seconds
    return connection


def retried_past_locks(connection: Connection, go: Callable[[], None], patience_seconds: float) -> None:
    """Migrate; where a table is in use, let those who wait behind it pass and go on from the migration that failed.

    Args:
        connection: of the migration.
        go: migrates as far as is left.
        patience_seconds: for how long it is tried again.

    Raises:
        MigrationBlockedError: a table was in use all that time.
    """
    until = time.monotonic() + patience_seconds
    pause, longest = MIGRATION_RETRY_SECONDS
    while True:
        try:
            return go()
        except OperationalError as error:
            if not is_kept_waiting(error.orig):
                raise
            if time.monotonic() + pause > until:
                raise MigrationBlockedError(
                    f"Another transaction kept a table from the migration for {patience_seconds:g} s: {error.orig}",
                    hint="End long transactions (pg_stat_activity shows them), then run `quantmill migrate` again.",
                ) from error
            log.warning("migrate.table_in_use retry_seconds=%g: %s", pause, error.orig)
        connection.rollback()
        time.sleep(pause)
        pause = min(longest, 2 * pause)
