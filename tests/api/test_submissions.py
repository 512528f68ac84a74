"""What cannot be quantized, measured or trained is refused when the job is submitted, with a pointer to the field."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from service.contracts.dataset import ArraySummary, LabelSummary
from service.contracts.model import ModelSummary, TensorInfo
from service.quark import read_config
from service.tables import Model
from tests.api.conftest import ON_SQLITE
from tests.support.front import Front, dataset_summary, model_summary, pointers, problem, taken

NAMES = ("conv", "relu", "pool", "flatten", "gemm")


def named_model(front: Front, **changes: Any) -> str:
    return front.ready_model(model_summary(node_names=NAMES, prepared_op_types=(), **changes))


def test_a_node_that_the_model_does_not_have(front: Front) -> None:
    config: dict[str, Any] = {"exclude": [{"node": "cnov"}], "include": [{"op_type": "Convv"}]}
    body = front.job_body(model_id=named_model(front), config=config)
    for route in ("/v1/jobs", "/v1/jobs:validate"):
        seen = problem(front.http.post(route, json=body), 422, "invalid-config")
        assert pointers(seen) == ["/config/include/0/op_type", "/config/exclude/0/node"]
        assert "did you mean 'conv'?" in seen["errors"][1]["message"]
        assert seen["hint"]
    assert front.http.get("/v1/jobs").json()["items"] == []
    body["config"] = {"exclude": [{"node": "conv"}], "include": [{"op_type": "Gemm"}]}
    assert front.http.post("/v1/jobs", json=body).status_code == 202


def test_a_model_validated_before_names_were_kept_is_still_usable(front: Front) -> None:
    model_id = named_model(front)
    with front.app.database.write() as session:
        row = session.get_one(Model, model_id)
        row.summary = {k: v for k, v in row.summary.items() if k not in ("node_names", "prepared_op_types")}
    assert front.http.get(f"/v1/models/{model_id}").json()["summary"]["node_names"] is None
    body = front.job_body(model_id=model_id, config={"exclude": [{"node": "cnov"}]})
    assert front.http.post("/v1/jobs", json=body).status_code == 202


def test_a_quantized_model_is_refused_unless_its_pairs_are_taken_off(front: Front) -> None:
    quantized = front.ready_model(model_summary(op_counts={"Conv": 1, "QuantizeLinear": 3}))
    body = front.job_body(model_id=quantized)
    for route in ("/v1/jobs", "/v1/jobs:validate"):
        seen = problem(front.http.post(route, json=body), 422, "already-quantized")
        assert pointers(seen) == ["/model_id"]
        assert "preparation.dequantize" in seen["hint"]
    body["config"] = {"preparation": {"dequantize": True}}
    assert front.http.post("/v1/jobs", json=body).status_code == 202


@pytest.mark.parametrize("config", [{"weight": {"dtype": "int9"}}, {"seed": -1, "activaton": {}}])
def test_each_fault_is_told_once(front: Front, config: dict[str, Any]) -> None:
    told = problem(front.http.post("/v1/jobs", json=front.job_body(config=config)), 422, "invalid-config")
    assert len(pointers(told)) == len(set(pointers(told))) == len(config)
    for pointer in pointers(told):
        assert told["detail"].count(pointer) == 1


pytestmark = ON_SQLITE

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


def measured(
    front: Front, *metrics: dict[str, Any], labels: LabelSummary | None = CLASSES, **gate: Any
) -> dict[str, Any]:
    data = dataset_summary(labels=labels, x=X, targets=TARGETS, masks=MASKS)
    evaluation = {"metrics": list(metrics), **({"gate": gate} if gate else {})}
    return front.job_body(calibration_dataset_id=front.ready_dataset(data), config={"evaluation": evaluation})


def test_bad_declarations_are_refused(front: Front) -> None:
    some, none, six = (measured(front, labels=labels) for labels in (CLASSES, None, SIX))
    rows: list[tuple[dict[str, Any], Any, str, str]] = [
        ({"kind": "topp1"}, some, "kind", "did you mean 'top1'"),
        ({"kind": "top1", "output": 1}, some, "output", "0 'y'"),
        ({"kind": "top1"}, none, "labels", "needs labels"),
        ({"kind": "top1", "labels": "maskss"}, some, "labels", "did you mean 'masks'?"),
        ({"kind": "top1"}, six, "labels", "labels are in [0, 5]; output 'y' has classes [0, 4]"),
        ({"kind": "map", "boxes": 0, "scores": 0}, some, "labels/boxes", "no array 'boxes'"),
        ({"kind": "onnx", "graph": {"base64": "not base64"}}, some, "graph/base64", "not base64"),
        ({"kind": "onnx", "graph": {"path": "/etc/passwd"}}, some, "graph/path", "command line"),
        ({**GRAPH, "inputs": {"a": {"array": "far"}}}, some, "inputs/a/array", "no array 'far'"),
    ]
    for metric, body, place, says in rows:
        evaluation = {"metrics": [{"kind": "sqnr"}, metric]}
        refused_metric(front, {**body, "config": {"evaluation": evaluation}}, f"1/{place}", says)


def test_uploaded_graphs_that_cannot_serve(front: Front) -> None:
    body = measured(front)
    outputs = [(TensorInfo(name="r", dtype=dtype, shape=shape),) for dtype, shape in (("float32", (5,)), ("bool", ()))]
    for summary, options, place, says in (
        (graph_summary("y", "lables"), {}, "inputs", "did you mean 'labels'"),
        (graph_summary("y"), {"inputs": {"z": {"output": 0}}}, "inputs/z", "no input 'z'"),
        (graph_summary("y", results=3), {}, "graph", "a sum and a count"),
        (graph_summary("y", outputs=outputs[0]), {}, "graph", "shape [5]"),
        (graph_summary("y", outputs=outputs[1]), {}, "graph", "is bool"),
    ):
        evaluation = {"metrics": [uploaded(front, summary, **options)]}
        refused_metric(front, {**body, "config": {"evaluation": evaluation}}, f"0/{place}", says)


def refused_metric(front: Front, request: dict[str, Any], place: str, says: str) -> None:
    """By both routes, and nothing is stored."""
    for route in ("/v1/jobs:validate", "/v1/jobs"):
        answer = front.http.post(route, json=request)
        seen = problem(answer, 422, answer.json()["code"])
        assert seen["code"] in ("invalid-request", "invalid-config")
        assert f"/config/evaluation/metrics/{place}" in pointers(seen)
        assert says in " ".join(error["message"] for error in seen["errors"])
    assert front.http.get("/v1/jobs").json()["items"] == []


def test_good_declarations_are_accepted(front: Front) -> None:
    metrics = [
        {"kind": "top1"},
        {"kind": "rmse", "labels": "targets"},
        {"kind": "cosine", "output": "y"},
        {**GRAPH, "name": "mine"},
        uploaded(front, graph_summary("y", "labels", results=2), name="other"),
    ]
    made = taken(front.http.post("/v1/jobs", json=measured(front, *metrics, metric="rmse", max_drop=0.1)), 202)
    config = made["config"]["evaluation"]
    assert [metric["name"] for metric in config["metrics"]] == ["top1", "rmse", "cosine", "mine", "other"]
    assert config["gate"]["metric"] == "rmse"
    assert config["metrics"][3]["graph"]["base64"] == SOME


def test_labels_that_are_no_classes_of_the_first_output_do_not_disturb_other_metrics(front: Front) -> None:
    accepted = measured(front, {"kind": "rmse", "labels": "targets"}, labels=SIX)
    assert front.http.post("/v1/jobs", json=accepted).status_code == 202
    assert front.http.post("/v1/jobs", json=measured(front, labels=SIX)).status_code == 422


def test_uploaded_graphs_that_are_not_usable(front: Front) -> None:
    unready, rejected = front.new_model(), front.rejected_model()
    for model_id, status in (("mdl_01ARZ3NDEKTSV4RRFFQ69G5FAV", 404), (rejected, 422), (unready, 409)):
        metric = {"kind": "onnx", "graph": {"model_id": model_id}}
        answer = front.http.post("/v1/jobs", json=measured(front, metric))
        assert answer.status_code == status
        assert pointers(answer.json()) == ["/config/evaluation/metrics/0/graph/model_id"]


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


def trained(front: Front, labels: LabelSummary | None = CLASSES, **options: Any) -> dict[str, Any]:
    data = dataset_summary(labels=labels, x=X, sound=SOUND, ids=IDS, targets=TARGETS, masks=MASKS)
    return {
        "model_id": front.ready_model(MODEL),
        "calibration_dataset_id": front.ready_dataset(data),
        "config": {
            "evaluation": {"metrics": [{"kind": "sqnr"}]},
            "algorithms": [{"method": "cross_layer_equalization"}, {"method": "qat", **options}],
        },
    }


def refused_training(front: Front, request: dict[str, Any], place: str, says: str) -> None:
    """By both routes, and nothing is stored."""
    for route in ("/v1/jobs:validate", "/v1/jobs"):
        seen = problem(front.http.post(route, json=request), 422, "invalid-config")
        assert pointers(seen) == [f"/config/algorithms{place}"]
        assert says in seen["detail"]
    assert front.http.get("/v1/jobs").json()["items"] == []


def test_losses_and_augmentations_that_the_data_or_the_model_cannot_give(front: Front) -> None:
    some, none, six = (trained(front, labels) for labels in (CLASSES, None, SIX))
    entropy, noise = {"kind": "cross_entropy"}, {"kind": "noise"}
    rows: list[tuple[str, dict[str, Any], Any, str, str]] = [
        ("losses", entropy, none, "labels", "needs labels"),
        ("losses", {**entropy, "labels": "maskss"}, some, "labels", "did you mean 'masks'?"),
        ("losses", entropy, six, "labels", "are in [0, 5]; output 'y' has classes [0, 4]"),
        ("losses", {**entropy, "output": "best"}, some, "output", "is int64; a loss needs floats"),
        ("losses", {"kind": "mse"}, none, "targets", "needs labels"),
        ("losses", {"kind": "distillation", "outputs": ["y", "z"]}, some, "outputs/1", "no output 'z'"),
        ("losses", {**GRAPH, "inputs": {"a": {"array": "far"}}}, some, "inputs/a/array", "no array 'far'"),
        ("augmentations", {"kind": "flip", "input": "z"}, some, "input", "no input 'z'"),
        ("augmentations", {**noise, "input": "ids"}, some, "input", "is int64; only floats can be augmented"),
        ("augmentations", {"kind": "shift", "input": "sound", "axis": -2}, some, "axis", "of samples"),
    ]
    for name, entry, body, place, says in rows:
        first, qat = body["config"]["algorithms"]
        qat = {**qat, name: [noise if name == "augmentations" else {"kind": "distillation"}, entry]}
        request = {**body, "config": {**body["config"], "algorithms": [first, qat]}}
        refused_training(front, request, f"/1/{name}/1/{place}", says)


def test_good_trainings_are_accepted(front: Front) -> None:
    losses = [{"kind": "cross_entropy"}, {"kind": "mse", "targets": "targets"}, {"kind": "distillation"}, GRAPH]
    losses.append({"kind": "onnx", "graph": uploaded(front, graph_summary("y", "labels"))["graph"]})
    changes = [{"kind": kind} for kind in ("flip", "crop", "cutout", "noise")]
    changes.append({"kind": "shift", "input": "sound"})
    made = taken(front.http.post("/v1/jobs", json=trained(front, losses=losses, augmentations=changes, steps=5)), 202)
    config = made["config"]["algorithms"][1]
    assert [loss["kind"] for loss in config["losses"]] == ["cross_entropy", "mse", "distillation", "onnx", "onnx"]
    assert config["losses"][3]["graph"]["base64"] == SOME
    # a graph may take a megabyte: lists carry no config
    (listed,) = front.http.get("/v1/jobs").json()["items"]
    assert "config" not in listed and SOME not in str(listed)
    assert listed["algorithms"] == [entry["method"] for entry in made["config"]["algorithms"]]


def test_what_cannot_be_trained_on_is_told_where(front: Front) -> None:
    one = dataset_summary(x=ArraySummary(dtype="float32", shape=(1, 3, 8, 8)))
    request = front.job_body(
        calibration_dataset_id=front.ready_dataset(one), config={"algorithms": [{"method": "qat"}]}
    )
    refused_training(front, request, "/0/data_size", "")  # to be trained on and judged by
    request = trained(front)
    request["config"]["mode"] = "weights_only"
    refused_training(front, request, "", "qat")
    missing = {"kind": "onnx", "graph": {"model_id": "mdl_01ARZ3NDEKTSV4RRFFQ69G5FAV"}}
    answer = front.http.post("/v1/jobs", json=trained(front, losses=[missing]))
    assert answer.status_code == 404
    assert pointers(answer.json()) == ["/config/algorithms/1/losses/0/graph/model_id"]


def test_random_data_is_trained_on_for_the_float_model_alone(front: Front) -> None:
    request = front.job_body()
    data = request.pop("calibration_dataset_id")
    for kind, evaluated in (("mse", False), ("cross_entropy", True), ("distillation", False), ("distillation", True)):
        losses = [{"kind": "distillation"}, {"kind": kind}]
        request["config"] = {"random_calibration": {}, "algorithms": [{"method": "qat", "losses": losses}]}
        given = {**request, **({"evaluation_dataset_id": data} if evaluated else {})}
        for path, status in (("/v1/jobs", 202), ("/v1/jobs:validate", 200)):
            answer = front.http.post(path, json=given)
            if kind == "distillation":
                assert answer.status_code == status, answer.text
            else:
                seen = problem(answer, 422, "invalid-config")
                assert pointers(seen) == ["/config/algorithms/0/losses/1"]
                assert f"loss {kind} needs real data" in seen["detail"]


@pytest.mark.parametrize(
    ("summary", "place", "says"),
    [
        (graph_summary("y", "lables"), "inputs", "did you mean 'labels'"),
        (graph_summary("y", "labels", results=2), "graph", "has to return one scalar per batch;"),
        (graph_summary("y", outputs=(TensorInfo(name="r", dtype="int64", shape=()),)), "graph", "a loss needs floats"),
    ],
)
def test_uploaded_graphs_that_are_no_loss(front: Front, summary: ModelSummary, place: str, says: str) -> None:
    loss = uploaded(front, summary)
    del loss["name"]
    refused_training(front, trained(front, losses=[loss]), f"/1/losses/0/{place}", says)


QUARK = {
    "per_channel": True, "activation_type": "QuantType.QUInt8",
    "extra_options": {"CalibWorkerNum": 8, "BiasCorrection": True},
}  # fmt: skip
ENVELOPE = {"format": "quark", "config": QUARK, "evaluation": {"gate": {"metric": "top1_agreement", "min_value": 0}}}


def test_a_job_keeps_the_translated_config_and_tells_the_notes(front: Front) -> None:
    answer = taken(front.http.post("/v1/jobs:validate", json={"config": ENVELOPE}))
    translated = json.loads(read_config(ENVELOPE).model_dump_json())
    assert answer["config"] == translated
    notes = [warning for warning in answer["warnings"] if warning.startswith("/config/config")]
    assert len(notes) == 2
    assert any("/config/config/extra_options/CalibWorkerNum: CalibWorkerNum has no effect here" in w for w in notes)
    assert any("include_cle is not given" in warning for warning in notes)
    made, plain = front.new_job(config=ENVELOPE), front.new_job(config=translated)
    assert front.http.get(f"/v1/jobs/{made}").json()["config"] == translated
    log, plain_log = (
        front.http.get(f"/v1/jobs/{job_id}/events", headers={"Accept": "application/json"}).json()["items"]
        for job_id in (made, plain)
    )
    told = [event["data"]["message"] for event in log if event["type"] == "log"]
    assert len(told) == 2
    assert all(message.startswith("translated config: /config/config") for message in told)
    assert ([event["seq"] for event in log], [event["type"] for event in plain_log]) == ([1, 2, 3], ["state"])


def refused(front: Front, path: str, body: dict[str, Any], code: str = "invalid-config") -> set[str]:
    return {found["pointer"] for found in problem(front.http.post(path, json=body), 422, code)["errors"]}


def test_what_cannot_be_translated_is_refused_with_its_pointer(front: Front) -> None:
    quark = {"include_rotation": True, "extra_options": {"WeightSymetric": True, "Percentile": "x"}}
    for path in ("/v1/jobs:validate", "/v1/jobs"):
        assert refused(front, path, {"config": {"format": "quark", "config": quark}}) == {
            "/config/config/include_rotation",
            "/config/config/extra_options/WeightSymetric",
            "/config/config/extra_options/Percentile",
        }
    # what the contract refuses is told of the key that was sent
    quark = {"calibrate_method": "CalibrationMethod.Percentile", "extra_options": {"Percentile": 40}}
    body = {"config": {"format": "quark", "config": quark}}
    place = "/config/config/extra_options/Percentile"
    assert refused(front, "/v1/jobs:validate", body) == {place}
    assert refused(front, "/v1/jobs:validate", {**body, "nam": 1}, "invalid-request") == {place, "/nam"}
    # and checks of the whole request point at what was sent: the gate judges accuracy on random data
    envelope = {**ENVELOPE, "config": {"include_cle": False, "extra_options": {"UseRandomData": True}}}
    envelope["evaluation"] = {"gate": {"min_sqnr_db": 5}}
    body = {"model_id": front.ready_model(), "config": envelope}
    for path in ("/v1/jobs:validate", "/v1/jobs"):
        assert refused(front, path, body) == {"/config/evaluation/gate/min_sqnr_db"}


def test_a_bare_quark_config_is_told_its_envelope(front: Front) -> None:
    body = front.job_body(config={"per_channel": True, "calibrate_method": "CalibrationMethod.MinMax"})
    told = problem(front.http.post("/v1/jobs", json=body), 422, "invalid-config")
    assert pointers(told) == ["/config"]
    assert '"format": "quark"' in told["hint"]


def test_presets_bear_quarks_names(front: Front) -> None:
    listed = front.http.get("/v1/presets").json()
    found = {item["name"]: item for item in listed["items"]}
    assert "XINT8" in found["xint8"]["aliases"]
    assert found["int8"]["execution"] == {"native": True, "statement": "8-bit integer kernels"}
    assert found["bf16"]["execution"]["native"] is False
    assert front.http.get("/v1/presets/S8S8_AAWS").json() == found["s8s8_aaws"]
    pending = {item["name"]: item["reason"] for item in listed["pending"]}
    name = next(iter(pending))
    told = problem(front.http.get(f"/v1/presets/{name}"), 404, "preset-not-found")
    assert pending[name] in told["detail"]
    told = problem(front.http.post("/v1/jobs:validate", json={"config": {"preset": name}}), 422, "invalid-config")
    assert told["errors"][0]["pointer"] == "/config/preset"


def test_a_function_of_a_python_program_is_refused_and_what_serves_instead_is_named(front: Front) -> None:
    int8 = {"ActTargetQuantType": "QInt8", "WeightTargetQuantType": "QInt8"}
    mixing = {**int8, "Top1AccTarget": 0.1, "EvaluateFunction": "top1_acc"}
    options = {"extra_options": {"AutoMixprecision": mixing}}
    quark = {"activation_type": "VitisQuantType.QInt16", "include_auto_mp": True, **options}
    told = problem(
        front.http.post("/v1/jobs:validate", json={"config": {"format": "quark", "config": quark}}),
        422,
        "invalid-config",
    )
    assert pointers(told) == ["/config/config/extra_options/AutoMixprecision/EvaluateFunction"]
    assert "top1" in told["hint"]
    assert "ONNX graph" in told["hint"]
    own = {"evaluation": {"metrics": [{"kind": "function", "name": "mine"}]}}
    assert refused(front, "/v1/jobs:validate", {"config": own}) == {"/config/evaluation/metrics/0/kind"}
