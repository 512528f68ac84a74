"""What is known of a model when a job is submitted is judged then, not after the job has waited."""

from __future__ import annotations

from typing import Any

import pytest

from service.tables import Model
from tests.support.front import Front, model_summary, pointers, problem

NAMES = ("conv", "relu", "pool", "flatten", "gemm")


def named_model(front: Front, **changes: Any) -> str:
    return front.ready_model(model_summary(node_names=NAMES, prepared_op_types=(), **changes))


def test_a_node_that_the_model_does_not_have(sqlite_front: Front) -> None:
    config: dict[str, Any] = {"exclude": [{"node": "cnov"}], "include": [{"op_type": "Convv"}]}
    body = sqlite_front.job_body(model_id=named_model(sqlite_front), config=config)
    for route in ("/v1/jobs", "/v1/jobs:validate"):
        seen = problem(sqlite_front.http.post(route, json=body), 422, "invalid-config")
        assert pointers(seen) == ["/config/include/0/op_type", "/config/exclude/0/node"]
        assert "did you mean 'conv'?" in seen["errors"][1]["message"]
        assert seen["hint"]
    assert sqlite_front.http.get("/v1/jobs").json()["items"] == []
    body["config"] = {"exclude": [{"node": "conv"}], "include": [{"op_type": "Gemm"}]}
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202


def test_a_model_validated_before_names_were_kept_is_still_usable(sqlite_front: Front) -> None:
    model_id = named_model(sqlite_front)
    with sqlite_front.desk.database.write() as session:
        row = session.get_one(Model, model_id)
        row.summary = {k: v for k, v in row.summary.items() if k not in ("node_names", "prepared_op_types")}
    assert sqlite_front.http.get(f"/v1/models/{model_id}").json()["summary"]["node_names"] is None
    body = sqlite_front.job_body(model_id=model_id, config={"exclude": [{"node": "cnov"}]})
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202


def test_a_quantized_model_is_refused_unless_its_pairs_are_taken_off(sqlite_front: Front) -> None:
    quantized = sqlite_front.ready_model(model_summary(op_counts={"Conv": 1, "QuantizeLinear": 3}))
    body = sqlite_front.job_body(model_id=quantized)
    for route in ("/v1/jobs", "/v1/jobs:validate"):
        seen = problem(sqlite_front.http.post(route, json=body), 422, "already-quantized")
        assert pointers(seen) == ["/model_id"]
        assert "preparation.dequantize" in seen["hint"]
    body["config"] = {"preparation": {"dequantize": True}}
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202


@pytest.mark.parametrize("preset", ["int8_dynamic", "int4_weights", "float16_model"])
def test_recipes_that_take_no_ranges_need_no_calibration_dataset(sqlite_front: Front, preset: str) -> None:
    body = {"model_id": sqlite_front.ready_model(), "config": {"preset": preset}}
    made = sqlite_front.http.post("/v1/jobs", json=body)
    assert made.status_code == 202, made.text
    assert made.json()["calibration_dataset_id"] is None


@pytest.mark.parametrize("config", [{"weight": {"dtype": "int9"}}, {"seed": -1, "activaton": {}}])
def test_each_fault_is_told_once(sqlite_front: Front, config: dict[str, Any]) -> None:
    told = problem(sqlite_front.http.post("/v1/jobs", json=sqlite_front.job_body(config=config)), 422, "invalid-config")
    assert len(pointers(told)) == len(set(pointers(told))) == len(config)
    for pointer in pointers(told):
        assert told["detail"].count(pointer) == 1
