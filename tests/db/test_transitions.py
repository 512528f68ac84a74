"""Every transition tried in every state, on both databases; what a job's guard does not allow changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service import repository
from service.contracts.errors import EngineError
from service.contracts.runner import ProgressLine
from service.db import Database, db_now
from service.jobs import events, transitions
from service.jobs.errors import JobNotFoundError
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.jobs.schemas import Waiting
from service.resources import new_id
from service.tables import Artifact, Dataset, Job, JobEvent, Model, ReportRow
from tests.support.each import each
from tests.support.front import dataset_summary, make_report, model_summary

PROBLEM = EngineError("boom").problem()
FULL = Waiting(code="storage-full", message="The disk is full.", hint="Free some space.")
OUTCOME = QuantizeOutcome(
    make_report(), (NewArtifact("model", "model.onnx", "application/octet-stream", "a" * 64, 10),)
)


def add_model(session: Session, tenant: str = "default") -> str:
    model_id = new_id("mdl")
    return _add(session, Model, model_id, tenant_id=tenant, name=f"m {model_id}", format="onnx")


def add_dataset(session: Session) -> str:
    dataset_id = new_id("dst")
    file = {"format": "npz", "sha256": "0" * 64, "size_bytes": 1, "preprocessing": {}}
    return _add(session, Dataset, dataset_id, tenant_id="default", name=f"d {dataset_id}", **file)


def _add(session: Session, table: type[Model | Dataset], noun_id: str, **values: Any) -> str:
    now = db_now()
    facts = {"id": noun_id, "status": "validating", "row_version": 1, "created_at": now, "updated_at": now}
    session.execute(insert(table).values(**facts, **values))
    return noun_id


def submit(session: Session, **changes: Any) -> Job:
    nouns = {"model_id": add_model(session), "calibration_dataset_id": add_dataset(session)}
    return transitions.submit(
        session, transitions.NewJob(**{"tenant_id": "default", "kind": "quantize", "config": {}, **nouns, **changes})
    )


def inspecting(session: Session, noun: str, **changes: Any) -> tuple[Job, str]:
    """A job that validates a model or a dataset, and the noun's id."""
    noun_id = add_model(session) if noun == "model" else add_dataset(session)
    nouns = {"model_id": None, "calibration_dataset_id": None, "config": None, f"{noun}_id": noun_id}
    return submit(session, kind=f"inspect_{noun}", **nouns, **changes), noun_id


def claim(session: Session, job: Job, lease_seconds: float = 60.0) -> Job:
    claimed = transitions.claim(session, job.id, worker_id="w1", lease_seconds=lease_seconds)
    assert claimed is not None
    return claimed


def running(session: Session, **changes: Any) -> Job:
    return claim(session, submit(session, **changes))


def in_queued_later(session: Session) -> Job:
    job = running(session)
    assert transitions.requeue(session, job.id, 1, delay_seconds=60, charged=True, reason="crash")
    return job


def in_running_overdue(session: Session) -> Job:
    job = running(session, deadline_seconds=60.0)
    job.deadline_at = job.created_at
    session.flush()
    return job


def in_expired(session: Session) -> Job:
    return claim(session, submit(session), lease_seconds=-1.0)


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
    "queued": submit, "queued_later": in_queued_later, "queued_overdue": lambda s: submit(s, deadline_seconds=-1.0),
    "running": running, "running_overdue": in_running_overdue,
    "canceling": lambda s: transitions.request_cancel(s, "default", running(s).id), "expired": in_expired,
    "expired_canceling": lambda s: transitions.request_cancel(s, "default", in_expired(s).id),
    "succeeded": in_succeeded, "failed": in_failed, "canceled": in_canceled,
}  # fmt: skip

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

RUNS = {"renew": "running", "progress": "running", "fail": "failed"}
WANTED = RUNS | {"succeed": "succeeded", "request_cancel": "running"}
WANTED |= dict.fromkeys(("requeue", "shut_down", "interrupt"), "queued")
STOPPING = RUNS | dict.fromkeys(("requeue", "shut_down", "interrupt", "finish_cancel"), "canceled")
# The state afterwards. Every transition that is not here must leave the row exactly as it is.
CHANGES: dict[str, dict[str, str]] = {
    "queued": {"claim": "running", "request_cancel": "canceled"}, "queued_later": {"request_cancel": "canceled"},
    "queued_overdue": {"request_cancel": "canceled", "expire_deadlines": "failed"}, "running": WANTED,
    "running_overdue": WANTED | {"expire_deadlines": "failed"}, "canceling": STOPPING,
    "expired": WANTED | {"expire_leases": "queued"}, "expired_canceling": STOPPING | {"expire_leases": "canceled"},
}  # fmt: skip


def row(database: Database, job_id: str) -> dict[str, Any]:
    with database.read() as session:
        found = session.execute(select(Job.__table__).where(Job.id == job_id)).mappings().one()
        return dict(found)


@each("transition", TRANSITIONS)
@pytest.mark.parametrize("state", STATES)
def test_every_pair(database: Database, state: str, transition: str) -> None:
    with database.write() as session:
        for table in (Artifact, ReportRow, JobEvent, Job):  # some transitions are of all jobs
            session.execute(delete(table))
        job_id = STATES[state](session).id
    before = row(database, job_id)

    with database.write() as session:
        job = session.get_one(Job, job_id)
        answer = TRANSITIONS[transition](session, job)

    after = row(database, job_id)
    expected = CHANGES.get(state, {}).get(transition)
    if expected is None:
        assert after == before
        assert not answer
    else:
        assert after["state"] == expected
        assert after != before
        assert after["attempt"] >= before["attempt"]
        seq_grew = after["last_seq"] == before["last_seq"] + 1
        assert seq_grew or transition == "renew"
        assert transition != "expire_deadlines" or after["error"]["code"] == "deadline-exceeded"


@pytest.mark.both_databases
def test_an_older_attempt_is_fenced_off(database: Database) -> None:
    with database.write() as session:
        job = in_expired(session)
        assert transitions.expire_leases(session)
    with database.write() as session:
        session.get_one(Job, job.id).not_before = job.created_at
    with database.write() as session:
        assert claim(session, job).attempt == 2
    before = row(database, job.id)
    for transition in ("renew", "progress", "succeed", "fail", "requeue", "shut_down", "interrupt", "finish_cancel"):
        with database.write() as session:
            assert not TRANSITIONS[transition](session, job), transition
        assert row(database, job.id) == before, transition


@pytest.mark.both_databases
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
    names = ["queued", "claimed", "requeued", "claimed", "succeeded"]
    assert [event.data.get("name") for event in log if event.type == "state"] == [f"job.{name}" for name in names]
    assert [event.seq for event in tail] == [5]


@pytest.mark.both_databases
def test_success_brings_report_and_artifacts_and_nothing_of_a_wrong_kind(database: Database) -> None:
    with database.write() as session:
        job = running(session)
    before = row(database, job.id)
    with pytest.raises(TypeError), database.write() as session:
        transitions.succeed(session, job.id, 1, result=model_summary())
    assert row(database, job.id) == before
    with database.write() as session:
        assert transitions.succeed(session, job.id, 1, result=OUTCOME)
    with database.read() as session:
        report = session.get_one(ReportRow, job.id)
        artifact = session.scalars(select(Artifact).where(Artifact.job_id == job.id)).one()
    assert (report.attempt, report.verdict) == (1, "none")
    assert report.body["float"]["metrics"] == {"top1": 90.0}
    assert (artifact.kind, artifact.sha256, artifact.tenant_id) == ("model", "a" * 64, "default")


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_an_inspect_job_settles_its_noun(database: Database, noun: str) -> None:
    table = Model if noun == "model" else Dataset
    good = model_summary() if noun == "model" else dataset_summary()

    def start(session: Session) -> tuple[str, str]:
        job, noun_id = inspecting(session, noun)
        return claim(session, job).id, noun_id

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


def test_what_is_asked_of_no_job_of_ones_own(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
    with pytest.raises(JobNotFoundError), database.write() as session:
        transitions.request_cancel(session, "somebody-else", job.id)
    assert row(database, job.id)["state"] == "queued"
    with pytest.raises(JobNotFoundError), database.write() as session:
        events.append(session, new_id("job"), 0, "log", {})


@pytest.mark.both_databases
def test_renew_tells_of_a_requested_cancel(database: Database) -> None:
    with database.write() as session:
        job = running(session)
        assert transitions.renew(session, job.id, 1, lease_seconds=60) == transitions.Renewal(True, False)
        transitions.request_cancel(session, "default", job.id)
        assert transitions.renew(session, job.id, 1, lease_seconds=60) == transitions.Renewal(True, True)
        assert transitions.renew(session, job.id, 9, lease_seconds=600) == transitions.Renewal(False, False)
        session.refresh(job)
        assert 30 < job.lease_until.timestamp() - repository.now_seconds(session) <= 60
