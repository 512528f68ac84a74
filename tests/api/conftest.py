from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

import service.http
from service.app import create_app
from service.deps import AppState
from service.health import service as health
from service.settings import Settings
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.webhooks import PEPPER

# Of a test or a module: what it tells does not depend on the database.
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    """Its routes are built with its first request, which takes longer than most tests: one for all, at any state."""
    return create_app(Settings(data_dir=tmp_path_factory.mktemp("app"), min_free_bytes=0))


@pytest.fixture
def unhurried_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests a look at the database may take seconds; what is asked here is what it finds."""
    monkeypatch.setattr(health, "ANSWER_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    """With a pepper, which webhooks, hand-overs and attestations need on PostgreSQL."""
    return Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0, key_pepper=PEPPER)


@contextmanager
def front_of(app: FastAPI, settings: Settings) -> Iterator[Front]:
    """The application at the state of ``settings``."""
    app.state.app = state = AppState.from_settings(settings)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Front(client, state)
    state.close()


@pytest.fixture
def front(app: FastAPI, settings: Settings) -> Iterator[Front]:
    """The API server on either database."""
    with front_of(app, settings) as front:
        yield front


@pytest.fixture
def endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For requests with ?wait= time stands still: only what they wait for ends them."""
    monkeypatch.setattr(service.http, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.fixture
def sqlite_front(app: FastAPI, tmp_path: Path, sqlite_url: str) -> Iterator[Front]:
    """The API server on SQLite, for what does not depend on the database."""
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)
    with front_of(app, settings) as front:
        yield front
