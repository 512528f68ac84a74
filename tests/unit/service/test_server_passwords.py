"""Passwords of servers and other secrets: whatever characters they have, they come through whole."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from kombu.utils.url import parse_url
from pydantic import ValidationError
from sqlalchemy import text
from sqlalchemy.engine import make_url

from service.db import Database
from service.dispatch.broker import TaskSender
from service.jobs.errors import DispatchError
from service.settings import Settings
from tests.fault.harness.servers import free_port
from tests.support.patience import PATIENCE_SECONDS
from tests.support.services import POSTGRES_URL, require
from tests.worker.workbench import wait_for

PASSWORDS = ("p@ss/w#rd", "a:b?c&d=e", "50%25 $HOME ${X}", "'\"\\`", "größe+1", "x")
DATABASE = "postgresql://quantmill@db.example:5432/quantmill?sslmode=verify-full&sslrootcert=/etc/ca.pem"


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_comes_through_whole_in_either_url(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("QUANTMILL_DATABASE_PASSWORD", password)
    monkeypatch.setenv("QUANTMILL_BROKER_PASSWORD", password)
    settings = Settings(database_url=DATABASE, broker_url="rediss://redis.example:6380/0?ssl_ca_certs=/etc/ca.pem")
    url = make_url(settings.database_url)
    assert (url.drivername, url.username, url.password) == ("postgresql+psycopg", "quantmill", password)
    assert (url.host, url.port, url.database) == ("db.example", 5432, "quantmill")
    assert url.query == {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem"}
    broker = parse_url(settings.broker_url)
    assert (broker["hostname"], broker["port"], broker["virtual_host"]) == ("redis.example", 6380, "0")
    assert broker["password"] == password
    assert {"QUANTMILL_DATABASE_PASSWORD", "QUANTMILL_BROKER_PASSWORD"} <= set(Settings.secret_variables())
    assert password == "x" or password not in repr(settings)


def test_it_replaces_the_password_of_the_url() -> None:
    settings = Settings.model_validate({"database_url": "postgresql://me:old@[::1]:5433/q", "database_password": "n@w"})
    assert settings.database_url == "postgresql+psycopg://me:n%40w@[::1]:5433/q"


@pytest.mark.parametrize("name", ["database_password", "broker_password"])
def test_a_password_of_no_server_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="no URL of a server"):
        Settings.model_validate({name: "secret"})


def test_files_of_a_folder_are_settings_unless_the_environment_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quantmill_database_password").write_text("p@ss/w#rd\n")
    (tmp_path / "quantmill_key_pepper").write_text("of the file")
    monkeypatch.setenv("QUANTMILL_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("QUANTMILL_KEY_PEPPER", "of the environment")
    settings = Settings(database_url="postgresql://me@db/q")
    assert make_url(settings.database_url).password == "p@ss/w#rd"
    assert settings.key_pepper is not None
    assert settings.key_pepper.get_secret_value() == "of the environment"
    monkeypatch.setenv("QUANTMILL_SECRETS_DIR", str(tmp_path / "none"))
    with pytest.raises(ValidationError, match="is not a folder"):
        Settings()


@pytest.mark.postgres
def test_postgresql_is_reached_with_a_password_of_any_characters() -> None:
    password = PASSWORDS[0] + PASSWORDS[2] + PASSWORDS[3]
    place = make_url(POSTGRES_URL).set(username="quantmill_password_test", password=None)
    with psycopg.connect(POSTGRES_URL, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS quantmill_password_test")
        admin.execute(
            psycopg.sql.SQL("CREATE ROLE quantmill_password_test LOGIN PASSWORD {}").format(
                psycopg.sql.Literal(password)
            )
        )
        try:
            url = place.render_as_string(hide_password=False)
            database = Database(
                Settings.model_validate({"database_url": url, "database_password": password}).database_url
            )
            with database.read() as session:
                assert session.scalar(text("SELECT current_user")) == "quantmill_password_test"
            database.close()
        finally:
            admin.execute("DROP ROLE quantmill_password_test")


@pytest.fixture
def guarded_redis(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A Redis of its own with a password, started as docker-compose.yml does: by an argument; its port and password."""
    require(None if shutil.which("redis-server") else "no redis-server: none with a password is tried")
    port, password = free_port(), PASSWORDS[0] + PASSWORDS[2] + PASSWORDS[3]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--requirepass", password]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        yield port, password
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


@pytest.mark.slow
def test_redis_is_reached_with_a_password_of_any_characters_and_not_with_another(
    guarded_redis: tuple[int, str],
) -> None:
    port, password = guarded_redis

    def trouble(secret: str) -> str | None:
        url = f"redis://127.0.0.1:{port}/0"
        sender = TaskSender(Settings.model_validate({"broker_url": url, "broker_password": secret}))
        try:
            sender.ping()
        except DispatchError as error:
            return error.detail
        finally:
            sender.close()
        return None

    wait_for(lambda: trouble(password) is None)
    assert "invalid username-password" in str(trouble(f"{password}x"))
