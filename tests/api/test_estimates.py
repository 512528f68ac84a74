"""What a job will take, told before it runs; when it will end; and what is learned from what jobs took."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import func, select

from service.contracts.errors import EngineError
from service.contracts.model import ForwardPass, MatrixKind, Work
from service.contracts.report import StageFigures
from service.estimates import service as estimates
from service.estimates import waiting
from service.jobs import transitions
from service.jobs.outcome import QuantizeOutcome
from service.tables import JobEstimate, JobTiming
from service.workers.repository import announce
from tests.support.batches import grid_body, job_of, submitted
from tests.support.front import Front, make_report, model_summary

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
    answer = front.http.post("/v1/jobs:validate", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def shown(front: Front, job_id: str) -> Any:
    return front.http.get(f"/v1/jobs/{job_id}").json()


def ran(front: Front, job_id: str, **seconds: float) -> None:
    """Have the job succeed, with stages of such seconds."""
    stages = tuple(
        StageFigures(name=name, seconds=taken, peak_rss_bytes=400_000_000) for name, taken in seconds.items()
    )
    front.finish(job_id, QuantizeOutcome(make_report().model_copy(update={"stages": stages}), ()))


def timings(front: Front) -> int:
    with front.desk.database.read() as session:
        return session.scalar(select(func.count()).select_from(JobTiming)) or 0


def test_before_it_is_asked_for_and_afterwards_it_is_the_same(front: Front) -> None:
    body = front.job_body(model_id=front.ready_model(summary()), config={"preset": "int8_accurate"})
    before = validated(front, **body)
    made = front.http.post("/v1/jobs", json=body)
    assert made.status_code == 202
    assert made.json()["estimate"] == before["estimate"]
    (listed,) = (job for job in front.http.get("/v1/jobs").json()["items"] if job["id"] == made.json()["id"])
    assert listed["estimate"] == shown(front, made.json()["id"])["estimate"] == before["estimate"]
    for of in ("seconds", "peak_memory_bytes", "size_bytes"):
        told = before["estimate"][of]
        assert 0 < told["low"] <= told["expected"] <= told["high"]
    assert before["estimate"]["basis"] == "timed"


def test_what_is_not_given_is_not_estimated(front: Front) -> None:
    model_id, data = front.ready_model(summary()), front.ready_dataset()
    assert validated(front)["estimate"] is None
    assert validated(front, model_id=model_id)["estimate"] is None
    assert validated(front, calibration_dataset_id=data)["estimate"] is None
    alone = validated(front, model_id=model_id, config={"random_calibration": {}})
    assert alone["estimate"]["seconds"]["expected"] > 0
    unknown = front.ready_model(model_summary(sha256="f" * 64))
    assert validated(front, model_id=unknown, calibration_dataset_id=data)["estimate"]["basis"] == "graph"


def test_more_work_takes_longer(front: Front) -> None:
    data = front.ready_dataset()
    slow = WORK.model_copy(update={"forward": WORK.forward.model_copy(update={"seconds": 8.0})})
    quick, long = (front.ready_model(summary(work=work, sha256=f"{k}" * 64)) for k, work in ((7, WORK), (8, slow)))
    told = [
        validated(front, model_id=model_id, calibration_dataset_id=data)["estimate"]["seconds"]["expected"]
        for model_id in (quick, long)
    ]
    assert told[1] > 10 * told[0]


def test_when_it_ends_counts_what_waits_and_what_runs(front: Front) -> None:
    model_id, data = front.ready_model(summary()), front.ready_dataset()
    body = {"model_id": model_id, "calibration_dataset_id": data}
    first = front.new_job(**body)
    assert shown(front, first)["estimated_finish_at"] is None, "nobody is there to run it"
    with front.desk.database.write() as session:
        announce(session, "worker", ("cpu",))
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


def test_shapes_that_claim_anything_keep_nobody_from_being_told(front: Front) -> None:
    """What a graph claims to compute is told in years, and nobody else waits for longer than a job may run."""
    most = 2**63 - 1
    claimed = WORK.model_copy(
        update={"forward": None, "activation_bytes": most, "largest_activation_bytes": most, "multiply_adds": most}
    )
    data = front.ready_dataset()
    giant = {"model_id": front.ready_model(summary(work=claimed, sha256="9" * 64)), "calibration_dataset_id": data}
    body = {"model_id": front.ready_model(summary()), "calibration_dataset_id": data}
    with front.desk.database.write() as session:
        announce(session, "worker", ("cpu",))
    asked = [front.http.post("/v1/jobs", json={**giant, "config": {"preset": "int8_accurate"}, "priority": 50})]
    asked += [front.http.post("/v1/jobs", json=body), front.http.post("/v1/jobs:validate", json=body)]
    asked += [front.http.get(f"/v1/jobs/{asked[0].json()['id']}"), front.http.get("/v1/jobs")]
    assert [answer.status_code for answer in asked] == [202, 202, 200, 200, 200]
    assert asked[0].json()["estimated_finish_at"] is None
    assert asked[0].json()["estimate"]["peak_memory_bytes"]["high"] == 2**53
    deadline_seconds = front.desk.settings.job_deadline_seconds
    waited = _moment(asked[1].json()) - datetime.now(UTC)
    assert 0.9 * deadline_seconds < waited.total_seconds() < 1.1 * deadline_seconds


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
    assert after["runs"] == before["runs"], "the reconciler has not looked yet"
    assert estimates.refresh(front.desk.database) >= 1
    assert estimates.refresh(front.desk.database) == 0, "nothing is new"
    learned = validated(front, **body)["estimate"]
    assert learned["runs"] > after["runs"]
    other = validated(front, model_id=front.ready_model(summary(sha256="c" * 64)), calibration_dataset_id=data)
    assert other["estimate"]["basis"] == "timed"
    assert other["estimate"]["seconds"]["expected"] > before["seconds"]["expected"], "the machine is slow"


def test_a_job_that_was_asked_for_first_and_ends_last_is_learned_from(front: Front) -> None:
    body = front.job_body(model_id=front.ready_model(summary()))
    first, second = front.new_job(**body), front.new_job(**body)
    for job_id in (second, first):
        ran(front, job_id, load=0.1, evaluation=3.0)
        assert estimates.refresh(front.desk.database) >= 1
    assert estimates.refresh(front.desk.database) == 0


def test_another_tenants_model_teaches_nobody_by_name(front: Front) -> None:
    body = front.job_body(model_id=front.ready_model(summary(sha256="b" * 64)))
    job_id = front.new_job(**body)
    ran(front, job_id, load=0.1, evaluation=900.0)
    with front.desk.database.read() as session:
        own = estimates.repository.timings_of(session, "default", "b" * 64, 5)
        assert [row.id for row in own] == [job_id]
        assert estimates.repository.timings_of(session, "another", "b" * 64, 5) == []


@pytest.mark.parametrize("why", ["second attempt", "failed"])
def test_only_whole_attempts_teach(front: Front, why: str) -> None:
    job_id = front.new_job(**front.job_body(model_id=front.ready_model(summary())))
    before = timings(front)
    job = front.claim(job_id)
    with front.desk.database.write() as session:
        if why == "failed":
            problem = EngineError("The engine failed.", hint="Report it.").problem()
            assert transitions.fail(session, job_id, job.attempt, problem=problem)
        else:
            transitions.requeue(session, job_id, job.attempt, delay_seconds=0.0, charged=True, reason="crash")
    if why == "second attempt":
        ran(front, job_id, load=0.1, evaluation=3.0)
    assert timings(front) == before


def test_a_deleted_job_goes_with_its_estimate_and_what_it_took_stays(front: Front) -> None:
    job_id = front.new_job(**front.job_body(model_id=front.ready_model(summary())))
    ran(front, job_id, load=0.1, evaluation=3.0)
    before = timings(front)
    assert front.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    with front.desk.database.read() as session:
        assert session.get(JobEstimate, job_id) is None
    assert timings(front) == before


def test_old_timings_are_forgotten(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "KEPT_TIMINGS", 2)
    body = front.job_body(model_id=front.ready_model(summary()))
    made = [front.new_job(**body) for _ in range(4)]
    for job_id in made:
        ran(front, job_id, load=0.1, evaluation=3.0)
    assert estimates.refresh(front.desk.database) >= 4
    with front.desk.database.read() as session:
        assert sorted(session.scalars(select(JobTiming.id))) == sorted(made)[-2:]


def test_members_of_a_batch_are_estimated(front: Front) -> None:
    asked = grid_body(front, models=1) | {"models": [front.ready_model(summary())]}
    batch = submitted(front, asked)
    told = [shown(front, job_of(batch, member))["estimate"] for member in range(2)]
    assert all(estimate["seconds"]["expected"] > 0 for estimate in told)


def test_an_evaluation_is_estimated_and_makes_no_model(front: Front) -> None:
    body = {"model_id": front.ready_model(summary(sha256="a" * 64)), "evaluation_dataset_id": front.ready_dataset()}
    made = front.http.post("/v1/evaluations", json=body)
    assert made.status_code == 202, made.text
    estimate = made.json()["estimate"]
    assert estimate["size_bytes"] is None
    assert estimate["basis"] == "timed"
    assert 0 < estimate["seconds"]["low"] <= estimate["seconds"]["expected"]
    assert shown(front, made.json()["id"])["estimate"] == estimate
