"""A database in memory whose clock the simulation sets; the statements of the real code run on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from service.tables import Base

_EPOCH_JULIAN_DAY = 2440587.5
_DAY_SECONDS = 86400.0
_TABLES = ("artifacts", "reports", "job_events", "jobs", "idempotency_keys", "lease_rounds")
MODELS = ("mdl_0", "mdl_1", "mdl_2")


class Store:
    """Stands where a ``service.db.Database`` does; ``now`` is its clock, in seconds since 1970.

    While it is ``away`` it cannot be reached; ``lose_commit`` loses the next write, ``lose_answer`` only the answer.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.away = self.lose_answer = self.lose_commit = False
        self.engine = create_engine("sqlite://", poolclass=StaticPool)
        event.listen(self.engine, "connect", self._on_connect)
        event.listen(self.engine, "begin", _on_begin)
        Base.metadata.create_all(self.engine)
        driver: Any = self.engine.raw_connection().driver_connection
        self.raw: sqlite3.Connection = driver
        for model in MODELS:
            self.raw.execute(
                "INSERT INTO models (id, tenant_id, name, format, version, status, row_version, created_at, updated_at)"
                " VALUES (?, 'default', ?, 'onnx', 1, 'validating', 1, 0, 0)",
                (model, model),
            )

    def reset(self) -> None:
        """Empty, at the first moment."""
        self.now = 1_000_000.0
        self.away = self.lose_answer = self.lose_commit = False
        self.raw.execute("BEGIN")
        for table in _TABLES:
            self.raw.execute(f"DELETE FROM {table}")
        self.raw.execute("UPDATE models SET status = 'validating', summary = NULL, problems = NULL, waiting = NULL")
        self.raw.execute("COMMIT")

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A write transaction, with the faults that were set."""
        if self.away:
            raise lost()
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session
            if self.lose_commit:
                self.lose_commit = False
                raise lost()
        if self.lose_answer:
            self.lose_answer = False
            raise lost()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session for reading."""
        if self.away:
            raise lost()
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    def _on_connect(self, connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys=ON")
        # the one function that the clock compiles to
        connection.create_function("julianday", 1, lambda _: _EPOCH_JULIAN_DAY + self.now / _DAY_SECONDS)


def lost() -> OperationalError:
    """What a driver raises where the database cannot be reached."""
    return OperationalError("COMMIT", {}, OSError("the connection was lost"))


def _on_begin(connection: Connection) -> None:
    driver: Any = connection.connection.driver_connection
    driver.execute("BEGIN IMMEDIATE")


@cache
def store() -> Store:
    """The one of this process; its schema is made once."""
    return Store()
