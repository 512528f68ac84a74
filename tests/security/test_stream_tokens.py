"""Tokens for event streams read one stream for some minutes, as long as their key is good, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.keys import keyring as keyrings
from service.keys import service
from service.keys.tokens import TokenHolder, Tokens
from tests.security.conftest import BY, bearer, make_key
from tests.support.front import Front, problem

SSE = {"Accept": "text/event-stream"}
HOLDER = TokenHolder("acme", "key_1")
TOKENS = Tokens("secret", "stream")


def test_a_page_reads_the_stream_by_its_token(closed: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    http = closed.http
    owner, foreign = (bearer(make_key(closed, "manage", tenant)[1]) for tenant in ("default", "other"))
    key_id, key = make_key(closed, "read")
    http.headers.update(owner)
    job_id, other = closed.succeeded_job(), closed.succeeded_job()
    del http.headers["Authorization"]

    def without_key(path: str, method: str = "GET") -> int:
        return http.request(method, path, headers=SSE).status_code

    path = f"/v1/jobs/{job_id}/events"
    problem(http.post(f"{path}/token", headers=foreign), 404, "job-not-found")
    assert without_key(f"{path}/token", "POST") == 401
    answer = http.post(f"{path}/token", headers=bearer(key))
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert made["url"] == f"{path}?token={made['token']}"
    assert key not in made["token"]
    assert "event: end" in http.get(made["url"], headers=SSE).text
    # and nothing else
    assert without_key(path) == 401
    for elsewhere in (f"/v1/jobs/{other}/events", f"/v1/jobs/{job_id}", "/v1/quota", f"/v1/jobs/{job_id}/report"):
        assert without_key(f"{elsewhere}?token={made['token']}") == 401
    assert without_key(f"{path}/token?token={made['token']}", "POST") == 401
    assert without_key(f"{path}?token={made['token'][:-2]}") == 401
    # nor for longer than its key, or than its time
    with monkeypatch.context() as patched:
        patched.setattr(keyrings, "STREAM_SECONDS", 0)
        assert without_key(http.post(f"{path}/token", headers=owner).json()["url"]) == 401
    with closed.app.database.write() as session:
        service.revoke(session, BY, key_id)
    assert without_key(made["url"]) == 401
    assert without_key(http.post(f"{path}/token", headers=owner).json()["url"]) == 200


@given(st.integers(0, 200), st.integers(1, 255), st.text(max_size=100))
def test_a_token_with_a_changed_byte_and_any_text_are_none(place: int, change: int, text: str) -> None:
    assert TOKENS.read(text, "/p/events", 0.0) is None
    token = TOKENS.make(HOLDER, "/p/events", 100.0)
    assert TOKENS.read(token, "/p/events", 99.0) == HOLDER
    place %= len(token)
    other = token[:place] + chr((ord(token[place]) + change) % 128) + token[place + 1 :]
    found = TOKENS.read(other, "/p/events", 99.0)
    # base64 ends in bits that say nothing
    assert found is None or (found == HOLDER and place >= len(token) - 1) or other == token


def test_tokens_of_another_secret_path_or_time_are_none() -> None:
    token = TOKENS.make(HOLDER, "/p/events", 100.0)
    assert Tokens("other", "stream").read(token, "/p/events", 99.0) is None
    assert TOKENS.read(token, "/q/events", 99.0) is None
    assert TOKENS.read(token, "/p/events", 100.0) is None
