"""Evaluations: jobs that measure a model; and jobs side by side: what was asked, what came out, what changed sides."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

from service.contracts.errors import EngineError
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Report
from service.jobs.outcome import EvaluateOutcome, QuantizeOutcome
from tests.support.front import Front, make_report, pointers, problem, taken
from worker.quantizer.evaluation.decisions import OutputDecisions, packed


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
    report = front.kept("report", "report.json", job_id.encode(), "application/json")
    front.finish(job_id, EvaluateOutcome(make_evaluation(verdict, reference=reference), (report,)))


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
        "name": "top1", "unit": "%", "float": 90.0, "quantized": 89.5, "drop": 0.5, "significant": None,
        "drop_interval": None, "samples": None,
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


def test_what_compares_needs_a_reference_and_what_is_missing_is_told_with_its_place(front: Front) -> None:
    given, reference = body(front), {"reference_model_id": front.ready_model()}
    for gate, place in (
        ({"max_drop": 1.0}, "max_drop"),
        ({"min_sqnr_db": 20.0}, "min_sqnr_db"),
        ({"max_latency_ratio": 1.0}, "max_latency_ratio"),
        ({"metric": "top1_agreement", "min_value": 99.0}, "metric"),
    ):
        asked = {**given, "evaluation": {"gate": gate}}
        refused = problem(front.http.post("/v1/evaluations", json=asked), 422, "invalid-config")
        assert pointers(refused) == [f"/evaluation/gate/{place}"]
        answer = front.http.post("/v1/evaluations", json={**asked, **reference})
        assert answer.status_code == 202 or "reference" not in answer.text, answer.text
    for field, code in (("reference_model_id", "model-not-found"), ("evaluation_dataset_id", "dataset-not-found")):
        refused = problem(front.http.post("/v1/evaluations", json={**given, field: "none"}), 404, code)
        assert pointers(refused) == [f"/{field}"]


def test_a_retry_asks_for_the_same_and_a_clone_for_something_else(front: Front) -> None:
    job_id = new_evaluation(front, reference_model_id=front.ready_model(), name="one", evaluation={"latency_runs": 9})
    problem(front.http.post(f"/v1/jobs/{job_id}/retry"), 409, "job-not-ended")
    front.fail(job_id, EngineError("It broke."))
    again, before = taken(front.http.post(f"/v1/jobs/{job_id}/retry"), 202), front.http.get(f"/v1/jobs/{job_id}").json()
    assert (again["retry_of"], again["kind"]) == (job_id, "evaluate")
    for name in ("model_id", "reference_model_id", "evaluation_dataset_id", "config", "name"):
        assert again[name] == before[name], name
    patch = {"reference_model_id": None, "name": "two", "evaluation": {"latency_runs": 3}}
    changed = taken(front.http.post(f"/v1/jobs/{job_id}/clone", json=patch), 202)
    assert (changed["cloned_from"], changed["retry_of"], changed["kind"]) == (job_id, None, "evaluate")
    assert (changed["reference_model_id"], changed["name"], changed["model_id"]) == (None, "two", before["model_id"])
    assert changed["config"]["evaluation"]["latency_runs"] == 3
    wrong = problem(front.http.post(f"/v1/jobs/{job_id}/clone", json={"config": {}}), 422, "invalid-request")
    assert pointers(wrong) == ["/config"]


@pytest.mark.parametrize("reference", [True, False])
def test_evaluations_are_compared_with_quantizations(front: Front, reference: bool) -> None:
    quantization, evaluation = front.succeeded_job(), new_evaluation(front)
    succeed(front, evaluation, reference=reference)
    told = taken(front.http.get("/v1/compare", params={"job": [quantization, evaluation]}))["jobs"][1]
    assert told["float_size_bytes"] == (4000 if reference else None)
    assert (told["quantized_size_bytes"], told["metrics"][0]["quantized"]) == (1000, 89.5)
    assert front.http.get("/v1/compare.csv", params={"job": [quantization, evaluation]}).status_code == 200
    refused = front.http.post("/v1/jobs", json=front.job_body(ranges_from=evaluation))
    problem(refused, 422, "ranges-not-usable")


LABELS = np.arange(40) % 5


def classes(*wrong: int) -> Any:
    """Decisions that are right but for these samples."""
    found = LABELS.copy()
    found[list(wrong)] = (found[list(wrong)] + 1) % 5
    return found


def samples(quantized: Any, *, labeled: bool = True) -> bytes:
    decisions = OutputDecisions()
    scores = np.eye(5, dtype=np.float32)
    decisions.update(scores[LABELS], scores[quantized], LABELS if labeled else None)
    return packed(decisions.arrays)


def report_of(**changes: Any) -> Report:
    body = make_report("pass").to_json_dict()
    for name, value in changes.items():
        place, _, field = name.partition("__")
        body[place] = {**body[place], field: value} if field else value
    return Report.model_validate(body)


def run(front: Front, report: Report, file: bytes | None, **asked: Any) -> str:
    job_id = front.new_job(**asked)
    artifacts = [front.kept("model", "q.onnx", job_id.encode())]
    if file is not None:
        artifacts.append(front.kept("samples", "samples.npz", file))
    front.finish(job_id, QuantizeOutcome(report, tuple(artifacts)))
    return job_id


def compared(front: Front, *job_ids: str, **params: Any) -> dict[str, Any]:
    return taken(front.http.get("/v1/compare", params={"job": list(job_ids), **params}))


def layers(**sqnr_db: float | None) -> list[dict[str, Any]]:
    return [{"name": name, "op": "Conv", "sqnr_db": value} for name, value in sqnr_db.items()]


def test_two_jobs_side_by_side(front: Front) -> None:
    nouns = front.job_body()
    asked = ("plain", {"preset": "int8", "seed": 1}), ("=cmd()", {"preset": "int8", "seed": 2})
    reports = [
        report_of(layers=layers(a=30.0, b=20.0, c=None)),
        report_of(layers=layers(a=31.0, b=12.0, d=5.0), quantized__size_bytes=700),
    ]
    first, second = (
        run(front, report, samples(classes(*wrong)), name=name, config=config, **nouns)
        for report, wrong, (name, config) in zip(reports, ((3,), (7, 8, 9)), asked, strict=True)
    )
    found = compared(front, first, second)
    assert [job["id"] for job in found["jobs"]] == [first, second]
    assert [job["quantized_size_bytes"] for job in found["jobs"]] == [1000, 700]
    assert found["jobs"][0]["model"].endswith("@1")
    assert found["jobs"][0]["metrics"][0]["drop"] == 0.5
    assert found["config_differences"] == [{"pointer": "/seed", "values": [1, 2]}]
    assert [(layer["name"], layer["sqnr_db"], layer["spread_db"]) for layer in found["layers"]] == [
        ("b", [20.0, 12.0], 8.0),
        ("a", [30.0, 31.0], 1.0),
    ]
    (pair,) = found["pairs"]
    assert (pair["measure"], pair["samples"], pair["flips"]["lost"], pair["flips"]["won"]) == ("accuracy", 40, 3, 1)
    assert pair["drop_percent"] == pytest.approx(5.0)
    # of four samples that changed sides, three or more alike by chance: 2 * (4 + 1) / 16
    assert pair["p_value"] == pytest.approx(0.625)
    assert pair["significant"] is False
    assert pair["interval"]["low"] < 0 < pair["interval"]["high"]
    assert [(flip["index"], flip["expected"], flip["first"], flip["second"]) for flip in pair["flipped"]] == [
        (3, 3, 4, 3), (7, 2, 2, 3), (8, 3, 3, 4), (9, 4, 4, 0),
    ]  # fmt: skip
    short = compared(front, first, second, flips=1)["pairs"][0]
    assert (len(short["flipped"]), short["flipped_more"]) == (1, 3)
    rows = list(csv.DictReader(io.StringIO(table(front, first, second))))
    assert [row["job"] for row in rows] == [first, second]
    assert [row["config/seed"] for row in rows] == ["1", "2"]
    assert rows[1]["name"] == "'=cmd()"
    assert (rows[0]["lost"], rows[1]["lost"], rows[1]["won"]) == ("", "3", "1")


def table(front: Front, *job_ids: str) -> str:
    answer = front.http.get("/v1/compare.csv", params={"job": list(job_ids)})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return answer.text


def test_what_cannot_be_paired_says_why_and_without_labels_it_is_agreement(front: Front) -> None:
    nouns = front.job_body()
    first, two = run(front, make_report(), samples(classes(1)), **nouns), samples(classes(2))
    cases: list[tuple[dict[str, str], bytes | None, str]] = [
        ({"manifest__calibration_sha256": "9" * 64}, two, "same data"),
        ({"fidelity__source": "random"}, two, "same data"),
        ({}, None, "no results by sample"),
        ({}, samples(classes(2), labeled=False), "same samples"),
        ({}, b"PK no archive", "cannot be read"),
    ]
    for report, file, wanted in cases:
        (pair,) = compared(front, first, run(front, report_of(**report), file, **nouns))["pairs"]
        assert (pair["measure"], pair["flips"]) == (None, None)
        assert wanted in pair["reason"]
    ids = [run(front, make_report(), samples(classes(*range(k)), labeled=False), **nouns) for k in (4, 0)]
    (pair,) = compared(front, *ids)["pairs"]
    assert (pair["measure"], pair["drop_percent"]) == ("agreement", pytest.approx(-10.0))


def test_what_is_no_comparison_is_refused(front: Front) -> None:
    done, waiting = front.succeeded_job(), front.new_job()
    for path, jobs, status, code in (
        ("compare", [done], 422, "invalid-request"),
        ("compare", [done, done], 422, "invalid-request"),
        ("compare", [done] * 21, 422, "invalid-request"),
        ("compare", [done, waiting], 409, "report-not-ready"),
        ("compare", [done, "job_nobody"], 404, "job-not-found"),
        ("compare.csv", [waiting, done], 409, "report-not-ready"),
    ):
        problem(front.http.get(f"/v1/{path}", params={"job": jobs}), status, code)
    problem(front.http.get("/v1/compare", params={"job": [done], "jobs": "x"}), 422, "invalid-request")
