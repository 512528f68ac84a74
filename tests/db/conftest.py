from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import services


@contextmanager
def new_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of one without any table: "sqlite", of a file in ``folder``, or "postgresql"."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'empty.db'}"
        return
    services.require(services.postgres_trouble())
    with services.new_postgres_database() as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database of the test's own, without any table."""
    with new_database(request.param, tmp_path) as url:
        yield url
