from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.support.front import Front


@pytest.fixture
def front(settings: Settings) -> Iterator[Front]:
    """The front desk on either database."""
    app = create_app(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Front(client, app.state.desk)


@pytest.fixture
def sqlite_front(tmp_path, sqlite_url: str) -> Iterator[Front]:
    """The front desk on SQLite, for what does not depend on the database."""
    app = create_app(Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Front(client, app.state.desk)
