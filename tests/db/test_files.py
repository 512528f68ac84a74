"""Files that a SQLite database keeps open: a process that can open no more of them has to get its places back."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from service.db import Database, migrate


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "service.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """As in a process without work: garbage stays."""
    gc.disable()
    yield
    gc.enable()


def open_files(path: Path) -> int:
    """Files of the database that this process has open."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names alone
    return sum(str(link.readlink()).startswith(str(path)) for link in links if link.is_symlink())


def used(database: Database) -> None:
    with database.read() as session:
        session.execute(text("SELECT count(*) FROM jobs"))


def test_spared_connections_are_closed_also_those_that_were_in_use(path: Path) -> None:
    database = Database(f"sqlite:///{path}")
    with database.read() as session:
        session.execute(text("SELECT count(*) FROM jobs"))
        used(database)
        database.spare()
    database.spare()
    assert open_files(path) == 0
    used(database)
    database.close()
