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
        ("QUANTMILL_API_KEY", PLANTED),
        ("QUANTMILL_KEY_PEPPER", PLANTED),
        ("QUANTMILL_DATABASE_URL", f"postgresql://someone:{PLANTED}@localhost/x"),
        ("QUANTMILL_BROKER_URL", f"redis://:{PLANTED}@localhost/0"),
    ],
)
def test_a_secret_of_the_settings_is_found_in_a_log(tmp_path: Path, variable: str, value: str) -> None:
    Settings(**{variable.removeprefix("QUANTMILL_").lower(): value})
    log = tmp_path / "home" / "api.log"
    log.parent.mkdir()
    log.write_text(f"a line\nconnected as {PLANTED}!\n")
    said = refused(tmp_path)
    assert f"{log}: {leaks.KINDS[variable]}" in said
    assert PLANTED not in said
    log.unlink()
    leaks.refuse(leaks.files_of(tmp_path))


def test_any_key_is_found_by_its_form(tmp_path: Path) -> None:
    (tmp_path / "worker.log").write_text(f"Authorization: Bearer {make_key().text}\n")
    said = refused(tmp_path)
    assert said.endswith("worker.log: key")
    (tmp_path / "worker.log").unlink()


def test_the_pepper_of_an_installation_is_found_in_its_database(tmp_path: Path) -> None:
    (tmp_path / "key.pepper").write_text(f"{PLANTED}\n")
    (tmp_path / "service.db").write_bytes(b"SQLite format 3\0" + PLANTED.encode())
    assert refused(tmp_path).endswith("service.db: pepper")
    (tmp_path / "service.db").unlink()


def test_a_secret_in_a_row_is_found(database: Database, database_url: str) -> None:
    with database.write() as session:
        repository.add(
            session, "default", make_key().id, name=PLANTED, scope="read", secret_hash="0" * 64, pepper_id="0" * 16,
            last4="0000", created_at=repository.datetime_now(session), expires_at=None,
        )  # fmt: skip
    leaks.remember("key", PLANTED)
    with pytest.raises(AssertionError, match="table api_keys: key"):
        leaks.refuse(leaks.rows_of(database_url))
    with database.write() as session:
        session.delete(session.scalars(select(ApiKey)).one())
