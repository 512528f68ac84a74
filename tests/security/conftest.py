from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI

from service.keys import keyring as keyrings
from service.keys import service as keys
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal, Scope
from service.settings import Settings
from tests.api.conftest import app, front, front_of, sqlite_front
from tests.support.front import Front
from tests.worker.conftest import bench
from worker.confinement.controls import find_controls

__all__ = ["app", "bench", "front", "sqlite_front"]
PEPPER = "0a1b2c3d4e5f-of-some-length"
BY = Principal(DEFAULT_TENANT, COMMAND_LINE, "operator")


@pytest.fixture
def settings(tmp_path: Path, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0, key_pepper=PEPPER)


@pytest.fixture
def place(tmp_path: Path, sqlite_url: str) -> Settings:
    """Of a service of the test's own, on SQLite."""
    return Settings(data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0)


@pytest.fixture
def closed(app: FastAPI, place: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """An API server that wants a key of everybody, and remembers none."""
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    wants = {"open": False, "key_pepper": Settings(key_pepper=PEPPER).key_pepper}
    with front_of(app, place.model_copy(update=wants)) as front:
        yield front


def make_key(
    front: Front, scope: Scope = "submit", tenant: str = DEFAULT_TENANT, days: float | None = None
) -> tuple[str, str]:
    """A key's id and its text."""
    with front.app.database.write() as session:
        pepper = keys.pepper_of(front.app.settings)
        made = keys.create(session, pepper, BY, tenant_id=tenant, name="ci", scope=scope, days=days)
        return made.row.id, made.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def require_controls(*names: str) -> None:
    missing = [name for name in names if name in find_controls().missing]
    if missing:
        pytest.skip(f"THIS KERNEL LACKS {', '.join(missing)}: nothing of it can be shown here")


@pytest.fixture
def python() -> str:
    """An interpreter that a plain user may run."""
    if os.geteuid() == 0 and Path("/usr/bin/python3").exists():
        return str(Path("/usr/bin/python3").resolve())
    pytest.skip("NOBODY ELSE HERE: this takes root, and an interpreter that a plain user may run")
