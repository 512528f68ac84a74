"""Validation of an upload that the installation had no time for: it is tried again, and rejects nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import update

from service.db import Database, db_now
from service.jobs import transitions
from service.tables import Dataset, Job, Model
from tests.db.test_transitions import add_dataset, add_model, claim, row, running, submit


@pytest.mark.parametrize("state", ["queued", "running"])
@pytest.mark.parametrize("noun", ["model", "dataset"])
def test_validation_that_lacked_time_goes_on_and_rejects_nothing(database: Database, noun: str, state: str) -> None:
    table = Model if noun == "model" else Dataset
    with database.write() as session:
        noun_id = add_model(session) if noun == "model" else add_dataset(session)
        nouns = {"model_id": None, "calibration_dataset_id": None, "config": None, f"{noun}_id": noun_id}
        job = submit(session, kind=f"inspect_{noun}", deadline_seconds=100.0, **nouns)
        if state == "running":
            claim(session, job)
    late(database, job.id, after_seconds=100)
    before = row(database, job.id)
    with database.write() as session:
        assert [moved.id for moved in transitions.expire_deadlines(session)] == [job.id]
        assert transitions.expire_deadlines(session) == []
        assert not transitions.renew(session, job.id, 1, lease_seconds=60).alive, "an attempt that ran is fenced off"
    after = row(database, job.id)
    assert (after["state"], after["worker_id"], after["lease_until"], after["error"]) == ("queued", None, None, None)
    assert after["attempt"] - after["interruptions"] == 0, "nothing is charged for it"
    assert after["waiting"]["code"] == "validation-overdue"
    assert after["deadline_at"] - after["created_at"] >= timedelta(seconds=200), "twice the time"
    assert (after["not_before"] > before["not_before"]) is (state == "running")
    with database.read() as session:
        found = session.get_one(table, noun_id)
        assert (found.status, found.problems, found.waiting) == ("validating", None, after["waiting"])
        version = found.row_version
    with database.write() as session:
        session.get_one(Job, job.id).not_before = job.created_at
    with database.write() as session:
        claim(session, job)
        found = session.get_one(table, noun_id, populate_existing=True)
        assert (found.waiting, found.row_version) == (None, version + 1)


def test_validation_that_is_asked_to_stop_gets_no_more_time(database: Database) -> None:
    with database.write() as session:
        job = running(session, kind="inspect_model", deadline_seconds=100.0)
        transitions.request_cancel(session, "default", job.id)
    late(database, job.id, after_seconds=100)
    before = row(database, job.id)
    with database.write() as session:
        assert transitions.expire_deadlines(session) == []
    assert row(database, job.id) == before
    with database.write() as session:
        assert transitions.finish_cancel(session, job.id, 1)


def late(database: Database, job_id: str, *, after_seconds: float) -> None:
    """Let the job have been submitted so long ago that its deadline has just passed."""
    with database.write() as session:
        session.execute(
            update(Job)
            .where(Job.id == job_id)
            .values(created_at=db_now() - after_seconds - 1, deadline_at=db_now() - 1)
        )
