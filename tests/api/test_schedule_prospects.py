"""A schedule whose gate names what is not there is refused when it is made or changed, with each place and a hint."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.dataset import ArraySummary, LabelSummary
from tests.support.front import Front, dataset_summary, pointers, problem
from tests.support.schedules import add_schedule, hourly, succeed

ANY = {"If-Match": "*"}
DROP = {"kind": "max_drop", "metric": "top1", "max_drop": 0.5}
SIZE = {"kind": "size", "max_ratio": 1.1}
PROD = {"kind": "alias", "alias": "prod"}
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
