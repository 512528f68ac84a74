"""Keys: what is kept of them, what they may do, when they end, and when a service must not start without."""

from __future__ import annotations

import os
import socket
import stat
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text, update

from service.db import Database, db_now, migrate
from service.deps import AppState
from service.keys import actions, guesses, local, repository, service
from service.keys import keyring as keyrings
from service.keys.files import LOCAL_KEY_FILE, own_secret
from service.keys.guesses import GUESSES_AT_ONCE
from service.keys.scopes import needed
from service.keys.secrets import hash_of, make_key, parts_of, weakness
from service.keys.start import start_refusal
from service.principal import SCOPES, Scope
from service.quotas import rates
from service.quotas.addresses import place_of
from service.settings import Settings
from service.tables import ApiKey
from tests.api.conftest import front_of
from tests.security.conftest import BY, PEPPER, bearer
from tests.security.conftest import make_key as make
from tests.support.each import each
from tests.support.front import Front, problem


def status(front: Front, key: str, method: str = "GET", path: str = "/v1/jobs") -> int:
    return front.http.request(method, path, headers=bearer(key)).status_code


def test_a_made_key_opens_and_its_secret_is_nowhere(closed: Front) -> None:
    key_id, key = make(closed)
    assert status(closed, key) == 200
    _, secret = parts_of(key) or ("", "")
    with closed.app.database.read() as session:
        row = session.execute(text("SELECT * FROM api_keys")).one()
    assert secret not in repr(row)
    assert key_id in row
    assert hash_of(secret, PEPPER) in row


def test_a_key_is_checked_whole(app: FastAPI, closed: Front) -> None:
    _, key = make(closed)
    _, other = make(closed)
    key_part, _, secret = key.rpartition("_")
    mixed = other[: len(key_part)] + key[len(key_part) :]
    for wrong in ("", key[:-1], key + "x", key.upper(), key_part, secret, mixed):
        assert status(closed, wrong) == 401, wrong
    assert closed.http.get("/v1/jobs").status_code == 401
    peppered = closed.app.settings.model_copy(update={"key_pepper": Settings(key_pepper=PEPPER + "x").key_pepper})
    with front_of(app, peppered) as elsewhere:
        assert status(elsewhere, key) == 401, "of another pepper"


@pytest.mark.both_databases
def test_who_guesses_keys_is_slowed_down_and_nobody_else(app: FastAPI, settings: Settings, monkeypatch) -> None:
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    monkeypatch.setattr(rates.Bucket, "_fill", lambda _: None)  # no guess comes back while a busy machine is slow
    wants = settings.model_copy(update={"open": False})
    looks, live = [], repository.live
    monkeypatch.setattr(repository, "live", lambda session, key_id: looks.append(key_id) or live(session, key_id))
    with front_of(app, wants) as front:
        (_, good), (_, new) = make(front), make(front)
        assert {status(front, make_key().text) for _ in range(int(GUESSES_AT_ONCE))} == {401}
        looks.clear()
        for wrong in (make_key().text, "nonsense"):
            answer = front.http.get("/v1/jobs", headers=bearer(wrong))
            problem(answer, 429, "too-many-wrong-keys")
            assert 1 <= int(answer.headers["retry-after"]) <= 2
        assert front.http.post("/sign-in", data={"key": make_key().text}).status_code == 429
        assert looks == [], "nothing is looked up"
        assert [status(front, key) for key in (good, new)] == [200, 200], "whoever is right may come from there"
        answers = [status(front, f"{good[:-40]}{turn:040}") for turn in range(int(GUESSES_AT_ONCE) + 9)]
        assert answers.count(401) <= GUESSES_AT_ONCE + 1 < len(answers), "an id that exists opens no way around"
        assert [status(front, key) for key in (good, new)] == [200, 200]
        elsewhere = TestClient(app, client=("203.0.113.9", 1))
        assert elsewhere.get("/v1/jobs", headers=bearer(make_key().text)).status_code == 401
        looks.clear()
        assert {elsewhere.get("/v1/jobs", headers=bearer("qm_0")).status_code for _ in range(99)} == {401}
        stale = make_key().text
        assert {elsewhere.get("/v1/jobs", headers=bearer(stale)).status_code for _ in range(99)} == {401}
        assert len(looks) == 1, "what is known to be wrong is no guess"


def test_guesses_take_a_bounded_memory(monkeypatch) -> None:
    monkeypatch.setattr(guesses, "REMEMBERED", 5)
    kept = guesses.Guesses()
    for turn in range(9):
        kept.take(str(turn))
        kept.was_wrong(bytes([turn]))
    assert [kept.known(bytes([turn])) for turn in range(9)] == [False] * 4 + [True] * 5
    assert len(kept._buckets) == 5
    assert place_of("::ffff:1.2.3.4") == place_of("1.2.3.4") != place_of("::ffff:1.2.3.5")
    assert place_of("2001:db8::1") == place_of("2001:db8::2:3") != place_of("2001:db9::")


def test_whoever_verifies_needs_no_key_and_makes_none(closed: Front) -> None:
    path = "/v1/keys/signing"
    assert closed.http.get(path).json() == {"items": []}
    with closed.app.database.read() as session:
        assert session.execute(text("SELECT count(*) FROM signing_keys")).scalar_one() == 0
    assert status(closed, "nonsense", path=path) == 401
    _, key = make(closed, "read")
    made = closed.http.get(path, headers=bearer(key)).json()["items"]
    assert len(made) == 1
    assert closed.http.get(path).json()["items"] == made


def test_revoked_expired_and_rotated_keys_end(closed: Front) -> None:
    revoked_id, revoked = make(closed)
    expired_id, expired = make(closed, days=1)
    rotated_id, rotated = make(closed, days=7)
    graced_id, graced = make(closed)
    short_id, _ = make(closed, days=0.01)
    database = closed.app.database
    with database.read() as session:
        short_ends = session.get_one(ApiKey, short_id).expires_at
    with database.write() as session:
        service.revoke(session, BY, revoked_id)
        session.execute(update(ApiKey).where(ApiKey.id == expired_id).values(expires_at=db_now() - 1))
        successor = service.rotate(session, PEPPER, BY, rotated_id, grace_seconds=0)
        assert successor.row.expires_at is not None
        assert timedelta(days=6.9) < successor.row.expires_at - successor.row.created_at < timedelta(days=7.1)
        service.rotate(session, PEPPER, BY, graced_id, grace_seconds=3600)
        service.rotate(session, PEPPER, BY, short_id, grace_seconds=24 * 3600)
    assert [status(closed, key) for key in (revoked, expired, rotated)] == [401] * 3
    assert [status(closed, key) for key in (successor.text, graced)] == [200, 200], "until the grace is over"
    for ended in (revoked_id, expired_id, rotated_id):
        with pytest.raises(service.KeyNotFoundError), database.write() as session:
            service.revoke(session, BY, ended)
    with database.read() as session:
        assert session.get_one(ApiKey, short_id).expires_at == short_ends, "no longer than it would have lasted"


def test_a_remembered_key_is_forgotten_in_time(closed: Front, monkeypatch) -> None:
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 3600.0)
    key_id, key = make(closed)
    assert status(closed, key) == 200
    with closed.app.database.write() as session:
        service.revoke(session, BY, key_id)
    assert closed.app.keyring.remembered(key) is not None
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    assert status(closed, key) == 401


def test_when_a_key_was_last_used_is_known(closed: Front) -> None:
    key_id, key = make(closed)
    keyring = closed.app.keyring
    assert keyring.due(key_id)
    assert not keyring.due(key_id), "a row is not written with every request"
    assert not keyring.due("local-key")
    keyring.note_used(key_id)
    with closed.app.database.read() as session:
        row = session.get_one(ApiKey, key_id)
    assert row.last_used_at is not None
    assert row.last_used_at >= row.created_at
    assert status(closed, key) == 200


@pytest.mark.parametrize("scope", SCOPES)
def test_a_key_may_do_what_its_scope_says_and_no_more(closed: Front, scope: Scope) -> None:
    """On every route of the document; and none fails over an id and a body that make no sense."""
    _, key = make(closed, scope)
    refused = set()
    for path, operations in closed.http.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            if "security" not in operation:
                continue
            place = path.replace("{", "").replace("}", "")
            answer = closed.http.request(method, place, headers=bearer(key), json={})
            assert answer.status_code < 500, (method, path, answer.text)
            wanted = needed(method.upper(), path)
            if SCOPES.index(wanted) > SCOPES.index(scope):
                assert answer.status_code == 403, (method, path)
                if method != "head":
                    problem(answer, 403, "scope-missing")
                refused.add(wanted)
            else:
                assert answer.status_code not in (401, 403), (method, path, answer.text)
    assert refused <= set(SCOPES[SCOPES.index(scope) + 1 :])
    assert needed("GET", "/v1/jobs") == needed("HEAD", "/anything") == "read"
    assert needed("POST", "/v1/something-new") == needed("DELETE", "/v1/something-new") == "submit"
    assert ("submit" in refused) == (scope == "read")


def test_a_scope_that_only_a_newer_version_knows_allows_nothing(closed: Front) -> None:
    key_id, key = make(closed)
    _, operator = make(closed, "operator")
    with closed.app.database.write() as session:
        session.execute(text("PRAGMA ignore_check_constraints = 1"))
        session.execute(update(ApiKey).where(ApiKey.id == key_id).values(scope="auditor"))
        session.execute(text("PRAGMA ignore_check_constraints = 0"))
    problem(closed.http.get("/v1/jobs", headers=bearer(key)), 403, "scope-missing")
    listed = closed.http.get("/v1/keys", headers=bearer(operator)).json()["items"]
    assert [item["scope"] for item in listed] == ["operator", "auditor"]
    problem(closed.http.post(f"/v1/keys/{key_id}/revoke", headers=bearer(operator)), 403, "scope-missing")


@pytest.mark.both_databases
def test_an_admin_has_the_keys_of_the_own_tenant_and_an_operator_those_of_all(front: Front, monkeypatch) -> None:
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    admin, operator, theirs = (make(front, *whose) for whose in (("admin", "a"), ("operator", "a"), ("admin", "b")))

    def ask(by: tuple[str, str], path: str = "", body: dict[str, object] | None = None) -> httpx.Response:
        method = "GET" if body is None else "POST"
        return front.http.request(method, f"/v1/keys{path}", headers=bearer(by[1]), json=body)

    made = ask(admin, body={"name": "ci", "days": 1})
    assert (made.status_code, made.json()["tenant"], made.json()["scope"]) == (201, "a", "submit")
    own = f"/{made.json()['id']}"
    assert status(front, made.json()["key"]) == 200
    assert made.json()["key"] not in ask(admin, own).text + ask(admin).text
    rotated = ask(admin, f"{own}/rotate", {"grace_seconds": 0}).json()
    assert (status(front, rotated["key"]), status(front, made.json()["key"])) == (200, 401)
    assert ask(admin, f"/{rotated['id']}/revoke", {}).json()["state"] == "revoked"
    assert status(front, rotated["key"]) == 401
    for by, tenants in ((admin, {"a"}), (theirs, {"b"}), (operator, {"a", "b"})):
        assert {item["tenant"] for item in ask(by).json()["items"]} == tenants
        rows = front.http.get("/v1/audit", headers=bearer(by[1])).json()["items"]
        assert {row["tenant_id"] for row in rows} == tenants
    for path in (f"/{theirs[0]}", f"/{theirs[0]}/revoke", f"/{theirs[0]}/rotate"):
        problem(ask(admin, path, None if path.count("/") == 1 else {}), 404, "key-not-found")
    for path, body in (
        ("?tenant=b", None), ("", {"name": "ci", "tenant": "b"}), ("", {"name": "ci", "scope": "operator"}),
        (f"/{operator[0]}/revoke", {}), (f"/{operator[0]}/rotate", {}),
    ):  # fmt: skip
        problem(ask(admin, path, body), 403, "scope-missing")
    problem(front.http.get("/v1/audit?tenant=b", headers=bearer(admin[1])), 403, "scope-missing")
    made = ask(operator, body={"name": "ci", "tenant": "b"})
    assert made.json()["tenant"] == "b"
    rotated = ask(operator, f"/{made.json()['id']}/rotate", {}).json()
    assert ask(operator, f"/{rotated['id']}/revoke", {}).is_success
    assert front.http.put("/v1/tenants/b/quota", json={}, headers=bearer(operator[1])).is_success
    rows = front.http.get("/v1/audit?limit=4", headers=bearer(theirs[1])).json()["items"]
    told = ["tenant.set_quota", "key.revoke", "key.rotate", "key.create"]
    assert [(row["actor"], row["action"]) for row in rows] == [(operator[0], action) for action in told]
    monkeypatch.setattr(actions, "MOST_KEYS", 2)
    problem(ask(theirs, body={"name": "one more"}), 409, "too-many-keys")
    problem(ask(theirs, f"/{theirs[0]}/rotate", {}), 409, "too-many-keys")


@given(st.text())
def test_no_text_is_taken_for_a_key_that_is_not_spelled_so(given_text: str) -> None:
    found = parts_of(given_text)
    assert found is None or f"qm_{found[0].removeprefix('key_')}_{found[1]}" == given_text


def test_keys_are_random_and_found_by_their_ids() -> None:
    made = [make_key() for _ in range(100)]
    assert len({key.secret for key in made}) == 100
    assert all(parts_of(key.text) == (key.id, key.secret) for key in made)
    assert min(len(key.secret) for key in made) >= 43
    for secret in (PEPPER, "3f786850e387550fdab836ed7e6dc881de23001b", made[0].secret):
        assert weakness(secret) is None


@each(
    "secret",
    ["", "\t\n", "short", "changeme-changeme", "CHANGE_ME_please_1234", "choose-one-of-these", "your-secret-key-here",
     "<insert key here>", "${QUANTMILL_API_KEY}", "password12345678", "a" * 24, "abababababababababab",
     "a blank in between 123", "schlüssel-mit-umlaut-1", "xxxxxxxxxxxxxxxxxxxxxxxx"],
)  # fmt: skip
def test_a_secret_that_guards_nothing_is_refused(tmp_path: Path, secret: str) -> None:
    assert weakness(secret) is not None
    for name in ("api_key", "key_pepper"):
        settings = Settings(data_dir=tmp_path, **{name: secret})
        refusal = start_refusal(settings)
        assert refusal is not None
        assert f"QUANTMILL_{name.upper()}" in refusal
        assert not secret.strip() or secret not in refusal


def test_other_addresses_are_served_with_keys_alone(tmp_path: Path, sqlite_url: str) -> None:
    for settings, may in (
        ({"host": "0.0.0.0"}, False),
        ({"host": "0.0.0.0", "open": True}, False),
        ({"host": "0.0.0.0", "open": True, "api_key": PEPPER}, False),
        ({"host": "0.0.0.0", "api_key": PEPPER}, True),
        ({"host": "127.0.0.1"}, True),
        ({"host": "127.0.0.1", "open": True}, True),
    ):
        found = start_refusal(Settings(data_dir=tmp_path, database_url=sqlite_url, **{"open": False, **settings}))
        assert (found is None) == may, settings
    settings = Settings(data_dir=tmp_path, database_url=sqlite_url, host="0.0.0.0", open=False)
    database = Database(sqlite_url)
    with database.write() as session:
        pepper = service.pepper_of(settings)
        made = service.create(session, pepper, BY, tenant_id="acme", name="ci", scope="read", days=None)
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
        service.create(session, PEPPER, BY, tenant_id="acme", name="ci", scope="read", days=None)
    database.close()
    refusal = start_refusal(settings)
    assert refusal is not None
    assert "QUANTMILL_KEY_PEPPER" in refusal
    assert start_refusal(settings.model_copy(update={"key_pepper": Settings(key_pepper=PEPPER).key_pepper})) is None


def test_an_installation_makes_its_own_key_that_others_cannot_read(app: FastAPI, place: Settings) -> None:
    settings = place.model_copy(update={"open": False})
    with front_of(app, settings) as front:
        key = (settings.data_dir / LOCAL_KEY_FILE).read_text().strip()
        assert [status(front, key), status(front, key + "x")] == [200, 401]
        assert front.http.get("/v1/jobs").status_code == 401
    assert stat.S_IMODE((settings.data_dir / LOCAL_KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(settings.data_dir.stat().st_mode) == 0o700
    assert AppState.from_settings(settings).keyring.remembered(key) is not None, "the next start finds the same"


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        migrate(f"sqlite:///{tmp_path / 'service.db'}", "20261120_spine")
    finally:
        os.umask(before)
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_programs_of_the_same_user_find_the_key(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    secret = own_secret(tmp_path / "key")
    assert own_secret(tmp_path / "key") == secret, "there is one"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert local.key_for(f"http://127.0.0.1:{port}") is None
        local.announce(port, tmp_path / "key")
        for host in ("127.0.0.1", "localhost"):
            assert local.key_for(f"http://{host}:{port}/") == secret
        assert local.key_for(f"http://192.0.2.1:{port}") is None, "no key for other hosts"
        assert secret not in "".join(path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file())
        with monkeypatch.context() as patched:
            patched.setattr(os, "geteuid", lambda: 12345)
            assert local.key_for(f"http://127.0.0.1:{port}") is None, "another user listens there"
    assert local.key_for(f"http://127.0.0.1:{port}") is None, "nobody listens there any more"
    local.withdraw(port)
    assert not any(path.is_file() for path in (tmp_path / "state").rglob("*"))
