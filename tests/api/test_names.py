"""Models and datasets by name: versions, aliases and tags, made, moved, found and told."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import Any
from urllib.parse import quote

import pytest

from service.names.aliases import repository
from tests.api.test_model_versions import new_version, version_body
from tests.api.test_submissions import graph_summary
from tests.db.test_concurrency import THREADS, at_once
from tests.support.front import Front, dataset_summary, model_summary, npz_bytes, pointers, problem, taken
from tests.support.webhooks import add_endpoint, deliveries

NOUNS = pytest.mark.parametrize("noun", ["model", "dataset"])
# Of many at once: both nouns go the same way, and one at a time.
CROWDED_NOUNS = pytest.mark.parametrize("noun", ["model", pytest.param("dataset", marks=pytest.mark.long)])


def make(front: Front, noun: str, name: str, *, ready: bool = True) -> str:
    """One more version of a name."""
    if noun == "model":
        files = [{"upload_id": front.upload(), "path": "model.onnx"}]
        answer = front.http.post("/v1/models", json={"name": name, "files": files})
    else:
        upload_id = front.upload(npz_bytes(), "data.npz")
        answer = front.http.post("/v1/datasets", json={"name": name, "upload_id": upload_id})
    assert answer.status_code == 201, answer.text
    noun_id: str = answer.json()["id"]
    if ready:
        summary: Any = model_summary() if noun == "model" else dataset_summary()
        front.finish(front.inspect_job(**{f"{noun}_id": noun_id}), summary)
    return noun_id


def get(front: Front, noun: str, text: str) -> Any:
    return front.http.get(f"/v1/{noun}s/{quote(text, safe='')}")


@pytest.mark.parametrize(
    ("noun", "name"),
    [
        *(("model", name) for name in ("net, Tuesday", "me@home")),
        *(pytest.param("model", name, marks=pytest.mark.both_databases) for name in ("Netz ✓ 100%?#", "\u6a21" * 200)),
        ("dataset", "a" * 200),
    ],
)
def test_a_version_is_found_by_its_number_and_the_newest_ready_one_by_latest(
    front: Front, noun: str, name: str
) -> None:
    first, second = make(front, noun, name), make(front, noun, name)
    make(front, noun, name, ready=False)
    assert get(front, noun, f"{name}@1").json()["id"] == first
    assert get(front, noun, f"{name}@latest").json() == get(front, noun, second).json()
    assert get(front, noun, f"{name}@3").json()["status"] == "validating"


@NOUNS
def test_what_is_not_there_is_told_with_what_is(front: Front, noun: str) -> None:
    def missing(text: str) -> Any:
        return problem(get(front, noun, text), 404, f"{noun}-not-found")

    for name in ("mobilenet", "mobilenet", "me@home"):
        make(front, noun, name)
    told = missing("mobilenet")  # a bare name is refused with what to write
    assert "'mobilenet@latest'" in told["hint"]
    assert told["errors"][0]["where"] == {"path": f"{noun}_id"}
    assert "'me@home@latest'" in missing("me@home")["hint"]
    assert "'mobilenet'" in missing("mobilnet@1")["detail"]
    for text in ("mobilenet@7", "mobilenet@prod"):
        told = missing(text)
        assert text in told["detail"]
        assert "versions 2, 1" in told["hint"]
        assert "latest" in told["hint"]
    assert "neither a version nor an alias" in missing("mobilenet@Prod!")["detail"]
    other = "dataset" if noun == "model" else "model"
    problem(get(front, other, "mobilenet@1"), 404, f"{other}-not-found")
    for text in ("@1", "net@", "\x01@1", "x" * 201 + "@1"):
        missing(text)


@NOUNS
def test_where_no_version_is_ready_latest_says_why_and_no_alias_stands_for_it(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net", ready=False)
    assert noun_id in problem(get(front, noun, "net@latest"), 409, f"{noun}-not-ready")["detail"]
    problem(put(front, noun, noun_id, NEW), 409, f"{noun}-not-ready")
    rejected = front.rejected_model() if noun == "model" else front.rejected_dataset()
    name = get(front, noun, rejected).json()["name"]
    assert rejected in problem(get(front, noun, f"{name}@latest"), 422, f"{noun}-rejected")["detail"]
    problem(put(front, noun, rejected, NEW), 422, f"{noun}-rejected")
    problem(put(front, noun, f"{noun_id[:4]}{'0' * 26}", NEW), 404, f"{noun}-not-found")


def test_jobs_are_submitted_by_reference_and_answer_ids(front: Front) -> None:
    model, data = make(front, "model", "net"), make(front, "dataset", "some")
    body = {"model_id": "net@1", "calibration_dataset_id": "some@latest", "evaluation_dataset_id": "some@1"}
    made = taken(front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"}), 202)
    newer = make(front, "model", "net")
    assert newer != model
    seen = front.http.get(f"/v1/jobs/{made['id']}").json()
    ids = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")
    assert [seen[name] for name in ids] == [made[name] for name in ids] == [model, data, data]
    again = front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    assert (again.json()["id"], again.json()["model_id"]) == (seen["id"], model)
    for text, jobs in (("net@1", [seen["id"]]), ("net@latest", []), (model, [seen["id"]]), ("mdl_none", [])):
        listed = front.http.get("/v1/jobs", params={"model_id": text}).json()["items"]
        assert [job["id"] for job in listed] == jobs
    told = problem(front.http.get("/v1/jobs", params={"model_id": "nett@1"}), 404, "model-not-found")
    assert told["errors"][0]["where"] == {"query": "model_id"}


def test_a_skeleton_and_an_inspection_are_named_by_reference(front: Front) -> None:
    first = make(front, "model", "net")
    body = {k: v for k, v in version_body(front, "net@latest").items() if k != "name"}
    made = front.http.post("/v1/models", json=body).json()
    assert (made["skeleton_model_id"], made["name"], made["version"]) == (first, "net", 2)
    for skeleton, status, code in (("net@2", 409, "model-not-ready"), (f"mdl_{'0' * 26}", 404, "model-not-found")):
        told = problem(front.http.post("/v1/models", json=version_body(front, skeleton)), status, code)
        assert pointers(told) == ["/skeleton_model_id"]
    answer = front.http.post("/v1/models/net@latest/inspect?target=onnxruntime_cpu")
    assert answer.json()["model_id"] == first
    same = front.http.post(f"/v1/models/{first}/inspect?target=onnxruntime_cpu")
    assert same.json()["id"] == answer.json()["id"]


def test_a_metrics_graph_is_named_by_reference(front: Front) -> None:
    graph = front.ready_model(graph_summary("y"))

    def config(text: str) -> dict[str, Any]:
        return {"evaluation": {"metrics": [{"kind": "onnx", "name": "score", "graph": {"model_id": text}}]}}

    job_id = front.new_job(model_id=make(front, "model", "net"), config=config("tiny@latest"))
    (stored,) = front.http.get(f"/v1/jobs/{job_id}").json()["config"]["evaluation"]["metrics"]
    assert stored["graph"]["model_id"] == graph
    told = problem(front.http.post("/v1/jobs", json=front.job_body(config=config("tny@1"))), 404, "model-not-found")
    assert pointers(told) == ["/config/evaluation/metrics/0/graph/model_id"]
    assert "'tiny'" in told["detail"]


NEW = {"If-None-Match": "*"}


def path(noun: str, noun_id: str, alias: str = "prod") -> str:
    return f"/v1/{noun}s/{noun_id}/aliases/{alias}"


def put(front: Front, noun: str, noun_id: str, headers: dict[str, str], alias: str = "prod") -> Any:
    return front.http.put(path(noun, noun_id, alias), headers=headers)


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("noun", "name"), [("model", "facebook/opt-125m"), ("model", "me@home/..?#%2F"), ("dataset", "net")]
)
def test_an_alias_is_made_moved_and_ended(front: Front, noun: str, name: str) -> None:
    first, second = make(front, noun, name), make(front, noun, name)
    assert front.http.get(f"/v1/{noun}s/{first}/aliases").json() == {"items": []}
    made = put(front, noun, first, NEW)
    assert made.status_code == 201, made.text
    assert (made.json()["name"], made.json()["alias"]) == (name, "prod")
    assert (made.json()["version"], made.json()["id"]) == (1, first)
    moved = put(front, noun, second, {"If-Match": made.headers["etag"]})
    assert (moved.status_code, moved.json()["version"], moved.json()["id"]) == (200, 2, second)
    assert moved.headers["etag"] != made.headers["etag"]
    # any version of the name leads to its aliases
    for noun_id in (first, second):
        assert front.http.get(f"/v1/{noun}s/{noun_id}/aliases").json()["items"] == [moved.json()]
        seen = front.http.get(path(noun, noun_id))
        assert (seen.json(), seen.headers["etag"]) == (moved.json(), moved.headers["etag"])
    again = front.http.get(path(noun, first), headers={"If-None-Match": moved.headers["etag"]})
    assert again.status_code == 304
    if "/" not in name:
        assert get(front, noun, f"{name}@prod").json()["id"] == second
    assert front.http.delete(path(noun, first)).status_code == 204
    assert front.http.delete(path(noun, first)).status_code == 204
    problem(front.http.get(path(noun, first)), 404, "alias-not-found")
    problem(get(front, noun, f"{name}@prod"), 404, "route-not-found" if "/" in name else f"{noun}-not-found")
    told = front.http.get(path(noun, first) + "/moves").json()["items"]
    assert [(move["version"], move["id"]) for move in told] == [(None, None), (2, second), (1, first)]
    assert {move["by"] for move in told} == {made.json()["updated_by"]}


@NOUNS
def test_conditions_are_held_to(front: Front, noun: str) -> None:
    first, second = make(front, noun, "net"), make(front, noun, "net")
    told = problem(put(front, noun, first, {}), 428, "precondition-required")
    assert "If-None-Match" in told["hint"]
    problem(put(front, noun, first, {"If-Match": '"1"'}), 412, "precondition-failed")
    problem(put(front, noun, first, {"If-Match": "*"}), 412, "precondition-failed")
    etag = put(front, noun, first, NEW).headers["etag"]
    told = problem(put(front, noun, second, NEW), 412, "precondition-failed")
    assert (told["where"]["etag"], told["errors"][0]["where"]) == (etag, {"header": "If-None-Match"})
    problem(put(front, noun, second, {"If-Match": '"99"'}), 412, "precondition-failed")
    problem(put(front, noun, second, {"If-Match": f"W/{etag}"}), 412, "precondition-failed")
    problem(front.http.delete(path(noun, first), headers={"If-Match": '"99"'}), 412, "precondition-failed")
    same = put(front, noun, first, {"If-Match": etag})
    assert (same.status_code, same.headers["etag"]) == (200, etag)
    assert put(front, noun, second, {"If-Match": f'"99", {etag}'}).json()["id"] == second
    assert put(front, noun, first, {"If-Match": "*"}).json()["id"] == first
    seen = set()  # a tag never comes back
    for _ in range(3):
        front.http.delete(path(noun, first))
        seen.add(put(front, noun, first, NEW).headers["etag"])
    assert len(seen | {etag}) == 4


def test_what_cannot_be_an_alias_is_refused(front: Front) -> None:
    noun_id = make(front, "model", "net")
    for word in ("latest", "Prod", "3", "a--b", "x" * 65, "prod%20"):
        problem(put(front, "model", noun_id, NEW, word), 422, "invalid-alias")
        problem(front.http.get(path("model", noun_id, word)), 404, "alias-not-found")
    assert put(front, "model", noun_id, NEW, "eu-prod.2").status_code == 201


@NOUNS
def test_names_have_their_own_aliases_and_one_is_promoted_to_another(front: Front, noun: str) -> None:
    one, other = make(front, noun, "net"), make(front, noun, "net@prod")
    assert put(front, noun, one, NEW).status_code == put(front, noun, other, NEW).status_code == 201
    assert get(front, noun, "net@prod").json()["id"] == one
    assert get(front, noun, "net@prod@prod").json()["id"] == other
    second = make(front, noun, "net")
    put(front, noun, second, NEW, "canary")
    assert put(front, noun, "net@canary", {"If-Match": "*"}).json()["id"] == second


@pytest.mark.both_databases
@CROWDED_NOUNS
def test_of_many_at_once_one_makes_it_and_one_moves_it(front: Front, noun: str) -> None:
    ids = [make(front, noun, "net") for _ in range(3)]
    made = at_once(THREADS, lambda number: put(front, noun, ids[number % 3], NEW))
    assert sorted(answer.status_code for answer in made) == [201] + [412] * (THREADS - 1)
    (won,) = [answer for answer in made if answer.status_code == 201]
    targets = [noun_id for noun_id in ids if noun_id != won.json()["id"]]
    moved = at_once(THREADS, lambda number: put(front, noun, targets[number % 2], {"If-Match": won.headers["etag"]}))
    assert sorted(answer.status_code for answer in moved) == [200] + [412] * (THREADS - 1)
    told = front.http.get(path(noun, ids[0]) + "/moves").json()["items"]
    (winner,) = [answer.json()["id"] for answer in moved if answer.status_code == 200]
    assert [move["id"] for move in told] == [winner, won.json()["id"]]


def test_so_many_aliases_and_moves_are_kept(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "MOST_MOVES", 3)
    monkeypatch.setattr("service.names.aliases.service.MOST_ALIASES", 2)
    ids = [make(front, "model", "net") for _ in range(2)]
    put(front, "model", ids[0], NEW)
    for number in range(1, 6):
        put(front, "model", ids[number % 2], {"If-Match": "*"})
    told = front.http.get(path("model", ids[0]) + "/moves").json()["items"]
    assert [move["id"] for move in told] == [ids[1], ids[0], ids[1]]
    assert put(front, "model", ids[0], NEW, "b").status_code == 201
    problem(put(front, "model", ids[0], NEW, "c"), 409, "too-many-aliases")
    assert put(front, "model", ids[1], {"If-Match": "*"}, "b").status_code == 200


@pytest.mark.both_databases
def test_latest_is_looked_up_while_versions_come(front: Front) -> None:
    """Whoever asks meanwhile gets a version that is ready, and none that is older than one seen before."""
    make(front, "model", "net")
    seen: list[int] = []
    over = threading.Event()

    def ask(number: int) -> None:
        if number == 0:
            for _ in range(5):
                make(front, "model", "net")
            over.set()
            return
        while not over.is_set():
            answer = get(front, "model", "net@latest").json()
            assert answer["status"] == "ready"
            seen.append(answer["version"])

    at_once(2, ask)
    assert seen == sorted(seen)
    assert get(front, "model", "net@latest").json()["version"] == 6


def test_a_move_is_told_to_webhooks(front: Front) -> None:
    database = front.app.database
    endpoint_id, _ = add_endpoint(database, "https://hooks.invalid/", ["alias.moved"], tenant="default")
    first, second = make(front, "model", "net"), make(front, "model", "net")
    etag = put(front, "model", first, NEW).headers["etag"]
    assert put(front, "model", second, {"If-Match": etag}).status_code == 200
    assert put(front, "model", second, {"If-Match": "*"}).status_code == 200, "it stands for that already"
    told = [json.loads(row.payload)["data"] for row in deliveries(database, endpoint_id=endpoint_id)]
    assert told == [
        {"id": noun_id, "noun": "model", "name": "net", "alias": "prod", "version": version, "previous_id": before}
        for version, noun_id, before in ((1, first, None), (2, second, first))
    ]


ANY = {"If-Match": "*"}


def patch(front: Front, noun: str, noun_id: str, body: dict[str, Any], headers: dict[str, str] = ANY) -> Any:
    return front.http.patch(f"/v1/{noun}s/{noun_id}", json=body, headers=headers)


def listed(front: Front, noun: str, **filters: str) -> list[str]:
    return [item["id"] for item in taken(front.http.get(f"/v1/{noun}s", params=filters))["items"]]


@NOUNS
def test_what_is_given_is_set_and_what_is_not_stays(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net")
    before = get(front, noun, noun_id)
    assert (before.json()["tags"], before.json()["description"]) == ({}, None)
    text = "Trained on Tuesday.\nWith\tdropout. ✓"
    done = patch(front, noun, "net@latest", {"tags": {"team": "vision", "eu/run": ""}, "description": text})
    assert done.status_code == 200, done.text
    seen = get(front, noun, noun_id)
    assert seen.json() == done.json()
    assert seen.headers["etag"] == done.headers["etag"] != before.headers["etag"]
    assert (seen.json()["tags"], seen.json()["description"]) == ({"team": "vision", "eu/run": ""}, text)
    assert seen.json()["updated_at"] >= before.json()["updated_at"]
    assert patch(front, noun, noun_id, {"tags": {"team": "audio"}}).json()["description"] == text
    assert patch(front, noun, noun_id, {"description": None}).json()["tags"] == {"team": "audio"}
    (item,) = front.http.get(f"/v1/{noun}s").json()["items"]
    assert (item["tags"], item["description"]) == ({"team": "audio"}, None)


@pytest.mark.both_databases
@NOUNS
def test_two_do_not_overwrite_each_other(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net")
    seen = {"If-Match": get(front, noun, noun_id).headers["etag"]}
    problem(patch(front, noun, noun_id, {"tags": {}}, headers={}), 428, "precondition-required")
    assert patch(front, noun, noun_id, {"tags": {"by": "one"}}, seen).status_code == 200
    problem(patch(front, noun, noun_id, {"tags": {"by": "two"}}, seen), 412, "precondition-failed")
    assert get(front, noun, noun_id).json()["tags"] == {"by": "one"}


@pytest.mark.both_databases
def test_so_much_can_be_said_and_no_more(front: Front) -> None:
    noun_id, party = make(front, "model", "net"), "\U0001f389"
    most = {"tags": {f"key-{number}": party * 255 for number in range(64)}, "description": party * 4000}
    assert patch(front, "model", noun_id, most).json()["tags"] == most["tags"]
    for body, pointer in (
        ({"tags": {f"k{number}": "" for number in range(65)}}, "/tags"),
        ({"tags": {"no key": ""}}, "/tags/no key"),
        ({"tags": {"key": "x" * 256}}, "/tags/key"),
        ({"tags": {"key": "\x00"}}, "/tags/key"),
        ({"tags": None}, "/tags"),
        ({"description": "x" * 4001}, "/description"),
        ({"description": "\x00"}, "/description"),
        ({"name": "other"}, "/name"),
    ):
        (found,) = pointers(problem(patch(front, "model", noun_id, body), 422, "invalid-request"))
        assert found.startswith(pointer)


@pytest.mark.both_databases
@NOUNS
def test_lists_are_filtered(front: Front, noun: str) -> None:
    first, second, other = make(front, noun, "net"), make(front, noun, "net"), make(front, noun, "other")
    patch(front, noun, first, {"tags": {"team": "vision", "stage": "old"}})
    patch(front, noun, other, {"tags": {"team": "vision"}})
    assert listed(front, noun, name="net") == [second, first]
    assert listed(front, noun, name="ne") == []
    assert listed(front, noun, **{"tag.team": "vision"}) == [other, first]
    assert listed(front, noun, **{"tag.team": "vision", "tag.stage": "old"}) == [first]
    assert listed(front, noun, **{"tag.team": "vision", "name": "net", "status": "ready"}) == [first]
    assert listed(front, noun, **{"tag.team": "visio"}) == []
    make(front, noun, "third", ready=False)
    assert listed(front, noun, status="ready") == [other, second, first]
    for filters, place in (({"tag.": "a"}, "tag."), ({"tga.team": "a"}, "tga.team")):
        told = problem(front.http.get(f"/v1/{noun}s", params=filters), 422, "invalid-request")
        assert told["errors"][0]["where"] == {"query": place}
    page = front.http.get(f"/v1/{noun}s", params={"tag.team": "vision", "limit": "1"})
    rest = front.http.get(page.headers["link"].partition(">")[0].removeprefix("<"))
    assert [item["id"] for item in page.json()["items"] + rest.json()["items"]] == [other, first]
    cursor = page.json()["next_cursor"]
    problem(front.http.get(f"/v1/{noun}s", params={"name": "other", "cursor": cursor}), 422, "invalid-cursor")


def test_a_file_finds_what_it_is_the_main_file_of(front: Front) -> None:
    model_id, dataset_id = make(front, "model", "net"), make(front, "dataset", "some")
    version = new_version(front, model_id)
    assert listed(front, "model", sha256=hashlib.sha256(b"model bytes").hexdigest()) == [model_id]
    assert listed(front, "dataset", sha256=hashlib.sha256(npz_bytes()).hexdigest()) == [dataset_id]
    # what new weights came in is no main file; what was made of them is
    files = {file["path"]: file["sha256"] for file in get(front, "model", version).json()["files"]}
    assert listed(front, "model", sha256=files["state.safetensors"]) == []
    assert listed(front, "model", sha256=files["model.onnx"]) == [version]
    problem(front.http.get("/v1/models?sha256=abc"), 422, "invalid-request")
