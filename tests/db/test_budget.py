"""What attempts cost: crashes and silence are charged, interruptions never are, and validation survives silence."""

from __future__ import annotations

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.contracts.runner import ProgressLine
from service.db import Database, db_now
from service.jobs import transitions
from service.tables import Dataset, Job, Model
from tests.db.test_transitions import OUTCOME, claim, inspecting, row, submit

pytestmark = pytest.mark.both_databases


def test_three_charged_attempts_then_failed(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
        for attempt in (1, 2, 3):
            claim(session, job)
            assert transitions.requeue(session, job.id, attempt, delay_seconds=0, charged=True, reason="segfault")
    after = row(database, job.id)
    assert (after["state"], after["attempt"]) == ("failed", 3)
    assert after["error"]["code"] == "attempts-exhausted"
    assert "segfault" in after["error"]["detail"]


def interrupted(session: Session, job: Job, *, progressed: bool) -> float:
    claimed = claim(session, job)
    if progressed:
        assert transitions.record_progress(session, job.id, claimed.attempt, ProgressLine(stage="ranges", done=1))
    assert transitions.requeue(session, job.id, claimed.attempt, delay_seconds=0, charged=False, reason="deploy")
    stored = session.get_one(Job, job.id, populate_existing=True)
    delay = (stored.not_before - stored.queued_at).total_seconds()
    session.execute(update(Job).where(Job.id == job.id).values(not_before=Job.queued_at))  # to the bit: no rounding
    return delay


def test_a_job_survives_any_number_of_deploys(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
        assert [interrupted(session, job, progressed=True) for _ in range(8)] == [0.0] * 8
    between = row(database, job.id)
    assert (between["state"], between["attempt"], between["interruptions"]) == ("queued", 8, 8)
    with database.write() as session:
        claim(session, job)
        assert transitions.requeue(session, job.id, 9, delay_seconds=0, charged=True, reason="crash")
        claim(session, job)
        assert transitions.succeed(session, job.id, 10, result=OUTCOME)


def test_workers_that_end_as_soon_as_they_start_are_not_handed_the_job_at_once(database: Database) -> None:
    with database.write() as session:
        job = submit(session)
        delays = [interrupted(session, job, progressed=False) for _ in range(9)]
    assert 1.6 <= delays[0] < delays[2] < delays[4] <= 48
    assert all(48 <= delay <= 72 for delay in delays[6:])


@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_silence_of_workers_rejects_no_upload(database: Database, noun: str) -> None:
    """Only a runner that crashed under a living worker does, however many workers were lost before."""
    table = Model if noun == "model" else Dataset
    with database.write() as session:
        job, noun_id = inspecting(session, noun)
        for attempt in range(1, 6):
            claim(session, job, lease_seconds=-1)
            assert [moved.state for moved in transitions.expire_leases(session)] == ["queued"]
            told = session.get_one(Job, job.id, populate_existing=True).waiting
            assert (told is not None) == (attempt >= transitions.MAX_ATTEMPTS)
            assert told is None or told["code"] == transitions.WORKERS_LOST
            session.execute(update(Job).where(Job.id == job.id).values(not_before=db_now() - 1))
        assert session.get_one(table, noun_id, populate_existing=True).status == "validating"
        claim(session, job)
        assert transitions.requeue(session, job.id, 6, delay_seconds=0, charged=True, reason="segfault")
        assert session.get_one(table, noun_id, populate_existing=True).status == "rejected"
    assert row(database, job.id)["error"]["code"] == "attempts-exhausted"


def test_the_last_lease_to_expire_fails_the_job(database: Database) -> None:
    with database.write() as session:
        job = submit(session, max_attempts=1)
        claim(session, job, lease_seconds=-1)
        assert [moved.state for moved in transitions.expire_leases(session)] == ["failed"]
    assert row(database, job.id)["error"]["code"] == "lease-expired"


def test_backoff_grows_and_is_bounded() -> None:
    for attempt in range(1, 30):
        assert 0.8 * min(60.0, 2.0**attempt) <= transitions.backoff_seconds(attempt) <= 1.2 * 60.0
