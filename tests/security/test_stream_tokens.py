"""Tokens for event streams read one stream for some minutes, as long as their key is good, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from hypothesis import given
from hypothesis import strategies as st

from service.keys import keyring as keyrings
from service.keys import service
from service.keys.tokens import TokenHolder, Tokens
from service.principal import COMMAND_LINE, DEFAULT_TENANT, Principal, Scope
from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.front import Front, problem

PEPPER = "0a1b2c3d4e5f-of-some-length"
BY = Principal(DEFAULT_TENANT, COMMAND_LINE, "admin")
SSE = {"Accept": "text/event-stream"}
HOLDER = TokenHolder("acme", "key_1")


@pytest.fixture
def closed(app: FastAPI, tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A front desk that wants a key of everybody; the client of the tests sends one that may do everything."""
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    settings = Settings(
        data_dir=tmp_path / "data", database_url=database_url, open=False, min_free_bytes=0, key_pepper=PEPPER
    )
    with front_of(app, settings) as front:
        front.http.headers["Authorization"] = f"Bearer {make(front, 'manage')[1]}"
        yield front


def make(front: Front, scope: Scope, tenant: str = DEFAULT_TENANT) -> tuple[str, str]:
    """A key's id and its text."""
    with front.desk.database.write() as session:
        made = service.create(session, PEPPER, BY, tenant_id=tenant, name="dash", scope=scope, days=None)
        return made.row.id, made.text


def without_key(front: Front, path: str, method: str = "GET") -> int:
    request = front.http.build_request(method, path, headers=SSE)
    del request.headers["Authorization"]
    return front.http.send(request).status_code


def test_a_page_reads_the_stream_by_its_token(closed: Front) -> None:
    job_id = closed.succeeded_job()
    key_id, key = make(closed, "read")
    path = f"/v1/jobs/{job_id}/events"
    answer = closed.http.post(f"{path}/token", headers={"Authorization": f"Bearer {key}"})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert made["url"] == f"{path}?token={made['token']}"
    assert key not in made["token"]
    request = closed.http.build_request("GET", made["url"], headers=SSE)
    del request.headers["Authorization"]
    assert "event: end" in closed.http.send(request).text
    # and nothing else
    other = closed.succeeded_job()
    assert without_key(closed, path) == 401
    for elsewhere in (f"/v1/jobs/{other}/events", f"/v1/jobs/{job_id}", "/v1/quota", f"/v1/jobs/{job_id}/report"):
        assert without_key(closed, f"{elsewhere}?token={made['token']}") == 401
    assert without_key(closed, f"{path}/token?token={made['token']}", "POST") == 401
    assert without_key(closed, f"{path}?token={made['token'][:-2]}") == 401
    # nor for longer than its key
    with closed.desk.database.write() as session:
        service.revoke(session, BY, key_id)
    assert without_key(closed, made["url"]) == 401


def test_a_token_ends(closed: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/v1/jobs/{closed.succeeded_job()}/events/token"
    assert without_key(closed, closed.http.post(path).json()["url"]) == 200
    monkeypatch.setattr(keyrings, "STREAM_SECONDS", 0)
    assert without_key(closed, closed.http.post(path).json()["url"]) == 401


def test_only_those_who_may_read_the_job_get_one(closed: Front) -> None:
    path = f"/v1/jobs/{closed.succeeded_job()}/events/token"
    foreign = {"Authorization": f"Bearer {make(closed, 'manage', 'other')[1]}"}
    problem(closed.http.post(path, headers=foreign), 404, "job-not-found")
    assert without_key(closed, path, "POST") == 401


@given(st.text(max_size=100))
def test_no_text_is_a_token(text: str) -> None:
    assert Tokens("secret", "stream").read(text, "/v1/jobs/a/events", 0.0) is None


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_token_with_a_changed_byte_is_none(place: int, change: int) -> None:
    token = Tokens("secret", "stream").make(HOLDER, "/p/events", 100.0)
    assert Tokens("secret", "stream").read(token, "/p/events", 99.0) == HOLDER
    place %= len(token)
    other = token[:place] + chr((ord(token[place]) + change) % 128) + token[place + 1 :]
    found = Tokens("secret", "stream").read(other, "/p/events", 99.0)
    # base64 ends in bits that say nothing
    assert found is None or (found == HOLDER and place >= len(token) - 1) or other == token


def test_tokens_of_another_secret_path_or_time_are_none() -> None:
    token = Tokens("secret", "stream").make(HOLDER, "/p/events", 100.0)
    assert Tokens("other", "stream").read(token, "/p/events", 99.0) is None
    assert Tokens("secret", "stream").read(token, "/q/events", 99.0) is None
    assert Tokens("secret", "stream").read(token, "/p/events", 100.0) is None
