"""Told to others: webhooks, made, changed and sent again; and what jobs hand over, due or skipped by their end."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from fastapi import FastAPI

from service.contracts.errors import NotOnnxError
from service.hand_overs import asking
from service.hand_overs.service import MOST_OF_JOB
from service.settings import Settings
from service.webhooks import outbox, service
from service.webhooks import repository as queue
from service.webhooks.service import WebhookVault
from tests.api.conftest import front_of
from tests.support.front import Front, pointers, problem, taken
from tests.support.hand_overs import SIGNATURE, TOKEN, dump, post, put, rows, states, succeed
from tests.support.webhooks import HOST, deliveries, endpoint, set_endpoint

URL = "https://hooks.example/in?token=abc"


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to; all others to an address on the public internet."""
    found: dict[str, list[str]] = {"nowhere.example": []}
    for module in (service, asking):
        monkeypatch.setattr(module, "system_resolver", lambda host, _: found.get(host, ["8.8.8.8"]))
    return found


def make(front: Front, **body: Any) -> dict[str, Any]:
    return taken(front.http.post("/v1/webhooks", json={"url": URL, **body}), 201)


@pytest.mark.both_databases
def test_a_webhook_is_made_and_its_secret_shown_once(front: Front) -> None:
    body = {"url": URL, "event_types": ["job.*", "model.ready", "job.*"]}
    answer, again = (front.http.post("/v1/webhooks", json=body, headers={"Idempotency-Key": "once"}) for _ in range(2))
    made = answer.json()
    assert again.json() == made
    assert answer.headers["location"] == f"/v1/webhooks/{made['id']}"
    assert answer.headers["cache-control"] == again.headers["cache-control"] == "no-store"
    secret = made.pop("secret")
    assert secret.startswith("whsec_")
    assert made["event_types"] == ["job.*", "model.ready"]
    shown, listed = front.http.get(f"/v1/webhooks/{made['id']}"), front.http.get("/v1/webhooks")
    assert (shown.json(), listed.json()["items"]) == (made, [made])
    for text_ in (shown.text, listed.text, dump(front.app.database)):
        assert secret not in text_
    unchanged = front.http.get(f"/v1/webhooks/{made['id']}", headers={"If-None-Match": shown.headers["etag"]})
    assert unchanged.status_code == 304


@pytest.mark.both_databases
def test_a_dump_of_the_database_holds_no_secret(front: Front, settings: Settings) -> None:
    made = make(front)
    rotated = front.http.post(f"/v1/webhooks/{made['id']}/rotate").json()
    front.http.post(f"/v1/webhooks/{made['id']}/ping")
    held = dump(front.app.database)
    assert made["id"] in held
    row = endpoint(front.app.database, made["id"])
    vault = WebhookVault.of(settings)
    assert vault.open(row.id, row.sealed) == rotated["secret"]
    assert vault.open(row.id, row.previous_sealed or "") == made["secret"]
    for secret in (made["secret"], rotated["secret"]):
        assert secret not in held
        assert secret.removeprefix("whsec_") not in held
    for other in (WebhookVault("another-pepper-of-length"), vault):
        with pytest.raises(service.SecretUnreadableError):
            other.open("whk_other", row.sealed)


def test_a_webhook_that_leads_inside_is_refused(front: Front, addresses: dict[str, list[str]]) -> None:
    addresses["half.example"] = ["8.8.8.8", "169.254.169.254"]
    path = f"/v1/webhooks/{make(front)['id']}"
    for host, code in (("user@hooks", "url"), ("half", "address")):
        url = f"https://{host}.example/"
        refused = problem(front.http.post("/v1/webhooks", json={"url": url}), 422, f"{code}-not-allowed")
        assert pointers(refused) == ["/url"]
        changed = front.http.patch(path, json={"url": url}, headers={"If-Match": "*"})
        problem(changed, 422, f"{code}-not-allowed")
    assert front.http.get(path).json()["url"] == URL
    # a name without an address is looked up again before anything is sent
    assert make(front, url="https://nowhere.example/")["enabled"]
    # unless an operator allows it
    object.__setattr__(front.app.settings, "egress_allowed", "http://127.0.0.1:8080")
    make(front, url="http://127.0.0.1:8080/in")
    problem(front.http.post("/v1/webhooks", json={"url": "http://127.0.0.1:8081/"}), 422, "url-not-allowed")


def test_a_body_that_is_wrong(front: Front) -> None:
    long = {"url": "https://hooks.example/" + "a" * 2048}
    types = ({"event_types": []}, {"event_types": ["*", "key.*"]}, {"event_types": "*"})
    places = ("/event_types", "/event_types/1", "/event_types", "/url", "/description", "/secret")
    bodies: tuple[dict[str, Any], ...] = (*types, long, {"description": "a\x00b"}, {"secret": "whsec_mine"})
    for body, place in zip(bodies, places, strict=True):
        refused = problem(front.http.post("/v1/webhooks", json={"url": URL, **body}), 422, "invalid-request")
        assert pointers(refused) == [place]


@pytest.mark.both_databases
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
    row = endpoint(front.app.database, made["id"])
    assert row.previous_ends_at is not None
    assert 3590 < (row.previous_ends_at - row.updated_at).total_seconds() < 3610
    assert front.http.get(path).json()["previous_secret_ends_at"] is not None
    at_once = front.http.post(f"{path}/rotate", json={"grace_seconds": 0}).json()
    assert at_once["previous_secret_ends_at"] is None
    assert endpoint(front.app.database, made["id"]).previous_sealed is None
    # a secret that cannot be read any more is not kept beside the new one
    set_endpoint(
        front.app.database, made["id"], sealed=WebhookVault("another-pepper-of-length").seal(made["id"], "whsec_x")
    )
    assert front.http.post(f"{path}/rotate").json()["previous_secret_ends_at"] is None
    for grace in (-1, 1e12, "soon"):
        problem(front.http.post(f"{path}/rotate", json={"grace_seconds": grace}), 422, "invalid-request")


@pytest.mark.both_databases
def test_deliveries_are_paged_newest_first_and_sent_again(front: Front) -> None:
    path = f"/v1/webhooks/{make(front, event_types=['job.*'])['id']}"
    for number in range(5):
        with front.app.database.write() as session:
            outbox.emit(session, "default", "job.queued", {"id": number})
    # two of one millisecond have ids in any order
    made = sorted(deliveries(front.app.database), key=lambda row: (row.created_at, row.id), reverse=True)
    ids = [row.id for row in made]
    first = front.http.get(f"{path}/deliveries", params={"limit": 3})
    second = front.http.get(f"{path}/deliveries", params={"limit": 3, "cursor": first.json()["next_cursor"]})
    assert [item["id"] for page in (first, second) for item in page.json()["items"]] == ids
    assert 'rel="next"' in first.headers["link"]
    shown = first.json()["items"][0]
    assert (shown["attempts"], shown["last_status"], shown["response_excerpt"]) == (0, None, None)
    with front.app.database.write() as session:
        (claimed, *_) = queue.claim(session, free=1, most_of_endpoint=1, most_of_tenant=1, lease_seconds=60)
        queue.OUTBOX.settle(
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


def test_webhooks_and_what_waits_for_them_are_bounded(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MOST_WEBHOOKS", 2)
    monkeypatch.setattr(outbox, "MOST_WAITING", 1)
    make(front)
    path = f"/v1/webhooks/{make(front)['id']}"
    problem(front.http.post("/v1/webhooks", json={"url": URL}), 409, "too-many-webhooks")
    assert front.http.post(f"{path}/ping").status_code == 202
    problem(front.http.post(f"{path}/ping"), 409, "webhook-backlog")
    assert len(deliveries(front.app.database)) == 1


@pytest.mark.postgres
def test_without_a_pepper_no_secret_is_kept(app: FastAPI, tmp_path: Any, postgres_url: str) -> None:
    with front_of(app, Settings(data_dir=tmp_path / "data", database_url=postgres_url, min_free_bytes=0)) as front:
        refused = problem(front.http.post("/v1/webhooks", json={"url": URL}), 409, "webhooks-unavailable")
    assert "QUANTMILL_KEY_PEPPER" in refused["hint"]


SECRETS = (SIGNATURE, TOKEN, "/b/model", "/in")


def add(front: Front, job_id: str, *targets: dict[str, Any], **how: Any) -> Any:
    return front.http.post(f"/v1/jobs/{job_id}/hand-over", json={"targets": list(targets)}, **how)


def test_targets_wait_for_the_job_and_are_due_once_it_has_succeeded(front: Front) -> None:
    job_id = front.new_job(hand_over=[put(), post(when="success"), put(artifact="attestation")])
    (first, second, third) = front.http.get(f"/v1/jobs/{job_id}/hand-over").json()["items"]
    assert {name: first[name] for name in ("kind", "artifact", "host", "when", "state", "attempts")} == {
        "kind": "put", "artifact": "model", "host": HOST, "when": "pass", "state": "waiting", "attempts": 0,
    }  # fmt: skip
    assert (second["kind"], second["artifact"], second["when"]) == ("post", None, "success")
    assert (third["artifact"], third["next_attempt_at"]) == ("attestation", None)
    assert front.http.get(f"/v1/jobs/{job_id}").json()["links"]["hand_over"] == f"/v1/jobs/{job_id}/hand-over"
    succeed(front, job_id)
    assert states(front, job_id) == [("pending", None)] * 3


@pytest.mark.parametrize("verdict", ["pass", "none", "fail", "undecided"])
def test_a_verdict_that_is_not_passed_skips_what_wants_one(front: Front, verdict: str) -> None:
    job_id = front.new_job(hand_over=[put(), put(when="success")])
    succeed(front, job_id, verdict)
    skipped = verdict in ("fail", "undecided")
    assert states(front, job_id) == [("skipped", "verdict") if skipped else ("pending", None), ("pending", None)]
    assert (f"The verdict is {verdict}." in front.http.get(f"/v1/jobs/{job_id}/logs").text) is skipped


def test_a_job_that_ends_otherwise_hands_over_nothing(front: Front) -> None:
    failed, canceled = (front.new_job(hand_over=[put(when="success")]) for _ in range(2))
    front.fail(failed, NotOnnxError("It is none."))
    assert front.http.post(f"/v1/jobs/{canceled}/cancel").is_success
    assert (states(front, failed), states(front, canceled)) == (
        [("skipped", "job-failed")],
        [("skipped", "job-canceled")],
    )
    for job_id in (failed, canceled):
        problem(add(front, job_id, put()), 409, "hand-over-refused")
    assert all(row.sealed is None for row in rows(front.app.database))


def test_what_the_job_has_not_made_fails(front: Front) -> None:
    job_id = front.new_job(hand_over=[put(artifact="quark_yaml")])
    succeed(front, job_id)
    assert states(front, job_id) == [("failed", "artifact-not-there")]
    refused = problem(add(front, job_id, put(), put(artifact="quark_yaml")), 422, "artifact-not-there")
    assert pointers(refused) == ["/targets/1/artifact"]
    assert "attestation, model, report" in refused["hint"]
    assert len(rows(front.app.database)) == 1, "nothing was stored"


def test_weights_are_made_only_if_they_were_asked_for_before_the_job_runs(front: Front) -> None:
    queued, asked, without = front.new_job(), front.new_job(hand_over=[put(artifact="weights")]), front.new_job()
    assert add(front, queued, put(artifact="weights")).status_code == 202
    for job_id in (asked, without):
        front.claim(job_id)
    assert add(front, asked, put(artifact="weights")).status_code == 202, "they are on their way"
    refused = problem(add(front, without, put(), put(artifact="weights")), 422, "artifact-not-there")
    assert pointers(refused) == ["/targets/1/artifact"]
    assert "before the job runs" in refused["hint"]
    assert add(front, without, put(artifact="quark_yaml")).status_code == 202, "nobody knows yet"
    done = front.new_job()
    succeed(front, done)
    assert "--safetensors" in problem(add(front, done, put(artifact="weights")), 422, "artifact-not-there")["hint"]


def test_targets_are_added_before_and_after_the_end(front: Front) -> None:
    job_id = front.new_job()
    answer = add(front, job_id, put())
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{job_id}/hand-over")
    assert [item["state"] for item in answer.json()["items"]] == ["waiting"]
    succeed(front, job_id, "fail")
    later = add(front, job_id, put(), post(when="success")).json()
    assert [item["state"] for item in later["items"]] == ["skipped", "pending"]
    assert later["id"] == job_id
    assert [state for state, _ in states(front, job_id)] == ["skipped", "skipped", "pending"]


def test_a_target_that_leads_inside_is_refused(front: Front, addresses: dict[str, list[str]]) -> None:
    addresses["inside.example"] = ["10.0.0.7"]
    for url, code in (("http://bucket.example", "url"), ("https://inside.example", "address")):
        given = put(url=f"{url}/x?{SIGNATURE}")
        body = front.job_body(hand_over=[put(), given])
        for refused in (front.http.post("/v1/jobs", json=body), add(front, front.new_job(), put(), given)):
            told = problem(refused, 422, f"{code}-not-allowed")
            assert pointers(told)[0].endswith("/1/url")
            assert SIGNATURE not in refused.text
    assert rows(front.app.database) == []
    assert add(front, front.new_job(), put(url="https://nowhere.example/x")).status_code == 202


def test_a_target_that_is_none_is_told_where(front: Front) -> None:
    job_id = front.new_job()
    for target, place in (
        ({"kind": "ftp", "url": "https://x.example/"}, "kind"),
        (put(artifact="../model"), "artifact"),
        (put(when="always"), "when"),
        (put(url=""), "url"),
        (put(url="https://x.example/" + "a" * 8192), "url"),
        (put(headers={"Host": "x"}), "headers"),
        (put(headers={"content-length": "1"}), "headers"),
        (put(headers={"Proxy-Authorization": "x"}), "headers"),
        (put(headers={"A": "1", "a": "2"}), "headers"),
        (put(headers={f"h{k}": "1" for k in range(17)}), "headers"),
        (put(headers={"a": "1\r\nb: 2"}), "headers/a"),
        (put(headers={"a": "é"}), "headers/a"),
        (put(body="x"), "body"),
    ):
        told = problem(add(front, job_id, target), 422, "invalid-request")
        assert pointers(told) == [f"/targets/0/{place}"]
        assert SIGNATURE not in str(told)


def test_there_are_so_many_of_a_request_and_of_a_job(front: Front) -> None:
    job_id = front.new_job()
    problem(add(front, job_id, *[put()] * 9), 422, "invalid-request")
    problem(add(front, job_id), 422, "invalid-request")
    for _ in range(MOST_OF_JOB // 8):
        assert add(front, job_id, *[put()] * 8).status_code == 202
    problem(add(front, job_id, put()), 409, "too-many-hand-overs")


def test_reuse_schedules_and_validations_hand_nothing_over(front: Front) -> None:
    problem(add(front, front.inspect_job(model_id=front.new_model()), put()), 409, "hand-over-refused")
    body = front.job_body(hand_over=[put()])
    reused = problem(front.http.post("/v1/jobs", json={**body, "reuse": True}), 422, "invalid-request")
    assert pointers(reused) == ["/hand_over"]
    schedule = {"name": "nightly-handed", "cron": "0 2 * * *", "template": body}
    refused = problem(front.http.post("/v1/schedules", json=schedule), 422, "invalid-request")
    assert pointers(refused) == ["/template/hand_over"]


def test_another_job_has_none_of_them_but_what_it_is_given(front: Front) -> None:
    job_id = front.new_job(hand_over=[put()])
    front.fail(job_id, NotOnnxError("It is none."))
    retried = front.http.post(f"/v1/jobs/{job_id}/retry").json()["id"]
    cloned = front.http.post(f"/v1/jobs/{job_id}/clone", json={"name": "other"}).json()["id"]
    given = front.http.post(f"/v1/jobs/{job_id}/clone", json={"hand_over": [post()]}).json()["id"]
    assert [states(front, other) for other in (retried, cloned, given)] == [[], [], [("waiting", None)]]
    batch = front.http.post("/v1/batches", json={"members": [front.job_body(hand_over=[put()])]})
    assert states(front, batch.json()["members"][0]["job_id"]) == [("waiting", None)]


@pytest.mark.both_databases
def test_no_secret_is_shown_stored_or_logged(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = front.job_body(hand_over=[put(), post()])
    made = front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "secret"})
    job_id = made.json()["id"]
    pages = [made, add(front, job_id, post(), headers={"Idempotency-Key": "secret"})]
    held = dump(front.app.database)
    assert len(rows(front.app.database)) == 3
    succeed(front, job_id)
    held += dump(front.app.database)
    paths = ("", "/hand-over", "/logs", "/events")
    pages += [front.http.get(f"/v1/jobs/{job_id}{path}", headers={"Accept": "application/json"}) for path in paths]
    told = [page.text for page in pages]
    for secret in SECRETS:
        assert secret not in held
        assert secret not in caplog.text
        assert not any(secret in text for text in told)
    assert front.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert rows(front.app.database) == [], "they go with their job"
