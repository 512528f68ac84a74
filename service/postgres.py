"""PostgreSQL from the client's side: a server that falls silent costs its caller seconds, not for ever."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Dialect, Engine, event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import ConnectionPoolEntry

from service.patience import Patience

_Got = TypeVar("_Got")
# What the standard counts as errors of the caller's transaction, though it is the server that takes none now: it only
# reads (a standby, a disk that ran full), or it has closed the connection for its age.
_AWAY_STATES = frozenset({"25006", "25P03", "25P04"})


@dataclass(frozen=True)
class Pulse:
    """How the kernels at both ends find out that the other host, or the way to it, is gone; in seconds.

    Attributes:
        idle: silence after which a kernel asks.
        interval: until it asks again.
        count: questions without an answer after which the connection counts as broken.
    """

    idle: int = 5
    interval: int = 2
    count: int = 3

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


def connect_arguments(patience: Patience) -> dict[str, Any]:
    """What libpq and the server are told of locks, statements and silence."""
    pulse = PULSE
    told = {
        "lock_timeout": _milliseconds(patience.lock_seconds),
        "timezone": "UTC",
        # of a host that is gone the server would keep the open transaction, with its locks, for hours
        "tcp_keepalives_idle": pulse.idle,
        "tcp_keepalives_interval": pulse.interval,
        "tcp_keepalives_count": pulse.count,
        "tcp_user_timeout": _milliseconds(pulse.gone_seconds),
    }
    if patience.answer_seconds is not None:
        told["statement_timeout"] = _milliseconds(patience.answer_seconds)
    return {
        "connect_timeout": round(patience.connect_seconds),
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
