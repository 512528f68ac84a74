"""Models and datasets by name: looked up once, wherever an id is taken, and answered as ids."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.api.test_metric_submissions import graph_summary
from tests.api.test_model_versions import version_body
from tests.support.front import Front, dataset_summary, model_summary, npz_bytes, pointers, problem

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


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("noun", "name"),
    [
        *(("model", name) for name in ("net, Tuesday", "me@home", "Netz ✓ 100%?#", "\u6a21" * 200)),
        *(("dataset", name) for name in ("net", "a" * 200)),
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
def test_where_no_version_is_ready_latest_says_why(front: Front, noun: str) -> None:
    noun_id = make(front, noun, "net", ready=False)
    assert noun_id in problem(get(front, noun, "net@latest"), 409, f"{noun}-not-ready")["detail"]
    rejected = front.rejected_model() if noun == "model" else front.rejected_dataset()
    name = get(front, noun, rejected).json()["name"]
    assert rejected in problem(get(front, noun, f"{name}@latest"), 422, f"{noun}-rejected")["detail"]


def test_jobs_are_submitted_by_reference_and_answer_ids(front: Front) -> None:
    model, data = make(front, "model", "net"), make(front, "dataset", "some")
    body = {"model_id": "net@1", "calibration_dataset_id": "some@latest", "evaluation_dataset_id": "some@1"}
    made = front.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
    assert made.status_code == 202, made.text
    newer = make(front, "model", "net")
    assert newer != model
    seen = front.http.get(f"/v1/jobs/{made.json()['id']}").json()
    ids = ("model_id", "calibration_dataset_id", "evaluation_dataset_id")
    assert [seen[name] for name in ids] == [made.json()[name] for name in ids] == [model, data, data]
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
    told = problem(front.http.post("/v1/models", json=version_body(front, "net@2")), 409, "model-not-ready")
    assert pointers(told) == ["/skeleton_model_id"]
    answer = front.http.post("/v1/models/net@latest/inspect?target=onnxruntime_cpu")
    assert answer.json()["model_id"] == first
    same = front.http.post(f"/v1/models/{first}/inspect?target=onnxruntime_cpu")
    assert same.json()["id"] == answer.json()["id"]


def test_a_metrics_graph_is_named_by_reference(front: Front) -> None:
    graph = graph_summary("y")
    files = [{"upload_id": front.upload(b"graph", "g.onnx"), "path": "g.onnx"}]
    metric_id = front.http.post("/v1/models", json={"name": "score", "files": files}).json()["id"]
    front.finish(front.inspect_job(model_id=metric_id), graph)

    def config(text: str) -> dict[str, Any]:
        metric = {"kind": "onnx", "name": "score", "unit": "", "better": "higher", "graph": {"model_id": text}}
        return {"evaluation": {"metrics": [metric]}}

    job_id = front.new_job(config=config("score@latest"))
    stored = front.http.get(f"/v1/jobs/{job_id}").json()["config"]["evaluation"]["metrics"][0]
    assert stored["graph"]["model_id"] == metric_id
    answer = front.http.post("/v1/jobs", json=front.job_body(config=config("scores@1")))
    told = problem(answer, 404, "model-not-found")
    assert pointers(told) == ["/config/evaluation/metrics/0/graph/model_id"]
    assert "'score'" in told["detail"]
