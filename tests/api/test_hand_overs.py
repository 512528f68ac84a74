"""Hand-overs over HTTP: asked for with a job or later, refused, made due or skipped by its end. On both databases."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from service.contracts.errors import NotOnnxError
from service.hand_overs import asking
from service.hand_overs.service import MOST_OF_JOB
from service.settings import Settings
from tests.support.front import Front, pointers, problem
from tests.support.hand_overs import SIGNATURE, TOKEN, dump, post, put, rows, states, succeed
from tests.support.webhooks import HOST, PEPPER

SECRETS = (SIGNATURE, TOKEN, "/b/model", "/in")


@pytest.fixture
def settings(tmp_path: Any, database_url: str) -> Settings:
    return Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0, key_pepper=PEPPER)


@pytest.fixture(autouse=True)
def addresses(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to; all others to an address on the public internet."""
    found: dict[str, list[str]] = {"nowhere.example": []}
    monkeypatch.setattr(asking, "system_resolver", lambda host, _: found.get(host, ["8.8.8.8"]))
    return found


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


@pytest.mark.parametrize(
    ("verdict", "seen"), [("pass", "pending"), ("none", "pending"), ("fail", "skipped"), ("undecided", "skipped")]
)
def test_a_verdict_that_is_not_passed_skips_what_wants_one(front: Front, verdict: str, seen: str) -> None:
    job_id = front.new_job(hand_over=[put(), put(when="success")])
    succeed(front, job_id, verdict)
    assert states(front, job_id) == [(seen, "verdict" if seen == "skipped" else None), ("pending", None)]
    if seen == "skipped":
        assert f"The verdict is {verdict}." in front.http.get(f"/v1/jobs/{job_id}/logs").text


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
    assert all(row.sealed is None for row in rows(front.desk.database))


def test_what_the_job_has_not_made_fails(front: Front) -> None:
    job_id = front.new_job(hand_over=[put(artifact="quark_yaml")])
    succeed(front, job_id)
    assert states(front, job_id) == [("failed", "artifact-not-there")]
    refused = problem(add(front, job_id, put(), put(artifact="quark_yaml")), 422, "artifact-not-there")
    assert pointers(refused) == ["/targets/1/artifact"]
    assert "attestation, model, report" in refused["hint"]
    assert len(rows(front.desk.database)) == 1, "nothing was stored"


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


def test_a_repeated_request_is_one(front: Front) -> None:
    job_id = front.new_job()
    again = [add(front, job_id, put(), headers={"Idempotency-Key": "one"}) for _ in range(2)]
    assert again[0].json() == again[1].json()
    assert len(rows(front.desk.database)) == 1
    other = add(front, job_id, put(url=f"https://{HOST}/other"), headers={"Idempotency-Key": "one"})
    problem(other, 422, "idempotency-key-reuse")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("http://bucket.example/x", "url-not-allowed"),
        ("https://bucket.example:9000/x", "url-not-allowed"),
        ("https://127.0.0.1/x", "address-not-allowed"),
        ("https://[::1]/x", "address-not-allowed"),
        ("https://169.254.169.254/latest/meta-data/", "address-not-allowed"),
        ("https://inside.example/x", "address-not-allowed"),
    ],
)
def test_a_url_that_leads_inside_is_refused(front: Front, addresses: dict[str, list[str]], url: str, code: str) -> None:
    addresses["inside.example"] = ["10.0.0.7"]
    given = f"{url}?{SIGNATURE}"
    body = front.job_body(hand_over=[put(), put(url=given)])
    for refused in (front.http.post("/v1/jobs", json=body), add(front, front.new_job(), put(), put(url=given))):
        told = problem(refused, 422, code)
        assert pointers(told)[0].endswith("/1/url")
        assert SIGNATURE not in refused.text
    assert rows(front.desk.database) == []


def test_a_name_without_an_address_is_looked_up_again_before_anything_is_sent(front: Front) -> None:
    assert add(front, front.new_job(), put(url="https://nowhere.example/x")).status_code == 202


@pytest.mark.parametrize(
    ("target", "pointer"),
    [
        ({"kind": "ftp", "url": "https://x.example/"}, "/targets/0/kind"),
        (put(artifact="../model"), "/targets/0/artifact"),
        (put(when="always"), "/targets/0/when"),
        (put(url=""), "/targets/0/url"),
        (put(url="https://x.example/" + "a" * 8192), "/targets/0/url"),
        (put(headers={"Host": "x"}), "/targets/0/headers"),
        (put(headers={"content-length": "1"}), "/targets/0/headers"),
        (put(headers={"Proxy-Authorization": "x"}), "/targets/0/headers"),
        (put(headers={"A": "1", "a": "2"}), "/targets/0/headers"),
        (put(headers={f"h{k}": "1" for k in range(17)}), "/targets/0/headers"),
        (put(headers={"a": "1\r\nb: 2"}), "/targets/0/headers/a"),
        (put(headers={"a": "é"}), "/targets/0/headers/a"),
        (put(body="x"), "/targets/0/body"),
    ],
)
def test_a_target_that_is_none_is_told_where(front: Front, target: dict[str, Any], pointer: str) -> None:
    told = problem(add(front, front.new_job(), target), 422, "invalid-request")
    assert pointers(told) == [pointer]
    assert SIGNATURE not in str(told)


def test_there_are_so_many_of_a_request_and_of_a_job(front: Front) -> None:
    job_id = front.new_job()
    problem(add(front, job_id, *[put()] * 9), 422, "invalid-request")
    problem(add(front, job_id), 422, "invalid-request")
    for _ in range(MOST_OF_JOB // 8):
        assert add(front, job_id, *[put()] * 8).status_code == 202
    problem(add(front, job_id, put()), 409, "too-many-hand-overs")


def test_reuse_and_schedules_hand_nothing_over(front: Front) -> None:
    body = front.job_body(hand_over=[put()])
    assert pointers(problem(front.http.post("/v1/jobs", json={**body, "reuse": True}), 422, "invalid-request")) == [
        "/hand_over"
    ]
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


def test_jobs_that_validate_make_nothing(front: Front) -> None:
    model_id = front.new_model()
    problem(add(front, front.inspect_job(model_id=model_id), put()), 409, "hand-over-refused")
    problem(add(front, "job_none", put()), 404, "job-not-found")
    problem(front.http.get("/v1/jobs/job_none/hand-over"), 404, "job-not-found")


def test_no_secret_is_shown_stored_or_logged(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = front.job_body(hand_over=[put(), post()])
    made = front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "secret"})
    job_id = made.json()["id"]
    pages = [made, add(front, job_id, post(), headers={"Idempotency-Key": "secret"})]
    held = dump(front.desk.database)
    assert len(rows(front.desk.database)) == 3
    succeed(front, job_id)
    held += dump(front.desk.database)
    paths = ("", "/hand-over", "/logs", "/events")
    pages += [front.http.get(f"/v1/jobs/{job_id}{path}", headers={"Accept": "application/json"}) for path in paths]
    told = [page.text for page in pages]
    for secret in SECRETS:
        assert secret not in held
        assert secret not in caplog.text
        assert not any(secret in text for text in told)


def test_the_hand_overs_of_a_job_go_with_it(front: Front) -> None:
    job_id = front.new_job(hand_over=[put()])
    succeed(front, job_id)
    assert front.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    assert rows(front.desk.database) == []
