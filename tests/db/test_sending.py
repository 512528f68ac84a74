"""Messages to send are found by their index, however many jobs are queued; on both databases."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.orm import Session

from service.db import Database, db_now
from service.jobs import transitions
from service.tables import Job
from tests.db.test_turns import flood

QUEUED = 2000
LOOKS: dict[str, Callable[[Session], object]] = {
    "unsent": lambda session: transitions.unsent(session, "cpu", 100),
    "overdue": lambda session: transitions.overdue(session, "cpu", 100),
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_goes_by_the_index_and_sorts_nothing(database: Database, look: str) -> None:
    with database.write() as session:
        flood(session, "a", QUEUED)
        session.execute(update(Job).where(Job.priority == 0).values(dispatched_at=db_now() - 3600))
        flood(session, "a", 10)
    if database.engine.dialect.name == "postgresql":
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE jobs"))
    plan = plan_of(database, LOOKS[look])
    assert "ix_jobs_message" in plan
    assert "Sort" not in plan
    assert "TEMP B-TREE" not in plan
    assert "Seq Scan" not in plan


def test_the_oldest_come_first_and_no_more_than_asked_for(database: Database) -> None:
    with database.write() as session:
        jobs = flood(session, "a", 6)
        flood(session, "a", 2, queue="gpu")
        session.execute(update(Job).where(Job.id == jobs[0]).values(not_before=db_now() + 60))
        for age, job_id in enumerate(jobs[3:]):
            session.execute(update(Job).where(Job.id == job_id).values(dispatched_at=db_now() - 100 - age))
        assert [due.job_id for due in transitions.unsent(session, "cpu", 10)] == jobs[1:3]
        assert [due.job_id for due in transitions.overdue(session, "cpu", 2)] == [jobs[5], jobs[4]]
        cpu, gpu = transitions.backlogs(session)
    assert (cpu.queue, cpu.fresh, cpu.sent, cpu.late) == ("cpu", 2, 3, 3)
    assert (gpu.queue, gpu.fresh, gpu.sent, gpu.late) == ("gpu", 2, 0, 0)


def plan_of(database: Database, look: Callable[[Session], object]) -> str:
    seen: list[tuple[str, object]] = []
    event.listen(database.engine, "before_cursor_execute", lambda c, k, words, given, *_: seen.append((words, given)))
    with database.read() as session:
        look(session)
    words, given = next((words, given) for words, given in seen if "jobs" in words)
    explain = "EXPLAIN QUERY PLAN" if database.engine.dialect.name == "sqlite" else "EXPLAIN"
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"{explain} {words}", given)  # type: ignore[arg-type]
        return "\n".join(str(row[-1]) for row in rows)
