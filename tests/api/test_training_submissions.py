"""Trainings over HTTP: what cannot be trained is refused when the job is submitted, with a pointer to the field."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.dataset import ArraySummary, LabelSummary
from service.contracts.model import ModelSummary, TensorInfo
from tests.api.test_metric_submissions import (
    CLASSES,
    GRAPH,
    MASKS,
    SIX,
    SOME,
    TARGETS,
    X,
    graph_summary,
    uploaded,
)
from tests.support.front import Front, dataset_summary, model_summary, pointers, problem

# Beside pictures there is an input of sound and one of integers, beside scores an output of integers.
MODEL = model_summary(
    inputs=(
        TensorInfo(name="x", dtype="float32", shape=("batch", 3, 8, 8)),
        TensorInfo(name="sound", dtype="float32", shape=("batch", 16)),
        TensorInfo(name="ids", dtype="int64", shape=("batch", 4)),
    ),
    outputs=(
        TensorInfo(name="y", dtype="float32", shape=("batch", 5)),
        TensorInfo(name="best", dtype="int64", shape=("batch",)),
    ),
)
SOUND = ArraySummary(dtype="float32", shape=(32, 16))
IDS = ArraySummary(dtype="int64", shape=(32, 4))


def body(front: Front, labels: LabelSummary | None = CLASSES, **options: Any) -> dict[str, Any]:
    data = dataset_summary(labels=labels, x=X, sound=SOUND, ids=IDS, targets=TARGETS, masks=MASKS)
    return {
        "model_id": front.ready_model(MODEL),
        "calibration_dataset_id": front.ready_dataset(data),
        "config": {
            "evaluation": {"metrics": [{"kind": "sqnr"}]},
            "algorithms": [{"method": "cross_layer_equalization"}, {"method": "qat", **options}],
        },
    }


def refused(front: Front, request: dict[str, Any], place: str, says: str) -> None:
    """By both routes, and nothing is stored."""
    for route in ("/v1/jobs:validate", "/v1/jobs"):
        seen = problem(front.http.post(route, json=request), 422, "invalid-config")
        assert pointers(seen) == [f"/config/algorithms{place}"]
        assert says in seen["detail"]
    assert front.http.get("/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("loss", "labels", "place", "says"),
    [
        ({"kind": "cross_entropy"}, None, "labels", "needs labels"),
        ({"kind": "cross_entropy", "labels": "maskss"}, CLASSES, "labels", "did you mean 'masks'?"),
        ({"kind": "cross_entropy", "labels": "targets"}, CLASSES, "labels", "needs integers"),
        ({"kind": "cross_entropy", "labels": "masks"}, CLASSES, "labels", "needs 1 axes"),
        ({"kind": "cross_entropy"}, SIX, "labels", "lie in [0, 5]; output 'y' has classes [0, 4]"),
        ({"kind": "cross_entropy", "output": "z"}, CLASSES, "output", "no output 'z'"),
        ({"kind": "cross_entropy", "output": "best"}, CLASSES, "output", "holds int64; a loss is of floats"),
        ({"kind": "mse"}, None, "targets", "needs labels"),
        ({"kind": "mse", "targets": "far"}, CLASSES, "targets", "no array 'far'"),
        ({"kind": "distillation", "outputs": ["y", "z"]}, CLASSES, "outputs/1", "no output 'z'"),
        ({"kind": "distillation", "outputs": ["best"]}, CLASSES, "outputs/0", "a loss is of floats"),
        ({**GRAPH, "inputs": {"a": {"array": "far"}}}, CLASSES, "inputs/a/array", "no array 'far'"),
        ({**GRAPH, "inputs": {"a": {"output": 7}}}, CLASSES, "inputs/a/output", "no output 7"),
    ],
)
def test_losses_that_the_data_or_the_model_cannot_give(
    sqlite_front: Front, loss: dict[str, Any], labels: LabelSummary | None, place: str, says: str
) -> None:
    request = body(sqlite_front, labels, losses=[{"kind": "distillation"}, loss])
    refused(sqlite_front, request, f"/1/losses/1/{place}", says)


@pytest.mark.parametrize(
    ("entry", "place", "says"),
    [
        ({"kind": "flip", "input": "z"}, "input", "no input 'z'"),
        ({"kind": "crop", "input": "sound"}, "input", "has 2 axes; pictures have 4"),
        ({"kind": "noise", "input": "ids"}, "input", "holds int64; only floats are augmented"),
        ({"kind": "shift", "input": "sound", "axis": 2}, "axis", "no axis 2"),
        ({"kind": "shift", "input": "sound", "axis": -2}, "axis", "of samples"),
    ],
)
def test_augmentations_of_what_they_cannot_change(
    sqlite_front: Front, entry: dict[str, Any], place: str, says: str
) -> None:
    request = body(sqlite_front, augmentations=[{"kind": "noise"}, entry])
    refused(sqlite_front, request, f"/1/augmentations/1/{place}", says)


def test_good_trainings_are_accepted(sqlite_front: Front) -> None:
    losses = [{"kind": "cross_entropy"}, {"kind": "mse", "targets": "targets"}, {"kind": "distillation"}, GRAPH]
    losses.append({"kind": "onnx", "graph": uploaded(sqlite_front, graph_summary("y", "labels"))["graph"]})
    changes = [{"kind": kind} for kind in ("flip", "crop", "cutout", "noise")]
    changes.append({"kind": "shift", "input": "sound"})
    made = sqlite_front.http.post("/v1/jobs", json=body(sqlite_front, losses=losses, augmentations=changes, steps=5))
    assert made.status_code == 202, made.text
    config = made.json()["config"]["algorithms"][1]
    assert [loss["kind"] for loss in config["losses"]] == ["cross_entropy", "mse", "distillation", "onnx", "onnx"]
    assert config["losses"][3]["graph"]["base64"] == SOME
    (listed,) = sqlite_front.http.get("/v1/jobs").json()["items"]
    assert "config" not in listed and SOME not in str(listed)
    assert listed["algorithms"] == [entry["method"] for entry in made.json()["config"]["algorithms"]]


def test_what_cannot_be_trained_on_is_told_where(sqlite_front: Front) -> None:
    front = sqlite_front
    one = dataset_summary(x=ArraySummary(dtype="float32", shape=(1, 3, 8, 8)))
    request = front.job_body(
        calibration_dataset_id=front.ready_dataset(one), config={"algorithms": [{"method": "qat"}]}
    )
    refused(front, request, "/0/data_size", "")  # to be trained on and judged by
    request = body(front)
    request["config"]["mode"] = "weights_only"
    refused(front, request, "", "qat")
    missing = {"kind": "onnx", "graph": {"model_id": "mdl_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}
    answer = front.http.post("/v1/jobs", json=body(front, losses=[missing]))
    assert answer.status_code == 404
    assert pointers(answer.json()) == ["/config/algorithms/1/losses/0/graph/model_id"]


def test_random_data_is_trained_on_for_the_float_model_alone(sqlite_front: Front) -> None:
    request = sqlite_front.job_body()
    data = request.pop("calibration_dataset_id")
    for kind, evaluated in (("mse", False), ("cross_entropy", True), ("distillation", False), ("distillation", True)):
        losses = [{"kind": "distillation"}, {"kind": kind}]
        request["config"] = {"random_calibration": {}, "algorithms": [{"method": "qat", "losses": losses}]}
        given = {**request, **({"evaluation_dataset_id": data} if evaluated else {})}
        answer = sqlite_front.http.post("/v1/jobs", json=given)
        if kind == "distillation":
            assert answer.status_code == 202, answer.text
        else:
            seen = problem(answer, 422, "invalid-config")
            assert pointers(seen) == ["/config/algorithms/0/losses/1"]
            assert f"loss {kind} needs real data" in seen["detail"]


@pytest.mark.parametrize(
    ("summary", "place", "says"),
    [
        (graph_summary("y", "lables"), "inputs", "did you mean 'labels'"),
        (graph_summary("y", "labels", results=2), "graph", "has to return one scalar per batch;"),
        (graph_summary("y", outputs=(TensorInfo(name="r", dtype="int64", shape=()),)), "graph", "a loss is of floats"),
    ],
)
def test_uploaded_graphs_that_are_no_loss(sqlite_front: Front, summary: ModelSummary, place: str, says: str) -> None:
    loss = uploaded(sqlite_front, summary)
    del loss["name"]
    refused(sqlite_front, body(sqlite_front, losses=[loss]), f"/1/losses/0/{place}", says)
