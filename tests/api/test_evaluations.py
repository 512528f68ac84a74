"""Evaluations over HTTP: jobs that measure a model, on either database."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.errors import EngineError
from service.contracts.evaluation_report import EvaluationReport
from service.jobs.outcome import EvaluateOutcome, NewArtifact
from tests.support.front import Front, pointers, problem


def make_evaluation(verdict: str = "none", *, reference: bool = True) -> EvaluationReport:
    figures = {"metrics": {"top1": 90.0}, "size_bytes": 4000, "latency_ms": 1.0}
    metric: dict[str, Any] = {"name": "top1", "kind": "top1", "unit": "%", "better": "higher", "value": 89.5}
    if reference:
        metric |= {"reference_value": 90.0, "drop": 0.5}
    return EvaluationReport.model_validate(
        {
            "verdict": verdict,
            "samples": 32,
            "model": {**figures, "size_bytes": 1000},
            "reference": figures if reference else None,
            "metrics": [metric],
            "manifest": {
                **{"engine_version": "0", "model_sha256": "0" * 64, "evaluation_sha256": "1" * 64, "threads": 1},
                **{name: {} for name in ("evaluation_preprocessing", "evaluation", "versions")},
            },
        }
    )


def body(front: Front, **changes: Any) -> dict[str, Any]:
    return {"model_id": front.ready_model(), "evaluation_dataset_id": front.ready_dataset(), **changes}


def new_evaluation(front: Front, **changes: Any) -> str:
    answer = front.http.post("/v1/evaluations", json=body(front, **changes))
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return str(answer.json()["id"])


def succeed(front: Front, job_id: str, verdict: str = "pass", *, reference: bool = True) -> None:
    data = job_id.encode()
    artifact = NewArtifact("report", "report.json", "application/json", front.store(data), len(data))
    front.finish(job_id, EvaluateOutcome(make_evaluation(verdict, reference=reference), (artifact,)))


def test_an_evaluation_is_a_job_with_a_report(front: Front) -> None:
    reference = front.ready_model()
    gate = {"gate": {"min_sqnr_db": 20.0}}
    job_id = new_evaluation(front, reference_model_id=reference, evaluation=gate, name="nightly", labels={"a": "1"})
    problem(front.http.get(f"/v1/jobs/{job_id}/report"), 409, "report-not-ready")
    succeed(front, job_id)
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["kind"], job["state"], job["verdict"]) == ("evaluate", "succeeded", "pass")
    assert (job["reference_model_id"], job["calibration_dataset_id"]) == (reference, None)
    assert job["config"]["evaluation"]["gate"]["min_sqnr_db"] == 20.0
    assert job["figures"]["metrics"][0] == {
        "name": "top1", "unit": "%", "float": 90.0, "quantized": 89.5, "drop": 0.5,
    }  # fmt: skip
    report = front.http.get(f"/v1/jobs/{job_id}/report").json()
    assert report == make_evaluation("pass").to_json_dict()
    problem(front.http.get(f"/v1/jobs/{job_id}/report.md"), 404, "report-form-missing")
    problem(front.http.get(f"/v1/jobs/{job_id}/attestation"), 404, "attestation-not-found")
    assert front.http.patch(f"/v1/jobs/{job_id}", json={"name": "other"}).json()["name"] == "other"
    assert front.http.delete(f"/v1/jobs/{job_id}").status_code == 204


def test_lists_tell_both_kinds_or_one(front: Front) -> None:
    evaluations = [new_evaluation(front) for _ in range(2)]
    quantization = front.new_job()
    for query, wanted in (
        ({}, {*evaluations, quantization}),
        ({"kind": "quantize"}, {quantization}),
        ({"kind": "evaluate"}, set(evaluations)),
    ):
        assert {item["id"] for item in front.http.get("/v1/jobs", params=query).json()["items"]} == wanted
    problem(front.http.get("/v1/jobs", params={"kind": "inspect_model"}), 422, "invalid-request")


@pytest.mark.parametrize(
    ("evaluation", "place"),
    [
        ({"gate": {"max_drop": 1.0}}, "/evaluation/gate/max_drop"),
        ({"gate": {"min_sqnr_db": 20.0}}, "/evaluation/gate/min_sqnr_db"),
        ({"gate": {"max_latency_ratio": 1.0}}, "/evaluation/gate/max_latency_ratio"),
        ({"gate": {"metric": "top1_agreement", "min_value": 99.0}}, "/evaluation/gate/metric"),
    ],
)
def test_what_compares_needs_a_reference(front: Front, evaluation: dict[str, Any], place: str) -> None:
    refused = problem(
        front.http.post("/v1/evaluations", json=body(front, evaluation=evaluation)), 422, "invalid-config"
    )
    assert pointers(refused) == [place]
    allowed = body(front, evaluation=evaluation, reference_model_id=front.ready_model())
    answer = front.http.post("/v1/evaluations", json=allowed)
    assert answer.status_code == 202 or "reference" not in answer.text, answer.text


def test_what_is_not_there_is_told_with_its_place(front: Front) -> None:
    for field, code in (("reference_model_id", "model-not-found"), ("evaluation_dataset_id", "dataset-not-found")):
        refused = problem(front.http.post("/v1/evaluations", json=body(front, **{field: "none"})), 404, code)
        assert pointers(refused) == [f"/{field}"]


def test_a_retry_asks_for_the_same_and_a_clone_for_something_else(front: Front) -> None:
    job_id = new_evaluation(front, reference_model_id=front.ready_model(), name="one", evaluation={"latency_runs": 9})
    problem(front.http.post(f"/v1/jobs/{job_id}/retry"), 409, "job-not-ended")
    front.fail(job_id, EngineError("It broke."))
    made = front.http.post(f"/v1/jobs/{job_id}/retry")
    assert made.status_code == 202, made.text
    again, before = made.json(), front.http.get(f"/v1/jobs/{job_id}").json()
    assert (again["retry_of"], again["kind"]) == (job_id, "evaluate")
    for name in ("model_id", "reference_model_id", "evaluation_dataset_id", "config", "name"):
        assert again[name] == before[name], name
    patch = {"reference_model_id": None, "name": "two", "evaluation": {"latency_runs": 3}}
    other = front.http.post(f"/v1/jobs/{job_id}/clone", json=patch)
    assert other.status_code == 202, other.text
    changed = other.json()
    assert (changed["cloned_from"], changed["retry_of"], changed["kind"]) == (job_id, None, "evaluate")
    assert (changed["reference_model_id"], changed["name"], changed["model_id"]) == (None, "two", before["model_id"])
    assert changed["config"]["evaluation"]["latency_runs"] == 3
    wrong = problem(front.http.post(f"/v1/jobs/{job_id}/clone", json={"config": {}}), 422, "invalid-request")
    assert pointers(wrong) == ["/config"]


@pytest.mark.parametrize("reference", [True, False])
def test_evaluations_are_compared_with_quantizations(front: Front, reference: bool) -> None:
    quantization, evaluation = front.succeeded_job(), new_evaluation(front)
    succeed(front, evaluation, reference=reference)
    answer = front.http.get("/v1/compare", params={"job": [quantization, evaluation]})
    assert answer.status_code == 200, answer.text
    told = answer.json()["jobs"][1]
    assert told["float_size_bytes"] == (4000 if reference else None)
    assert (told["quantized_size_bytes"], told["metrics"][0]["quantized"]) == (1000, 89.5)
    assert front.http.get("/v1/compare.csv", params={"job": [quantization, evaluation]}).status_code == 200
    refused = front.http.post("/v1/jobs", json=front.job_body(ranges_from=evaluation))
    problem(refused, 422, "ranges-not-usable")
