from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.client import Client
from service.settings import Settings
from tests.support.breaking import BreakingProxy
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[ApiProcess]:
    """A real API process, for all tests of the package."""
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(_sqlite_template, folder / "service.db")
    process = ApiProcess(
        Settings(
            data_dir=folder / "data",
            database_url=f"sqlite:///{folder}/service.db",
            min_free_bytes=0,
            ping_seconds=0.3,
            upload_idle_seconds=2.0,
        )
    )
    yield process
    process.close()


@pytest.fixture
def client(server: ApiProcess) -> Iterator[Client]:
    with Client(server.url, patience_seconds=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture
def worker(server: ApiProcess) -> Iterator[Front]:
    """The database behind the server, to do the worker's part."""
    app = create_app(server.settings)
    with TestClient(app) as http:
        yield Front(http, app.state.desk)


@pytest.fixture
def proxy(server: ApiProcess) -> Iterator[BreakingProxy]:
    """A way to the server that breaks off when it is told to."""
    between = BreakingProxy(server.url)
    yield between
    between.close()
