"""Jobs: checked before anything is stored, then created, found, waited for, canceled."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

import service.http
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import ArraySummary, LabelSummary
from service.contracts.errors import EngineError
from service.contracts.report import FallbackKind
from service.contracts.runner import ProgressLine
from service.jobs import transitions
from service.jobs.outcome import QuantizeOutcome
from tests.api.test_names import listed, make
from tests.support.front import Front, dataset_summary, fallen_back, make_report, pointers, problem, taken
from tests.support.schedules import count_jobs

JSON = {"Accept": "application/json"}
MISSING = {"model": f"mdl_{'0' * 26}", "dataset": f"dst_{'0' * 26}"}


@pytest.mark.both_databases
def test_create(front: Front) -> None:
    body = front.job_body(config={"preset": "int8_percentile", "seed": 7}, name="nightly", labels={"team": "vision"})
    body["evaluation_dataset_id"] = front.ready_dataset()
    made = front.http.post("/v1/jobs", json=body)
    assert made.status_code == 202
    job = made.json()
    assert made.headers["location"] == job["links"]["self"] == f"/v1/jobs/{job['id']}"
    assert made.headers["retry-after"] == "2"
    assert (job["state"], job["kind"], job["attempt"], job["name"]) == ("queued", "quantize", 0, "nightly")
    assert job["labels"] == {"team": "vision"}
    assert job["evaluation_dataset_id"] == body["evaluation_dataset_id"]
    resolved = QuantizationConfig.model_validate({"preset": "int8_percentile", "seed": 7})
    assert job["config"] == resolved.model_dump(mode="json")
    assert front.http.get(job["links"]["self"]).json() == job
    plain = front.http.get(f"/v1/jobs/{front.new_job()}").json()
    assert plain["config"] == QuantizationConfig().model_dump(mode="json")


@pytest.mark.both_databases
def test_a_job_without_a_name_is_called_by_its_model_and_recipe(front: Front) -> None:
    model = front.http.get(f"/v1/models/{front.ready_model()}").json()
    data, called = front.ready_dataset(), f"{model['name']}@{model['version']}"
    of_both = {"model_id": model["id"], "calibration_dataset_id": data}
    equalized = {"preset": "xint8", "algorithms": [{"method": "cross_layer_equalization"}]}
    jobs = {
        f"{called}, xint8 + CLE": front.new_job(config=equalized, **of_both),
        f"{called}, int8": front.new_job(**of_both),
        "given": front.new_job(name="given", **of_both),
    }
    evaluation = {"model_id": model["id"], "evaluation_dataset_id": data}
    jobs[f"Evaluate {called}"] = front.http.post("/v1/evaluations", json=evaluation).json()["id"]
    listed = front.http.get("/v1/jobs").json()["items"]
    assert {job["name"]: job["id"] for job in listed if job["id"] in jobs.values()} == jobs
    for search in (f"{called}, XINT8", "xint", f"Evaluate {model['name']}"):
        found = front.http.get("/v1/jobs", params={"search": search}).json()["items"]
        (only,) = [job["name"] for job in found if job["id"] in jobs.values()]
        assert search.casefold() in only.casefold()
    other = front.http.post(f"/v1/jobs/{jobs[f'{called}, int8']}/clone", json={"config": {"preset": "a16w8"}})
    assert other.json()["name"] == f"{called}, a16w8", "a default name is not taken over"


def test_a_bad_config_is_refused_before_anything_is_stored(front: Front) -> None:
    body = {"model_id": MISSING["model"], "calibration_dataset_id": MISSING["dataset"]}
    low = {"method": "percentile", "percentile": 12}
    conv = [{"op_type": "Conv"}]
    configs: list[tuple[Any, str, str]] = [
        ({"activaton": {}}, "/activaton", "did you mean 'activation'?"),
        ({"activation": {"dtype": "int3"}}, "/activation/dtype", "uint8"),
        ({"preset": "int9"}, "/preset", "unknown preset 'int9'"),
        ({"activation": {"calibration": low}}, "/activation/calibration/percentile", "greater than 50"),
        ({"include": conv, "exclude": conv}, "/exclude/0", "include and in exclude"),
        ("int8", "", "must be an object"),
    ]
    for config, pointer, said in configs:
        for path in ("/v1/jobs", "/v1/jobs:validate"):
            answer = problem(front.http.post(path, json={**body, "config": config}), 422, "invalid-config")
            assert pointers(answer) == [f"/config{pointer}"]
            assert said in answer["detail"]
    assert count_jobs(front.app.database) == 0


def test_a_bad_request_is_refused(front: Front) -> None:
    ids = {"model_id": "m", "calibration_dataset_id": "d"}
    for body, pointer in (
        ({}, "/model_id"),
        ([], ""),
        ({**ids, "labels": {"-bad": "x"}}, "/labels/-bad/[key]"),
        ({**ids, "labels": {"a": "x\x00"}}, "/labels/a"),
        ({**ids, "name": ""}, "/name"),
        ({**ids, "priority": 101}, "/priority"),
        ({**ids, "priority": 1.5}, "/priority"),
        ({**ids, "name": "a\x1bb"}, "/name"),
        ({**ids, "model": "x"}, "/model"),
    ):
        assert pointer in pointers(problem(front.http.post("/v1/jobs", json=body), 422, "invalid-request"))


@pytest.mark.both_databases
@pytest.mark.parametrize("field", ["model_id", "calibration_dataset_id", "evaluation_dataset_id"])
def test_an_input_that_cannot_be_used_is_told_at_its_field(front: Front, field: str) -> None:
    noun, other = ("model", "dataset") if field == "model_id" else ("dataset", "model")
    made = {state: getattr(front, f"{state}_{noun}")() for state in ("new", "rejected")}
    make(front, noun, "slow", ready=False)
    whole = {**front.job_body(), "evaluation_dataset_id": front.ready_dataset()}
    cases = [
        (MISSING[noun], 404, "not-found"),
        (MISSING[other], 404, "not-found"),
        ("x\x00y", 404, "not-found"),
        ("nobody@1", 404, "not-found"),
        ("slow", 404, "not-found"),
        (made["new"], 409, "not-ready"),
        ("slow@1", 409, "not-ready"),
        ("slow@latest", 409, "not-ready"),
        (made["rejected"], 422, "rejected"),
    ]
    for given, status, code in cases:
        for path in ("/v1/jobs", "/v1/jobs:validate"):
            answer = front.http.post(path, json={**whole, field: given})
            told = problem(answer, status, f"{noun}-{code}")
            assert pointers(told) == [f"/{field}"]
            assert (answer.headers.get("retry-after") == "1") is (status == 409)
    reason = "not-onnx" if noun == "model" else "non-finite-data"
    assert told["errors"][0]["code"] == told["where"]["reasons"][0]["code"] == reason
    assert count_jobs(front.app.database) == 0


@pytest.mark.parametrize("field", ["calibration_dataset_id", "evaluation_dataset_id"])
def test_data_that_does_not_fit_the_model(front: Front, field: str) -> None:
    body = front.job_body()
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"z": ArraySummary(dtype="float32", shape=(4, 3, 8, 8))}, "array-missing", "'x'"),
        ({"x": ArraySummary(dtype="int64", shape=(4, 3, 8, 8))}, "dtype", "int64"),
        ({"x": ArraySummary(dtype="float32", shape=(4, 3))}, "rank", "rank is 2"),
        ({"x": ArraySummary(dtype="float32", shape=(4, 3, 9, 8))}, "shape", "axis 2 is 9"),
    ]
    if field == "evaluation_dataset_id":
        labels = LabelSummary(array="labels", count=32, minimum=0, maximum=5)
        cases.append(({"labels": labels}, "labels-out-of-range", "[0, 4]"))
    for summary, code, said in cases:
        body[field] = front.ready_dataset(dataset_summary(**summary))
        for path in ("/v1/jobs", "/v1/jobs:validate"):
            told = problem(front.http.post(path, json=body), 422, "dataset-mismatch")
            assert [(error["pointer"], error["code"]) for error in told["errors"]] == [(f"/{field}", code)]
            assert said in told["detail"]
    assert count_jobs(front.app.database) == 0


def test_validate_resolves_and_stores_nothing(front: Front) -> None:
    answer = taken(front.http.post("/v1/jobs:validate", json={"config": {"preset": "int8_symmetric"}}))
    activation = answer["config"]["activation"]
    assert (activation["dtype"], activation["symmetric"]) == ("int8", True)
    resolved = answer["config"]
    assert front.http.post("/v1/jobs:validate", json={"config": resolved}).json()["config"] == resolved
    assert any("evaluation" in warning for warning in answer["warnings"])
    body = front.job_body(config={"evaluation": {"gate": {"max_drop": 1.0}}})
    body["evaluation_dataset_id"] = body["calibration_dataset_id"]
    for path in ("/v1/jobs:validate", "/v1/jobs"):
        answer = problem(front.http.post(path, json=body), 422, "invalid-config")
        assert "labels" in answer["detail"]
        assert pointers(answer) == ["/config/evaluation/gate/metric"]
    problem(front.http.post("/v1/jobs:validate", json={"model_id": MISSING["model"]}), 404, "model-not-found")
    assert count_jobs(front.app.database) == 0


def test_a_running_job_shows_how_far_it_has_come(front: Front) -> None:
    job_id = front.new_job()
    front.claim(job_id)
    seen = []
    for more in ({}, {"share": 0.42, "seconds_left": 35.0}):
        with front.app.database.write() as session:
            line = ProgressLine(stage="ranges", done=3, total=10, unit="batches", **more)
            assert transitions.record_progress(session, job_id, 1, line)
        job = front.http.get(f"/v1/jobs/{job_id}").json()
        assert (job["state"], job["stage"], job["attempt"]) == ("running", "ranges", 1)
        assert job["started_at"] is not None
        seen.append(job["progress"])
    plain = {"done": 3, "total": 10, "unit": "batches", "message": "", "share": None, "seconds_left": None}
    assert seen == [plain, {**plain, "share": 0.42, "seconds_left": 35.0}]
    event = front.http.get(f"/v1/jobs/{job_id}/events", headers=JSON).json()["items"][-1]
    assert (event["type"], event["data"]["share"], event["data"]["seconds_left"]) == ("progress", 0.42, 35.0)
    with front.app.database.write() as session:
        assert transitions.succeed(session, job_id, 1, result=QuantizeOutcome(make_report(), ()))
    shown = front.http.get(f"/v1/jobs/{job_id}").json()["progress"]
    assert (shown["share"], shown["seconds_left"]) == (1.0, 0.0)


def test_a_succeeded_job_links_to_what_it_made(front: Front) -> None:
    job_id = front.succeeded_job()
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert (job["state"], job["verdict"], job["error"]) == ("succeeded", "none", None)
    report = front.http.get(f"/v1/jobs/{job_id}/report")
    assert (report.json()["float"]["metrics"], report.json()["schema_version"]) == ({"top1": 90.0}, 2)
    unchanged = front.http.get(f"/v1/jobs/{job_id}/report", headers={"If-None-Match": report.headers["etag"]})
    assert unchanged.status_code == 304
    assert [artifact["kind"] for artifact in job["artifacts"]] == ["model"]
    assert front.http.get(job["artifacts"][0]["content"]).content == b"quantized bytes"
    listed = front.http.get("/v1/jobs").json()["items"]
    config = job.pop("config")
    assert job.pop("reused_from") is None
    assert listed == [job]
    assert (job["model_name"], job["model_version"]) == ("tiny", 1)
    metric = {"name": "top1", "unit": "%", "float": 90.0, "quantized": 89.5, "drop": 0.5, "significant": None}
    metric |= {"drop_interval": None, "samples": None}
    assert job["figures"]["metrics"] == [metric]
    assert (job["figures"]["quantized_size_bytes"], job["figures"]["sqnr_db"]) == (1000, 30.0)
    assert job["seconds"] >= 0
    assert (job["preset"], job["algorithms"]) == (config["preset"], [step["method"] for step in config["algorithms"]])


def test_a_failed_job_carries_its_problem_and_no_report(front: Front) -> None:
    job_id = front.new_job()
    front.fail(job_id, EngineError("It broke.", hint="Report it.", node="conv1"))
    job = front.http.get(f"/v1/jobs/{job_id}").json()
    assert job["state"] == "failed"
    assert (job["error"]["code"], job["error"]["where"]) == ("engine-error", {"node": "conv1"})


def test_a_job_tells_which_model_it_returns_where_the_quantized_one_was_too_slow(front: Front) -> None:
    kinds: tuple[FallbackKind | None, ...] = ("planned", "float", None)
    made = {front.new_job(): kind for kind in kinds}
    for job_id, kind in made.items():
        report = make_report("pass")
        front.finish(job_id, QuantizeOutcome(fallen_back(report, kind) if kind else report, ()))
        assert front.http.get(f"/v1/jobs/{job_id}").json()["fallback"] == kind
        events = front.http.get(f"/v1/jobs/{job_id}/events", headers=JSON).json()["items"]
        assert events[-1]["data"].get("fallback") == kind
    assert {job["id"]: job["fallback"] for job in front.http.get("/v1/jobs").json()["items"]} == made


def test_entity_tags(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.http, "_AGAIN_SECONDS", 1e6)  # nobody waits for it who has asked for less
    job_id = front.new_job()
    path = f"/v1/jobs/{job_id}"
    first = front.http.get(path)
    assert first.headers["retry-after"] == "2"
    again = front.http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    front.claim(job_id)
    changed = front.http.get(path, headers={"If-None-Match": first.headers["etag"]})
    assert (changed.status_code, changed.json()["state"]) == (200, "running")
    with front.app.database.write() as session:
        transitions.renew(session, job_id, 1, lease_seconds=60)
    kept = front.http.get(path, headers={"If-None-Match": changed.headers["etag"]})
    assert kept.status_code == 304, "a renewal changes nothing that can be seen"
    tag = {"If-None-Match": changed.headers["etag"]}
    assert front.http.get(f"{path}?wait=0.05", headers=tag).status_code == 304
    for wait in ("-1", "31", "long"):
        problem(front.http.get(f"{path}?wait={wait}"), 422, "invalid-request")


@pytest.mark.parametrize("tagged", [False, True])
def test_waiting_ends_with_the_job_or_by_a_tag_with_any_change(front: Front, endless_wait: None, tagged: bool) -> None:
    job_id = front.new_job()
    headers = {"If-None-Match": front.http.get(f"/v1/jobs/{job_id}").headers["etag"]} if tagged else {}
    change = partial(front.claim, job_id) if tagged else partial(front.fail, job_id, EngineError("x"))
    timer = threading.Timer(0.1, change)
    timer.start()
    seen = front.http.get(f"/v1/jobs/{job_id}?wait=20", headers=headers)
    timer.join()
    assert seen.json()["state"] == ("running" if tagged else "failed")


def test_cancel(front: Front) -> None:
    queued, running, done = front.new_job(), front.new_job(), front.succeeded_job()
    front.claim(running)

    answer = front.http.post(f"/v1/jobs/{queued}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "canceled")
    answer = front.http.post(f"/v1/jobs/{running}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "canceling")
    first_asked = answer.json()["cancel_requested_at"]
    answer = front.http.post(f"/v1/jobs/{running}/cancel")
    assert (answer.status_code, answer.json()["cancel_requested_at"]) == (202, first_asked)
    answer = front.http.post(f"/v1/jobs/{done}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "succeeded")

    with front.app.database.write() as session:
        assert not transitions.succeed(session, running, 1, result=None)
        assert transitions.finish_cancel(session, running, 1)
    assert front.http.get(f"/v1/jobs/{running}").json()["state"] == "canceled"
    answer = front.http.post(f"/v1/jobs/{running}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "canceled")


@pytest.mark.both_databases
def test_list_filters(front: Front) -> None:
    shared = front.job_body()
    other_model = front.ready_model()
    plain = front.new_job(**shared)
    labeled = front.new_job(**shared, labels={"team": "vision", "run.id/x": "7"})
    elsewhere = front.new_job(**{**shared, "model_id": other_model}, labels={"team": "audio"})
    canceling = front.new_job(**shared)
    front.claim(canceling)
    front.http.post(f"/v1/jobs/{canceling}/cancel")
    running = front.new_job(**shared)
    front.claim(running)
    found = partial(listed, front, "job")
    assert found() == [running, canceling, elsewhere, labeled, plain]
    assert found(state="running") == [running]
    assert found(state="canceling") == [canceling]
    assert found(state="queued") == [elsewhere, labeled, plain]
    assert found(state="succeeded") == []
    assert found(model_id=other_model) == [elsewhere]
    assert found(**{"label.team": "vision"}) == [labeled]
    assert found(**{"label.team": "vision", "label.run.id/x": "7"}) == [labeled]
    assert found(**{"label.team": "vision", "label.run.id/x": "8"}) == []
    assert found(**{"label.none": "x"}) == []
    created = front.http.get(f"/v1/jobs/{labeled}").json()["created_at"]
    assert found(created_after=created)[-1] in (labeled, elsewhere)
    assert found(created_before="2020-01-01T00:00:00Z") == []


def test_bad_list_queries_are_told_by_their_parameter(front: Front) -> None:
    for query, name in (
        ("state=dreaming", "state"),
        *((f"created_after={moment}", "created_after") for moment in ("yesterday", "0.5", "-1", "2026-01-05", "inf")),
        ("created_after=2026-01-01T00:00:00", "created_after"),
        ("label.=x", "label."),
        ("label.a=1&label.a=2", "label.a"),
        ("label.a%22b=1", 'label.a"b'),
        ("label.a=%00", "label.a"),
        ("model_id=%00", "model_id"),
    ):
        told = problem(front.http.get(f"/v1/jobs?{query}"), 422, "invalid-request")
        assert [(error["pointer"], error["where"]) for error in told["errors"]] == [("", {"query": name})]


def test_a_job_without_data_asks_for_random_data_or_is_refused(front: Front) -> None:
    body = front.job_body()
    del body["calibration_dataset_id"]
    told = problem(front.http.post("/v1/jobs", json=body), 422, "calibration-missing")
    assert pointers(told) == ["/calibration_dataset_id"]
    assert "random_calibration" in told["hint"] and "UseRandomData" not in told["hint"]
    gated = {"random_calibration": {}, "evaluation": {"gate": {"min_sqnr_db": 20}}}
    told = problem(front.http.post("/v1/jobs", json={**body, "config": gated}), 422, "invalid-config")
    assert pointers(told) == ["/config/evaluation/gate/min_sqnr_db"]
    quark = {"format": "quark", "config": {"extra_options": {"UseRandomData": True}}}
    # nor do recipes that take no ranges
    without = [{"preset": preset} for preset in ("int8_dynamic", "int4_weights", "float16_model")]
    for config in ({"random_calibration": {}}, quark, *without):
        made = taken(front.http.post("/v1/jobs", json={**body, "config": config}), 202)
        assert made["calibration_dataset_id"] is None
    shown = front.http.post("/v1/jobs:validate", json={**body, "config": {"random_calibration": {}}}).json()
    assert "accuracy figures are not meaningful" in shown["warnings"][0]
