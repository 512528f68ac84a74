"""Jobs that are there: repeated, changed, taken for another's result, renamed, read as text, forgotten."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from service.contracts.errors import EngineError, InvalidRequestError
from service.jobs import events
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.jobs.repeats import merged
from service.tables import Artifact, AuditEvent, Job, JobEvent, ReportRow
from tests.support.front import Front, make_report, pointers, problem


def deeds(front: Front) -> list[str]:
    with front.desk.database.read() as session:
        return [row.action for row in session.scalars(select(AuditEvent).order_by(AuditEvent.seq))]


def succeed(front: Front, job_id: str, verdict: str = "pass") -> None:
    data = job_id.encode()
    artifact = NewArtifact("model", "model.onnx", "application/octet-stream", front.store(data), len(data))
    front.finish(job_id, QuantizeOutcome(make_report(verdict), (artifact,)))


def quantizations(front: Front) -> int:
    with front.desk.database.read() as session:
        return session.scalar(select(func.count()).select_from(Job).where(Job.kind == "quantize")) or 0


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
    once_more = front.http.post(f"/v1/jobs/{first}/retry", headers={"Idempotency-Key": "again"})
    assert once_more.json()["id"] == second["id"]
    assert deeds(front)[-1] == "job.retry"


@pytest.mark.parametrize(("verb", "body"), [("retry", None), ("clone", {"name": "another"})])
def test_a_repetition_is_told_again_after_the_first_job_is_gone(front: Front, verb: str, body: object) -> None:
    first = front.new_job()
    front.fail(first, EngineError("It broke."))
    path, key = f"/v1/jobs/{first}/{verb}", {"Idempotency-Key": "again"}
    made = front.http.post(path, json=body, headers=key).json()
    assert front.http.delete(f"/v1/jobs/{first}").status_code == 204
    assert front.http.post(path, json=body, headers=key).json()["id"] == made["id"]
    problem(front.http.post(path, json=body), 404, "job-not-found")


def test_only_what_a_client_asked_for_is_repeated(front: Front) -> None:
    front.ready_model()
    with front.desk.database.read() as session:
        validation = session.scalar(select(Job.id).where(Job.kind == "inspect_model"))
    for verb, body in (("retry", None), ("clone", {})):
        problem(front.http.post(f"/v1/jobs/{validation}/{verb}", json=body), 409, "job-not-repeatable")


def test_a_clone_has_the_changes_and_keeps_the_rest(front: Front) -> None:
    first = front.new_job(name="one", labels={"a": "1", "b": "2"}, config={"preset": "int8", "seed": 3})
    patch = {"name": None, "labels": {"a": None, "c": "3"}, "config": {"seed": 4}}
    answer = front.http.post(f"/v1/jobs/{first}/clone", json=patch)
    assert answer.status_code == 202, answer.text
    made, before = answer.json(), front.http.get(f"/v1/jobs/{first}").json()
    assert (made["cloned_from"], made["name"], made["labels"]) == (first, None, {"b": "2", "c": "3"})
    assert made["config"] == {**before["config"], "seed": 4}
    assert deeds(front)[-1] == "job.clone"


def test_a_clone_by_another_preset_begins_from_that(front: Front) -> None:
    first = front.new_job(config={"preset": "int8", "seed": 3, "exclude": [{"op_type": "Conv"}]})
    made = front.http.post(f"/v1/jobs/{first}/clone", json={"config": {"preset": "xint8"}}).json()
    plain = front.http.post("/v1/jobs:validate", json={"config": {"preset": "xint8"}}).json()
    assert made["config"] == plain["config"]


@pytest.mark.parametrize(
    ("patch", "pointer"),
    [
        ({"priority": 101}, "/priority"),
        ({"surprise": 1}, "/surprise"),
        ({"config": {"seed": "x"}}, "/config/seed"),
        ({"model_id": None}, "/model_id"),
        ({"labels": {"a b": "1"}}, "/labels/a b/[key]"),
    ],
)
def test_a_clone_that_is_no_request_is_refused(sqlite_front: Front, patch: dict[str, Any], pointer: str) -> None:
    first = sqlite_front.new_job()
    answer = sqlite_front.http.post(f"/v1/jobs/{first}/clone", json=patch)
    assert answer.status_code == 422, answer.text
    assert pointers(answer.json()) == [pointer]
    assert quantizations(sqlite_front) == 1


def test_hostile_patches_are_refused(sqlite_front: Front) -> None:
    first = sqlite_front.new_job()
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    for patch in ({"config": deep}, deep, {"config": {"exclude": [{"name": "x"}] * 100_000}}):
        answer = sqlite_front.http.post(f"/v1/jobs/{first}/clone", json=patch)
        assert answer.status_code == 422, answer.text
    for body in ("[]", "1", "null"):
        answer = sqlite_front.http.post(
            f"/v1/jobs/{first}/clone", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code == 422, answer.text


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
    succeed(front, first)
    there = front.http.post("/v1/jobs", json={**body, "reuse": True})
    assert (there.status_code, there.json()["id"], there.json()["reused_from"]) == (200, first, first)
    assert (there.json()["verdict"], len(there.json()["artifacts"])) == ("pass", 1)
    assert quantizations(front) == 1
    assert deeds(front)[-1] == "job.reuse"
    assert front.http.post("/v1/jobs", json=body).json()["id"] != first, "only on request"


def test_the_same_bytes_uploaded_anew_are_the_same(front: Front) -> None:
    first = front.new_job()
    succeed(front, first)
    again = front.http.post("/v1/jobs", json=front.job_body(reuse=True))  # another model and dataset, of equal bytes
    assert (again.status_code, again.json()["id"]) == (200, first)


@pytest.mark.parametrize("change", [{"config": {"seed": 9}}, {"device": "cpu"}, {"evaluation_dataset_id": "same"}])
def test_whatever_changes_the_result_runs_anew(front: Front, change: dict[str, Any]) -> None:
    body = front.job_body()
    first = front.http.post("/v1/jobs", json=body).json()["id"]
    succeed(front, first)
    if "evaluation_dataset_id" in change:
        change = {"evaluation_dataset_id": body["calibration_dataset_id"]}
    answer = front.http.post("/v1/jobs", json={**body, **change, "reuse": True})
    assert (answer.status_code, answer.json()["reused_from"]) == (202, None)
    assert answer.json()["id"] != first


def test_what_failed_or_ends_soon_is_no_result(front: Front) -> None:
    body = front.job_body()
    failed = front.http.post("/v1/jobs", json=body).json()["id"]
    front.fail(failed, EngineError("It broke."))
    canceling = front.http.post("/v1/jobs", json={**body, "reuse": True}).json()["id"]
    assert canceling != failed
    front.claim(canceling)
    front.http.post(f"/v1/jobs/{canceling}/cancel")
    assert front.http.post("/v1/jobs", json={**body, "reuse": True}).json()["id"] not in (failed, canceling)


def test_of_many_that_ask_at_once_one_is_run(front: Front) -> None:
    body, start = front.job_body(reuse=True), threading.Barrier(8)

    def ask(_: int) -> str:
        start.wait()
        answer = front.http.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1


def test_name_and_labels_change_whatever_the_state(front: Front) -> None:
    job = front.new_job(name="one", labels={"a": "1", "b": "2"})
    tag = front.http.get(f"/v1/jobs/{job}").headers["etag"]
    answer = front.http.patch(f"/v1/jobs/{job}", json={"labels": {"a": None, "c": "3"}})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["name"], answer.json()["labels"]) == ("one", {"b": "2", "c": "3"})
    assert answer.headers["etag"] != tag
    succeed(front, job)
    assert front.http.patch(f"/v1/jobs/{job}", json={"name": None}).json()["name"] is None
    assert front.http.patch(f"/v1/jobs/{job}", json={"labels": None}).json()["labels"] == {"b": "2", "c": "3"}
    assert front.http.get("/v1/jobs", params={"label.c": "3"}).json()["items"][0]["id"] == job
    many = {f"k{number}": "x" for number in range(31)}
    assert pointers(problem(front.http.patch(f"/v1/jobs/{job}", json={"labels": many}), 422, "invalid-request"))
    assert deeds(front)[-1] == "job.rename"


def test_a_job_that_has_ended_can_be_forgotten(front: Front) -> None:
    job = front.new_job()
    problem(front.http.delete(f"/v1/jobs/{job}"), 409, "job-not-ended")
    succeed(front, job)
    content = front.http.get(f"/v1/jobs/{job}").json()["artifacts"][0]["content"]
    assert front.http.delete(f"/v1/jobs/{job}").status_code == 204
    problem(front.http.get(f"/v1/jobs/{job}"), 404, "job-not-found")
    problem(front.http.delete(f"/v1/jobs/{job}"), 404, "job-not-found")
    assert front.http.get(content).status_code == 404
    with front.desk.database.read() as session:
        for part in (JobEvent, Artifact, ReportRow):
            assert session.scalar(select(func.count()).select_from(part).where(part.job_id == job)) == 0
    assert deeds(front)[-1] == "job.delete"


def test_a_job_that_something_belongs_to_stays(front: Front) -> None:
    model = front.ready_model()
    made = front.http.post(f"/v1/models/{model}/inspect?target=onnxruntime_cpu")
    assert made.status_code == 202, made.text
    with front.desk.database.read() as session:
        job = session.scalar(select(Job.id).where(Job.kind == "inspect_target"))
    assert job is not None
    front.fail(job, EngineError("It broke."))
    problem(front.http.delete(f"/v1/jobs/{job}"), 409, "job-in-use")


def test_the_log_is_text_that_nobody_can_forge(front: Front) -> None:
    job = front.new_job()
    with front.desk.database.write() as session:
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


def test_lists_are_searched_by_name_preset_and_verdict(front: Front) -> None:
    body = front.job_body()
    nightly = front.new_job(**body, name="Nightly 100%_run")
    other = front.new_job(**body, name="nightly 100 other", config={"preset": "xint8"})
    succeed(front, nightly, "fail")
    succeed(front, other, "pass")

    def found(**query: str) -> list[str]:
        answer = front.http.get("/v1/jobs", params=query)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["items"]]

    assert found(search="NIGHTLY") == [other, nightly]
    assert found(search="100%_") == [nightly]
    assert found(name="Nightly 100%_run") == [nightly]
    assert found(name="Nightly") == []
    assert found(preset="xint8") == [other]
    assert found(verdict="fail") == [nightly]
    assert found(verdict="pass", search="nightly") == [other]


def test_no_depth_is_merged_without_end() -> None:
    patch: Any = {}
    for _ in range(10_000):
        patch = {"a": patch}
    with pytest.raises(InvalidRequestError, match="deep"):
        merged({}, patch)
