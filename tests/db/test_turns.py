"""Whose turn it is, with several tenants and priorities, and which messages are to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import event, insert, select, text, update
from sqlalchemy.orm import Session

from service.db import Database, db_now
from service.dispatch import repository as slots
from service.dispatch.repository import next_due
from service.ids import new_id
from service.jobs import transitions
from service.jobs.repository import JobQuery, list_page
from service.names.kinds import MODELS
from service.names.repository import ResourceQuery
from service.names.repository import list_page as nouns_page
from service.queues import repository as queues
from service.queues.repository import announce
from service.tables import Job, Model
from tests.db.test_transitions import add_model, submit

pytestmark = pytest.mark.both_databases

FLOOD = 200
INDEXES = (
    "INDEX ix_jobs_waiting (queue=?", "INDEX ix_jobs_running (queue=?",
    "INDEX ix_jobs_tenant_id_queue_started_at",
)  # fmt: skip


def flood(session: Session, tenant: str, count: int, **changes: object) -> list[str]:
    model_id, now = add_model(session, tenant), session.execute(select(db_now())).scalar_one()
    ids = [new_id("job") for _ in range(count)]
    values = {
        "tenant_id": tenant, "kind": "quantize", "labels": {}, "state": "queued", "queue": "cpu", "priority": 0,
        "model_id": model_id, "config": {}, "attempt": 0, "max_attempts": 3, "interruptions": 0, "row_version": 1,
        "last_seq": 1, "created_at": now, "queued_at": now, "updated_at": now, "size_class": "long", **changes,
    }  # fmt: skip
    rows = [{**values, "id": job_id, "not_before": now - 1000 + place / 1000} for place, job_id in enumerate(ids)]
    session.execute(insert(Job), rows)
    return ids


def take(session: Session, *, short_only: bool = False) -> Job:
    job_id = next_due(session, {"cpu": short_only})
    assert job_id is not None
    job = transitions.claim(session, job_id, worker_id="w", lease_seconds=60)
    assert job is not None
    return job


def test_a_flood_holds_nobody_up_while_jobs_run(database: Database) -> None:
    """With any number of slots, none of which becomes free, tenants share them alike."""
    with database.write() as session:
        flood(session, "loud", FLOOD)
        flood(session, "quiet", 3)
        flood(session, "third", 3)
        taken = [take(session).tenant_id for _ in range(9)]
    assert Counter(taken[:3]) == Counter(taken[3:6]) == {"loud": 1, "quiet": 1, "third": 1}
    assert Counter(taken) == {"loud": 3, "quiet": 3, "third": 3}


def test_a_flood_holds_nobody_up_on_one_slot(database: Database) -> None:
    """With one slot tenants take turns; one that has only just come starts next."""

    def next_ended(session: Session) -> str:
        job = take(session)
        assert transitions.requeue(session, job.id, job.attempt, delay_seconds=3600, charged=True, reason="over")
        return job.id

    with database.write() as session:
        loud = flood(session, "loud", FLOOD)
        assert [next_ended(session) for _ in range(5)] == loud[:5]
        quiet = flood(session, "quiet", 2)
        assert [next_ended(session) for _ in range(4)] == [quiet[0], loud[5], quiet[1], loud[6]]


def test_priority_comes_before_turns_and_age(database: Database) -> None:
    with database.write() as session:
        (low,) = flood(session, "b", 1, priority=-1)
        old = flood(session, "a", 3)
        (urgent,) = flood(session, "a", 1, priority=7)
        assert [take(session).id for _ in range(5)] == [urgent, *old, low]
        assert next_due(session, {"cpu": False}) is None


def test_what_may_not_start_is_passed_over(database: Database) -> None:
    with database.write() as session:
        late = flood(session, "a", 2, priority=9)
        session.execute(update(Job).where(Job.id == late[0]).values(not_before=db_now() + 60))
        session.execute(update(Job).where(Job.id == late[1]).values(deadline_at=db_now() - 1))
        (other,) = flood(session, "a", 1, priority=9, queue="gpu")
        (mine,) = flood(session, "b", 1)
        assert next_due(session, {"cpu": False}) == mine, "a tenant whose jobs are delayed hides no other"
        assert next_due(session, dict.fromkeys(("cpu", "gpu", "inspect"), False)) == other
        assert next_due(session, {"inspect": False}) is None
        assert next_due(session, {}) is None


def test_short_jobs_can_be_taken_alone(database: Database) -> None:
    with database.write() as session:
        (long,) = flood(session, "a", 1, priority=5)
        short = flood(session, "a", 2, size_class="short")
        assert next_due(session, {"cpu": False}) == long
        assert [take(session, short_only=True).id for _ in range(2)] == short
        assert next_due(session, {"cpu": True}) is None


Look = Callable[[Session], object]


def plans_of(database: Database, look: Look) -> list[str]:
    seen: list[tuple[str, Any]] = []
    event.listen(database.engine, "before_cursor_execute", lambda c, k, words, given, *_: seen.append((words, given)))
    with database.read() as session:
        assert look(session) is not None
    statements = [(words, given) for words, given in seen if "jobs" in words]
    explain = "EXPLAIN QUERY PLAN" if database.engine.dialect.name == "sqlite" else "EXPLAIN"
    with database.engine.connect() as connection:
        return [
            "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"{explain} {words}", given))
            for words, given in statements
        ]


def test_the_choice_counts_no_jobs_through(database: Database) -> None:
    """As many statements for a flood as for one, and each of them goes by the indexes of turns."""
    with database.write() as session:
        flood(session, "a", FLOOD)
    plans = plans_of(database, lambda session: next_due(session, {"cpu": False, "inspect": False}))
    assert len(plans) == 2
    if database.engine.dialect.name == "sqlite":
        lines = [line for plan in plans for line in plan.split("\n")]
        assert all(any(name in line for name in INDEXES) for line in lines if "jobs" in line)
        assert not any("TEMP B-TREE" in line or "SCAN jobs" in line for line in lines)


def test_what_was_released_is_found_by_its_index(database: Database) -> None:
    with database.write() as session:
        flood(session, "a", 2000)
        session.execute(update(Job).where(Job.id.in_(flood(session, "a", 10))).values(dispatched_at=db_now() - 3600))
    if database.engine.dialect.name == "postgresql":
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE jobs"))
    looks: tuple[Any, ...] = (slots.started, lambda session: transitions.any_lost(session, lost_seconds=10))
    for look in looks:
        plan = plans_of(database, look)[0]
        assert "ix_jobs_released" in plan
        # SQLite goes through an index of running jobs alone by a scan, too
        assert not [line for line in plan.split("\n") if "Seq Scan" in line or line.endswith("SCAN jobs")]


def test_the_figures_of_the_queues(database: Database) -> None:
    with database.write() as session:
        flood(session, "a", 5)
        delayed = flood(session, "b", 2)
        session.execute(update(Job).where(Job.id.in_(delayed)).values(not_before=db_now() + 600))
        flood(session, "a", 1, queue="gpu")
        take(session)
        announce(session, "w", {"cpu": 3, "inspect": 3})
        announce(session, "idle", {"cpu": 2})
        announce(session, "idle", {"cpu": 4})
        waiting, running, crews = queues.waiting(session), queues.running(session), queues.worker_figures(session)
    assert (waiting["cpu"].queued, waiting["cpu"].due, waiting["gpu"].due) == (6, 4, 1)
    assert waiting["cpu"].oldest_seconds == pytest.approx(1000, abs=500)
    assert running == {"cpu": 1}
    assert crews == {"cpu": queues.WorkerFigures(2, 0, 7, 1), "inspect": queues.WorkerFigures(1, 0, 3, 1)}


def test_a_list_of_jobs_reads_no_configs(database: Database) -> None:
    seen: list[str] = []
    with database.write() as session:
        submit(session, config={"preset": "int8", "algorithms": [{"method": "adaround"}]})
    event.listen(database.engine, "before_cursor_execute", lambda c, k, words, *_: seen.append(words))
    with database.read() as session:
        ((job,), last) = list_page(session, "default", JobQuery(), after=None, limit=10)
    assert (job.preset, job.algorithms, last) == ("int8", ["adaround"], None)
    assert not any("config" in words for words in seen)


def test_a_list_of_models_reads_outlines_and_old_rows_whole(database: Database) -> None:
    with database.write() as session:
        for outline in ({"few": 1}, None):
            model_id = add_model(session)
            session.execute(
                update(Model).where(Model.id == model_id).values(status="ready", summary={"all": 1}, outline=outline)
            )
    with database.read() as session:
        models, _ = nouns_page(session, MODELS, "default", ResourceQuery(), after=None, limit=10)
    assert sorted(str(model.outline) for model in models) == ["{'all': 1}", "{'few': 1}"]
