"""Jobs that are there: repeated, changed, taken for another's result, renamed, read as text, forgotten."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from service.contracts.errors import EngineError, InvalidRequestError
from service.contracts.report import Finding, GateClause
from service.contracts.report.figures import SANITY
from service.jobs import events
from service.jobs.outcome import QuantizeOutcome
from service.jobs.repeats import merged
from service.tables import Artifact, JobEvent, ReportRow
from tests.api.test_names import listed
from tests.db.test_concurrency import at_once
from tests.support.batches import succeed
from tests.support.front import Front, make_report, pointers, problem, taken
from tests.support.schedules import count_jobs


def test_a_retry_is_the_same_request_in_a_new_job(front: Front) -> None:
    first = front.new_job(name="nightly", labels={"build": "7"}, priority=5, config={"preset": "int8", "seed": 3})
    problem(front.http.post(f"/v1/jobs/{first}/retry"), 409, "job-not-ended")
    front.fail(first, EngineError("It broke."))
    answer = front.http.post(f"/v1/jobs/{first}/retry", headers={"Idempotency-Key": "again"})
    assert answer.status_code == 202, answer.text
    second = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{second['id']}"
    before = front.http.get(f"/v1/jobs/{first}").json()
    assert (second["state"], second["retry_of"], before["retry_of"]) == ("queued", first, None)
    for name in ("name", "labels", "priority", "config", "model_id", "calibration_dataset_id", "device"):
        assert second[name] == before[name], name


def test_a_repetition_is_told_again_after_the_first_job_is_gone(front: Front) -> None:
    first = front.new_job()
    front.fail(first, EngineError("It broke."))
    path, key = f"/v1/jobs/{first}/retry", {"Idempotency-Key": "again"}
    made = front.http.post(path, headers=key).json()
    assert front.http.delete(f"/v1/jobs/{first}").status_code == 204
    assert front.http.post(path, headers=key).json()["id"] == made["id"]
    problem(front.http.post(path), 404, "job-not-found")
    validation = front.inspect_job(model_id=front.ready_model())  # no client asked for it
    for verb, body in (("retry", None), ("clone", {})):
        problem(front.http.post(f"/v1/jobs/{validation}/{verb}", json=body), 409, "job-not-repeatable")


def test_a_clone_has_the_changes_and_keeps_the_rest(front: Front) -> None:
    first = front.new_job(name="one", labels={"a": "1", "b": "2"}, config={"preset": "int8", "seed": 3})
    patch = {"name": None, "labels": {"a": None, "c": "3"}, "config": {"seed": 4}}
    made = taken(front.http.post(f"/v1/jobs/{first}/clone", json=patch), 202)
    before = front.http.get(f"/v1/jobs/{first}").json()
    assert (made["cloned_from"], made["name"], made["labels"]) == (first, "tiny@1, int8", {"b": "2", "c": "3"})
    assert made["config"] == {**before["config"], "seed": 4}
    # by another preset it begins from that
    made = front.http.post(f"/v1/jobs/{first}/clone", json={"config": {"preset": "xint8"}}).json()
    plain = front.http.post("/v1/jobs:validate", json={"config": {"preset": "xint8"}}).json()
    assert made["config"] == plain["config"]


def nested(depth: int) -> Any:
    deep: Any = {}
    for _ in range(depth):
        deep = {"a": deep}
    return deep


def test_a_clone_that_is_no_request_is_refused(front: Front) -> None:
    path = f"/v1/jobs/{front.new_job()}/clone"
    for patch, pointer in (
        ({"priority": 101}, "/priority"),
        ({"surprise": 1}, "/surprise"),
        ({"config": {"seed": "x"}}, "/config/seed"),
        ({"model_id": None}, "/model_id"),
        ({"labels": {"a b": "1"}}, "/labels/a b/[key]"),
    ):
        answer = front.http.post(path, json=patch)
        assert answer.status_code == 422, answer.text
        assert pointers(answer.json()) == [pointer]
    for hostile in ({"config": nested(200)}, nested(200), {"config": {"exclude": [{"name": "x"}] * 100_000}}, [], 1):
        answer = front.http.post(path, json=hostile)
        assert answer.status_code == 422, answer.text
    assert count_jobs(front.app.database) == 1
    with pytest.raises(InvalidRequestError, match="deep"):
        merged({}, nested(10_000))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=8,
)


@given(json_values, json_values)
def test_a_merge_is_as_the_standard_has_it(target: Any, patch: Any) -> None:
    """RFC 7396: what the patch names is as it says, what it does not name is as before, and twice is as once."""
    found = merged(target, patch)
    assert merged(found, patch) == found
    if not isinstance(patch, dict):
        assert found == patch
        return
    before = target if isinstance(target, dict) else {}
    assert {name: found[name] for name in found if name not in patch} == {
        name: value for name, value in before.items() if name not in patch
    }
    for name, value in patch.items():
        if value is None:
            assert name not in found
        else:
            assert found[name] == merged(before.get(name), value)


def test_what_has_a_result_is_not_run_again(front: Front) -> None:
    body = front.job_body(config={"preset": "int8"})
    first = front.http.post("/v1/jobs", json=body).json()["id"]
    waiting = front.http.post("/v1/jobs", json={**body, "reuse": True, "name": "other name"})
    assert (waiting.status_code, waiting.json()["id"], waiting.json()["reused_from"]) == (202, first, first)
    succeed(front, first, verdict="pass")
    there = front.http.post("/v1/jobs", json={**body, "reuse": True})
    assert (there.status_code, there.json()["id"], there.json()["reused_from"]) == (200, first, first)
    assert (there.json()["verdict"], len(there.json()["artifacts"])) == ("pass", 1)
    assert count_jobs(front.app.database) == 1
    assert front.http.post("/v1/jobs", json=body).json()["id"] != first, "only on request"


@pytest.mark.both_databases
def test_whatever_changes_the_result_runs_anew(front: Front) -> None:
    body = front.job_body()
    first = front.http.post("/v1/jobs", json=body).json()["id"]
    succeed(front, first)
    again = front.http.post("/v1/jobs", json=front.job_body(reuse=True))  # another model and dataset, of equal bytes
    assert (again.status_code, again.json()["id"]) == (200, first)
    for change in (
        {"config": {"seed": 9}},
        {"device": "cpu"},
        {"evaluation_dataset_id": body["calibration_dataset_id"]},
    ):
        answer = front.http.post("/v1/jobs", json={**body, **change, "reuse": True})
        assert (answer.status_code, answer.json()["reused_from"]) == (202, None)
        assert answer.json()["id"] != first
    # what failed or ends soon is no result
    ended = answer.json()["id"]
    front.fail(ended, EngineError("It broke."))
    canceling = front.http.post("/v1/jobs", json={**body, **change, "reuse": True}).json()["id"]
    assert canceling != ended
    front.claim(canceling)
    front.http.post(f"/v1/jobs/{canceling}/cancel")
    again = front.http.post("/v1/jobs", json={**body, **change, "reuse": True})
    assert again.json()["id"] not in (ended, canceling)


@pytest.mark.both_databases
def test_of_many_that_ask_at_once_one_is_run(front: Front) -> None:
    body = front.job_body(reuse=True)
    answers = at_once(8, lambda _: front.http.post("/v1/jobs", json=body))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_name_and_labels_change_whatever_the_state(front: Front) -> None:
    job = front.new_job(name="one", labels={"a": "1", "b": "2"})
    tag = front.http.get(f"/v1/jobs/{job}").headers["etag"]
    answer = front.http.patch(f"/v1/jobs/{job}", json={"labels": {"a": None, "c": "3"}})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["name"], answer.json()["labels"]) == ("one", {"b": "2", "c": "3"})
    assert answer.headers["etag"] != tag
    succeed(front, job)
    assert front.http.patch(f"/v1/jobs/{job}", json={"name": None}).json()["name"] == "tiny@1, int8"
    assert front.http.patch(f"/v1/jobs/{job}", json={"labels": None}).json()["labels"] == {"b": "2", "c": "3"}
    assert front.http.get("/v1/jobs", params={"label.c": "3"}).json()["items"][0]["id"] == job
    many = {f"k{number}": "x" for number in range(31)}
    assert pointers(problem(front.http.patch(f"/v1/jobs/{job}", json={"labels": many}), 422, "invalid-request"))


def test_a_job_that_has_ended_can_be_forgotten(front: Front) -> None:
    job = front.new_job()
    problem(front.http.delete(f"/v1/jobs/{job}"), 409, "job-not-ended")
    succeed(front, job)
    content = front.http.get(f"/v1/jobs/{job}").json()["artifacts"][0]["content"]
    assert front.http.delete(f"/v1/jobs/{job}").status_code == 204
    problem(front.http.get(f"/v1/jobs/{job}"), 404, "job-not-found")
    problem(front.http.delete(f"/v1/jobs/{job}"), 404, "job-not-found")
    assert front.http.get(content).status_code == 404
    with front.app.database.read() as session:
        for part in (JobEvent, Artifact, ReportRow):
            assert session.scalar(select(func.count()).select_from(part).where(part.job_id == job)) == 0
    # one that something belongs to stays
    made = front.http.post(f"/v1/models/{front.ready_model()}/inspect?target=onnxruntime_cpu").json()
    front.fail(made["job_id"], EngineError("It broke."))
    problem(front.http.delete(f"/v1/jobs/{made['job_id']}"), 409, "job-in-use")


def test_the_log_is_text_that_nobody_can_forge(front: Front) -> None:
    job = front.new_job()
    with front.app.database.write() as session:
        for message in ("layer conv1", "two\nlines \x1b[31m", "Grüße"):
            events.append(session, job, 0, "log", {"level": "warning", "message": message})
        events.append(session, job, 0, "progress", {"stage": "calibrate"})
    answer = front.http.get(f"/v1/jobs/{job}/logs")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == [
        "0 WARNING layer conv1",
        "0 WARNING two\\nlines \\x1b[31m",
        "0 WARNING Grüße",
    ]
    page = front.http.get(f"/v1/jobs/{job}/logs", params={"limit": 2})
    rest = front.http.get(page.headers["link"].partition("<")[2].partition(">")[0])
    assert page.text + rest.text == answer.text
    assert "link" not in rest.headers


@pytest.mark.both_databases
def test_lists_are_searched_by_name_preset_and_verdict(front: Front) -> None:
    body = front.job_body()
    nightly = front.new_job(**body, name="Nightly 100%_run")
    other = front.new_job(**body, name="nightly 100 other", config={"preset": "xint8"})
    succeed(front, nightly, verdict="fail")
    succeed(front, other, verdict="pass")
    found = partial(listed, front, "job")
    assert found(search="NIGHTLY") == [other, nightly]
    assert found(search="100%_") == [nightly]
    assert found(name="Nightly 100%_run") == [nightly]
    assert found(name="Nightly") == []
    assert found(preset="xint8") == [other]
    assert found(verdict="fail") == [nightly]
    assert found(verdict="pass", search="nightly") == [other]


@pytest.mark.both_databases
def test_the_page_of_jobs_is_filtered_by_the_outcome_that_it_shows(front: Front) -> None:
    clean, lost, doubted = (front.new_job(**front.job_body()) for _ in range(3))
    report = make_report("pass")
    sanity = GateClause(clause=SANITY, wanted=1.0, got=0.0, holds=False)
    critical = Finding(code="dead-channels", severity="critical", message="m", hint="h")
    front.finish(clean, QuantizeOutcome(report, ()))
    front.finish(lost, QuantizeOutcome(report.model_copy(update={"gate": (sanity,), "findings": (critical,)}), ()))
    front.finish(doubted, QuantizeOutcome(report.model_copy(update={"findings": (critical,)}), ()))
    for outcome, wanted in (("pass", clean), ("collapsed", lost), ("critical", doubted)):
        text = front.http.get("/jobs", params={"verdict": outcome}, headers={"Accept": "text/html"}).text
        assert re.findall(r'<a href="/jobs/(job_\w+)"', text) == [wanted], outcome
