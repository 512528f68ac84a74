"""Commands of the front desk."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from service.cli import register
from service.db import Database, current_revision, head_revision
from service.keys.start import start_refusal
from service.loopback import is_loopback
from service.settings import Settings


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def test_migrate(app: typer.Typer, tmp_path: Path, sqlite_url: str) -> None:
    """What the migrations do is told elsewhere: here nothing is left to do."""
    head = head_revision()
    for folder, more, said in ((tmp_path, [], head), (tmp_path / "new", ["--revision", "base"], "empty")):
        done = CliRunner().invoke(app, ["migrate", "--data-dir", str(folder), *more])
        assert (done.exit_code, done.stdout.strip()) == (0, f"schema: {said}")
    database = Database(sqlite_url)
    assert current_revision(database) == head
    database.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.invalid"])
def test_the_api_is_not_opened_to_all_without_a_key(app: typer.Typer, tmp_path: Path, host: str) -> None:
    done = CliRunner().invoke(app, ["api", "--host", host, "--port", "0", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert host in done.stderr and "QUANTMILL_API_KEY" in done.stderr
    assert start_refusal(Settings(data_dir=tmp_path, host=host, api_key="0123-of-some-length", open=False)) is None
    assert start_refusal(Settings(data_dir=tmp_path, host="127.0.0.1")) is None


def test_loopback() -> None:
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "", "::", "10.0.0.1", "no.such.host.invalid"):
        assert not is_loopback(host), host
