"""Old jobs, their progress and their batches, and what keeps them."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, func, select, update

from service.batches import repository as batches
from service.batches.repository import NewMember
from service.contracts.runner import ProgressLine
from service.db import Database, db_now
from service.ids import new_id
from service.inspections import repository as inspections
from service.jobs import transitions
from service.settings import Settings
from service.storage import FileStore
from service.tables import Artifact, Batch, BatchMember, HandOver, Job, JobEvent, JobSchedule, ReportRow
from tests.db.test_transitions import claim, in_succeeded, submit
from worker.upkeep.registry import collectors

DAY = 86400.0


@pytest.fixture
def collector(settings: Settings, database: Database):
    def found(name: str, **changes: float):
        chosen = Settings(**{**settings.model_dump(), **changes})
        chosen.make_folders()
        return next(one for one in collectors(chosen, database, FileStore(chosen.storage_dir)) if one.name == name)

    return found


def ended(database: Database, job_id: str, days: float) -> None:
    at = db_now() - days * DAY
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(finished_at=at))
        session.execute(update(JobEvent).where(JobEvent.job_id == job_id).values(created_at=at))


def jobs(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.scalars(select(Job.id)))


def test_old_jobs_go_with_all_that_is_theirs_and_no_others(database, collector) -> None:
    with database.write() as session:
        old, young, queued, inspected = (
            in_succeeded(session), in_succeeded(session), submit(session), in_succeeded(session),
        )  # fmt: skip
        inspections.create(session, inspected, config_sha256="0" * 64)
    ended(database, old.id, 30)
    ended(database, young.id, 10)
    ended(database, inspected.id, 30)
    found = collector("jobs", job_retention_seconds=20 * DAY)
    assert found.count().items == 1
    assert jobs(database) == {old.id, young.id, queued.id, inspected.id}, "counting removes nothing"
    assert found.collect(100).items == 1
    assert jobs(database) == {young.id, queued.id, inspected.id}
    with database.read() as session:
        for table in (JobEvent, Artifact, ReportRow):
            assert old.id not in session.scalars(select(table.job_id)).all()


def test_jobs_and_batches_are_kept_for_ever_unless_told_otherwise(database, collector) -> None:
    with database.write() as session:
        job = in_succeeded(session)
    ended(database, job.id, 10_000)
    assert collector("jobs").collect is None
    assert collector("jobs").count().items == 0
    assert collector("batches").collect is None


def test_no_job_goes_while_a_repeated_request_is_answered_with_it(database, collector) -> None:
    with database.write() as session:
        job = in_succeeded(session)
    ended(database, job.id, 2)
    assert collector("jobs", job_retention_seconds=DAY, idempotency_seconds=3 * DAY).collect(10).items == 0
    assert collector("jobs", job_retention_seconds=DAY, idempotency_seconds=DAY).collect(10).items == 1


@pytest.mark.both_databases
def test_progress_of_old_jobs_goes_and_everything_else_stays(database, collector) -> None:
    with database.write() as session:
        old = claim(session, submit(session))
        running = claim(session, submit(session))
        for job in (old, running):
            for _ in range(3):
                assert transitions.record_progress(session, job.id, job.attempt, ProgressLine(stage="calibrate"))
        assert transitions.request_cancel(session, "default", old.id)
        assert transitions.finish_cancel(session, old.id, old.attempt)
    ended(database, old.id, 40)
    found = collector("progress")
    assert (found.count().items, found.collect(2).items, found.collect(100).items) == (3, 2, 1)
    with database.read() as session:
        kinds = dict(
            session.execute(
                select(JobEvent.job_id, func.count()).where(JobEvent.type == "progress").group_by(JobEvent.job_id)
            ).all()
        )
        states = session.scalars(select(JobEvent.type).where(JobEvent.job_id == old.id)).all()
    assert kinds == {running.id: 3}
    assert states == ["state"] * 4


def test_no_job_goes_that_is_judged_by_or_has_something_to_send(database, collector) -> None:
    with database.write() as session:
        sending, sent, named = (in_succeeded(session) for _ in range(3))
        for job, state in ((sending, "pending"), (sent, "failed")):
            is_open = state == "pending"
            session.add(
                HandOver(
                    id=new_id("hov"), tenant_id=job.tenant_id, job_id=job.id, kind="post", condition="pass", host="h",
                    pepper_id="p", attempts=1, state=state, sealed="s" if is_open else None, created_at=db_now(),
                    next_attempt_at=db_now() if is_open else None, finished_at=None if is_open else db_now(),
                )
            )  # fmt: skip
        gate = {"baseline": {"kind": "job", "job_id": named.id}, "clauses": []}
        session.add(
            JobSchedule(
                id=new_id("sch"), tenant_id=named.tenant_id, name="nightly", cron="0 2 * * *", timezone="UTC",
                template={}, overlap="skip", misfire="skip", misfire_grace_seconds=0, jitter_seconds=0,
                skip_unchanged=False, gate=gate, row_version=1, created_by="x", created_at=db_now(),
                updated_at=db_now(),
            )
        )  # fmt: skip
    for job in (sending, sent, named):
        ended(database, job.id, 30)
    assert collector("jobs", job_retention_seconds=20 * DAY).collect(100).items == 1
    assert jobs(database) == {sending.id, named.id}


def make(database: Database, *, age_seconds: float) -> tuple[str, str]:
    with database.write() as session:
        job = submit(session)
        batch = batches.create(session, "default", name=None, labels={}, grid=None, request_id=None)
        batches.add_members(session, batch, 0, [NewMember(0, job.id, False, "net@1", None, None)])
        session.execute(update(Batch).where(Batch.id == batch.id).values(created_at=db_now() - age_seconds))
    return batch.id, job.id


def forget(database: Database, job_id: str) -> None:
    with database.write() as session:
        session.execute(delete(JobEvent).where(JobEvent.job_id == job_id))
        session.execute(delete(Job).where(Job.id == job_id))


def test_batches_go_after_their_jobs(database: Database, collector) -> None:
    kept, _ = make(database, age_seconds=100 * DAY)
    young, young_job = make(database, age_seconds=1)
    _, gone_job = make(database, age_seconds=100 * DAY)
    for job_id in (young_job, gone_job):
        forget(database, job_id)
    found = collector("batches", job_retention_seconds=2 * DAY)
    assert (found.count().items, found.collect(10).items, found.count().items) == (1, 1, 0)
    with database.read() as session:
        assert set(session.scalars(select(Batch.id))) == {kept, young}
        assert set(session.scalars(select(BatchMember.batch_id))) == {kept, young}


@pytest.mark.parametrize("ages", [(3, 1), (1, 3)])
def test_no_batch_goes_while_a_repeated_request_is_answered_with_it(database, collector, ages):
    _, job_id = make(database, age_seconds=2 * DAY)
    forget(database, job_id)
    found = collector("batches", job_retention_seconds=ages[0] * DAY, idempotency_seconds=ages[1] * DAY)
    assert found.collect(10).items == 0
