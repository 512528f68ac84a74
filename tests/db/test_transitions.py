"""Every transition tried in every state, on both databases; what a job's guard does not allow changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.contracts.errors import EngineError
from service.contracts.runner import ProgressLine
from service.db import Database, db_now
from service.ids import new_id
from service.jobs import events, transitions
from service.jobs.errors import JobNotFoundError
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.jobs.schemas import Waiting
from service.tables import Artifact, Base, Dataset, Job, Model, ReportRow
from tests.support.each import each
from tests.support.front import dataset_summary, make_report, model_summary

PROBLEM = EngineError("boom").problem()
FULL = Waiting(code="storage-full", message="The disk is full.", hint="Free some space.")
OUTCOME = QuantizeOutcome(
    make_report(), (NewArtifact("model", "model.onnx", "application/octet-stream", "a" * 64, 10),)
)


def add_model(session: Session, tenant: str = "default") -> str:
    now, model_id = db_now(), new_id("mdl")
    session.execute(
        insert(Model).values(
            id=model_id,
            tenant_id=tenant,
            name=f"m {model_id}",
            format="onnx",
            status="validating",
            row_version=1,
            created_at=now,
            updated_at=now,
        )
    )
    return model_id


def add_dataset(session: Session) -> str:
    now, dataset_id = db_now(), new_id("dst")
    session.execute(
        insert(Dataset).values(
            id=dataset_id,
            tenant_id="default",
            name=f"d {dataset_id}",
            format="npz",
            status="validating",
            sha256="0" * 64,
            size_bytes=1,
            preprocessing={},
            row_version=1,
            created_at=now,
            updated_at=now,
        )
    )
    return dataset_id


def submit(session: Session, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "tenant_id": "default",
        "kind": "quantize",
        "model_id": add_model(session),
        "calibration_dataset_id": add_dataset(session),
        "config": {},
        **changes,
    }
    return transitions.submit(session, **values)


def claim(session: Session, job: Job, lease_seconds: float = 60.0) -> Job:
    claimed = transitions.claim(session, job.id, worker_id="w1", lease_seconds=lease_seconds)
    assert claimed is not None
    return claimed


def running(session: Session, **changes: Any) -> Job:
    return claim(session, submit(session, **changes))


def in_queued(session: Session) -> Job:
    return submit(session)


def in_queued_later(session: Session) -> Job:
    job = running(session)
    assert transitions.requeue(session, job.id, 1, delay_seconds=60, charged=True, reason="crash")
    return job


def in_queued_overdue(session: Session) -> Job:
    return submit(session, deadline_seconds=-1.0)


def in_running(session: Session) -> Job:
    return running(session)


def in_running_overdue(session: Session) -> Job:
    job = running(session, deadline_seconds=60.0)
    job.deadline_at = job.created_at
    session.flush()
    return job


def in_canceling(session: Session) -> Job:
    return transitions.request_cancel(session, "default", running(session).id)


def in_expired(session: Session) -> Job:
    return claim(session, submit(session), lease_seconds=-1.0)


def in_expired_canceling(session: Session) -> Job:
    return transitions.request_cancel(session, "default", in_expired(session).id)


def in_succeeded(session: Session) -> Job:
    job = running(session)
    assert transitions.succeed(session, job.id, 1, result=OUTCOME)
    return job


def in_failed(session: Session) -> Job:
    job = running(session)
    assert transitions.fail(session, job.id, 1, problem=PROBLEM)
    return job


def in_canceled(session: Session) -> Job:
    return transitions.request_cancel(session, "default", submit(session).id)


STATES: dict[str, Callable[[Session], Job]] = {
    "queued": in_queued,
    "queued_later": in_queued_later,
    "queued_overdue": in_queued_overdue,
    "running": in_running,
    "running_overdue": in_running_overdue,
    "canceling": in_canceling,
    "expired": in_expired,
    "expired_canceling": in_expired_canceling,
    "succeeded": in_succeeded,
    "failed": in_failed,
    "canceled": in_canceled,
}

Step = Callable[[Session, Job], Any]
TRANSITIONS: dict[str, Step] = {
    "claim": lambda s, j: transitions.claim(s, j.id, worker_id="w2", lease_seconds=60),
    "renew": lambda s, j: transitions.renew(s, j.id, 1, lease_seconds=60).alive,
    "progress": lambda s, j: transitions.record_progress(s, j.id, 1, ProgressLine(stage="ranges", done=1)),
    "succeed": lambda s, j: transitions.succeed(s, j.id, 1, result=OUTCOME),
    "fail": lambda s, j: transitions.fail(s, j.id, 1, problem=PROBLEM),
    "requeue": lambda s, j: transitions.requeue(s, j.id, 1, delay_seconds=0, charged=True, reason="crash"),
    "shut_down": lambda s, j: transitions.requeue(s, j.id, 1, delay_seconds=0, charged=False, reason="deploy"),
    "interrupt": lambda s, j: transitions.interrupt(s, j.id, 1, delay_seconds=0, waiting=FULL),
    "request_cancel": lambda s, j: transitions.request_cancel(s, "default", j.id).state != j.state or None,
    "finish_cancel": lambda s, j: transitions.finish_cancel(s, j.id, 1),
    "expire_leases": lambda s, j: transitions.expire_leases(s),
    "expire_deadlines": lambda s, j: transitions.expire_deadlines(s),
}

# (state, transition) -> state afterwards. Every pair that is not here must leave the row exactly as it is.
CHANGES: dict[tuple[str, str], str] = {
    ("queued", "claim"): "running",
    ("queued", "request_cancel"): "canceled",
    ("queued_later", "request_cancel"): "canceled",
    ("queued_overdue", "request_cancel"): "canceled",
    ("queued_overdue", "expire_deadlines"): "failed",
    ("running", "renew"): "running",
    ("running", "progress"): "running",
    ("running", "succeed"): "succeeded",
    ("running", "fail"): "failed",
    ("running", "requeue"): "queued",
    ("running", "shut_down"): "queued",
    ("running", "interrupt"): "queued",
    ("running", "request_cancel"): "running",
    ("running_overdue", "renew"): "running",
    ("running_overdue", "progress"): "running",
    ("running_overdue", "succeed"): "succeeded",
    ("running_overdue", "fail"): "failed",
    ("running_overdue", "requeue"): "queued",
    ("running_overdue", "shut_down"): "queued",
    ("running_overdue", "interrupt"): "queued",
    ("running_overdue", "request_cancel"): "running",
    ("running_overdue", "expire_deadlines"): "failed",
    ("canceling", "renew"): "running",
    ("canceling", "progress"): "running",
    ("canceling", "fail"): "failed",
    ("canceling", "requeue"): "canceled",
    ("canceling", "shut_down"): "canceled",
    ("canceling", "interrupt"): "canceled",
    ("canceling", "finish_cancel"): "canceled",
    ("expired", "renew"): "running",
    ("expired", "progress"): "running",
    ("expired", "succeed"): "succeeded",
    ("expired", "fail"): "failed",
    ("expired", "requeue"): "queued",
    ("expired", "shut_down"): "queued",
    ("expired", "interrupt"): "queued",
    ("expired", "request_cancel"): "running",
    ("expired", "expire_leases"): "queued",
    ("expired_canceling", "renew"): "running",
    ("expired_canceling", "progress"): "running",
    ("expired_canceling", "fail"): "failed",
    ("expired_canceling", "requeue"): "canceled",
    ("expired_canceling", "shut_down"): "canceled",
    ("expired_canceling", "interrupt"): "canceled",
    ("expired_canceling", "finish_cancel"): "canceled",
    ("expired_canceling", "expire_leases"): "canceled",
}


def row(database: Database, job_id: str) -> dict[str, Any]:
    with database.read() as session:
        found = session.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one()
        return dict(found)


@each("transition", TRANSITIONS)
@pytest.mark.parametrize("state", STATES)
def test_every_pair(database: Database, state: str, transition: str) -> None:
    with database.write() as session:
        for table in reversed(Base.metadata.sorted_tables):  # some transitions are of all jobs
            session.execute(delete(table))
        job_id = STATES[state](session).id
    before = row(database, job_id)

    with database.write() as session:
        job = session.get_one(Job, job_id)
        answer = TRANSITIONS[transition](session, job)

    after = row(database, job_id)
    expected = CHANGES.get((state, transition))
    if expected is None:
        assert after == before
        assert not answer
    else:
        assert after["state"] == expected
        assert after != before
        assert after["attempt"] >= before["attempt"]
        seq_grew = after["last_seq"] == before["last_seq"] + 1
        assert seq_grew or transition == "renew"


def test_the_table_names_only_known_pairs() -> None:
    assert {state for state, _ in CHANGES} <= set(STATES)
    assert {transition for _, transition in CHANGES} == set(TRANSITIONS)
    assert not {state for state, _ in CHANGES} & {"succeeded", "failed", "canceled"}


@pytest.mark.parametrize(
    "transition", ["renew", "progress", "succeed", "fail", "requeue", "shut_down", "interrupt", "finish_cancel"]
)
def test_an_older_attempt_is_fenced_off(database: Database, transition: str) -> None:
    with database.write() as session:
        job = in_expired(session)
        assert transitions.expire_leases(session)
    with database.write() as session:
        session.get_one(Job, job.id).not_before = job.created_at
    with database.write() as session:
        assert claim(session, job).attempt == 2
    before = row(database, job.id)

    with database.write() as session:
        assert not TRANSITIONS[transition](session, job)

    assert row(database, job.id) == before


def test_a_whole_life_leaves_gap_free_events(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
    for step in (
        lambda s: claim(s, job),
        lambda s: transitions.record_progress(s, job.id, 1, ProgressLine(stage="ranges", done=1, total=2)),
        lambda s: events.append(s, job.id, 1, "log", {"level": "info", "message": "half way"}),
        lambda s: transitions.requeue(s, job.id, 1, delay_seconds=0, charged=True, reason="crash"),
        lambda s: claim(s, job),
        lambda s: transitions.succeed(s, job.id, 2, result=OUTCOME),
    ):
        with database.write() as session:
            step(session)

    with database.read() as session:
        log = events.list_after(session, "default", job.id, 0, 100)
        tail = events.list_after(session, "default", job.id, 4, 1)

    assert [event.seq for event in log] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.attempt for event in log] == [0, 1, 1, 1, 1, 2, 2]
    assert [event.data.get("name") for event in log if event.type == "state"] == [
        "job.queued",
        "job.claimed",
        "job.requeued",
        "job.claimed",
        "job.succeeded",
    ]
    assert [event.seq for event in tail] == [5]


def test_success_brings_report_and_artifacts(database: Database) -> None:
    with database.write() as session:
        job = in_succeeded(session)
    with database.read() as session:
        report = session.get_one(ReportRow, job.id)
        artifact = session.scalars(select(Artifact).where(Artifact.job_id == job.id)).one()
    assert (report.attempt, report.verdict) == (1, "none")
    assert report.body["float"]["metrics"] == {"top1": 90.0}
    assert (artifact.kind, artifact.sha256, artifact.tenant_id) == ("model", "a" * 64, "default")


def test_a_result_of_the_wrong_kind_changes_nothing(database: Database) -> None:
    with database.write() as session:
        job = running(session)
    before = row(database, job.id)
    with pytest.raises(TypeError), database.write() as session:
        transitions.succeed(session, job.id, 1, result=model_summary())
    assert row(database, job.id) == before


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_an_inspect_job_settles_its_noun(database: Database, noun: str) -> None:
    table = Model if noun == "model" else Dataset
    good = model_summary() if noun == "model" else dataset_summary()

    def start(session: Session) -> tuple[str, str]:
        noun_id = add_model(session) if noun == "model" else add_dataset(session)
        nouns = {"model_id": None, "calibration_dataset_id": None, "config": None, f"{noun}_id": noun_id}
        job = claim(session, submit(session, kind=f"inspect_{noun}", **nouns))
        return job.id, noun_id

    with database.write() as session:
        (first, accepted), (second, refused), (third, given_up) = start(session), start(session), start(session)
    with database.write() as session:
        assert transitions.succeed(session, first, 1, result=good)
        assert transitions.fail(session, second, 1, problem=PROBLEM)
        transitions.request_cancel(session, "default", third)
        assert transitions.finish_cancel(session, third, 1)

    with database.read() as session:
        assert session.get_one(table, accepted).status == "ready"
        assert session.get_one(table, accepted).summary == good.model_dump(mode="json")
        assert session.get_one(table, refused).status == "rejected"
        assert session.get_one(table, refused).problems == [PROBLEM.model_dump(mode="json")]
        assert session.get_one(table, given_up).problems[0]["code"] == "canceled"


def test_a_deadline_is_told_as_such(database: Database) -> None:
    with database.write() as session:
        job = in_running_overdue(session)
        assert [moved.id for moved in transitions.expire_deadlines(session)] == [job.id]
    assert row(database, job.id)["error"]["code"] == "deadline-exceeded"


def test_the_time_without_a_service_counts_against_no_queued_job(database: Database) -> None:
    since = datetime.now(UTC) - timedelta(seconds=1000)
    with database.write() as session:
        queued, endless = submit(session, deadline_seconds=-500.0), submit(session)
        taken, done = running(session, deadline_seconds=60.0), in_canceled(session)
    before = {job.id: row(database, job.id) for job in (queued, endless, taken, done)}
    with database.write() as session:
        assert transitions.defer_deadlines(session, since) >= 1
        assert queued.id not in {job.id for job in transitions.expire_deadlines(session)}
    later = row(database, queued.id)
    assert later["deadline_at"] - before[queued.id]["deadline_at"] >= timedelta(seconds=999)
    assert (later["state"], later["row_version"]) == ("queued", before[queued.id]["row_version"] + 1)
    for job in (endless, taken, done):
        assert row(database, job.id) == before[job.id]
    with database.write() as session:
        assert transitions.defer_deadlines(session, datetime.now(UTC) + timedelta(days=1)) == 0


def test_cancel_is_bound_to_the_tenant(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
    with pytest.raises(JobNotFoundError), database.write() as session:
        transitions.request_cancel(session, "somebody-else", job.id)
    assert row(database, job.id)["state"] == "queued"


def test_renew_tells_of_a_requested_cancel(database: Database) -> None:
    with database.write() as session:
        job = running(session)
        assert transitions.renew(session, job.id, 1, lease_seconds=60) == transitions.Renewal(True, False)
        transitions.request_cancel(session, "default", job.id)
        assert transitions.renew(session, job.id, 1, lease_seconds=60) == transitions.Renewal(True, True)
    with database.write() as session:
        assert transitions.renew(session, job.id, 9, lease_seconds=60) == transitions.Renewal(False, False)


def test_dispatch_due_until_sent_and_again_when_lost(database: Database) -> None:
    with database.write() as session:
        job, later = submit(session, queue="gpu"), in_queued_later(session)
    with database.write() as session:
        assert transitions.unsent(session, "gpu", 10) == [transitions.Due(job.id, "gpu")]
        assert transitions.unsent(session, "cpu", 10) == transitions.overdue(session, "gpu", 10) == []
        transitions.mark_dispatched(session, job.id)
        assert transitions.unsent(session, "gpu", 10) == transitions.overdue(session, "gpu", 10) == []
        late = transitions.overdue(session, "gpu", 10, redispatch_seconds=-1)
        assert late == [transitions.Due(job.id, "gpu")]
        claim(session, job)
        assert transitions.requeue(session, job.id, 1, delay_seconds=0, charged=True, reason="crash")
        assert [due.job_id for due in transitions.unsent(session, "gpu", 10)] == [job.id]
    assert row(database, later.id)["dispatched_at"] is None


def test_an_event_needs_its_job(database: Database) -> None:
    with pytest.raises(JobNotFoundError), database.write() as session:
        events.append(session, new_id("job"), 0, "log", {})
