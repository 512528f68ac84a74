"""The database itself holds: a quantize job has succeeded if and only if it has a report, of its last attempt."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.db import Database
from service.jobs import transitions
from service.resources import new_id
from tests.db.rows_of_then import insert_job, insert_row, insert_succeeded
from tests.db.test_transitions import in_canceled, in_failed, running, submit
from tests.support.each import each
from tests.support.front import model_summary

pytestmark = pytest.mark.both_databases

SUCCEED = "UPDATE jobs SET state = 'succeeded', lease_until = NULL, finished_at = 2 WHERE id = :id"


def run(session: Session, statement: str, job_id: str, **values: Any) -> None:
    changed: Any = session.execute(text(statement), {"id": job_id, **values})
    assert changed.rowcount == 1


def test_success_cannot_be_committed_without_the_report_of_its_attempt(database: Database) -> None:
    with database.write() as session:
        job = running(session)
    for attempt in (None, 0, 2):
        with pytest.raises(IntegrityError), database.write() as session:
            run(session, SUCCEED, job.id)
            if attempt is not None:
                insert_row(session, "reports", job_id=job.id, attempt=attempt, verdict="none")
    with pytest.raises(IntegrityError), database.write() as session:
        insert_job(session, state="succeeded", attempt=1, finished_at=2.0)
    with pytest.raises(IntegrityError), database.write() as session:
        insert_row(session, "artifacts", id=new_id("art"), job_id=job.id, attempt=1, kind="model")
    with database.write() as session:
        run(session, SUCCEED, job.id)
        insert_row(session, "reports", job_id=job.id, attempt=1, verdict="none")
    with database.read() as session:
        found = session.execute(text("SELECT report_job_id FROM jobs WHERE id = :id"), {"id": job.id})
        assert found.scalar_one() == job.id, "computed, also where older code writes"


def in_validated(session: Session) -> Any:
    job = running(session, kind="inspect_model")
    assert transitions.succeed(session, job.id, 1, result=model_summary())
    return job


@each("make", [submit, running, in_failed, in_canceled, in_validated])
def test_a_job_that_has_not_succeeded_has_no_report(database: Database, make: Any) -> None:
    with database.write() as session:
        job = make(session)
    with pytest.raises(IntegrityError), database.write() as session:
        insert_row(session, "reports", job_id=job.id, attempt=job.attempt, verdict="none")


def test_success_can_be_deleted_whole_and_not_taken_apart(database: Database) -> None:
    with database.write() as session:
        job_id = insert_succeeded(session)
    for statement in (
        "DELETE FROM reports WHERE job_id = :id",
        "UPDATE reports SET attempt = 2 WHERE job_id = :id",
        "UPDATE jobs SET attempt = 2 WHERE id = :id",
        "UPDATE jobs SET state = 'canceled' WHERE id = :id",
        "UPDATE jobs SET state = 'queued', finished_at = NULL WHERE id = :id",
        "UPDATE artifacts SET attempt = 2 WHERE job_id = :id",
    ):
        with pytest.raises(IntegrityError), database.write() as session:
            run(session, statement, job_id)
    with database.write() as session:
        for table in ("reports", "artifacts", "job_events"):
            run(session, f"DELETE FROM {table} WHERE job_id = :id", job_id)
        run(session, "DELETE FROM jobs WHERE id = :id", job_id)
