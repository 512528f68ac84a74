"""The clause not_significantly_worse, from files of results by sample in the store. On both databases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.jobs.outcome import NewArtifact
from tests.support.front import Front, npz_bytes
from tests.support.schedules import add_schedule, run_by_request, settle, succeed

SAMPLES = 200
GATE = {"clauses": [{"kind": "not_significantly_worse"}]}


@pytest.fixture
def template(front: Front) -> dict[str, Any]:
    return front.job_body()


def stored(front: Front, data: bytes) -> NewArtifact:
    return NewArtifact("samples", "samples.npz", "application/octet-stream", front.store(data), len(data))


def samples(front: Front, wrong: range, *, classes: int = 5) -> NewArtifact:
    """Results by sample of a quantized model that is wrong on some."""
    label = np.arange(SAMPLES, dtype=np.int64) % classes
    quantized = label.copy()
    quantized[list(wrong)] += 1
    return stored(front, npz_bytes(float_class=label, quantized_class=quantized, label=label))


def losses(front: Front, values: np.ndarray) -> NewArtifact:
    """Results by sample of a model that gives no classes."""
    return stored(front, npz_bytes(index=np.arange(len(values), dtype=np.int32), **{"metric.top1": values}))


def judged(front: Front, made: dict[str, Any], *artifacts: NewArtifact) -> dict[str, Any]:
    run = run_by_request(front, made["id"])
    succeed(front, run["job_id"], artifacts=artifacts)
    assert settle(front.desk) == 1
    found: dict[str, Any] = front.http.get(f"/v1/schedules/{made['id']}/runs/{run['id']}").json()
    return found


def test_the_samples_of_two_jobs_are_compared_in_pairs(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate=GATE)
    first = judged(front, made, samples(front, range(10)))
    assert first["state"] == "passed"
    # five more are wrong: p = 2 / 2^5, which chance does
    second = judged(front, made, samples(front, range(15)))
    (clause,) = second["clauses"]
    assert (second["state"], clause["baseline_job_id"]) == ("passed", first["job_id"])
    assert clause["p_value"] == pytest.approx(2 / 2**5)
    assert clause["value"] == pytest.approx(100 * 5 / SAMPLES)
    assert clause["interval"]["low"] < clause["value"] < clause["interval"]["high"]
    # seven more than the last accepted one
    third = judged(front, made, samples(front, range(22)))
    (clause,) = third["clauses"]
    assert (third["state"], third["reason"], clause["holds"]) == ("failed", "gate", False)
    assert clause["p_value"] == pytest.approx(2 / 2**7)
    assert "p = 0.0156" in third["detail"]


def test_without_results_of_the_same_samples_it_is_undecided(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate=GATE)
    assert judged(front, made, samples(front, range(10)))["state"] == "passed"
    for artifacts, why in (
        ([], "results by sample"),
        ([samples(front, range(10), classes=7)], "same samples"),
        ([stored(front, b"no archive")], "cannot be read"),
    ):
        found = judged(front, made, *artifacts)
        assert (found["state"], found["clauses"][0]["holds"]) == ("failed", None)
        assert why in found["clauses"][0]["reason"]


def test_where_there_are_no_classes_a_metric_is_compared_by_sample(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate=GATE)
    random = np.random.default_rng(2)
    before = random.normal(90.0, 5.0, SAMPLES)
    assert judged(front, made, losses(front, before))["state"] == "passed"
    alike = judged(front, made, losses(front, before + random.normal(0.0, 1.0, SAMPLES)))
    assert (alike["state"], alike["clauses"][0]["metric"]) == ("passed", "top1")
    worse = judged(front, made, losses(front, before - random.normal(1.0, 1.0, SAMPLES)))
    (clause,) = worse["clauses"]
    assert (worse["state"], clause["holds"], clause["interval"]["method"]) == ("failed", False, "bootstrap")
    assert 0.5 < clause["interval"]["low"] < clause["value"] < clause["interval"]["high"] < 1.5
    assert clause["p_value"] < 0.001
