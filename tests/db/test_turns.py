"""Whose turn it is, with several tenants and priorities, on both databases."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import event, insert, select, update
from sqlalchemy.orm import Session

from service.db import Database, db_now
from service.ids import new_id
from service.jobs import transitions
from service.jobs.repository import JobQuery, list_page
from service.queues import repository as queues
from service.tables import Job, Model
from service.workers.repository import announce
from tests.db.test_transitions import add_dataset, add_model
from worker.turns.repository import next_due

FLOOD = 500
INDEXES = (
    "COVERING INDEX ix_jobs_turn (queue=?",
    "INDEX ix_jobs_running (queue=?",
    "INDEX ix_jobs_tenant_id_queue_started_at",
)


def flood(session: Session, tenant: str, count: int, **changes: object) -> list[str]:
    """So many queued jobs of a tenant, oldest first."""
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


def take(session: Session, *, short_only: bool = False, names: tuple[str, ...] = ("cpu",)) -> Job | None:
    """Claim the job whose turn it is."""
    job_id = next_due(session, names, short_only=short_only)
    return None if job_id is None else transitions.claim(session, job_id, worker_id="w", lease_seconds=60)


def end(session: Session, job: Job) -> None:
    assert transitions.requeue(session, job.id, job.attempt, delay_seconds=3600, charged=True, reason="over")


def test_a_flood_holds_nobody_up_while_jobs_run(database: Database) -> None:
    """With any number of slots, none of which becomes free, tenants share them alike."""
    with database.write() as session:
        flood(session, "loud", FLOOD)
        flood(session, "quiet", 3)
        flood(session, "third", 3)
        taken = [job.tenant_id for _ in range(9) if (job := take(session))]
    assert Counter(taken[:3]) == Counter(taken[3:6]) == {"loud": 1, "quiet": 1, "third": 1}
    assert Counter(taken) == {"loud": 3, "quiet": 3, "third": 3}


def test_a_flood_holds_nobody_up_on_one_slot(database: Database) -> None:
    """With one slot tenants take turns; one that has only just come starts next."""
    with database.write() as session:
        loud = flood(session, "loud", FLOOD)
        for expected in loud[:5]:
            job = take(session)
            assert job is not None
            assert job.id == expected
            end(session, job)
        quiet = flood(session, "quiet", 2)
        seen = []
        for _ in range(4):
            job = take(session)
            assert job is not None
            seen.append(job.id)
            end(session, job)
    assert seen == [quiet[0], loud[5], quiet[1], loud[6]]


def test_priority_comes_before_turns_and_age(database: Database) -> None:
    with database.write() as session:
        (low,) = flood(session, "b", 1, priority=-1)
        old = flood(session, "a", 3)
        (urgent,) = flood(session, "a", 1, priority=7)
        first = take(session)
        assert first is not None
        assert first.id == urgent
        rest = [job.id for _ in range(5) if (job := take(session))]
    assert rest == [*old, low]


def test_what_may_not_start_is_passed_over(database: Database) -> None:
    with database.write() as session:
        late = flood(session, "a", 2, priority=9)
        session.execute(update(Job).where(Job.id == late[0]).values(not_before=db_now() + 60))
        session.execute(update(Job).where(Job.id == late[1]).values(deadline_at=db_now() - 1))
        (other,) = flood(session, "a", 1, priority=9, queue="gpu")
        (mine,) = flood(session, "b", 1)
        assert next_due(session, ("cpu",)) == mine
        assert next_due(session, ("cpu", "gpu", "inspect")) == other
        assert next_due(session, ("inspect",)) is None
        assert next_due(session, ()) is None


def test_a_tenant_whose_jobs_are_delayed_hides_no_other(database: Database) -> None:
    with database.write() as session:
        delayed = flood(session, "a", 1)
        session.execute(update(Job).where(Job.id.in_(delayed)).values(not_before=db_now() + 60))
        (due,) = flood(session, "b", 1)
        assert next_due(session, ("cpu",)) == due


def test_short_jobs_can_be_taken_alone(database: Database) -> None:
    with database.write() as session:
        (long,) = flood(session, "a", 1, priority=5)
        short = flood(session, "a", 2, size_class="short")
        assert next_due(session, ("cpu",)) == long
        taken = [job.id for _ in range(3) if (job := take(session, short_only=True))]
        assert taken == short
        assert next_due(session, ("cpu",), short_only=True) is None


def test_the_choice_counts_no_jobs_through(database: Database) -> None:
    """As many statements for 500 jobs as for one, and each of them goes by the indexes of turns."""
    seen: list[tuple[str, object]] = []
    with database.write() as session:
        flood(session, "a", FLOOD)
    event.listen(database.engine, "before_cursor_execute", lambda c, k, text, given, *_: seen.append((text, given)))
    with database.read() as session:
        assert next_due(session, ("cpu", "inspect")) is not None
    seen = [(text, given) for text, given in seen if text != "BEGIN"]
    assert len(seen) == 2
    if database.engine.dialect.name == "sqlite":
        with database.engine.connect() as connection:
            plans = [
                row[-1]
                for text, given in list(seen)
                for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", given)  # type: ignore[arg-type]
            ]
        searches = [plan for plan in plans if "jobs" in plan]
        assert all(any(name in plan for name in INDEXES) for plan in searches)
        assert not any("TEMP B-TREE" in plan or "SCAN jobs" in plan for plan in plans)


def test_the_figures_of_the_queues(database: Database) -> None:
    with database.write() as session:
        flood(session, "a", 5)
        delayed = flood(session, "b", 2)
        session.execute(update(Job).where(Job.id.in_(delayed)).values(not_before=db_now() + 600))
        flood(session, "a", 1, queue="gpu")
        assert take(session) is not None
        announce(session, "w", ("cpu", "inspect"), slots=3)
        announce(session, "idle", ("cpu",), slots=2)
        announce(session, "idle", ("cpu",), slots=4)
        waiting, running, crews = queues.waiting(session), queues.running(session), queues.crews(session)
    assert (waiting["cpu"].queued, waiting["cpu"].due, waiting["gpu"].due) == (6, 4, 1)
    assert waiting["cpu"].oldest_seconds == pytest.approx(1000, abs=500)
    assert running == {"cpu": 1}
    assert crews == {"cpu": queues.Crew(2, 0, 7, 1), "inspect": queues.Crew(1, 0, 3, 1)}


def test_a_list_of_jobs_reads_no_configs(database: Database) -> None:
    seen: list[str] = []
    with database.write() as session:
        dataset_id = add_dataset(session)
        config = {"preset": "int8", "algorithms": [{"method": "adaround"}]}
        transitions.submit(
            session, tenant_id="default", kind="quantize", model_id=add_model(session),
            calibration_dataset_id=dataset_id, config=config,
        )  # fmt: skip
    event.listen(database.engine, "before_cursor_execute", lambda c, k, text, *_: seen.append(text))
    with database.read() as session:
        ((job,), last) = list_page(session, "default", JobQuery(), after=None, limit=10)
    assert (job.preset, job.algorithms, last) == ("int8", ["adaround"], None)
    assert not any("config" in text for text in seen)


def test_a_list_of_models_reads_outlines_and_old_rows_whole(database: Database) -> None:
    from service.names.kinds import MODELS
    from service.names.repository import NounQuery
    from service.names.repository import list_page as nouns_page

    with database.write() as session:
        for outline in ({"few": 1}, None):
            model_id = add_model(session)
            session.execute(
                update(Model).where(Model.id == model_id).values(status="ready", summary={"all": 1}, outline=outline)
            )
    with database.read() as session:
        models, _ = nouns_page(session, MODELS, "default", NounQuery(), after=None, limit=10)
    assert sorted(str(model.outline) for model in models) == ["{'all': 1}", "{'few': 1}"]
