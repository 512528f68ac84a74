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


def test_migrate(app: typer.Typer, tmp_path: Path) -> None:
    for arguments, said in (([], head_revision()), (["--revision", "base"], "empty"), ([], head_revision())):
        done = CliRunner().invoke(app, ["migrate", "--data-dir", str(tmp_path / "data"), *arguments])
        assert (done.exit_code, done.stdout.strip()) == (0, f"schema: {said}")
    database = Database(f"sqlite:///{tmp_path}/data/service.db")
    assert current_revision(database) == head_revision()
    database.close()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.invalid"])
def test_the_api_is_not_opened_to_all_without_a_key(app: typer.Typer, tmp_path: Path, host: str) -> None:
    done = CliRunner().invoke(app, ["api", "--host", host, "--port", "0", "--data-dir", str(tmp_path)])
    assert done.exit_code == 2
    assert host in done.stderr
    assert "QUANTMILL_API_KEY" in done.stderr


def test_with_a_key_it_may_be(tmp_path: Path) -> None:
    assert start_refusal(Settings(data_dir=tmp_path, host="0.0.0.0", api_key="0123-of-some-length", open=False)) is None
    assert start_refusal(Settings(data_dir=tmp_path, host="127.0.0.1")) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "10.0.0.1", "no.such.host.invalid"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)
