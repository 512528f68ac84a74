"""Trainings over HTTP: what cannot be trained is refused when the job is submitted, with a pointer to the field."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from service.contracts.dataset import ArraySummary, LabelSummary
from service.contracts.model import TensorInfo
from tests.api.test_metric_submissions import CLASSES, MASKS, TARGETS, X, graph_summary
from tests.support.front import Front, dataset_summary, model_summary, pointers, problem

ROUTES = pytest.mark.parametrize("route", ["/v1/jobs", "/v1/jobs:validate"])
SOME = base64.b64encode(b"some bytes").decode()
MANY = LabelSummary(array="labels", count=32, minimum=0, maximum=5, dtype="int64", shape=(32,))
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


@ROUTES
@pytest.mark.parametrize(
    ("loss", "labels", "place", "says"),
    [
        ({"kind": "cross_entropy"}, None, "labels", "needs labels"),
        ({"kind": "cross_entropy", "labels": "maskss"}, CLASSES, "labels", "did you mean 'masks'?"),
        ({"kind": "cross_entropy", "labels": "targets"}, CLASSES, "labels", "needs integers"),
        ({"kind": "cross_entropy", "labels": "masks"}, CLASSES, "labels", "needs 1 axes"),
        ({"kind": "cross_entropy"}, MANY, "labels", "lie in [0, 5]; output 'y' has classes [0, 4]"),
        ({"kind": "cross_entropy", "output": "z"}, CLASSES, "output", "no output 'z'"),
        ({"kind": "cross_entropy", "output": "best"}, CLASSES, "output", "holds int64; a loss is of floats"),
        ({"kind": "mse"}, None, "targets", "needs labels"),
        ({"kind": "mse", "targets": "far"}, CLASSES, "targets", "no array 'far'"),
        ({"kind": "distillation", "outputs": ["y", "z"]}, CLASSES, "outputs/1", "no output 'z'"),
        ({"kind": "distillation", "outputs": ["best"]}, CLASSES, "outputs/0", "a loss is of floats"),
        ({"kind": "onnx", "graph": {"base64": SOME}, "inputs": {"a": {"array": "far"}}}, CLASSES,
         "inputs/a/array", "no array 'far'"),
        ({"kind": "onnx", "graph": {"base64": SOME}, "inputs": {"a": {"output": 7}}}, CLASSES,
         "inputs/a/output", "no output 7"),
    ],
)  # fmt: skip
def test_losses_that_the_data_or_the_model_cannot_give(
    sqlite_front: Front, route: str, loss: dict[str, Any], labels: LabelSummary | None, place: str, says: str
) -> None:
    request = body(sqlite_front, labels, losses=[{"kind": "distillation"}, loss])
    seen = problem(sqlite_front.http.post(route, json=request), 422, "invalid-config")
    assert pointers(seen) == [f"/config/algorithms/1/losses/1/{place}"]
    assert says in seen["detail"]
    assert sqlite_front.http.get("/v1/jobs").json()["items"] == []


@ROUTES
@pytest.mark.parametrize(
    ("entry", "place", "says"),
    [
        ({"kind": "flip", "input": "z"}, "input", "no input 'z'"),
        ({"kind": "flip", "input": "sound"}, "input", "has 2 axes; pictures have 4"),
        ({"kind": "crop", "input": "sound"}, "input", "has 2 axes"),
        ({"kind": "noise", "input": "ids"}, "input", "holds int64; only floats are augmented"),
        ({"kind": "shift", "input": "sound", "axis": 2}, "axis", "no axis 2"),
        ({"kind": "shift", "input": "sound", "axis": -2}, "axis", "of samples"),
    ],
)
def test_augmentations_of_what_they_cannot_change(
    sqlite_front: Front, route: str, entry: dict[str, Any], place: str, says: str
) -> None:
    request = body(sqlite_front, augmentations=[{"kind": "noise"}, entry])
    seen = problem(sqlite_front.http.post(route, json=request), 422, "invalid-config")
    assert pointers(seen) == [f"/config/algorithms/1/augmentations/1/{place}"]
    assert says in seen["detail"]


def test_good_trainings_are_accepted(sqlite_front: Front) -> None:
    graph = {"kind": "onnx", "graph": {"base64": SOME}}
    losses = [{"kind": "cross_entropy"}, {"kind": "mse", "targets": "targets"}, {"kind": "distillation"}, graph]
    changes = [{"kind": kind} for kind in ("flip", "crop", "cutout", "noise")]
    changes.append({"kind": "shift", "input": "sound"})
    made = sqlite_front.http.post("/v1/jobs", json=body(sqlite_front, losses=losses, augmentations=changes, steps=5))
    assert made.status_code == 202, made.text
    config = made.json()["config"]["algorithms"][1]
    assert [loss["kind"] for loss in config["losses"]] == ["cross_entropy", "mse", "distillation", "onnx"]
    assert config["losses"][3]["graph"]["base64"] == SOME
    (listed,) = sqlite_front.http.get("/v1/jobs").json()["items"]
    assert "config" not in listed and SOME not in str(listed)
    assert listed["algorithms"] == [entry["method"] for entry in made.json()["config"]["algorithms"]]


def test_one_sample_cannot_be_trained_on_and_judged_by(sqlite_front: Front) -> None:
    data = dataset_summary(x=ArraySummary(dtype="float32", shape=(1, 3, 8, 8)))
    request = sqlite_front.job_body(
        calibration_dataset_id=sqlite_front.ready_dataset(data), config={"algorithms": [{"method": "qat"}]}
    )
    seen = problem(sqlite_front.http.post("/v1/jobs", json=request), 422, "invalid-config")
    assert pointers(seen) == ["/config/algorithms/0/data_size"]


@pytest.mark.parametrize(("kind", "status"), [("distillation", 202), ("mse", 422), ("cross_entropy", 422)])
@pytest.mark.parametrize("evaluated", [False, True])
def test_random_data_is_trained_on_for_the_float_model_alone(
    sqlite_front: Front, kind: str, status: int, evaluated: bool
) -> None:
    losses = [{"kind": "distillation"}, {"kind": kind}]
    request = sqlite_front.job_body(
        config={"random_calibration": {}, "algorithms": [{"method": "qat", "losses": losses}]}
    )
    data = request.pop("calibration_dataset_id")
    answer = sqlite_front.http.post(
        "/v1/jobs", json={**request, **({"evaluation_dataset_id": data} if evaluated else {})}
    )
    assert answer.status_code == status, answer.text
    if status == 422:
        seen = problem(answer, 422, "invalid-config")
        assert pointers(seen) == ["/config/algorithms/0/losses/1"]
        assert f"loss {kind} needs real data" in seen["detail"]


def uploaded(front: Front, *inputs: str, results: int = 1, dtype: str = "float32") -> dict[str, Any]:
    outputs = tuple(TensorInfo(name=f"r{k}", dtype=dtype, shape=()) for k in range(results))
    model_id = front.ready_model(graph_summary(*inputs, outputs=outputs))
    return {"kind": "onnx", "graph": {"model_id": model_id}}


@ROUTES
@pytest.mark.parametrize(
    ("inputs", "results", "dtype", "place", "says"),
    [
        (("y", "lables"), 1, "float32", "inputs", "did you mean 'labels'"),
        (("y", "labels"), 2, "float32", "graph", "has to return one scalar per batch;"),
        (("y",), 1, "int64", "graph", "a loss is of floats"),
    ],
)
def test_uploaded_graphs_that_are_no_loss(
    sqlite_front: Front, route: str, inputs: tuple[str, ...], results: int, dtype: str, place: str, says: str
) -> None:
    request = body(sqlite_front, losses=[uploaded(sqlite_front, *inputs, results=results, dtype=dtype)])
    seen = problem(sqlite_front.http.post(route, json=request), 422, "invalid-config")
    assert pointers(seen) == [f"/config/algorithms/1/losses/0/{place}"]
    assert says in seen["detail"]


def test_an_uploaded_graph_is_accepted_and_one_that_is_not_there_is_not(sqlite_front: Front) -> None:
    good = body(sqlite_front, losses=[uploaded(sqlite_front, "y", "labels")])
    assert sqlite_front.http.post("/v1/jobs", json=good).status_code == 202
    missing = {"kind": "onnx", "graph": {"model_id": "mdl_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}
    answer = sqlite_front.http.post("/v1/jobs", json=body(sqlite_front, losses=[missing]))
    assert answer.status_code == 404
    assert pointers(answer.json()) == ["/config/algorithms/1/losses/0/graph/model_id"]


def test_only_mode_static_trains(sqlite_front: Front) -> None:
    request = body(sqlite_front)
    request["config"]["mode"] = "weights_only"
    seen = problem(sqlite_front.http.post("/v1/jobs", json=request), 422, "invalid-config")
    assert pointers(seen) == ["/config/algorithms"]
    assert "qat" in seen["detail"]
