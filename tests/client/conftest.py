from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.client import Client
from service.settings import Settings
from tests.api.serving import Served
from tests.support.breaking import BreakingProxy
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[Served]:
    """A service on a socket, for all tests of the package."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(_sqlite_template, folder / "service.db")
    url = f"sqlite:///{folder}/service.db"
    settings = Settings(data_dir=folder / "data", database_url=url, min_free_bytes=0, ping_seconds=0.3)
    app = create_app(settings)
    with Served(app) as server:
        yield server
    app.state.app.close()


@pytest.fixture
def client(server: Served) -> Iterator[Client]:
    with Client(server.url, patience_seconds=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture
def worker(server: Served) -> Front:
    """The database behind the server, to do the worker's part."""
    return Front(TestClient(server.app), server.app.state.app)


@pytest.fixture
def proxy(server: Served) -> Iterator[BreakingProxy]:
    """A way to the server that breaks off when it is told to."""
    between = BreakingProxy(server.url)
    yield between
    between.close()
