"""What is known of a model when a job is submitted is judged then, not after the job has waited."""

from __future__ import annotations

from typing import Any

import pytest

from service.tables import Model
from tests.support.front import Front, model_summary, pointers, problem

NAMES = ("conv", "relu", "pool", "flatten", "gemm")


def named_model(front: Front, **changes: Any) -> str:
    return front.ready_model(model_summary(node_names=NAMES, prepared_op_types=(), **changes))


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/jobs:validate"])
def test_a_node_that_the_model_does_not_have(sqlite_front: Front, route: str) -> None:
    config = {"exclude": [{"node": "cnov"}], "include": [{"op_type": "Convv"}]}
    body = sqlite_front.job_body(model_id=named_model(sqlite_front), config=config)
    seen = problem(sqlite_front.http.post(route, json=body), 422, "invalid-config")
    assert pointers(seen) == ["/config/include/0/op_type", "/config/exclude/0/node"]
    assert "did you mean 'conv'?" in seen["errors"][1]["message"]
    assert seen["hint"]
    assert sqlite_front.http.get("/v1/jobs").json()["items"] == []


def test_the_names_that_the_model_has_are_accepted(sqlite_front: Front) -> None:
    config = {"exclude": [{"node": "conv"}], "include": [{"op_type": "Gemm"}]}
    body = sqlite_front.job_body(model_id=named_model(sqlite_front), config=config)
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202


def test_a_model_validated_before_names_were_kept_is_still_usable(sqlite_front: Front) -> None:
    model_id = named_model(sqlite_front)
    with sqlite_front.desk.database.write() as session:
        row = session.get_one(Model, model_id)
        row.summary = {k: v for k, v in row.summary.items() if k not in ("node_names", "prepared_op_types")}
    assert sqlite_front.http.get(f"/v1/models/{model_id}").json()["summary"]["node_names"] is None
    body = sqlite_front.job_body(model_id=model_id, config={"exclude": [{"node": "cnov"}]})
    assert sqlite_front.http.post("/v1/jobs", json=body).status_code == 202


@pytest.mark.parametrize("route", ["/v1/jobs", "/v1/jobs:validate"])
def test_a_quantized_model(sqlite_front: Front, route: str) -> None:
    model_id = sqlite_front.ready_model(model_summary(op_counts={"Conv": 1, "QuantizeLinear": 3}))
    seen = problem(
        sqlite_front.http.post(route, json=sqlite_front.job_body(model_id=model_id)), 422, "already-quantized"
    )
    assert pointers(seen) == ["/model_id"]


def test_names_are_in_the_model_but_not_in_lists(sqlite_front: Front) -> None:
    model_id = named_model(sqlite_front)
    assert sqlite_front.http.get(f"/v1/models/{model_id}").json()["summary"]["node_names"] == list(NAMES)
    (listed,) = sqlite_front.http.get("/v1/models").json()["items"]
    assert listed["summary"]["node_names"] is None
    assert listed["summary"]["op_counts"]["Conv"] == 1
