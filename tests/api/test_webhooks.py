"""Webhooks over HTTP: made, changed, rotated, pinged; what was sent, and again. On both databases."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from service.db import Database
from service.egress import resolving
from service.keys import keyring as keyrings
from service.keys import service as keys
from service.principal import COMMAND_LINE, SCOPES, Principal
from service.settings import Settings
from service.tables import Base
from service.webhooks import outbox, service
from service.webhooks.deliveries import repository as queue
from service.webhooks.secrets import Vault
from tests.api.conftest import front_of
from tests.support.front import Front, pointers, problem
from tests.support.webhooks import PEPPER, deliveries, endpoint, set_endpoint

URL = "https://hooks.example/in?token=abc"


@pytest.fixture
def settings(tmp_path: Any, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0, key_pepper=PEPPER)


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to; all others to an address on the public internet."""
    found: dict[str, list[str]] = {"nowhere.example": []}
    monkeypatch.setattr(service, "system_resolver", lambda host, _: found.get(host, ["8.8.8.8"]))
    return found


def make(front: Front, **body: Any) -> dict[str, Any]:
    answer = front.http.post("/v1/webhooks", json={"url": URL, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def test_the_same_request_makes_one_webhook_and_its_secret_is_kept_sealed(front: Front) -> None:
    body, headers = {"url": URL}, {"Idempotency-Key": "once"}
    first, again = (front.http.post("/v1/webhooks", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["cache-control"] == "no-store"
    assert len(front.http.get("/v1/webhooks").json()["items"]) == 1
    with front.desk.database.read() as session:
        kept = session.execute(text("SELECT * FROM idempotency_keys")).one()
    assert first.json()["secret"] not in repr(kept)
    other = front.http.post("/v1/webhooks", json={**body, "description": "another"}, headers=headers)
    problem(other, 422, "idempotency-key-reuse")


def test_a_webhook_is_made_and_its_secret_shown_once(front: Front) -> None:
    answer = front.http.post("/v1/webhooks", json={"url": URL, "event_types": ["job.*", "model.ready", "job.*"]})
    made = answer.json()
    assert answer.headers["location"] == f"/v1/webhooks/{made['id']}"
    assert answer.headers["cache-control"] == "no-store"
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert made["event_types"] == ["job.*", "model.ready"]
    shown = front.http.get(f"/v1/webhooks/{made['id']}")
    assert shown.json() == made
    assert front.http.get("/v1/webhooks").json()["items"] == [made]
    for page in (shown.text, front.http.get("/v1/webhooks").text):
        assert secret not in page
    again = front.http.get(f"/v1/webhooks/{made['id']}", headers={"If-None-Match": shown.headers["etag"]})
    assert again.status_code == 304


def dump(database: Database) -> str:
    """Every value of every row."""
    with database.read() as session:
        rows = [session.execute(text(f"SELECT * FROM {name}")).all() for name in Base.metadata.tables]
    return repr(rows)


def test_a_dump_of_the_database_holds_no_secret(front: Front, settings: Settings) -> None:
    made = make(front)
    rotated = front.http.post(f"/v1/webhooks/{made['id']}/rotate").json()
    front.http.post(f"/v1/webhooks/{made['id']}/ping")
    held = dump(front.desk.database)
    assert made["id"] in held
    row = endpoint(front.desk.database, made["id"])
    vault = Vault.of(settings)
    assert vault.open(row.id, row.sealed) == rotated["secret"]
    assert vault.open(row.id, row.previous_sealed or "") == made["secret"]
    for secret in (made["secret"], rotated["secret"]):
        assert secret not in held
        assert secret.removeprefix("whsec_") not in held
    for other in (Vault("another-pepper-of-length"), vault):
        with pytest.raises(service.SecretUnreadableError):
            other.open("whk_other", row.sealed)


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://hooks.example/", "url-not-allowed"),
        ("https://hooks.example:9000/", "url-not-allowed"),
        ("https://user@hooks.example/", "url-not-allowed"),
        ("https://2130706433/", "url-not-allowed"),
        ("ftp://hooks.example/", "url-not-allowed"),
        ("https://127.0.0.1/", "address-not-allowed"),
        ("https://[::1]/", "address-not-allowed"),
        ("https://169.254.169.254/latest/meta-data/", "address-not-allowed"),
        ("https://inside.example/", "address-not-allowed"),
        ("https://half.example/", "address-not-allowed"),
    ],
)
def test_a_url_that_leads_inside_is_refused(front: Front, addresses: dict[str, list[str]], url: str, code: str) -> None:
    addresses |= {"inside.example": ["10.0.0.7"], "half.example": ["8.8.8.8", "169.254.169.254"]}
    refused = problem(front.http.post("/v1/webhooks", json={"url": url}), 422, code)
    assert pointers(refused) == ["/url"]
    made = make(front)
    changed = front.http.patch(f"/v1/webhooks/{made['id']}", json={"url": url}, headers={"If-Match": "*"})
    problem(changed, 422, code)
    assert front.http.get(f"/v1/webhooks/{made['id']}").json()["url"] == URL


def test_a_name_without_an_address_is_looked_up_again_before_anything_is_sent(front: Front) -> None:
    assert make(front, url="https://nowhere.example/")["enabled"]


def test_an_operator_allows_hosts_inside(app: FastAPI, tmp_path: Any, sqlite_url: str) -> None:
    allowed = Settings(
        data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, egress_allowed="http://127.0.0.1:8080"
    )
    with front_of(app, allowed) as front:
        make(front, url="http://127.0.0.1:8080/in")
        problem(front.http.post("/v1/webhooks", json={"url": "http://127.0.0.1:8081/"}), 422, "url-not-allowed")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"event_types": []}, "/event_types"),
        ({"event_types": ["job.finished"]}, "/event_types/0"),
        ({"event_types": ["*", "key.*"]}, "/event_types/1"),
        ({"event_types": "*"}, "/event_types"),
        ({"url": "https://hooks.example/" + "a" * 2048}, "/url"),
        ({"description": "a\x00b"}, "/description"),
        ({"secret": "whsec_mine"}, "/secret"),
    ],
)
def test_a_body_that_is_wrong(front: Front, body: dict[str, Any], pointer: str) -> None:
    refused = problem(front.http.post("/v1/webhooks", json={"url": URL, **body}), 422, "invalid-request")
    assert pointers(refused) == [pointer]


def test_changes_are_made_to_the_version_that_was_seen(front: Front) -> None:
    path = f"/v1/webhooks/{make(front)['id']}"
    seen = front.http.get(path).headers["etag"]
    problem(front.http.patch(path, json={"description": "one"}), 428, "precondition-required")
    first = front.http.patch(path, json={"description": "one"}, headers={"If-Match": seen})
    assert (first.status_code, first.json()["description"]) == (200, "one")
    assert first.headers["etag"] != seen
    problem(front.http.patch(path, json={"description": "two"}, headers={"If-Match": seen}), 412, "precondition-failed")
    assert front.http.get(path).json() == first.json()
    problem(front.http.delete(path, headers={"If-Match": seen}), 412, "precondition-failed")
    body = {"description": None, "event_types": ["model.*"], "url": "https://other.example/"}
    second = front.http.patch(path, json=body, headers={"If-Match": first.headers["etag"]}).json()
    assert {name: second[name] for name in body} == body
    assert front.http.delete(path, headers={"If-Match": f'"{second["row_version"]}"'}).status_code == 204
    problem(front.http.get(path), 404, "webhook-not-found")


def test_one_that_is_disabled_is_told_nothing_until_it_is_enabled(front: Front) -> None:
    path = f"/v1/webhooks/{make(front, enabled=False)['id']}"
    shown = front.http.get(path).json()
    assert (shown["enabled"], shown["disabled_reason"]) == (False, "client")
    problem(front.http.post(f"{path}/ping"), 409, "webhook-disabled")
    enabled = front.http.patch(path, json={"enabled": True}, headers={"If-Match": "*"}).json()
    assert (enabled["enabled"], enabled["disabled_reason"], enabled["disabled_at"]) == (True, None, None)
    ping = front.http.post(f"{path}/ping")
    assert (ping.status_code, ping.json()["type"], ping.json()["state"]) == (202, "webhook.ping", "waiting")
    disabled = front.http.patch(path, json={"enabled": False}, headers={"If-Match": "*"}).json()
    assert disabled["disabled_reason"] == "client"
    (held,) = front.http.get(f"{path}/deliveries").json()["items"]
    assert (held["id"], held["state"], held["next_attempt_at"]) == (ping.json()["id"], "waiting", None)
    problem(front.http.post(f"{path}/deliveries/{held['id']}/redeliver"), 409, "webhook-disabled")


def test_a_rotated_secret_ends_after_its_grace(front: Front) -> None:
    made = make(front)
    path = f"/v1/webhooks/{made['id']}"
    rotated = front.http.post(f"{path}/rotate", json={"grace_seconds": 3600})
    assert rotated.headers["cache-control"] == "no-store"
    assert rotated.json()["secret"] != made["secret"]
    row = endpoint(front.desk.database, made["id"])
    assert row.previous_ends_at is not None
    assert 3590 < (row.previous_ends_at - row.updated_at).total_seconds() < 3610
    assert front.http.get(path).json()["previous_secret_ends_at"] is not None
    at_once = front.http.post(f"{path}/rotate", json={"grace_seconds": 0}).json()
    assert at_once["previous_secret_ends_at"] is None
    assert endpoint(front.desk.database, made["id"]).previous_sealed is None
    for grace in (-1, 1e12, "soon"):
        problem(front.http.post(f"{path}/rotate", json={"grace_seconds": grace}), 422, "invalid-request")


def test_a_secret_that_cannot_be_read_any_more_is_not_kept_beside_the_new_one(front: Front) -> None:
    made = make(front)
    set_endpoint(front.desk.database, made["id"], sealed=Vault("another-pepper-of-length").seal(made["id"], "whsec_x"))
    rotated = front.http.post(f"/v1/webhooks/{made['id']}/rotate").json()
    assert rotated["previous_secret_ends_at"] is None


def test_deliveries_are_paged_newest_first_and_sent_again(front: Front) -> None:
    path = f"/v1/webhooks/{make(front, event_types=['job.*'])['id']}"
    for number in range(5):
        with front.desk.database.write() as session:
            outbox.emit(session, "default", "job.queued", {"id": number})
    # two of one millisecond have ids in any order
    made = sorted(deliveries(front.desk.database), key=lambda row: (row.created_at, row.id), reverse=True)
    ids = [row.id for row in made]
    first = front.http.get(f"{path}/deliveries", params={"limit": 3})
    second = front.http.get(f"{path}/deliveries", params={"limit": 3, "cursor": first.json()["next_cursor"]})
    assert [item["id"] for page in (first, second) for item in page.json()["items"]] == ids
    assert 'rel="next"' in first.headers["link"]
    shown = first.json()["items"][0]
    assert (shown["attempts"], shown["last_status"], shown["response_excerpt"]) == (0, None, None)
    with front.desk.database.write() as session:
        (claimed, *_) = queue.claim(session, free=1, share=queue.Share(1, 1), lease_seconds=60)
        queue.settle(
            session, claimed, state="delivered", next_attempt_at=None, finished_at=1.0, last_status=200,
            response_excerpt="fine",
        )  # fmt: skip
    (done,) = front.http.get(f"{path}/deliveries", params={"state": "delivered"}).json()["items"]
    assert (done["id"], done["attempts"], done["last_status"], done["response_excerpt"]) == (ids[-1], 1, 200, "fine")
    again = front.http.post(f"{path}/deliveries/{done['id']}/redeliver")
    assert (again.status_code, again.json()["state"]) == (202, "waiting")
    assert (again.json()["event_id"], again.json()["attempts"]) == (done["event_id"], 1)
    problem(front.http.get(f"{path}/deliveries", params={"state": "lost"}), 422, "invalid-request")
    problem(front.http.post(f"{path}/deliveries/dlv_x/redeliver"), 404, "delivery-not-found")
    other = make(front)["id"]
    problem(front.http.post(f"/v1/webhooks/{other}/deliveries/{done['id']}/redeliver"), 404, "delivery-not-found")


def test_a_tenant_has_a_bounded_number_of_them(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_WEBHOOKS", 2)
    make(front)
    make(front)
    problem(front.http.post("/v1/webhooks", json={"url": URL}), 409, "too-many-webhooks")


def test_nothing_more_is_kept_for_one_that_has_too_much_waiting(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_WAITING", 1)
    path = f"/v1/webhooks/{make(front)['id']}"
    assert front.http.post(f"{path}/ping").status_code == 202
    problem(front.http.post(f"{path}/ping"), 409, "webhook-backlog")
    assert len(deliveries(front.desk.database)) == 1


@pytest.mark.postgres
def test_without_a_pepper_no_secret_is_kept(app: FastAPI, tmp_path: Any, postgres_url: str) -> None:
    with front_of(app, Settings(data_dir=tmp_path / "data", database_url=postgres_url, min_free_bytes=0)) as front:
        refused = problem(front.http.post("/v1/webhooks", json={"url": URL}), 409, "webhooks-unavailable")
    assert "QUANTMILL_KEY_PEPPER" in refused["hint"]


@pytest.fixture
def closed_front(app: FastAPI, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A front desk that wants a key of everybody."""
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    with front_of(app, settings.model_copy(update={"open": False})) as front:
        yield front


def test_webhooks_need_the_scope_manage(closed_front: Front) -> None:
    texts = {}
    by = Principal("default", COMMAND_LINE, "admin")
    for scope in SCOPES:
        with closed_front.desk.database.write() as session:
            texts[scope] = keys.create(session, PEPPER, by, tenant_id="t", name=scope, scope=scope, days=None).text
    paths = closed_front.http.get("/openapi.json").json()["paths"]
    routes = [(m.upper(), path) for path, found in paths.items() if path.startswith("/v1/webhooks") for m in found]
    assert len(routes) == 9
    for method, path in routes:
        for scope, key in texts.items():
            headers = {"Authorization": f"Bearer {key}"}
            place = path.format(webhook_id="whk_x", delivery_id="dlv_x")
            status = closed_front.http.request(method, place, headers=headers).status_code
            assert (status == 403) is (scope in ("read", "submit")), (method, path, scope, status)


def test_the_resolver_of_the_system_is_asked() -> None:
    """What these tests put in its place."""
    assert [str(ipaddress.ip_address(found)) for found in resolving.system_resolver("127.0.0.1", 2.0)] == ["127.0.0.1"]
