"""A queued job that no worker will take says so."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import update

from service.db import db_now
from service.tables import Job, Worker
from service.workers.repository import ALIVE_SECONDS, announce, live_queues
from tests.support.front import Front


@pytest.fixture
def watched(front: Front) -> Front:
    """A service that has been there long enough to have seen any worker."""
    front.http.app.state.desk = replace(front.desk, opened_at=front.desk.opened_at - 2 * ALIVE_SECONDS)
    return front


def queued_long_ago(front: Front, **values: Any) -> str:
    job_id = front.new_job()
    with front.desk.database.write() as session:
        long_ago = db_now() - 2 * ALIVE_SECONDS
        session.execute(update(Job).where(Job.id == job_id).values(queued_at=long_ago, not_before=long_ago, **values))
    return job_id


def waiting(front: Front, job_id: str) -> Any:
    return front.http.get(f"/v1/jobs/{job_id}").json()["waiting"]


def test_a_job_without_a_worker_says_so(watched: Front) -> None:
    job_id = queued_long_ago(watched, queue="gpu")
    told = waiting(watched, job_id)
    assert told["code"] == "no-worker"
    assert "queue gpu" in told["message"]
    assert "--queues gpu" in told["hint"]
    (listed,) = watched.http.get("/v1/jobs").json()["items"]
    assert listed["waiting"] == told
    with watched.desk.database.write() as session:
        announce(session, "a worker for others", ("cpu", "inspect"))
    assert waiting(watched, job_id) == told
    with watched.desk.database.write() as session:
        announce(session, "its worker", ("cpu", "gpu"))
    assert waiting(watched, job_id) is None


def test_its_tag_changes_with_it(watched: Front) -> None:
    job_id = queued_long_ago(watched)
    tag = watched.http.get(f"/v1/jobs/{job_id}").headers["etag"]
    assert watched.http.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": tag}).status_code == 304
    with watched.desk.database.write() as session:
        announce(session, "worker", ("cpu",))
    answer = watched.http.get(f"/v1/jobs/{job_id}", headers={"If-None-Match": tag})
    assert answer.status_code == 200
    assert answer.json()["waiting"] is None


def test_a_worker_that_fell_silent_does_not_count(watched: Front) -> None:
    job_id = queued_long_ago(watched)
    with watched.desk.database.write() as session:
        announce(session, "worker", ("cpu",))
        assert live_queues(session, {"cpu", "gpu"}) == {"cpu"}
        session.execute(update(Worker).values(seen_at=db_now() - 2 * ALIVE_SECONDS))
        assert live_queues(session, {"cpu", "gpu"}) == set()
    assert waiting(watched, job_id)["code"] == "no-worker"


def test_nothing_is_said_of_jobs_that_have_only_just_come(watched: Front) -> None:
    assert waiting(watched, watched.new_job()) is None


def test_nothing_is_said_while_workers_may_only_be_starting(front: Front) -> None:
    assert waiting(front, queued_long_ago(front)) is None


def test_nothing_is_said_of_jobs_that_run(watched: Front) -> None:
    job_id = queued_long_ago(watched)
    watched.claim(job_id)
    assert waiting(watched, job_id) is None


def test_workers_that_are_long_gone_are_forgotten(front: Front) -> None:
    with front.desk.database.write() as session:
        announce(session, "old", ("cpu",))
        session.execute(update(Worker).values(seen_at=db_now() - 7 * 24 * 3600.0))
        announce(session, "new", ("cpu", "gpu"))
        announce(session, "new", ("cpu", "gpu"))
        assert {(row.id, row.queue) for row in session.query(Worker)} == {("new", "cpu"), ("new", "gpu")}
