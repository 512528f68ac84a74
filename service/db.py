"""The database: engines for SQLite and PostgreSQL, read and write transactions, the database's clock, migrations."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Connection, Dialect, Double, Engine, TypeDecorator, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from service.monitoring.declarations import DATABASE_ERRORS, TRANSACTIONS
from service.server_urls import driver_url
from service.timeouts import LONG, DatabaseTimeouts

if TYPE_CHECKING:
    from alembic.config import Config


# What no database can keep of a text, at the one door that all statements pass.
#
# PostgreSQL refuses the character of number 0, also in JSON, and neither database takes half of a surrogate pair. Names
# in models, details of errors and lines of logs come with either; a replacement character stands in its place.

_UNFIT = re.compile("[\0\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def json_text(value: Any) -> str:
    """The document as JSON that either database reads back."""
    text = json.dumps(value)
    # as they are escaped; whole pairs are, too
    return json.dumps(_cleaned(value)) if "\\u0000" in text or "\\ud" in text else text


def clean_parameters(engine: Engine) -> None:
    """Have the texts of every statement cleaned before they are sent."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def _clean(_: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: bool) -> tuple[str, Any]:
        return statement, _cleaned(parameters)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        # looks at a megabyte in no time
        return value if value.isascii() and "\0" not in value else _UNFIT.sub(_REPLACEMENT, value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_cleaned(one) for one in value])
    return value


MIGRATIONS_DIR = Path(__file__).resolve().parent.parent / "migrations"
# First and longest pause between two attempts to switch a new SQLite file to its write-ahead log.
WAL_PAUSE_SECONDS = (0.005, 0.25)
_MIGRATION_LOCK = 0x7175616E746D696C  # any number that every process agrees on
# Between two questions whether another process has come to the end of its migration.
_MIGRATION_PAUSE_SECONDS = 0.1
# How long a migration on PostgreSQL waits for a table that a long transaction uses: whoever comes after it waits behind
# it. Then it lets them pass, and tries again after a pause, until its patience ends.
MIGRATION_LOCK_SECONDS = 2.0
MIGRATION_PATIENCE_SECONDS = 900.0
_WRITE = "quantmill_write"


class UtcTimestamp(TypeDecorator[datetime]):
    """A moment, stored as seconds since 1970 UTC on either database, so that clock arithmetic is the same on both.

    Python sees an aware ``datetime`` in UTC. SQL sees a double: compare with ``db_now()`` and add plain seconds.
    """

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: datetime | float | None, dialect: Dialect) -> float | None:
        """Aware datetime (or seconds) -> seconds."""
        if isinstance(value, datetime):
            if value.tzinfo is None:
                raise ValueError(f"a naive datetime has no place on the time line: {value!r}")
            return value.timestamp()
        return value

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        """Seconds -> aware datetime."""
        return None if value is None else datetime.fromtimestamp(value, tz=UTC)


class db_now(FunctionElement[float]):  # noqa: N801 - reads as the SQL function that it is
    """The database's clock, in seconds since 1970 UTC. The only clock that leases and deadlines are judged by."""

    type = Double()
    inherit_cache = True
    name = "db_now"


@compiles(db_now, "sqlite")
def _sqlite_now(element: db_now, compiler: SQLCompiler, **_: Any) -> str:
    # julianday works on every SQLite; unixepoch('subsec') only since 3.42
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(db_now, "postgresql")
def _postgresql_now(element: db_now, compiler: SQLCompiler, **_: Any) -> str:
    # now() would stand still while a transaction waits for a lock
    return "CAST(EXTRACT(EPOCH FROM statement_timestamp()) AS DOUBLE PRECISION)"


class Database:
    """One database by URL; the same code runs on SQLite and PostgreSQL.

    Args:
        url: SQLAlchemy URL (``sqlite:///...`` or ``postgresql://...``).
        lock_seconds: how long a statement waits for another transaction before it fails; default: as ``timeouts``.
        timeouts: how long to wait for everything.
    """

    def __init__(self, url: str, *, lock_seconds: float | None = None, timeouts: DatabaseTimeouts = LONG) -> None:
        self._timeouts = timeouts if lock_seconds is None else replace(timeouts, lock_seconds=lock_seconds)
        self.engine = _create_engine(driver_url(url), timeouts=self._timeouts)
        self._writer = self.engine.execution_options(**{_WRITE: True})
        self._writers = threading.BoundedSemaphore(self._timeouts.writers)
        self._away_until = 0.0

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A write transaction: committed at the end of the block, rolled back if the block raises.

        On SQLite it begins IMMEDIATE: what was read inside cannot change before the commit.

        Raises:
            sqlalchemy.exc.TimeoutError: too many others write, or the database was away a moment ago.
        """
        with _measured("write"):
            if not self._writers.acquire(timeout=self._timeouts.lock_seconds):
                raise PoolTimeoutError(f"{self._timeouts.writers} transactions write, none came to an end")
            try:
                with self._noticing(), Session(self._writer, expire_on_commit=False) as session, session.begin():
                    yield session
            finally:
                self._writers.release()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading; whatever it should change is rolled back.

        Raises:
            sqlalchemy.exc.TimeoutError: there is no connection to be had, or the database was away a moment ago.
        """
        with _measured("read"), self._noticing(), Session(self.engine, expire_on_commit=False) as session:
            yield session

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()

    @contextmanager
    def _noticing(self) -> Iterator[None]:
        """Refuse at once while the database is known to be away: whoever queues behind a silent server waits in vain.

        After ``pause_seconds`` the next ones try again.
        """
        if time.monotonic() < self._away_until:
            raise PoolTimeoutError("the database did not answer a moment ago")
        try:
            yield
        except DBAPIError as error:
            if self._timeouts.pause_seconds and _is_silent(error):
                self._away_until = time.monotonic() + self._timeouts.pause_seconds
            raise


@contextmanager
def _measured(mode: str) -> Iterator[None]:
    """Time a transaction, and count it if the database refused it or did not answer."""
    begun = time.perf_counter()
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeoutError):
        DATABASE_ERRORS.labels(mode).inc()
        raise
    finally:
        TRANSACTIONS.labels(mode).observe(time.perf_counter() - begun)


def _is_silent(error: DBAPIError) -> bool:
    if isinstance(error.orig, sqlite3.Error):
        return False
    from service.postgres import is_silent

    return is_silent(error.orig)


def _create_engine(url: str, *, foreign_keys: bool = True, timeouts: DatabaseTimeouts) -> Engine:
    kept = timeouts.connections // 2
    if make_url(url).get_backend_name() == "sqlite":
        engine = create_engine(
            url,
            connect_args={"timeout": timeouts.lock_seconds},
            pool_size=kept,
            max_overflow=timeouts.connections - kept,
            pool_timeout=timeouts.pool_seconds,
            json_serializer=json_text,
        )
        clean_parameters(engine)
        _configure_sqlite(engine, foreign_keys=foreign_keys, lock_seconds=timeouts.lock_seconds)
        return engine
    from service.postgres import bound_answers, connect_arguments, tell_away

    engine = create_engine(
        url,
        pool_pre_ping=True,
        pool_size=kept // 2,
        max_overflow=timeouts.connections - kept // 2,
        pool_timeout=timeouts.pool_seconds,
        connect_args=connect_arguments(timeouts),
        json_serializer=json_text,
    )
    clean_parameters(engine)
    bound_answers(engine, timeouts.answer_seconds)
    tell_away(engine)
    return engine


def _configure_sqlite(engine: Engine, *, foreign_keys: bool, lock_seconds: float) -> None:
    @event.listens_for(engine, "connect")
    def _on_connect(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
        # The driver must not open transactions by itself: _on_begin does, and knows which kind.
        connection.isolation_level = None
        cursor = connection.cursor()
        _switch_to_wal(cursor, lock_seconds=lock_seconds)
        # FULL: a commit that was answered with 2xx survives a power loss.
        for pragma in ("synchronous=FULL", f"foreign_keys={'ON' if foreign_keys else 'OFF'}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        write = connection.get_execution_options().get(_WRITE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _switch_to_wal(cursor: sqlite3.Cursor, *, lock_seconds: float) -> None:
    """Give the file a write-ahead log, unless it has one; several processes may open the same new file at once.

    SQLite answers SQLITE_BUSY to the switch at once, without waiting for the lock as it does for a statement (its
    busy handler is not called where waiting could be a deadlock): the waiting is done here.

    Raises:
        sqlite3.OperationalError: the file stayed locked for ``lock_seconds``, or cannot be used at all.
    """
    until = time.monotonic() + lock_seconds
    pause = WAL_PAUSE_SECONDS[0]
    while True:
        try:
            if cursor.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                cursor.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() + pause > until:
                raise
        else:
            return
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - no secret
        pause = min(WAL_PAUSE_SECONDS[1], 2 * pause)


def migrate(
    url: str,
    revision: str = "head",
    *,
    lock_seconds: float = MIGRATION_LOCK_SECONDS,
    patience_seconds: float = MIGRATION_PATIENCE_SECONDS,
) -> None:
    """Bring the schema to ``revision``; processes that do so at the same time wait for one another.

    Args:
        url: the database.
        revision: "head", "base", or the name of a revision.
        lock_seconds: on PostgreSQL, how long others wait behind a migration that cannot have its table.
        patience_seconds: on PostgreSQL, how long such a migration is tried again.

    Raises:
        MigrationBlockedError: a table was in use all that time; every migration is whole, or was not begun.
    """
    from alembic import command
    from alembic.script import ScriptDirectory

    from service.postgres import retried_past_locks

    url = driver_url(url)
    _make_private(url)
    timeouts = DatabaseTimeouts() if url.startswith("sqlite") else DatabaseTimeouts(lock_seconds=lock_seconds)
    # SQLite: tables are rebuilt to alter them, which foreign keys would take for deletions.
    engine = _create_engine(url, foreign_keys=False, timeouts=timeouts).execution_options(**{_WRITE: True})
    try:
        with _migrating(engine) as connection:
            config = alembic_config()
            config.attributes["connection"] = connection
            order = [script.revision for script in ScriptDirectory.from_config(config).walk_revisions()]
            is_older = _is_older(revision, _current(connection), order)
            go = command.downgrade if is_older else command.upgrade
            if connection.dialect.name == "postgresql":
                connection.rollback()  # of the look: migrations begin and end transactions by themselves
                retried_past_locks(connection, lambda: go(config, revision), patience_seconds)
            else:
                go(config, revision)
                if connection.exec_driver_sql("PRAGMA foreign_key_check").first():
                    raise RuntimeError("the migration left rows with invalid foreign keys; nothing was changed")
    finally:
        engine.dispose()


@contextmanager
def _migrating(engine: Engine) -> Iterator[Connection]:
    """A connection for migrations; nobody else migrates meanwhile.

    On SQLite one transaction that writes. On PostgreSQL indexes of large tables are built outside of transactions, and
    wait for those of all others: whoever waits for this to end must not have one open, and asks again and again.
    """
    if engine.dialect.name == "sqlite":
        with engine.begin() as connection:
            yield connection
        return
    with engine.connect() as connection:
        while not connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), {"key": _MIGRATION_LOCK}):
            connection.rollback()
            time.sleep(_MIGRATION_PAUSE_SECONDS)
        connection.rollback()
        try:
            yield connection
        finally:
            connection.invalidate()  # the lock goes with the connection, however this ends


def _make_private(url: str) -> None:
    """A SQLite file is its owner's alone; its journals are made as it is."""
    path = make_url(url).database
    if not url.startswith("sqlite") or not path or path == ":memory:":
        return
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if os.stat(path).st_uid == os.geteuid():  # noqa: PTH116 - as the rest of it
        os.chmod(path, 0o600)  # noqa: PTH101


def current_revision(database: Database) -> str | None:
    """The schema's revision; None for an empty database."""
    with database.engine.connect() as connection:
        return _current(connection)


@lru_cache(maxsize=1)
def head_revision() -> str:
    """The revision that this code was written for."""
    from alembic.script import ScriptDirectory

    return cast(str, ScriptDirectory.from_config(alembic_config()).get_current_head())


def is_known_revision(revision: str) -> bool:
    """True if this code has the migration that leads to ``revision``; of a newer version's it does not."""
    from alembic.script import ScriptDirectory

    return revision in {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}


def _current(connection: Connection) -> str | None:
    from alembic.migration import MigrationContext

    # another program's database may stand at several
    return ", ".join(sorted(MigrationContext.configure(connection).get_current_heads())) or None


def _is_older(wanted: str, current: str | None, newest_first: list[str]) -> bool:
    if current is None or wanted == "head":
        return False
    return wanted == "base" or (wanted in newest_first and newest_first.index(wanted) > newest_first.index(current))


def alembic_config() -> Config:
    """Where alembic finds the migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS_DIR))
    return config


# What loops do to many things at a time: a fault in one keeps none of the others from its turn.

log = logging.getLogger(__name__)
_Which = TypeVar("_Which")


def one_by_one(name: str, items: Iterable[_Which], work: Callable[[_Which], bool]) -> int:
    """Do each of them, whatever becomes of the others; returns how many were done.

    Args:
        name: of what is done, for the log.
        items: what it is done to.
        work: tells whether this process did it.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is away or busy, which is no fault of an item: the next round tries
            again.
    """
    done = 0
    for which in items:
        try:
            done += work(which)
        except (OperationalError, InterfaceError, PoolTimeoutError):
            raise
        except Exception:  # a fault in one must not keep the others; it is logged whole, and tried again
            log.exception("%s.broken id=%s", name, which)
    return done
