"""Jobs side by side: what was asked for, what came out, which samples changed sides."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest

from service.contracts.report import Report
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from tests.support.front import Front, make_report, problem
from worker.quantizer.evaluation.decisions import Decisions, packed

LABELS = np.arange(40) % 5


def classes(*wrong: int) -> Any:
    """Decisions that are right but for these samples."""
    found = LABELS.copy()
    found[list(wrong)] = (found[list(wrong)] + 1) % 5
    return found


def samples(quantized: Any, *, labeled: bool = True) -> bytes:
    decisions = Decisions()
    scores = np.eye(5, dtype=np.float32)
    decisions.update(scores[LABELS], scores[quantized], LABELS if labeled else None)
    return packed(decisions.arrays)


def report_of(**changes: Any) -> Report:
    body = make_report("pass").to_json_dict()
    for name, value in changes.items():
        place, _, field = name.partition("__")
        if field:
            body[place][field] = value
        else:
            body[place] = value
    return Report.model_validate(body)


def run(front: Front, report: Report, file: bytes | None, **asked: Any) -> str:
    job_id = front.new_job(**asked)
    data = job_id.encode()
    artifacts = [NewArtifact("model", "q.onnx", "application/octet-stream", front.store(data), len(data))]
    if file is not None:
        stored = front.store(file)
        artifacts.append(NewArtifact("samples", "samples.npz", "application/octet-stream", stored, len(file)))
    front.finish(job_id, QuantizeOutcome(report, tuple(artifacts)))
    return job_id


def compared(front: Front, *job_ids: str, **params: Any) -> dict[str, Any]:
    answer = front.http.get("/v1/compare", params={"job": list(job_ids), **params})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


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


def test_many_jobs_against_the_first(sqlite_front: Front) -> None:
    nouns = sqlite_front.job_body()
    ids = [run(sqlite_front, make_report(), samples(classes(*range(k))), **nouns) for k in range(20)]
    found = compared(sqlite_front, *ids)
    assert [pair["flips"]["lost"] for pair in found["pairs"]] == list(range(1, 20))
    assert [pair["significant"] for pair in found["pairs"]] == [k > 5 for k in range(1, 20)], "6 of 6: p = 0.03"
    assert found["config_differences"] == []


@pytest.mark.parametrize(
    ("report", "file", "wanted"),
    [
        ({"manifest__calibration_sha256": "9" * 64}, samples(classes(2)), "same data"),
        ({"fidelity__source": "random"}, samples(classes(2)), "same data"),
        ({}, None, "no results by sample"),
        ({}, samples(classes(2), labeled=False), "same samples"),
        ({}, b"PK no archive", "cannot be read"),
    ],
    ids=["data", "random", "missing", "labels", "broken"],
)
def test_what_cannot_be_paired_says_why(
    sqlite_front: Front, report: dict[str, str], file: bytes | None, wanted: str
) -> None:
    nouns = sqlite_front.job_body()
    first = run(sqlite_front, make_report(), samples(classes(1)), **nouns)
    (pair,) = compared(sqlite_front, first, run(sqlite_front, report_of(**report), file, **nouns))["pairs"]
    assert (pair["measure"], pair["flips"]) == (None, None)
    assert wanted in pair["reason"]


def test_models_without_labels_are_paired_by_agreement(sqlite_front: Front) -> None:
    nouns = sqlite_front.job_body()
    ids = [run(sqlite_front, make_report(), samples(classes(*range(k)), labeled=False), **nouns) for k in (4, 0)]
    (pair,) = compared(sqlite_front, *ids)["pairs"]
    assert (pair["measure"], pair["drop_percent"]) == ("agreement", pytest.approx(-10.0))


def test_what_is_no_comparison_is_refused(sqlite_front: Front) -> None:
    done, waiting = sqlite_front.succeeded_job(), sqlite_front.new_job()
    for path, jobs, status, code in (
        ("compare", [done], 422, "invalid-request"),
        ("compare", [done, done], 422, "invalid-request"),
        ("compare", [done] * 21, 422, "invalid-request"),
        ("compare", [done, waiting], 409, "report-not-ready"),
        ("compare", [done, "job_nobody"], 404, "job-not-found"),
        ("compare.csv", [waiting, done], 409, "report-not-ready"),
    ):
        problem(sqlite_front.http.get(f"/v1/{path}", params={"job": jobs}), status, code)
    problem(sqlite_front.http.get("/v1/compare", params={"job": [done], "jobs": "x"}), 422, "invalid-request")
