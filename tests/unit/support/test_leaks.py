"""The search for secrets finds those that are planted, and tells where they lie and not what they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select

from service.db import Database
from service.keys import repository
from service.keys.secrets import make_key
from service.settings import Settings
from service.tables import ApiKey
from tests.support import leaks

PLANTED = "0f1e2d3c4b5a69788796a5b4c3d2e1f0-planted"


@pytest.fixture(autouse=True)
def _nothing_is_remembered_from_here_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_known", {})


def refused(folder: Path) -> str:
    with pytest.raises(AssertionError) as caught:
        leaks.refuse(leaks.files_of(folder))
    return str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("QUANTMILL_API_KEY", f"{PLANTED}+with/more"),
        ("QUANTMILL_DATABASE_URL", f"postgresql://someone:{PLANTED}@localhost/x"),
    ],
)
def test_a_secret_of_the_settings_is_found_in_a_log(tmp_path: Path, variable: str, value: str) -> None:
    Settings(**{variable.removeprefix("QUANTMILL_").lower(): value})
    secret = value if value[: len(PLANTED)] == PLANTED else PLANTED
    log = tmp_path / "home" / "api.log"
    log.parent.mkdir()
    log.write_text(f"a line\nconnected as x-{secret}!\n")
    said = refused(tmp_path)
    assert f"{log}: {leaks.KINDS[variable]}" in said
    assert PLANTED not in said
    log.write_text(f"a line\nconnected as {secret[:-1]}!\n")
    leaks.refuse(leaks.files_of(tmp_path))
    log.unlink()


def test_keys_are_found_by_their_form_and_a_pepper_in_its_database(tmp_path: Path) -> None:
    log, database = tmp_path / "worker.log", tmp_path / "service.db"
    log.write_text(f"Authorization: Bearer {make_key().text}\n")
    assert refused(tmp_path).endswith("worker.log: key")
    log.unlink()
    (tmp_path / "key.pepper").write_text(f"{PLANTED}\n")
    database.write_bytes(b"SQLite format 3\0" + PLANTED.encode())
    assert refused(tmp_path).endswith("service.db: pepper")
    database.unlink()


@pytest.mark.both_databases
def test_a_secret_in_a_row_is_found(database: Database, database_url: str) -> None:
    with database.write() as session:
        row = ApiKey(
            id=make_key().id, tenant_id="default", name=PLANTED, scope="read", secret_hash="0" * 64,
            pepper_id="0" * 16, last4="0000", created_at=repository.datetime_now(session), expires_at=None,
        )  # fmt: skip
        repository.add(session, row)
    leaks.remember("key", PLANTED)
    with pytest.raises(AssertionError, match="table api_keys: key"):
        leaks.refuse(leaks.rows_of(database_url))
    with database.write() as session:
        session.delete(session.scalars(select(ApiKey)).one())
