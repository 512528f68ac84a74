"""Opening a SQLite file that others open, too: the switch to the write-ahead log has no busy handler of its own."""

from __future__ import annotations

import os
import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from service.db import Database
from tests.db.test_concurrency import at_once


@pytest.fixture
def held(tmp_path: Path) -> sqlite3.Connection:
    """A connection that writes to a file without write-ahead log: nobody can switch it meanwhile."""
    connection = sqlite3.connect(tmp_path / "held.db", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE t (x)")
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_connecting_waits_for_whoever_holds_the_file_as_long_as_it_may(
    held: sqlite3.Connection, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'held.db'}"
    hasty = Database(url, lock_seconds=0.3)
    with pytest.raises(OperationalError, match="locked"), hasty.read() as session:
        session.scalar(text("SELECT 1"))
    released = threading.Event()

    def let_go() -> None:
        released.set()
        held.execute("COMMIT")

    release = threading.Timer(0.4, let_go)
    release.start()
    database = Database(url)
    with database.read() as session:
        assert session.scalar(text("PRAGMA journal_mode")) == "wal"
        assert released.is_set()
    release.join()
    for one in (database, hasty, held):
        one.close()


def test_a_file_that_is_no_database_fails_at_once(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("this is not a database, and it is longer than a header of a hundred bytes. " * 4)
    database = Database(f"sqlite:///{path}", lock_seconds=24 * 3600)  # longer than any test may take
    with pytest.raises(Exception, match="not a database"), database.read() as session:
        session.scalar(text("SELECT 1"))
    database.close()


def test_many_open_a_new_file_at_once(tmp_path: Path) -> None:
    for number in range(4):
        databases = [Database(f"sqlite:///{tmp_path / f'{number}.db'}") for _ in range(8)]

        def look(index: int, opened: list[Database] = databases) -> str:
            with opened[index].read() as session:
                return str(session.scalar(text("PRAGMA journal_mode")))

        assert at_once(8, look) == ["wal"] * 8
        for database in databases:
            database.close()


def open_files(path: Path) -> int:
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names alone
    return sum(str(link.readlink()).startswith(str(path)) for link in links if link.is_symlink())
