"""Where a job goes, who takes it, what it takes and when it ends: told before it runs, learned from what jobs took."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import func, select, update

from service.contracts.errors import EngineError
from service.contracts.model import ForwardPass, MatrixKind, Work
from service.contracts.report import StageFigures
from service.db import db_now
from service.estimates import service as estimates
from service.estimates import waiting
from service.jobs import transitions
from service.jobs.outcome import QuantizeOutcome
from service.jobs.queues import is_short
from service.queues.repository import ALIVE_SECONDS, announce, forget_gone, live_queues, note_deaf
from service.quotas.repository import set_quota
from service.tables import Job, JobEstimate, JobTiming, Worker
from tests.support.batches import grid_body, job_of, submitted
from tests.support.front import Front, make_report, model_summary, pointers, problem, taken

CUDA = {"algorithms": [{"method": "cross_layer_equalization"}, {"method": "adaround", "optim_device": "cuda:0"}]}
INFER = {"algorithms": [{"method": "adaround", "infer_device": "rocm"}]}
FAST = {"include_fast_ft": True, "extra_options": {"FastFinetune": {"OptimDevice": "cuda:0"}}}
QUARK = {"format": "quark", "config": {"global_quant_config": FAST}}


@pytest.fixture
def with_gpu(front: Front) -> Front:
    with front.app.database.write() as session:
        announce(session, "one with a GPU", {"gpu": 2})
    return front


@pytest.mark.parametrize(
    ("config", "pointer"),
    [(CUDA, "/config/algorithms/1/optim_device"), (INFER, "/config/algorithms/0/infer_device"), (None, "/device")],
)
def test_a_gpu_is_refused_where_there_is_none(front: Front, config: Any, pointer: str) -> None:
    asked = {"device": "gpu"} if config is None else {"config": config}
    for path in ("/v1/jobs", "/v1/jobs:validate"):
        answer = front.http.post(path, json=front.job_body(**asked))
        body = problem(answer, 409, "no-gpu-worker")
        assert pointers(body) == [pointer]
        assert "--queues gpu" in body["hint"]
    answer = front.http.post("/v1/jobs", json=front.job_body(config=QUARK))
    (pointer,) = pointers(problem(answer, 409, "no-gpu-worker"))
    assert pointer.endswith("/FastFinetune/OptimDevice")


def test_a_config_for_a_gpu_contradicts_a_cpu(with_gpu: Front) -> None:
    answer = with_gpu.http.post("/v1/jobs", json=with_gpu.job_body(config=CUDA, device="cpu"))
    body = problem(answer, 422, "invalid-config")
    assert pointers(body) == ["/config/algorithms/1/optim_device"]
    assert "cuda:0" in body["detail"]


def test_jobs_go_where_validation_tells(with_gpu: Front) -> None:
    for changes, placed in (
        ({"config": CUDA}, ("gpu", "gpu", "long")),
        ({"config": {"algorithms": []}}, ("cpu", "cpu", "short")),
        ({"config": {"algorithms": []}, "device": "gpu"}, ("gpu", "gpu", "short")),
        ({"config": CUDA, "device": "gpu"}, ("gpu", "gpu", "long")),
    ):
        found = with_gpu.http.post("/v1/jobs:validate", json=changes).json()
        assert (found["device"], found["queue"], found["size_class"]) == placed
        assert any("GPU will be idle" in warning for warning in found["warnings"]) is (placed[1:] == ("gpu", "short"))
        job = with_gpu.http.get(f"/v1/jobs/{with_gpu.new_job(**changes)}").json()
        assert (job["queue"], job["device"]) == (placed[1], changes.get("device", "auto"))
        assert (job["size_class"], job["priority"]) == (placed[2], 0)
    assert with_gpu.http.get(f"/v1/jobs/{with_gpu.new_job(priority=17)}").json()["priority"] == 17


def test_what_counts_as_short() -> None:
    for algorithms, size_bytes, samples, short in (
        ([], 100, 10, True),
        ([], 101, 10, False),
        ([], 100, 11, False),
        (["smooth_quant", "bias_correction"], 1, 1, True),
        (["adaround"], 1, 1, False),
        (["qat"], 1, 1, False),
        (["sensitivity"], 1, 1, False),
    ):
        found = is_short(algorithms, size_bytes=size_bytes, samples=samples, most_bytes=100, most_samples=10)
        assert found is short, algorithms


def test_the_queues_are_shown(with_gpu: Front) -> None:
    job_id = with_gpu.new_job()
    with_gpu.new_job(config=CUDA)
    with_gpu.claim(job_id)
    answer = with_gpu.http.get("/v1/queues")
    found = {queue["name"]: queue for queue in answer.json()["items"]}
    assert set(found) == {"cpu", "gpu", "inspect"}
    assert (found["cpu"]["running"], found["cpu"]["queued"]) == (1, {"due": 0, "delayed": 0})
    assert found["cpu"]["oldest_due_age_seconds"] is None
    assert (found["cpu"]["wanted_slots"], found["cpu"]["waited_seconds"]) == (1, 0)
    assert found["gpu"]["queued"] == {"due": 1, "delayed": 0}
    assert found["gpu"]["wanted_slots"] == 1
    assert found["gpu"]["waited_seconds"] == found["gpu"]["oldest_due_age_seconds"]
    assert found["gpu"]["oldest_due_age_seconds"] >= 0
    assert (found["gpu"]["workers"], found["gpu"]["slots"]) == (1, {"total": 2, "busy": 0, "free": 2, "short": 0})
    problem(with_gpu.http.get("/v1/queues?state=due"), 422, "invalid-request")
    for deaf in (True, False):
        with with_gpu.app.database.write() as session:
            announce(session, "two queues", {"gpu": 3, "inspect": 3})
            note_deaf(session, "two queues", deaf=deaf)
        items = with_gpu.http.get("/v1/queues").json()["items"]
        crews = {queue["name"]: (queue["workers"], queue["deaf_workers"], queue["slots"]["total"]) for queue in items}
        assert crews == {"cpu": (0, 0, 0), "gpu": (2, int(deaf), 5), "inspect": (1, int(deaf), 3)}


@pytest.mark.both_databases
def test_a_tenant_is_shown_its_own_part_of_a_queue(front: Front) -> None:
    def act_as(tenant: str) -> None:
        front.http.headers.pop("Authorization", None)
        key = front.http.post("/v1/keys", json={"name": "ci", "tenant": tenant}).json()["key"]
        front.http.headers["Authorization"] = f"Bearer {key}"

    def queues() -> dict[str, Any]:
        return {queue["name"]: queue for queue in front.http.get("/v1/queues").json()["items"]}

    act_as("a")
    claimed, _ = front.new_model(), front.new_model()
    act_as("b")
    front.new_model()
    front.claim(front.inspect_job(model_id=claimed))
    found = queues()
    assert (found["inspect"]["queued"]["due"], found["inspect"]["running"]) == (2, 1), "of all tenants"
    assert found["inspect"]["own"].pop("oldest_due_age_seconds") >= 0
    assert found["inspect"]["own"] == {"queued": {"due": 1, "delayed": 0}, "running": 0}
    nothing = {"queued": {"due": 0, "delayed": 0}, "running": 0, "oldest_due_age_seconds": None}
    assert found["cpu"]["own"] == nothing
    act_as("a")
    own = queues()["inspect"]["own"]
    assert (own["queued"], own["running"]) == ({"due": 1, "delayed": 0}, 1)


def test_an_autoscaler_is_told_of_no_job_that_its_tenants_limit_keeps_back(with_gpu: Front) -> None:
    for _ in range(3):
        job_id = with_gpu.new_job()
    with_gpu.claim(job_id)
    for limit, wanted in ((None, 3), (2, 3), (1, 1)):
        with with_gpu.app.database.write() as session:
            set_quota(session, "default", {"jobs_running": limit})
        (cpu,) = (one for one in with_gpu.http.get("/v1/queues").json()["items"] if one["name"] == "cpu")
        assert (cpu["queued"]["due"], cpu["wanted_slots"]) == (2, wanted)
        assert (cpu["waited_seconds"] > 0) == (wanted > 1)


@pytest.fixture
def watched(front: Front) -> Front:
    """A service that has been there long enough to have seen any worker."""
    front.http.app.state.app = replace(front.app, opened_at=front.app.opened_at - 2 * ALIVE_SECONDS)
    return front


def queued_long_ago(front: Front, **values: Any) -> str:
    job_id = front.new_job()
    with front.app.database.write() as session:
        long_ago = db_now() - 2 * ALIVE_SECONDS
        session.execute(update(Job).where(Job.id == job_id).values(queued_at=long_ago, not_before=long_ago, **values))
    return job_id


def told_waiting(front: Front, job_id: str) -> Any:
    return front.http.get(f"/v1/jobs/{job_id}").json()["waiting"]


def test_a_job_without_a_worker_says_so(watched: Front) -> None:
    job_id = queued_long_ago(watched, queue="gpu")
    told = told_waiting(watched, job_id)
    assert told["code"] == "no-worker"
    assert "queue gpu" in told["message"]
    assert "--queues gpu" in told["hint"]
    (listed,) = watched.http.get("/v1/jobs").json()["items"]
    assert listed["waiting"] == told
    with watched.app.database.write() as session:
        announce(session, "a worker for others", {"cpu": 1, "inspect": 1})
    assert told_waiting(watched, job_id) == told
    tag = {"If-None-Match": watched.http.get(f"/v1/jobs/{job_id}").headers["etag"]}
    assert watched.http.get(f"/v1/jobs/{job_id}", headers=tag).status_code == 304
    with watched.app.database.write() as session:
        announce(session, "its worker", {"cpu": 1, "gpu": 1})
    answer = watched.http.get(f"/v1/jobs/{job_id}", headers=tag)
    assert (answer.status_code, answer.json()["waiting"]) == (200, None)


def test_nothing_is_said_while_workers_may_only_be_starting_or_of_jobs_that_have_just_come_or_run(front: Front) -> None:
    job_id = queued_long_ago(front)
    assert told_waiting(front, job_id) is None
    front.http.app.state.app = replace(front.app, opened_at=front.app.opened_at - 2 * ALIVE_SECONDS)
    assert told_waiting(front, job_id) is not None
    assert told_waiting(front, front.new_job()) is None
    front.claim(job_id)
    assert told_waiting(front, job_id) is None


def test_a_worker_that_fell_silent_does_not_count(watched: Front) -> None:
    job_id = queued_long_ago(watched)
    with watched.app.database.write() as session:
        announce(session, "worker", {"cpu": 1})
        assert live_queues(session, {"cpu", "gpu"}) == {"cpu"}
        session.execute(update(Worker).values(seen_at=db_now() - 2 * ALIVE_SECONDS))
        assert live_queues(session, {"cpu", "gpu"}) == set()
    assert told_waiting(watched, job_id)["code"] == "no-worker"


@pytest.mark.both_databases
def test_workers_that_are_long_gone_are_forgotten(front: Front) -> None:
    with front.app.database.write() as session:
        announce(session, "old", {"cpu": 1})
        session.execute(update(Worker).values(seen_at=db_now() - 7 * 24 * 3600.0))
        announce(session, "new", {"cpu": 1, "gpu": 1})
        forget_gone(session)
        assert {(row.id, row.queue) for row in session.query(Worker)} == {("new", "cpu"), ("new", "gpu")}


WORK = Work(
    multiply_adds=2_000_000,
    activation_bytes=400_000,
    largest_activation_bytes=100_000,
    nodes=5,
    matrices=(MatrixKind(groups=1, outputs=8, inputs=27, count=1), MatrixKind(groups=1, outputs=5, inputs=8, count=1)),
    forward=ForwardPass(seconds=0.08, samples=8, elements=192, threads=2),
)
# Not that of models of other tests, from whose jobs these would learn.
SHA256 = "e" * 64


@pytest.fixture(autouse=True)
def _queues_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, queues are read anew."""
    monkeypatch.setattr(waiting, "_QUICK_SECONDS", 1e6)


def summary(**changes: Any) -> Any:
    return model_summary(**{"work": WORK, "sha256": SHA256, **changes})


def validated(front: Front, **body: Any) -> Any:
    return taken(front.http.post("/v1/jobs:validate", json=body))


def estimated(front: Front, model: Any = None, **body: Any) -> Any:
    """The estimate of a job on a model of this summary."""
    given = {} if model is None else {"model_id": front.ready_model(model)}
    return validated(front, **given, **body)["estimate"]


def shown(front: Front, job_id: str) -> Any:
    return front.http.get(f"/v1/jobs/{job_id}").json()


def ran(front: Front, job_id: str, **seconds: float) -> None:
    """Have the job succeed, with stages of such seconds."""
    stages = tuple(
        StageFigures(name=name, seconds=taken, peak_rss_bytes=400_000_000) for name, taken in seconds.items()
    )
    front.finish(job_id, QuantizeOutcome(make_report().model_copy(update={"stages": stages}), ()))


def timings(front: Front) -> int:
    with front.app.database.read() as session:
        return session.scalar(select(func.count()).select_from(JobTiming)) or 0


def test_before_it_is_asked_for_and_afterwards_it_is_the_same(front: Front) -> None:
    body = front.job_body(model_id=front.ready_model(summary()), config={"preset": "int8_accurate"})
    before = validated(front, **body)
    made = taken(front.http.post("/v1/jobs", json=body), 202)
    assert made["estimate"] == before["estimate"]
    (listed,) = (job for job in front.http.get("/v1/jobs").json()["items"] if job["id"] == made["id"])
    assert listed["estimate"] == shown(front, made["id"])["estimate"] == before["estimate"]
    for of in ("seconds", "peak_memory_bytes", "size_bytes"):
        told = before["estimate"][of]
        assert 0 < told["low"] <= told["expected"] <= told["high"]
    assert before["estimate"]["basis"] == "timed"


def test_what_is_not_given_is_not_estimated_and_more_work_takes_longer(front: Front) -> None:
    data = {"calibration_dataset_id": front.ready_dataset()}
    assert estimated(front) is estimated(front, summary()) is estimated(front, **data) is None
    alone = estimated(front, summary(), config={"random_calibration": {}})
    assert alone["seconds"]["expected"] > 0
    assert estimated(front, model_summary(sha256="f" * 64), **data)["basis"] == "graph"
    slow = WORK.model_copy(update={"forward": WORK.forward.model_copy(update={"seconds": 8.0})})
    quick, long = (
        estimated(front, summary(work=work, sha256=f"{k}" * 64), **data) for k, work in ((7, WORK), (8, slow))
    )
    assert long["seconds"]["expected"] > 10 * quick["seconds"]["expected"]


@pytest.mark.both_databases
def test_when_it_ends_counts_what_waits_and_what_runs(front: Front) -> None:
    model_id, data = front.ready_model(summary()), front.ready_dataset()
    body = {"model_id": model_id, "calibration_dataset_id": data}
    first = front.new_job(**body)
    assert shown(front, first)["estimated_finish_at"] is None, "nobody is there to run it"
    with front.app.database.write() as session:
        announce(session, "worker", {"cpu": 1})
    ends = [_moment(shown(front, first))]
    ends += [_moment(front.http.post("/v1/jobs", json=body).json()) for _ in range(3)]
    assert ends == sorted(ends)
    seconds = shown(front, first)["estimate"]["seconds"]["expected"]
    assert (ends[-1] - ends[0]).total_seconds() >= 3 * seconds - 3
    assert _moment(validated(front, **body)) >= ends[-1]
    urgent = front.http.post("/v1/jobs", json={**body, "priority": 50}).json()
    assert _moment(urgent) < ends[-1]
    front.claim(first)
    running = shown(front, first)
    assert running["state"] == "running"
    assert _moment(running) < ends[-1]
    front.http.post(f"/v1/jobs/{first}/cancel")
    assert shown(front, first)["estimated_finish_at"] is None


@pytest.mark.both_databases
def test_shapes_that_claim_anything_keep_nobody_from_being_told(front: Front) -> None:
    """What a graph claims to compute is told in years, and nobody else waits for longer than a job may run."""
    most = 2**63 - 1
    figures = dict.fromkeys(("activation_bytes", "largest_activation_bytes", "multiply_adds"), most)
    claimed = WORK.model_copy(update={"forward": None, **figures})
    body = front.job_body(model_id=front.ready_model(summary()))
    giant = {**body, "model_id": front.ready_model(summary(work=claimed, sha256="9" * 64))}
    with front.app.database.write() as session:
        announce(session, "worker", {"cpu": 1})
    asked = [front.http.post("/v1/jobs", json={**giant, "config": {"preset": "int8_accurate"}, "priority": 50})]
    asked += [front.http.post("/v1/jobs", json=body), front.http.post("/v1/jobs:validate", json=body)]
    asked += [front.http.get(f"/v1/jobs/{asked[0].json()['id']}"), front.http.get("/v1/jobs")]
    assert [answer.status_code for answer in asked] == [202, 202, 200, 200, 200]
    assert asked[0].json()["estimated_finish_at"] is None
    assert asked[0].json()["estimate"]["peak_memory_bytes"]["high"] == 2**53
    waited = (_moment(asked[1].json()) - datetime.now(UTC)).total_seconds()
    assert 0.9 < waited / front.app.settings.job_deadline_seconds < 1.1


def _moment(job: dict[str, Any]) -> datetime:
    assert job["estimated_finish_at"] is not None
    return datetime.fromisoformat(job["estimated_finish_at"])


def test_what_a_job_took_is_learned(front: Front) -> None:
    model_id, data = front.ready_model(summary(sha256="d" * 64)), front.ready_dataset()
    body = {"model_id": model_id, "calibration_dataset_id": data}
    before = validated(front, **body)["estimate"]
    ran(front, front.new_job(**body), load=0.1, statistics=500.0, evaluation=700.0)
    after = validated(front, **body)["estimate"]
    assert (before["basis"], after["basis"]) == ("timed", "history")
    assert after["seconds"]["expected"] > 4 * before["seconds"]["expected"]
    assert (before["runs"], after["runs"]) == (0, 1)
    other = estimated(front, summary(sha256="c" * 64), calibration_dataset_id=data)
    assert (other["basis"], other["runs"]) == ("timed", 0)
    # another tenant's model teaches nobody by name
    with front.app.database.read() as session:
        timings_of = estimates.repository.timings_of
        assert [len(timings_of(session, tenant, "d" * 64, 5)) for tenant in ("default", "another")] == [1, 0]


def test_only_whole_attempts_teach(front: Front) -> None:
    body = front.job_body(model_id=front.ready_model(summary()))
    first, second, failed, tried = (front.new_job(**body) for _ in range(4))
    for job_id in (second, first):
        ran(front, job_id, load=0.1, evaluation=3.0)
    before = timings(front)
    front.fail(failed, EngineError("The engine failed."))
    job = front.claim(tried)
    with front.app.database.write() as session:
        transitions.requeue(session, tried, job.attempt, delay_seconds=0.0, charged=True, reason="crash")
    ran(front, tried, load=0.1, evaluation=3.0)
    assert timings(front) == before


def test_a_deleted_job_goes_with_its_estimate_and_old_timings_are_forgotten(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "KEPT_TIMINGS", 2)
    body = front.job_body(model_id=front.ready_model(summary()))
    made = [front.new_job(**body) for _ in range(4)]
    for job_id in made:
        ran(front, job_id, load=0.1, evaluation=3.0)
    before = timings(front)
    assert front.http.delete(f"/v1/jobs/{made[0]}").status_code == 204
    with front.app.database.read() as session:
        assert session.get(JobEstimate, made[0]) is None
    assert timings(front) == before, "what it took stays"
    assert estimates.forget(front.app.database) >= 2
    assert estimates.forget(front.app.database) == 0, "nothing is too much"
    with front.app.database.read() as session:
        assert sorted(session.scalars(select(JobTiming.id))) == sorted(made)[-2:]


def test_members_of_a_batch_and_evaluations_are_estimated(front: Front) -> None:
    asked = grid_body(front, models=1) | {"models": [front.ready_model(summary())]}
    batch = submitted(front, asked)
    told = [shown(front, job_of(batch, member))["estimate"] for member in range(2)]
    assert all(estimate["seconds"]["expected"] > 0 for estimate in told)
    body = {"model_id": front.ready_model(summary(sha256="a" * 64)), "evaluation_dataset_id": front.ready_dataset()}
    made = taken(front.http.post("/v1/evaluations", json=body), 202)
    estimate = made["estimate"]
    assert (estimate["size_bytes"], estimate["basis"]) == (None, "timed"), "it makes no model"
    assert 0 < estimate["seconds"]["low"] <= estimate["seconds"]["expected"]
    assert shown(front, made["id"])["estimate"] == estimate
