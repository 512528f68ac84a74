"""Metrics over HTTP: what cannot be measured is refused when the job is submitted, with a pointer to the field."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from service.contracts.dataset import ArraySummary, LabelSummary
from service.contracts.model import ModelSummary, TensorInfo
from tests.support.front import Front, dataset_summary, model_summary, pointers, problem

SOME = base64.b64encode(b"some bytes").decode()
X = ArraySummary(dtype="float32", shape=(32, 3, 8, 8))
TARGETS = ArraySummary(dtype="float32", shape=(32, 5))
MASKS = ArraySummary(dtype="uint8", shape=(32, 8, 8))
CLASSES = LabelSummary(array="labels", count=32, minimum=0, maximum=4, dtype="int64", shape=(32,))

SIX = CLASSES.model_copy(update={"maximum": 5})
GRAPH = {"kind": "onnx", "graph": {"base64": SOME}}


def graph_summary(*inputs: str, results: int = 1, **changes: Any) -> ModelSummary:
    """A metric's graph: float32 inputs, scalar outputs."""
    facts: dict[str, Any] = {
        "inputs": tuple(TensorInfo(name=name, dtype="float32", shape=None) for name in inputs),
        "outputs": tuple(TensorInfo(name=f"r{k}", dtype="float32", shape=()) for k in range(results)),
    }
    return model_summary(**{**facts, **changes})


def uploaded(front: Front, summary: ModelSummary, **options: Any) -> dict[str, Any]:
    return {"kind": "onnx", "name": "mine", "graph": {"model_id": front.ready_model(summary)}, **options}


def body(front: Front, *metrics: dict[str, Any], labels: LabelSummary | None = CLASSES, **gate: Any) -> dict[str, Any]:
    data = dataset_summary(labels=labels, x=X, targets=TARGETS, masks=MASKS)
    evaluation = {"metrics": list(metrics), **({"gate": gate} if gate else {})}
    return front.job_body(calibration_dataset_id=front.ready_dataset(data), config={"evaluation": evaluation})


@pytest.mark.parametrize(
    ("metric", "labels", "place", "says"),
    [
        ({"kind": "topp1"}, CLASSES, "kind", "did you mean 'top1'"),
        ({"kind": "top1", "k": 1}, CLASSES, "k", "unknown key"),
        ({"kind": "top1", "output": "z"}, CLASSES, "output", "no output 'z'"),
        ({"kind": "top1", "output": 1}, CLASSES, "output", "0 'y'"),
        ({"kind": "top1"}, None, "labels", "needs labels"),
        ({"kind": "top1", "labels": "maskss"}, CLASSES, "labels", "did you mean 'masks'?"),
        ({"kind": "top1", "labels": "targets"}, CLASSES, "labels", "needs integers"),
        ({"kind": "rmse", "labels": "far"}, CLASSES, "labels", "no array 'far'"),
        ({"kind": "top1"}, SIX, "labels", "labels lie in [0, 5]; output 'y' has classes [0, 4]"),
        ({"kind": "map", "boxes": 0, "scores": 0}, CLASSES, "labels/boxes", "no array 'boxes'"),
        ({"kind": "onnx", "graph": {"base64": "no base64"}}, CLASSES, "graph/base64", "no base64"),
        ({"kind": "onnx", "graph": {"path": "/etc/passwd"}}, CLASSES, "graph/path", "command line"),
        ({**GRAPH, "inputs": {"a": {"array": "far"}}}, CLASSES, "inputs/a/array", "no array 'far'"),
    ],
)
def test_bad_declarations_are_refused(
    sqlite_front: Front, metric: dict[str, Any], labels: LabelSummary | None, place: str, says: str
) -> None:
    refused(sqlite_front, body(sqlite_front, {"kind": "sqnr"}, metric, labels=labels), f"1/{place}", says)


@pytest.mark.parametrize(
    ("summary", "options", "place", "says"),
    [
        (graph_summary("y", "lables"), {}, "inputs", "did you mean 'labels'"),
        (graph_summary("y"), {"inputs": {"z": {"output": 0}}}, "inputs/z", "no input 'z'"),
        (graph_summary("y", results=3), {}, "graph", "a sum and a count"),
        (graph_summary("y", outputs=(TensorInfo(name="r", dtype="float32", shape=(5,)),)), {}, "graph", "shape [5]"),
        (graph_summary("y", outputs=(TensorInfo(name="r", dtype="bool", shape=()),)), {}, "graph", "holds bool"),
    ],
)
def test_uploaded_graphs_that_cannot_serve(
    sqlite_front: Front, summary: ModelSummary, options: dict[str, Any], place: str, says: str
) -> None:
    refused(sqlite_front, body(sqlite_front, uploaded(sqlite_front, summary, **options)), f"0/{place}", says)


def refused(front: Front, request: dict[str, Any], place: str, says: str) -> None:
    """By both routes, and nothing is stored."""
    for route in ("/v1/jobs:validate", "/v1/jobs"):
        answer = front.http.post(route, json=request)
        seen = problem(answer, 422, answer.json()["code"])
        assert seen["code"] in ("invalid-request", "invalid-config")
        assert f"/config/evaluation/metrics/{place}" in pointers(seen)
        assert says in " ".join(error["message"] for error in seen["errors"])
    assert front.http.get("/v1/jobs").json()["items"] == []


def test_good_declarations_are_accepted(sqlite_front: Front) -> None:
    metrics = [
        {"kind": "top1"},
        {"kind": "rmse", "labels": "targets"},
        {"kind": "cosine", "output": "y"},
        {**GRAPH, "name": "mine"},
        uploaded(sqlite_front, graph_summary("y", "labels", results=2), name="other"),
    ]
    made = sqlite_front.http.post("/v1/jobs", json=body(sqlite_front, *metrics, metric="rmse", max_drop=0.1))
    assert made.status_code == 202, made.text
    config = made.json()["config"]["evaluation"]
    assert [metric["name"] for metric in config["metrics"]] == ["top1", "rmse", "cosine", "mine", "other"]
    assert config["gate"]["metric"] == "rmse"
    assert config["metrics"][3]["graph"]["base64"] == SOME
    # a graph may take a megabyte: lists carry no config
    (listed,) = sqlite_front.http.get("/v1/jobs").json()["items"]
    assert "config" not in listed and SOME not in str(listed)


def test_labels_that_are_no_classes_of_the_first_output_do_not_disturb_other_metrics(sqlite_front: Front) -> None:
    accepted = body(sqlite_front, {"kind": "rmse", "labels": "targets"}, labels=SIX)
    assert sqlite_front.http.post("/v1/jobs", json=accepted).status_code == 202
    assert sqlite_front.http.post("/v1/jobs", json=body(sqlite_front, labels=SIX)).status_code == 422


def test_uploaded_graphs_that_are_not_usable(sqlite_front: Front) -> None:
    unready, rejected = sqlite_front.new_model(), sqlite_front.rejected_model()
    for model_id, status in (("mdl_01ARZ3NDEKTSV4RRFFQ69G5FAV", 404), (rejected, 422), (unready, 409)):
        metric = {"kind": "onnx", "graph": {"model_id": model_id}}
        answer = sqlite_front.http.post("/v1/jobs", json=body(sqlite_front, metric))
        assert answer.status_code == status
        assert pointers(answer.json()) == ["/config/evaluation/metrics/0/graph/model_id"]
