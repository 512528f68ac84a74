"""Inspections over HTTP: made once per model and config, found again, refused in words."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from service.contracts.base import VERSION
from service.contracts.errors import EngineError
from service.contracts.graph_view import Inspection, NodeInspection
from service.contracts.targets import TARGET_OPTIONS
from service.tables import Job
from tests.db.test_concurrency import at_once
from tests.support.front import Front, model_summary, pointers, problem, taken


def made(target: str = "qnn", mode: Any = "static") -> Inspection:
    node = NodeInspection(name="conv", op="Conv", quantized=True, reason=None, hint=None)
    return Inspection(
        target=target,  # type: ignore[arg-type]
        mode=mode,
        model_sha256="0" * 64,
        engine_version=VERSION,
        summary="1 of 1 nodes run quantized on qnn.",
        node_count=1,
        quantized_count=1,
        nodes=(node,),
    )


def job_ids(front: Front) -> list[str]:
    with front.app.database.read() as session:
        return list(session.scalars(select(Job.id).where(Job.kind == "inspect_target")))


def test_the_first_request_starts_a_job_and_later_ones_find_its_result(front: Front) -> None:
    url = f"/v1/models/{front.ready_model()}/inspect"
    first = front.http.post(url, params={"target": "qnn"})
    assert first.status_code == 202, first.text
    body = first.json()
    assert (body["status"], body["result"], body["problem"]) == ("running", None, None)
    assert body["config"]["target"] == "qnn"
    assert first.headers["location"] == f"/v1/inspections/{body['id']}" == body["links"]["self"]
    assert first.headers["retry-after"] == "1"
    assert front.http.get(body["links"]["job"]).json()["kind"] == "inspect_target"
    again = front.http.post(url, params={"target": "qnn"})
    assert (again.status_code, again.json()["id"]) == (202, body["id"])
    seen = front.http.get(body["links"]["self"])
    assert seen.headers["retry-after"] == "1"
    tag = {"If-None-Match": seen.headers["etag"]}
    assert front.http.get(body["links"]["self"], headers=tag).status_code == 304
    front.finish(body["job_id"], made())
    assert front.http.get(body["links"]["self"], headers=tag, params={"wait": 5}).json()["status"] == "ready"
    done = front.http.post(url, params={"target": "qnn"})
    assert (done.status_code, done.json()["id"], done.json()["status"]) == (200, body["id"], "ready")
    assert Inspection.model_validate(done.json()["result"]) == made()
    assert "retry-after" not in done.headers
    assert job_ids(front) == [body["job_id"]]


def test_what_differs_in_words_only_is_the_same_inspection(front: Front) -> None:
    url, other = (f"/v1/models/{front.ready_model()}/inspect" for _ in range(2))
    requests: list[dict[str, Any]] = [
        {"params": {"target": "qnn"}},
        {"json": {"config": {"target": "qnn"}}},
        {"json": {"config": {"target": "openvino"}}, "params": {"target": "qnn"}},
        {"json": {"config": {"target": "qnn", "preset": "int8", "seed": 0}}},
        {"json": {}, "params": {"target": "qnn"}},
    ]
    assert len({front.http.post(url, **request).json()["id"] for request in requests}) == 1
    others = [{"params": {"target": "openvino"}}, {"json": {"config": {"target": "qnn", "preset": "a8w8"}}}, {}]
    assert len({front.http.post(url, **request).json()["id"] for request in others}) == 3
    assert front.http.post(other, **requests[0]).status_code == 202
    assert len(job_ids(front)) == 5
    assert front.http.get("/v1/jobs").json()["items"] == [], "inspections are not among the jobs"


@pytest.mark.both_databases
def test_requests_at_the_same_time_start_one_job(front: Front) -> None:
    url = f"/v1/models/{front.ready_model()}/inspect"
    answers = at_once(6, lambda _: front.http.post(url, params={"target": "qnn"}))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert len(job_ids(front)) == 1


def test_a_failed_or_canceled_inspection_tells_why_and_is_tried_again(front: Front) -> None:
    url = f"/v1/models/{front.ready_model()}/inspect"
    ids = []
    for code in ("canceled", "engine-error"):
        body = front.http.post(url).json()
        ids.append(body["id"])
        if code == "canceled":
            assert front.http.post(f"{body['links']['job']}/cancel").json()["state"] == "canceled"
        else:
            front.fail(body["job_id"], EngineError("The engine broke.", hint="Tell us."))
        seen = front.http.get(body["links"]["self"]).json()
        assert (seen["status"], seen["result"], seen["problem"]["code"]) == ("failed", None, code)
    assert seen["problem"]["hint"] == "Tell us."
    again = taken(front.http.post(url), 202)
    assert len({*ids, again["id"]}) == 3
    assert front.http.post(url, params={"wait": 0.1}).status_code == 202
    front.finish(again["job_id"], made("onnxruntime_cpu"))
    assert front.http.post(url, params={"wait": 20}).status_code == 200
    assert front.http.post(url).json()["id"] == again["id"]


def test_an_unknown_target_names_the_nearest(front: Front) -> None:
    url = f"/v1/models/{front.ready_model()}/inspect"
    seen = problem(front.http.post(url, params={"target": "amd-npu-cn"}), 422, "unknown-target")
    assert "did you mean 'amd_npu_cnn'?" in seen["detail"]
    assert seen["errors"][0]["where"] == {"query": "target"}
    far = problem(front.http.post(url, params={"target": "zx81"}), 422, "unknown-target")
    assert all(name in far["detail"] for name in TARGET_OPTIONS)
    assert job_ids(front) == []


def test_a_config_that_does_not_fit_is_refused_by_its_place(front: Front) -> None:
    model_id = front.ready_model(model_summary(node_names=("conv",), prepared_op_types=()))
    options = {"target": "qnn", "target_options": {"per_tensor_matmul": False}}
    for config, params, place in (
        ({"target": "amd"}, {}, "target"),
        ({"sede": 1}, {}, "sede"),
        (options, {"target": "openvino"}, "target_options/per_tensor_matmul"),
        ({"exclude": [{"node": "cnov"}]}, {}, "exclude/0/node"),
        ({"preparation": {"fixed_shapes": {"z": [1]}}}, {}, "preparation/fixed_shapes/z"),
    ):
        answer = front.http.post(f"/v1/models/{model_id}/inspect", json={"config": config}, params=params)
        assert pointers(problem(answer, 422, "invalid-config")) == [f"/config/{place}"]
    assert job_ids(front) == []


def test_a_config_of_quark_is_translated(front: Front) -> None:
    config = {"format": "quark", "config": {"activation_type": "QUInt8", "weight_type": "QInt8", "quant_format": "QDQ"}}
    url = f"/v1/models/{front.ready_model()}/inspect"
    answer = taken(front.http.post(url, json={"config": config}), 202)
    assert answer["config"]["activation"]["dtype"] == "uint8"
    problem(front.http.post(url, params={"targett": "qnn"}), 422, "invalid-request")


def test_models_that_cannot_be_inspected(front: Front) -> None:
    def refused(model_id: str, status: int, code: str, **request: Any) -> None:
        problem(front.http.post(f"/v1/models/{model_id}/inspect", **request), status, code)

    refused(front.new_model(), 409, "model-not-ready")
    refused(front.rejected_model(), 422, "model-rejected")
    quantized = front.ready_model(model_summary(op_counts={"QuantizeLinear": 1, "DequantizeLinear": 1}))
    refused(quantized, 422, "already-quantized")
    flagged = {"json": {"config": {"preparation": {"dequantize": True}}}}
    assert front.http.post(f"/v1/models/{quantized}/inspect", **flagged).status_code == 202
    assert len(job_ids(front)) == 1


def test_targets_are_listed_with_their_options(front: Front) -> None:
    items = front.http.get("/v1/targets").json()["items"]
    assert [item["name"] for item in items] == sorted(TARGET_OPTIONS)
    assert [item["name"] for item in items if item["default"]] == ["onnxruntime_cpu"]
    for item in items:
        assert item["description"]
        assert [option["name"] for option in item["options"]] == [o.name for o in TARGET_OPTIONS[item["name"]]]
        assert front.http.get(f"/v1/targets/{item['name']}").json() == item
    seen = problem(front.http.get("/v1/targets/open_vino"), 404, "target-not-found")
    assert "did you mean 'openvino'?" in seen["detail"]
