"""What a schedule is called and judged by: names, what its gate looks at, and samples in pairs."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from service.contracts.dataset import ArraySummary, LabelSummary
from service.jobs.outcome import NewArtifact
from service.resources import new_id
from tests.api.test_schedules import ANY, DROP, PROD, judged
from tests.db.test_concurrency import at_once
from tests.support.front import Front, dataset_summary, npz_bytes, pointers, problem
from tests.support.schedules import add_schedule, hourly, succeed

NAME = "nächtlich, 2 Uhr"
AT = f"/v1/schedules/{quote(NAME)}"


def test_a_name_stands_for_the_id_on_every_route(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, name=NAME)
    http = front.http
    assert http.get(AT).json() == http.get(made["links"]["self"]).json()
    run = http.post(f"{AT}/run")
    assert run.headers["location"].startswith(made["links"]["self"])
    runs = http.get(f"{AT}/runs", params={"limit": 1})
    assert [item["id"] for item in runs.json()["items"]] == [run.json()["id"]]
    assert http.get(f"{AT}/runs/{run.json()['id']}").json()["schedule_id"] == made["id"]
    assert http.post(f"{AT}/pause").json()["paused_at"]
    assert http.post(f"{AT}/resume").json()["paused_at"] is None
    assert http.patch(AT, json={"cron": "0 4 * * *"}, headers=ANY).json()["id"] == made["id"]
    assert http.delete(AT).status_code == 204
    problem(http.get(AT), 404, "schedule-not-found")


@pytest.mark.both_databases
def test_a_name_of_the_past_is_free_and_case_counts(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, name="one")
    add_schedule(front, template, name="One")
    assert front.http.get("/v1/schedules/ONE").status_code == 404
    assert front.http.patch("/v1/schedules/one", json={"name": "two"}, headers=ANY).status_code == 200
    assert add_schedule(front, template, name="one")["id"] != made["id"]
    assert front.http.patch("/v1/schedules/two", json={"name": "two"}, headers=ANY).json()["id"] == made["id"]


@pytest.mark.both_databases
def test_a_name_that_is_taken_is_refused(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, name="one")
    other = add_schedule(front, template, name="two")
    body = {"name": "one", "cron": hourly(), "template": template}
    found = problem(front.http.post("/v1/schedules", json=body), 409, "schedule-name-taken")
    assert pointers(found) == ["/name"]
    assert made["id"] in found["detail"]
    changed = front.http.patch(other["links"]["self"], json={"name": "one"}, headers=ANY)
    problem(changed, 409, "schedule-name-taken")
    like = problem(front.http.post("/v1/schedules", json={**body, "name": new_id("sch")}), 422, "invalid-request")
    assert pointers(like) == ["/name"]


@pytest.mark.both_databases
def test_of_many_who_take_a_name_at_once_one_has_it(front: Front, template: dict[str, Any]) -> None:
    body = {"name": "one", "cron": hourly(), "template": template}
    found = at_once(6, lambda _: front.http.post("/v1/schedules", json=body).status_code)
    assert sorted(found) == [201] + [409] * 5


SIZE = {"kind": "size", "max_ratio": 1.1}
CLASSES = LabelSummary(array="labels", dtype="int64", count=32, minimum=0, maximum=4)


@pytest.fixture
def template(front: Front) -> dict[str, Any]:
    pictures = {"x": ArraySummary(dtype="float32", shape=(32, 3, 8, 8))}
    return front.job_body(calibration_dataset_id=front.ready_dataset(dataset_summary(labels=CLASSES, **pictures)))


def refused(front: Front, template: dict[str, Any], **body: Any) -> Any:
    given = {"name": "odd", "cron": hourly(), "template": template, **body}
    found = problem(front.http.post("/v1/schedules", json=given), 422, "invalid-request")
    assert front.http.get("/v1/schedules").json()["items"] == []
    return found


def alias(front: Front, template: dict[str, Any], word: str) -> None:
    path = f"/v1/models/{template['model_id']}/aliases/{word}"
    assert front.http.put(path, headers={"If-None-Match": "*"}).status_code == 201


def test_what_is_there_is_taken_without_a_warning(front: Front, template: dict[str, Any]) -> None:
    alias(front, template, "prod")
    earlier = front.new_job(**template)
    succeed(front, earlier)
    of_job = {**SIZE, "baseline": {"kind": "job", "job_id": earlier}}
    made = add_schedule(front, template, gate={"clauses": [DROP, of_job], "baseline": PROD}, promote_to="new")
    assert made["warnings"] == []
    # a baseline that no clause looks at need not be there
    gate = {"clauses": [{**DROP, "baseline": PROD}], "baseline": {"kind": "alias", "alias": "nobody"}}
    assert add_schedule(front, template, gate=gate)["warnings"] == []


def test_all_that_is_not_there_is_told_at_once(front: Front, template: dict[str, Any]) -> None:
    alias(front, template, "prod")
    alias(front, template, "staging")
    failed = front.new_job(**template)
    assert front.http.post(f"/v1/jobs/{failed}/cancel").status_code in (200, 202)
    clauses = [
        {**DROP, "metric": "top2"},
        {"kind": "not_significantly_worse", "metric": "top1_agreement"},
        {**SIZE, "baseline": {"kind": "alias", "alias": "stagging"}},
        {**SIZE, "baseline": {"kind": "job", "job_id": "job_0"}},
        {**SIZE, "baseline": {"kind": "job", "job_id": failed}},
    ]
    found = refused(front, template, gate={"clauses": clauses, "baseline": {"kind": "alias", "alias": "prd"}})
    told = dict(zip(pointers(found), [(one["code"], one["message"]) for one in found["errors"]], strict=True))
    assert [told[f"/gate/clauses/{k}/metric"][0] for k in (0, 1)] == ["metric-unknown"] * 2
    assert "float model" in told["/gate/clauses/1/metric"][1]
    assert "did you mean 'prod'" in told["/gate/baseline/alias"][1]
    assert "did you mean 'staging'" in told["/gate/clauses/2/baseline/alias"][1]
    assert told["/gate/clauses/3/baseline/job_id"][0] == "job-not-found"
    assert told["/gate/clauses/4/baseline/job_id"][0] == "job-without-report"
    assert len(told) == 6
    assert found["hint"]


def test_metrics_are_those_that_the_template_declares(front: Front, template: dict[str, Any]) -> None:
    declared = {**template, "config": {"evaluation": {"metrics": [{"kind": "cosine"}]}}}
    found = refused(front, declared, gate={"clauses": [DROP]})
    assert pointers(found) == ["/gate/clauses/0/metric"]
    assert "cosine" in found["detail"]
    assert add_schedule(front, declared, gate={"clauses": [{**DROP, "metric": "cosine"}]})["warnings"] == []


def test_what_the_next_version_of_the_data_may_mend_is_told(front: Front, template: dict[str, Any]) -> None:
    bare = {**template, "calibration_dataset_id": front.ready_dataset(dataset_summary())}
    earlier = front.new_job(**template)
    waits = {**SIZE, "baseline": {"kind": "job", "job_id": earlier}}
    ends, labels = add_schedule(front, bare, gate={"clauses": [DROP, DROP, waits]})["warnings"]
    assert "no class labels" in labels
    assert earlier in ends


def test_a_change_is_looked_at_as_a_whole(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate={"clauses": [DROP], "baseline": PROD}, promote_to="prod")
    path = made["links"]["self"]

    def wrong(**changes: Any) -> list[str]:
        return pointers(problem(front.http.patch(path, json=changes, headers=ANY), 422, "invalid-request"))

    assert wrong(promote_to=None) == ["/promote_to"], "nobody would give the alias then"
    assert wrong(gate={"clauses": [{**DROP, "metric": "psnr"}]}) == ["/gate/clauses/0/metric"]
    declared = {**template, "config": {"evaluation": {"metrics": [{"kind": "cosine"}]}}}
    assert wrong(template=declared) == ["/template"]
    assert front.http.get(path).json()["promote_to"] == "prod"
    both = {"template": declared, "gate": {"clauses": [{**DROP, "metric": "cosine"}]}}
    assert front.http.patch(path, json=both, headers=ANY).status_code == 200
    assert front.http.patch(path, json={"name": "other", "promote_to": None}, headers=ANY).json()["warnings"] == []


SAMPLES = 200
GATE = {"clauses": [{"kind": "not_significantly_worse"}]}


def samples(front: Front, wrong: range) -> NewArtifact:
    """Results by sample of a quantized model that is wrong on some."""
    label = np.arange(SAMPLES, dtype=np.int64) % 5
    quantized = label.copy()
    quantized[list(wrong)] += 1
    return front.kept("samples", "samples.npz", npz_bytes(float_class=label, quantized_class=quantized, label=label))


def losses(front: Front, values: np.ndarray) -> NewArtifact:
    """Results by sample of a model that gives no classes."""
    columns = {"index": np.arange(len(values), dtype=np.int32), "metric.top1": values}
    return front.kept("samples", "samples.npz", npz_bytes(**columns))


def test_the_samples_of_two_jobs_are_compared_in_pairs(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate=GATE)
    first = judged(front, made, artifacts=(samples(front, range(10)),))
    assert first["state"] == "passed"
    # five more are wrong: p = 2 / 2^5, which chance does
    second = judged(front, made, artifacts=(samples(front, range(15)),))
    (clause,) = second["clauses"]
    assert (second["state"], clause["baseline_job_id"]) == ("passed", first["job_id"])
    assert clause["p_value"] == pytest.approx(2 / 2**5)
    assert clause["value"] == pytest.approx(100 * 5 / SAMPLES)
    assert clause["interval"]["low"] < clause["value"] < clause["interval"]["high"]
    # seven more than the last accepted one
    third = judged(front, made, artifacts=(samples(front, range(22)),))
    (clause,) = third["clauses"]
    assert (third["state"], third["reason"], clause["holds"]) == ("failed", "gate", False)
    assert clause["p_value"] == pytest.approx(2 / 2**7)
    assert "p = 0.0156" in third["detail"]
    damaged = front.kept("samples", "samples.npz", b"no archive")
    for artifacts, why in (((), "results by sample"), ((damaged,), "cannot be read")):
        found = judged(front, made, artifacts=artifacts)
        assert (found["state"], found["clauses"][0]["holds"]) == ("failed", None)
        assert why in found["clauses"][0]["reason"]


def test_where_there_are_no_classes_a_metric_is_compared_by_sample(front: Front, template: dict[str, Any]) -> None:
    made = add_schedule(front, template, gate=GATE)
    random = np.random.default_rng(2)
    before = random.normal(90.0, 5.0, SAMPLES)
    assert judged(front, made, artifacts=(losses(front, before),))["state"] == "passed"
    alike = judged(front, made, artifacts=(losses(front, before + random.normal(0.0, 1.0, SAMPLES)),))
    assert (alike["state"], alike["clauses"][0]["metric"]) == ("passed", "top1")
    worse = judged(front, made, artifacts=(losses(front, before - random.normal(1.0, 1.0, SAMPLES)),))
    (clause,) = worse["clauses"]
    assert (worse["state"], clause["holds"], clause["interval"]["method"]) == ("failed", False, "bootstrap")
    assert 0.5 < clause["interval"]["low"] < clause["value"] < clause["interval"]["high"] < 1.5
    assert clause["p_value"] < 0.001
