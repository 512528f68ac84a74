"""Lists go page by page, newest first; they tell what a table needs, and by id what may have megabytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.contracts.dataset import ArraySummary, MediaSummary
from tests.support.batches import grid_body, submitted
from tests.support.front import Front, dataset_summary, model_summary, problem
from tests.support.schedules import add_schedule

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
}


@pytest.mark.both_databases
@pytest.mark.parametrize("path", LISTS)
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


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_lists_are_filtered_by_status(sqlite_front: Front, noun: str) -> None:
    getattr(sqlite_front, f"new_{noun}")()
    ready = getattr(sqlite_front, f"ready_{noun}")()
    assert [item["id"] for item in sqlite_front.http.get(f"/v1/{noun}s?status=ready").json()["items"]] == [ready]


def test_a_list_of_jobs_tells_no_config(front: Front) -> None:
    ranges = {f"tensor {number}": {"minimum": -1.0, "maximum": 1.0} for number in range(1000)}
    job_id = front.new_job(config={"preset": "int8", "tensor_ranges": ranges})
    (listed,) = front.http.get("/v1/jobs").json()["items"]
    whole = front.http.get(f"/v1/jobs/{job_id}").json()
    assert len(whole.pop("config")["tensor_ranges"]) == 1000
    assert whole.pop("reused_from") is None
    assert listed == whole


def test_a_list_of_datasets_leaves_out_classes_and_many_arrays(front: Front) -> None:
    arrays = {f"a{number:03}": ArraySummary(dtype="float32", shape=(4, 1)) for number in range(ARRAYS)}
    summary = dataset_summary(**arrays).model_copy(update={"media": MEDIA})
    dataset_id = front.ready_dataset(summary)
    (listed,) = front.http.get("/v1/datasets").json()["items"]
    whole = front.http.get(f"/v1/datasets/{dataset_id}").json()
    assert (len(whole["summary"]["arrays"]), whole["summary"]["arrays_left_out"]) == (ARRAYS, 0)
    assert whole["summary"]["media"]["classes"] == ["cat", "dog"]
    assert (len(listed["summary"]["arrays"]), listed["summary"]["arrays_left_out"]) == (100, ARRAYS - 100)
    assert listed["summary"]["media"] == {**whole["summary"]["media"], "classes": None}
    assert {**listed, "summary": None} == {**whole, "summary": None}


def test_a_list_of_models_leaves_out_the_names_of_nodes(front: Front) -> None:
    model_id = front.ready_model(model_summary(node_names=("conv", "relu")))
    front.new_model()  # one that is still being validated
    _, listed = front.http.get("/v1/models").json()["items"]
    whole = front.http.get(f"/v1/models/{model_id}").json()
    assert whole["summary"].pop("node_names") == ["conv", "relu"]
    assert listed["summary"].pop("node_names") is None
    assert listed == whole
