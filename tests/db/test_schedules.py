"""What the database itself keeps of schedules, and who is faster. On both databases."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError

from service import repository as rows
from service.db import Database
from service.ids import new_id
from service.schedules import repository
from service.schedules.repository import Plan
from service.tables import JobSchedule, ScheduleRun
from tests.db.test_concurrency import at_once
from worker.upkeep.repository import OLD_ROWS

DUE = datetime(2026, 1, 1, 2, 0, tzinfo=UTC)
PLAN = Plan(DUE, DUE)
NEXT = Plan(DUE + timedelta(days=1), DUE + timedelta(days=1))
DAY_SECONDS = 86_400.0


pytestmark = pytest.mark.both_databases


def add(database: Database, **values: Any) -> JobSchedule:
    facts: dict[str, Any] = {
        "name": f"nightly {new_id('sch')}", "cron": "0 2 * * *", "timezone": "UTC", "template": {}, "overlap": "skip",
        "misfire": "run_once", "misfire_grace_seconds": 600, "jitter_seconds": 0, "skip_unchanged": False, "gate": {},
        "created_by": "test",
    }  # fmt: skip
    with database.write() as session:
        return repository.create(session, "default", new_id("sch"), PLAN, **{**facts, **values})


def add_run(database: Database, schedule: JobSchedule, **values: Any) -> ScheduleRun:
    with database.write() as session:
        return repository.add_run(session, schedule, **{"due_at": DUE, "trigger": "time", "state": "skipped", **values})


def test_of_many_who_claim_a_due_time_one_has_it(database: Database) -> None:
    seen = add(database)

    def claim(_: int) -> bool:
        with database.write() as session:
            return repository.claim(session, seen, NEXT) is not None

    assert sorted(at_once(8, claim)) == [False] * 7 + [True]
    with database.read() as session:
        row = repository.look_up(session, seen.id)
    assert row is not None
    assert (row.next_due_at, row.row_version) == (NEXT.next_due_at, 2)


def test_a_due_time_has_one_run_of_a_known_kind(database: Database) -> None:
    schedule, other = add(database), add(database)
    add_run(database, schedule)
    add_run(database, other)
    later = DUE + timedelta(seconds=1)
    with database.read() as session:
        assert repository.is_dealt_with(session, schedule.id, DUE)
        assert not repository.is_dealt_with(session, schedule.id, later)
    for values in (
        {},
        *({"due_at": later, **odd} for odd in ({"state": "running"}, {"state": "lost"}, {"trigger": "x"})),
    ):
        with pytest.raises(IntegrityError):
            add_run(database, schedule, **values)


def test_what_is_no_schedule(database: Database) -> None:
    schedule = add(database)
    for values in (
        {"overlap": "both"}, {"misfire": "never"}, {"fires_at": None}, {"planned_at": None}, {"paused_at": DUE},
    ):  # fmt: skip
        with pytest.raises(IntegrityError), database.write() as session:
            session.execute(update(JobSchedule).where(JobSchedule.id == schedule.id).values(**values))


def test_a_paused_or_changed_schedule_is_not_claimed(database: Database) -> None:
    changed, paused = add(database), add(database)
    with database.write() as session:
        rows.change(session, JobSchedule, changed.id, name="other")
        session.execute(update(JobSchedule).where(JobSchedule.id == paused.id).values(**repository.UNPLANNED))
        assert repository.claim(session, changed, NEXT) is None
        assert repository.claim(session, paused, NEXT) is None


def test_what_was_due_first_comes_first(database: Database) -> None:
    made = [add(database) for _ in range(3)]
    with database.write() as session:
        for schedule, ago in zip(made, (1, 3, 2), strict=True):
            moved = DUE - timedelta(hours=ago)
            session.execute(update(JobSchedule).where(JobSchedule.id == schedule.id).values(fires_at=moved))
    with database.read() as session:
        assert repository.due(session, 2) == [made[1].id, made[2].id]


def test_old_runs_are_forgotten_once_they_have_ended(database: Database) -> None:
    schedule = add(database)
    ended, waits, fresh = (
        add_run(database, schedule, due_at=DUE + timedelta(hours=k), state=state)
        for k, state in enumerate(("skipped", "waiting", "skipped"))
    )
    with database.write() as session:
        old = update(ScheduleRun).where(ScheduleRun.id.in_([ended.id, waits.id]))
        session.execute(old.values(created_at=ScheduleRun.created_at - 2 * DAY_SECONDS))
    (runs,) = (rows for rows in OLD_ROWS if rows.name == "runs")
    with database.write() as session:
        assert runs.count(session, DAY_SECONDS) == 1
        assert runs.delete(session, DAY_SECONDS, 10) == 1
        assert runs.delete(session, DAY_SECONDS, 10) == 0
    with database.read() as session:
        left = repository.runs_page(session, "default", schedule.id, state=None, after=None, limit=10)[0]
    assert {run.id for run in left} == {waits.id, fresh.id}
