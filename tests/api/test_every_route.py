"""What holds on every route of its kind: one deed for one key, lists in pages, and what is not there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from service.contracts.dataset import ArraySummary, MediaSummary
from service.contracts.errors import EngineError
from service.hand_overs import service as hand_overs
from service.schedules import service as schedules
from service.tables import Base, IdempotencyKey
from service.webhooks import service as webhooks
from tests.db.test_concurrency import at_once
from tests.support.batches import fail, grid_body, job_of, submitted
from tests.support.filled import full_profile
from tests.support.front import Front, dataset_summary, model_summary, npz_bytes, problem
from tests.support.hand_overs import put
from tests.support.schedules import add_schedule

KEY = {"Idempotency-Key": "nightly-2026-11-20"}
Request = tuple[str, dict[str, Any] | None]


def retried_batch(front: Front) -> Request:
    made = submitted(front, grid_body(front, models=1, presets=("int8",)))
    fail(front, job_of(made, 0))
    return f"/v1/batches/{made['id']}/retry-failed", None


def repeated(front: Front, verb: str, body: dict[str, Any] | None) -> Request:
    job_id = front.new_job()
    front.fail(job_id, EngineError("It broke."))
    return f"/v1/jobs/{job_id}/{verb}", body


def target(address: str) -> dict[str, Any]:
    return {"targets": [{**put(), "url": f"https://{address}/"}]}


REQUESTS: dict[str, Callable[[Front], Request]] = {
    "model": lambda front: ("/v1/models", {"name": "m", "files": [{"upload_id": front.upload(), "path": "net.onnx"}]}),
    "dataset": lambda front: ("/v1/datasets", {"name": "d", "upload_id": front.upload(npz_bytes(), "data.npz")}),
    "job": lambda front: ("/v1/jobs", front.job_body(name="a", labels={"a": "1", "b": "2"})),
    "evaluation": lambda front: (
        "/v1/evaluations",
        {"model_id": front.ready_model(), "evaluation_dataset_id": front.ready_dataset()},
    ),
    "batch": lambda front: ("/v1/batches", grid_body(front)),
    "retried batch": retried_batch,
    "schedule": lambda front: ("/v1/schedules", {"name": "nightly", "cron": "0 2 * * *", "template": front.job_body()}),
    "run": lambda front: (f"/v1/schedules/{add_schedule(front, front.job_body())['id']}/run", None),
    "webhook": lambda _: ("/v1/webhooks", {"url": "https://8.8.8.8/"}),
    "key": lambda _: ("/v1/keys", {"name": "ci", "scope": "read"}),
    "hand-over": lambda front: (f"/v1/jobs/{front.new_job()}/hand-over", target("8.8.8.8")),
    "retry": lambda front: repeated(front, "retry", None),
    "clone": lambda front: repeated(front, "clone", {"name": "other"}),
}
# What a body that leaves it out means.
MEANT: dict[str, dict[str, Any]] = {"job": {"config": {}}, "batch": {"configs": [], "priority": 0}}
OTHERS: dict[str, dict[str, Any]] = {
    "webhook": {"description": "another"}, "hand-over": target("8.8.4.4"),
    "evaluation": {"evaluation": {"latency_runs": 3}},
}  # fmt: skip
AGAIN = ("model", "dataset", "job", "evaluation", "batch", "webhook", "key", "clone")


def on_both(rows: Iterable[str], *those: str) -> list[Any]:
    """Rows of a table, of which those say what databases may do differently."""
    return [pytest.param(row, marks=[pytest.mark.both_databases] if row in those else []) for row in rows]


def rows(front: Front) -> dict[str, int]:
    """How many rows each table has."""
    with front.app.database.read() as session:
        tables = Base.metadata.sorted_tables
        return {table.name: session.scalar(select(func.count()).select_from(table)) or 0 for table in tables}


@pytest.mark.parametrize("what", on_both(REQUESTS, "job", "webhook"))
def test_the_first_answer_comes_back_and_nothing_is_done_twice(front: Front, what: str) -> None:
    path, body = REQUESTS[what](front)
    first = front.http.post(path, json=body, headers=KEY)
    assert first.status_code in (201, 202), first.text
    assert "idempotent-replayed" not in first.headers
    then = rows(front)
    if what == "job":
        front.claim(first.json()["id"])
    meant = body and {**dict(reversed(body.items())), **MEANT.get(what, {})}
    again = front.http.post(path, json=meant, headers=KEY)
    assert (again.status_code, again.json()) == (first.status_code, first.json())
    assert again.headers["idempotent-replayed"] == "true"
    for name in ("location", "etag", "retry-after", "cache-control"):
        assert again.headers.get(name) == first.headers.get(name)
    if body is not None:
        other = front.http.post(path, json={**body, **OTHERS.get(what, {"name": "yet another"})}, headers=KEY)
        told = problem(other, 422, "idempotency-key-reuse")
        assert [error["where"] for error in told["errors"]] == [{"header": "Idempotency-Key"}]
    now = rows(front)
    assert {name: now[name] - then[name] for name in now if now[name] != then[name]}.keys() <= {"job_events"}
    if what in AGAIN:
        others = [front.http.post(path, json=body, headers=headers) for headers in ({}, {"Idempotency-Key": "other"})]
        assert len({answer.json()["id"] for answer in (first, *others)}) == 3


@pytest.mark.parametrize("what", ["job", "batch", "webhook", "clone"])
def test_a_key_is_known_by_what_was_sent_whatever_that_means_by_now(sqlite_front: Front, what: str) -> None:
    path, body = REQUESTS[what](sqlite_front)
    sent: dict[str, Any] = {**(body or {}), **({} if what == "webhook" else {"labels": {"a": "1", "b": "2"}})}
    turned = {key: dict(reversed(value.items())) if isinstance(value, dict) else value for key, value in sent.items()}
    first = sqlite_front.http.post(path, json=sent, headers=KEY).json()
    with sqlite_front.app.database.read() as session:
        (meant,) = session.scalars(select(IdempotencyKey.request_sha256)).all()
    newer, older = {"request_sha256": "0" * 64}, {"request_sha256": meant, "sent_sha256": None}
    for stored, again in ((newer, sent), (newer, dict(reversed(turned.items()))), (older, sent)):
        with sqlite_front.app.database.write() as session:
            session.execute(update(IdempotencyKey).values(stored))
        assert sqlite_front.http.post(path, json=again, headers=KEY).json() == first


@pytest.mark.parametrize(("what", "field"), [("model", "files"), ("dataset", "upload_id"), ("job", "model_id")])
def test_a_refused_request_leaves_the_key_free(front: Front, what: str, field: str) -> None:
    path, body = REQUESTS[what](front)
    assert body is not None
    missing: Any = {"files": [{"upload_id": f"upl_{'0' * 26}", "path": "net.onnx"}]}.get(field, f"upl_{'0' * 26}")
    assert front.http.post(path, json={**body, field: missing}, headers=KEY).status_code == 404
    assert front.http.post(path, json=body, headers=KEY).status_code in (201, 202)


def test_an_old_key_is_forgotten(front: Front) -> None:
    path, body = REQUESTS["job"](front)
    first = front.http.post(path, json=body, headers=KEY)
    with front.app.database.write() as session:
        session.execute(update(IdempotencyKey).values(created_at=1.0))
    again = front.http.post(path, json=body, headers=KEY)
    assert "idempotent-replayed" not in again.headers
    assert again.json()["id"] != first.json()["id"]


def test_a_key_means_something_on_its_own_route_only(front: Front) -> None:
    for what in ("model", "dataset", "job"):
        path, body = REQUESTS[what](front)
        answer = front.http.post(path, json=body, headers=KEY)
        assert answer.status_code in (201, 202)
        assert "idempotent-replayed" not in answer.headers


def test_keys_have_a_form(front: Front) -> None:
    path, body = REQUESTS["job"](front)
    for key in ("a" * 256, "a b", ""):
        answer = front.http.post(path, json=body, headers={"Idempotency-Key": key})
        named = [error.get("where") for error in problem(answer, 422, "invalid-request")["errors"]]
        assert {"header": "Idempotency-Key"} in named


@pytest.mark.both_databases
def test_twins_make_one_job(front: Front) -> None:
    path, body = REQUESTS["job"](front)
    before = rows(front)["jobs"]

    def send(_: int) -> tuple[int, str]:
        answer = front.http.post(path, json=body, headers=KEY)
        if answer.status_code == 409:
            assert problem(answer, 409, "idempotency-in-flight")
            assert answer.headers["retry-after"] == "1"
            return 409, ""
        return answer.status_code, answer.json()["id"]

    answers = at_once(8, send)
    assert {status for status, _ in answers} <= {202, 409}
    assert len({job_id for status, job_id in answers if status == 202}) == 1
    assert rows(front)["jobs"] == before + 1


@pytest.mark.both_databases
@pytest.mark.postgres
@pytest.mark.parametrize("database_url", ["postgres"], indirect=True)
def test_a_twin_in_flight_is_told_to_come_back(front: Front) -> None:
    """On SQLite the second write transaction waits for the first, and then replays."""
    path, body = REQUESTS["job"](front)
    digest = hashlib.sha256("\0".join(("default", f"POST {path}", KEY["Idempotency-Key"])).encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    with front.app.database.write() as session:
        session.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})
        problem(front.http.post(path, json=body, headers=KEY), 409, "idempotency-in-flight")
    assert front.http.post(path, json=body, headers=KEY).status_code == 202


CAPS: dict[str, tuple[Any, str]] = {
    "webhook": (webhooks, "MOST_WEBHOOKS"), "schedule": (schedules, "MOST_SCHEDULES"),
    "hand-over": (hand_overs, "MOST_OF_JOB"),
}  # fmt: skip


@pytest.mark.both_databases
@pytest.mark.parametrize("what", CAPS)
def test_many_at_once_make_no_more_than_there_may_be(front: Front, monkeypatch, what: str) -> None:
    monkeypatch.setattr(*CAPS[what], 3)
    path, body = REQUESTS[what](front)
    named = [{**(body or {}), **({"name": f"n{one}"} if what == "schedule" else {})} for one in range(8)]
    answers = at_once(8, lambda one: front.http.post(path, json=named[one]))
    assert sorted(answer.status_code < 300 for answer in answers) == [False] * 5 + [True] * 3


ARRAYS = 130
MEDIA = MediaSummary(archive="tar", codecs={"PNG": 2}, classes=("cat", "dog"), smallest=(8, 8), largest=(8, 8))
# What makes one more item of a list, of what is given by the first function.
LISTS: dict[str, tuple[Callable[[Front], object], Callable[[Front, object], str]]] = {
    "/v1/models": (lambda _: None, lambda front, _: front.new_model()),
    "/v1/datasets": (lambda _: None, lambda front, _: front.new_dataset()),
    "/v1/jobs?label.n=x": (Front.job_body, lambda front, body: front.new_job(**body, labels={"n": "x"})),
    "/v1/batches?name=b": (
        lambda front: grid_body(front, models=1, presets=("int8",), name="b"),
        lambda front, body: submitted(front, body)["id"],
    ),
    "/v1/schedules": (Front.job_body, lambda front, body: add_schedule(front, body)["id"]),
    "/v1/webhooks": (
        lambda _: {"url": "https://8.8.8.8/"},
        lambda front, body: front.http.post("/v1/webhooks", json=body).json()["id"],
    ),
    "/v1/keys": (lambda _: {"name": "ci"}, lambda front, body: front.http.post("/v1/keys", json=body).json()["id"]),
}


@pytest.mark.parametrize("path", on_both(LISTS, "/v1/models", "/v1/schedules"))
def test_pages_hold_everything_once(front: Front, path: str) -> None:
    given, make = LISTS[path]
    body = given(front)
    ids = [make(front, body) for _ in range(5)]
    plain, _, query = path.partition("?")
    seen: list[str] = []
    cursors = []
    link = f"{plain}?limit=2&{query}".rstrip("&")
    while link:
        page = front.http.get(link)
        found = page.json()
        seen += [item["id"] for item in found["items"]]
        if not cursors:
            make(front, body)  # a newcomer must not shift the pages
        cursors.append(found["next_cursor"])
        link = page.headers.get("link", "").partition(">")[0].removeprefix("<")
        assert found["has_more"] == (cursors[-1] is not None) == ('rel="next"' in page.headers.get("link", ""))
    assert seen == ids[::-1]
    assert len(cursors) == 3
    # cursors are signed and bound to their list and its filters; a page may be of another length
    rest = front.http.get(f"{plain}?limit=3&{query}&cursor={cursors[0]}")
    assert [item["id"] for item in rest.json()["items"]] == ids[2::-1]
    for bad in (cursors[0][:-2] + "xx", "x", "", "%00", "A" * 500):
        told = problem(front.http.get(f"{plain}?{query}&cursor={bad}"), 422, "invalid-cursor")
        assert [error["where"] for error in told["errors"]] == [{"query": "cursor"}]
    for other in LISTS:
        if other != path:
            problem(front.http.get(f"{other.partition('?')[0]}?cursor={cursors[0]}"), 422, "invalid-cursor")
    if query:
        problem(front.http.get(f"{plain}?cursor={cursors[0]}"), 422, "invalid-cursor")
    for wrong in ("limit=0", "limit=201", "limit=x", "lmit=2"):
        told = problem(front.http.get(f"{plain}?{wrong}"), 422, "invalid-request")
        assert [error["where"] for error in told["errors"]] == [{"query": wrong.partition("=")[0]}]


def test_a_list_of_datasets_leaves_out_classes_and_many_arrays(front: Front) -> None:
    arrays = {f"a{number:03}": ArraySummary(dtype="float32", shape=(4, 1)) for number in range(ARRAYS)}
    summary = dataset_summary(**arrays).model_copy(update={"media": MEDIA, "profile": full_profile()})
    dataset_id = front.ready_dataset(summary)
    (listed,) = front.http.get("/v1/datasets").json()["items"]
    whole = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert (len(whole["summary"]["arrays"]), whole["summary"]["arrays_left_out"]) == (ARRAYS, 0)
    assert whole["summary"]["media"]["classes"] == ["cat", "dog"]
    assert (len(listed["summary"]["arrays"]), listed["summary"]["arrays_left_out"]) == (100, ARRAYS - 100)
    assert listed["summary"]["media"] == {**whole["summary"]["media"], "classes": None}
    assert (listed["summary"]["profile"], whole["summary"]["profile"] is None) == (None, False)
    assert {**listed, "summary": None} == {**whole, "summary": None}


def test_a_list_of_models_leaves_out_the_names_of_nodes(front: Front) -> None:
    model_id = front.ready_model(model_summary(node_names=("conv", "relu")))
    front.new_model()  # one that is still being validated
    _, listed = front.http.get("/v1/models").json()["items"]
    whole = front.http.get(f"/v1/models/{model_id}").json()
    assert whole["summary"].pop("node_names") == ["conv", "relu"]
    assert listed["summary"].pop("node_names") is None
    assert listed == whole


PATHS = {
    "upload_id": ["GET /v1/uploads/{}", "PATCH /v1/uploads/{}", "PUT /v1/uploads/{}/content"],
    "model_id": ["GET /v1/models/{}", "DELETE /v1/models/{}", "POST /v1/models/{}/inspect"],
    "dataset_id": ["GET /v1/datasets/{}", "DELETE /v1/datasets/{}", "GET /v1/datasets/{}/thumbnails"],
    "job_id": [
        *("GET /v1/jobs/{}", "DELETE /v1/jobs/{}", "PATCH /v1/jobs/{}", "GET /v1/jobs/{}/events"),
        *("POST /v1/jobs/{}/cancel", "POST /v1/jobs/{}/retry", "POST /v1/jobs/{}/clone", "POST /v1/jobs/{}/hand-over"),
        *("GET /v1/jobs/{}/report", "GET /v1/jobs/{}/report.html", "GET /v1/jobs/{}/artifacts", "GET /v1/jobs/{}/logs"),
        *("GET /v1/jobs/{}/attestation", "GET /v1/jobs/{}/hand-over"),
    ],
    "artifact_id": ["GET /v1/artifacts/{}", "GET /v1/artifacts/{}/content"],
    "batch_id": ["GET /v1/batches/{}", "POST /v1/batches/{}/cancel", "GET /v1/batches/{}/events"],
    "schedule_id": ["GET /v1/schedules/{}", "POST /v1/schedules/{}/run", "POST /v1/schedules/{}/pause"],
    "webhook_id": ["GET /v1/webhooks/{}", "POST /v1/webhooks/{}/ping", "GET /v1/webhooks/{}/deliveries"],
    "key_id": ["GET /v1/keys/{}", "POST /v1/keys/{}/rotate", "POST /v1/keys/{}/revoke"],
    "inspection_id": ["GET /v1/inspections/{}"],
    "digest": ["DELETE /v1/quarantine/{}"],
    "name": ["GET /v1/presets/{}", "GET /v1/targets/{}"],
}
PREFIXES = {
    **{"upload_id": "upl_", "model_id": "mdl_", "dataset_id": "dst_", "job_id": "job_", "artifact_id": "art_"},
    **{"batch_id": "bat_", "schedule_id": "sch_", "webhook_id": "whk_", "inspection_id": "ins_", "key_id": "key_"},
}
# What each asks for besides, so that nothing is missing but the noun.
HEADERS = {"If-Match": "*", "Upload-Offset": "0"}
BODIES: dict[str, Any] = {"hand-over": {"targets": [{"kind": "post", "url": "https://x.example/"}]}}


@pytest.mark.both_databases
@pytest.mark.parametrize("name", PATHS)
def test_what_is_not_there_is_told_by_its_parameter(front: Front, name: str) -> None:
    for route in PATHS[name]:
        method, path = route.split()
        noun = path.split("/")[2].removesuffix("s").replace("batche", "batch")
        for tail in ("0" * 26, "x", "%00", "%FF"):
            body = BODIES.get(path.rpartition("/")[2], {}) if method in ("POST", "PATCH") and noun != "upload" else None
            given = path.format(PREFIXES.get(name, "") + tail)
            answer = front.http.request(method, given, headers=HEADERS, json=body)
            told = problem(answer, 404, f"{noun}-not-found")
            places = [(error["pointer"], error["where"]) for error in told["errors"]]
            assert places == [("", {"path": name})], given
    assert list(front.app.store.incoming.iterdir()) == []


def test_a_path_is_no_id(front: Front) -> None:
    problem(front.http.get("/v1/uploads/..%2F..%2Fetc"), 404, "route-not-found")
    for noun in ("uploads/upl_", "artifacts/art_"):
        assert front.http.head(f"/v1/{noun}{'0' * 26}").status_code in (404, 405)
