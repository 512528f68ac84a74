"""Keys: what is kept of them, what they may do, when they end, and when a service must not start without."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text, update

from service.db import Database, db_now, migrate
from service.deps import Desk
from service.keys import keyring as keyrings
from service.keys import local, service
from service.keys.files import LOCAL_KEY_FILE, own_secret
from service.keys.scopes import needed
from service.keys.secrets import hash_of, make_key, parts_of, weakness
from service.keys.start import start_refusal
from service.principal import COMMAND_LINE, DEFAULT_TENANT, SCOPES, Principal, Scope
from service.settings import Settings
from service.tables import ApiKey
from tests.api.conftest import front_of
from tests.support.front import Front, problem

GOOD = "0a1b2c3d4e5f-of-some-length"
BY = Principal(DEFAULT_TENANT, COMMAND_LINE, "admin")
MakeKey = Callable[..., str]


@pytest.fixture
def closed_front(app: FastAPI, tmp_path: Path, database_url: str, monkeypatch) -> Iterator[Front]:
    """A front desk that wants a key of everybody, and remembers none."""
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    settings = Settings(
        data_dir=tmp_path / "data", database_url=database_url, open=False, min_free_bytes=0, key_pepper=GOOD
    )
    with front_of(app, settings) as front:
        yield front


def make(
    front: Front, scope: Scope = "submit", tenant: str = DEFAULT_TENANT, days: float | None = None
) -> tuple[str, str]:
    """A key's id and its text."""
    with front.desk.database.write() as session:
        pepper = service.pepper_of(front.desk.settings)
        made = service.create(session, pepper, BY, tenant_id=tenant, name="ci", scope=scope, days=days)
        return made.row.id, made.text


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def status(front: Front, key: str, method: str = "GET", path: str = "/v1/jobs") -> int:
    return front.http.request(method, path, headers=bearer(key)).status_code


def test_a_made_key_opens_and_its_secret_is_nowhere(closed_front: Front) -> None:
    key_id, key = make(closed_front)
    assert status(closed_front, key) == 200
    _, secret = parts_of(key) or ("", "")
    with closed_front.desk.database.read() as session:
        row = session.execute(text("SELECT * FROM api_keys")).one()
    assert secret not in repr(row)
    assert key_id in row
    assert hash_of(secret, GOOD) in row


def test_a_key_is_checked_whole(closed_front: Front) -> None:
    _, key = make(closed_front)
    _, other = make(closed_front)
    key_part, secret = key.rpartition("_")[0], key.rpartition("_")[2]
    for wrong in (
        "",
        key[:-1],
        key + "x",
        key.upper(),
        key_part,
        secret,
        other[: len(key_part)] + key[len(key_part) :],
    ):
        assert status(closed_front, wrong) == 401, wrong
    assert closed_front.http.get("/v1/jobs").status_code == 401


def test_whoever_verifies_needs_no_key_and_makes_none(closed_front: Front) -> None:
    path = "/v1/keys/signing"
    assert closed_front.http.get(path).json() == {"items": []}
    with closed_front.desk.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM signing_keys")).scalar_one() == 0
    assert status(closed_front, "nonsense", path=path) == 401
    _, key = make(closed_front, "read")
    made = closed_front.http.get(path, headers=bearer(key)).json()["items"]
    assert len(made) == 1
    assert closed_front.http.get(path).json()["items"] == made


def test_revoked_expired_and_rotated_keys_end(closed_front: Front) -> None:
    revoked_id, revoked = make(closed_front)
    expired_id, expired = make(closed_front, days=1)
    rotated_id, rotated = make(closed_front, days=7)
    database, pepper = closed_front.desk.database, service.pepper_of(closed_front.desk.settings)
    with database.write() as session:
        service.revoke(session, BY, revoked_id)
        session.execute(update(ApiKey).where(ApiKey.id == expired_id).values(expires_at=db_now() - 1))
        successor = service.rotate(session, pepper, BY, rotated_id, grace_seconds=0)
        assert successor.row.expires_at is not None
        assert timedelta(days=6.9) < successor.row.expires_at - successor.row.created_at < timedelta(days=7.1)
    assert [status(closed_front, key) for key in (revoked, expired, rotated)] == [401] * 3
    assert status(closed_front, successor.text) == 200
    for ended in (revoked_id, expired_id, rotated_id):
        with pytest.raises(service.KeyNotFoundError), database.write() as session:
            service.revoke(session, BY, ended)


def test_a_rotated_key_is_good_until_the_grace_is_over(closed_front: Front) -> None:
    key_id, key = make(closed_front)
    with closed_front.desk.database.write() as session:
        service.rotate(session, service.pepper_of(closed_front.desk.settings), BY, key_id, grace_seconds=3600)
    assert status(closed_front, key) == 200


def test_a_rotated_key_lasts_no_longer_than_it_would_have(closed_front: Front) -> None:
    key_id, _ = make(closed_front, days=0.01)
    database = closed_front.desk.database
    with database.read() as session:
        before = session.get_one(ApiKey, key_id).expires_at
    with database.write() as session:
        service.rotate(session, service.pepper_of(closed_front.desk.settings), BY, key_id, grace_seconds=24 * 3600)
    with database.read() as session:
        assert session.get_one(ApiKey, key_id).expires_at == before


def test_a_remembered_key_is_forgotten_in_time(closed_front: Front, monkeypatch) -> None:
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 3600.0)
    key_id, key = make(closed_front)
    assert status(closed_front, key) == 200
    with closed_front.desk.database.write() as session:
        service.revoke(session, BY, key_id)
    assert closed_front.desk.keyring.remembered(key) is not None
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    assert status(closed_front, key) == 401


def test_a_key_of_another_pepper_opens_nothing(app: FastAPI, closed_front: Front) -> None:
    _, key = make(closed_front)
    settings = closed_front.desk.settings.model_copy(update={"key_pepper": Settings(key_pepper=GOOD + "x").key_pepper})
    with front_of(app, settings) as other:
        assert status(other, key) == 401


def test_when_a_key_was_last_used_is_known(closed_front: Front) -> None:
    key_id, key = make(closed_front)
    desk = closed_front.desk
    assert desk.keyring.due(key_id)
    assert not desk.keyring.due(key_id), "a row is not written with every request"
    assert not desk.keyring.due("local-key")
    desk.keyring.note_used(key_id)
    with desk.database.read() as session:
        row = session.get(ApiKey, key_id)
    assert row is not None
    assert row.last_used_at is not None
    assert row.last_used_at >= row.created_at
    assert status(closed_front, key) == 200


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_may_do_what_its_scope_says_and_no_more(closed_front: Front, scope: Scope) -> None:
    """On every route of the document."""
    _, key = make(closed_front, scope)
    document = closed_front.http.get("/openapi.json").json()
    refused = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "security" not in operation:
                continue
            place = path.replace("{", "").replace("}", "")
            answer = closed_front.http.request(method, place, headers=bearer(key), json={})
            wanted = needed(method.upper(), path)
            if SCOPES.index(wanted) > SCOPES.index(scope):
                assert answer.status_code == 403, (method, path)
                if method != "head":
                    problem(answer, 403, "scope-missing")
                refused.add(wanted)
            else:
                assert answer.status_code not in (401, 403), (method, path, answer.text)
    assert refused <= set(SCOPES[SCOPES.index(scope) + 1 :])
    assert ("submit" in refused) == (scope == "read")


def test_reading_needs_read_and_the_rest_more() -> None:
    assert needed("GET", "/v1/jobs") == needed("HEAD", "/anything") == "read"
    assert needed("POST", "/v1/something-new") == needed("DELETE", "/v1/something-new") == "submit"


@given(st.text())
def test_no_text_is_taken_for_a_key_that_is_not_spelled_so(given_text: str) -> None:
    found = parts_of(given_text)
    assert found is None or f"qm_{found[0].removeprefix('key_')}_{found[1]}" == given_text


def test_keys_are_random_and_found_by_their_ids() -> None:
    made = [make_key() for _ in range(100)]
    assert len({key.secret for key in made}) == 100
    assert all(parts_of(key.text) == (key.id, key.secret) for key in made)
    assert min(len(key.secret) for key in made) >= 43


@pytest.mark.parametrize(
    "secret",
    ["", " ", "\t\n", "short", "changeme", "changeme-changeme", "CHANGE_ME_please_1234", "choose-one-of-these",
     "your-secret-key-here", "<insert key here>", "${QUANTMILL_API_KEY}", "password12345678", "a" * 24,
     "abababababababababab", "a blank in between 123", "schlüssel-mit-umlaut-1", "xxxxxxxxxxxxxxxxxxxxxxxx"],
)  # fmt: skip
def test_a_secret_that_guards_nothing_is_refused(tmp_path: Path, secret: str) -> None:
    assert weakness(secret) is not None
    for name in ("api_key", "key_pepper"):
        settings = Settings(data_dir=tmp_path, **{name: secret})
        refusal = start_refusal(settings)
        assert refusal is not None
        assert f"QUANTMILL_{name.upper()}" in refusal
        assert not secret.strip() or secret not in refusal


@pytest.mark.parametrize(
    "secret", [GOOD, "3f786850e387550fdab836ed7e6dc881de23001b", "Vaj_BWRamZJeX56OHTOPCsg63iMmAPDpNhBQ35MuLcQ"]
)
def test_a_random_secret_is_taken(secret: str) -> None:
    assert weakness(secret) is None


def test_other_addresses_are_served_with_keys_alone(tmp_path: Path, sqlite_url: str) -> None:
    for settings, may in (
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "api_key": GOOD}, False),
        ({"host": "0.0.0.0", "api_key": GOOD}, True),
        ({"host": "127.0.0.1"}, True),
        ({"host": "127.0.0.1", "open": True}, True),
    ):
        found = start_refusal(Settings(data_dir=tmp_path, database_url=sqlite_url, **{"open": False, **settings}))
        assert (found is None) == may, settings
    settings = Settings(data_dir=tmp_path, database_url=sqlite_url, host="0.0.0.0", open=False)
    database = Database(sqlite_url)
    with database.write() as session:
        made = service.create(
            session, service.pepper_of(settings), BY, tenant_id="acme", name="ci", scope="read", days=None
        )
    assert start_refusal(settings) is None, "somebody holds a key"
    with database.write() as session:
        service.revoke(session, BY, made.row.id)
    assert start_refusal(settings) is not None
    database.close()


@pytest.mark.postgres
def test_hosts_that_share_a_database_need_a_pepper(tmp_path: Path, postgres_url: str) -> None:
    settings = Settings(data_dir=tmp_path, database_url=postgres_url, host="0.0.0.0", open=False)
    with pytest.raises(service.PepperMissingError):
        service.pepper_of(settings)
    database = Database(postgres_url)
    with database.write() as session:
        service.create(session, GOOD, BY, tenant_id="acme", name="ci", scope="read", days=None)
    database.close()
    refusal = start_refusal(settings)
    assert refusal is not None
    assert "QUANTMILL_KEY_PEPPER" in refusal
    assert start_refusal(settings.model_copy(update={"key_pepper": Settings(key_pepper=GOOD).key_pepper})) is None


def test_an_installation_makes_its_own_key_that_others_cannot_read(
    app: FastAPI, tmp_path: Path, sqlite_url: str
) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, open=False, min_free_bytes=0)
    with front_of(app, settings) as front:
        key = (settings.data_dir / LOCAL_KEY_FILE).read_text().strip()
        assert [status(front, key), status(front, key + "x")] == [200, 401]
        assert front.http.get("/v1/jobs").status_code == 401
    assert stat.S_IMODE((settings.data_dir / LOCAL_KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700
    assert Desk.from_settings(settings).keyring.remembered(key) is not None, "the next start finds the same"


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        migrate(f"sqlite:///{tmp_path / 'service.db'}")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_the_key_file_of_a_race_is_one(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = own_secret(path)
    assert own_secret(path) == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["secret"]


def test_programs_of_the_same_user_find_the_key(tmp_path: Path, monkeypatch) -> None:
    import socket

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    secret = own_secret(tmp_path / "key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert local.key_for(f"http://127.0.0.1:{port}") is None
        local.announce(port, tmp_path / "key")
        for host in ("127.0.0.1", "localhost"):
            assert local.key_for(f"http://{host}:{port}/") == secret
        assert local.key_for(f"http://192.0.2.1:{port}") is None, "no key for other hosts"
        assert secret not in "".join(path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file())
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        assert local.key_for(f"http://127.0.0.1:{port}") is None, "another user listens there"
        monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert local.key_for(f"http://127.0.0.1:{port}") is None, "nobody listens there any more"
    local.withdraw(port)
    assert not any(path.is_file() for path in (tmp_path / "state").rglob("*"))
