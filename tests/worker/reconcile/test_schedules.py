"""Schedules fire once each: beside others, after an absence, by a clock that jumps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, update

from service.db import Database
from service.deps import AppState
from service.ids import new_id
from service.names import repository as names
from service.names.kinds import DATASETS
from service.schedules import firing
from service.settings import Settings
from service.storage import FileStore
from service.tables import JobSchedule
from tests.api.conftest import app, front
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.schedules import (
    HOUR,
    MANY,
    add_schedule,
    count_jobs,
    fire,
    hourly,
    make_due,
    move_clock,
    reconciling_app,
    run_by_request,
    runs,
    schedule,
    settle,
    succeed,
)
from worker.reconcile.loops import make_loops, run_once

__all__ = ["app", "front"]
Nightly = tuple[Front, Database, dict[str, Any]]


@pytest.fixture
def nightly(front: Front) -> Nightly:
    return front, front.app.database, front.job_body()


@pytest.fixture
def others(settings: Settings) -> Iterator[list[AppState]]:
    with ExitStack() as stack:
        apps = [reconciling_app(settings) for _ in range(3)]
        for app in apps:
            stack.callback(app.close)
        yield apps


def copies(database: Database, schedule_id: str, count: int) -> list[str]:
    """So many schedules that differ in nothing but their names, that one among them."""
    with database.write() as session:
        first = session.get_one(JobSchedule, schedule_id)
        values = {column.key: getattr(first, column.key) for column in JobSchedule.__table__.columns}
        others = [{**values, "id": new_id("sch"), "name": f"copy {number}"} for number in range(count - 1)]
        session.execute(insert(JobSchedule), others)
    return [schedule_id, *(str(other["id"]) for other in others)]


@pytest.mark.both_databases
def test_many_due_in_one_minute_fire_once_each_with_three_reconcilers(nightly: Nightly, others: list[AppState]) -> None:
    front, database, template = nightly
    made = copies(database, add_schedule(front, template, overlap="skip")["id"], 120)
    due = {schedule_id: make_due(database, schedule_id) for schedule_id in made}
    start = threading.Barrier(len(others))

    def work(app: AppState) -> int:
        start.wait(PATIENCE_SECONDS)
        return sum(fire(app) for _ in range(2))

    with ThreadPoolExecutor(len(others)) as threads:
        done = list(threads.map(work, others))
    assert sum(done) == len(made)
    assert all(count < len(made) for count in done), "one of them did it all: nothing was shown"
    assert count_jobs(database) == len(made)
    found = runs(database)
    assert sorted(run.schedule_id for run in found) == sorted(made)
    assert {run.due_at - due[run.schedule_id] for run in found} == {timedelta(0)}
    assert {run.state for run in found} == {"running"}
    assert len({run.job_id for run in found}) == len(made)
    assert fire(front.app) == 0


def test_a_round_of_the_reconciler_fires_sends_and_judges(nightly: Nightly, settings: Settings) -> None:
    front, database, template = nightly
    made = add_schedule(front, template)
    make_due(database, made["id"])
    loops = make_loops(settings, database, FileStore(settings.storage_dir), None, is_new=False)
    did = run_once(loops)
    assert (did["fire_schedules"], did["settle_schedules"]) == (1, 0)
    (run,) = runs(database)
    assert run.job_id is not None
    succeed(front, run.job_id)
    assert run_once(loops)["settle_schedules"] == 1
    assert run_once(loops)["settle_schedules"] == 0
    (run,) = runs(database)
    assert run.state == "passed"


def test_what_was_due_during_a_restart_fires_once(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, misfire="skip", misfire_grace_seconds=86400)
    due = make_due(database, made["id"])
    assert [fire(front.app), fire(front.app)] == [1, 0]
    (run,) = runs(database)
    assert (run.due_at, run.state, run.missed) == (due, "running", 0)
    assert schedule(database, made["id"]).next_due_at == due + timedelta(hours=1)


@pytest.mark.parametrize(
    ("misfire", "state", "reason", "jobs"), [("run_once", "running", None, 1), ("skip", "skipped", "misfire", 0)]
)
def test_a_clock_that_jumps_forward_is_one_misfire(nightly, misfire, state, reason, jobs):
    front, database, template = nightly
    made = add_schedule(front, template, misfire=misfire, misfire_grace_seconds=1, cron=hourly("*/2"))
    first = make_due(database, made["id"])
    first -= timedelta(hours=first.hour % 2)
    with database.write() as session:
        values = {"next_due_at": first - timedelta(hours=10), "fires_at": first - timedelta(hours=10)}
        session.execute(update(JobSchedule).values(**values))
    assert fire(front.app) == 1
    (run,) = runs(database)
    assert (run.state, run.reason, run.missed, run.due_at) == (state, reason, 5, first)
    assert count_jobs(database) == jobs
    assert schedule(database, made["id"]).next_due_at == first + timedelta(hours=2)
    assert fire(front.app) == 0


@pytest.mark.both_databases
def test_a_clock_that_jumps_back_fires_nothing_twice_and_sleeps_for_nothing(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, overlap="cancel_running")
    due = make_due(database, made["id"])
    assert fire(front.app) == 1
    move_clock(database, -3 * HOUR)
    assert fire(front.app) == 0
    assert schedule(database, made["id"]).next_due_at == due + timedelta(hours=4)
    assert firing.bring_forward(front.app, MANY) == 1
    assert firing.bring_forward(front.app, MANY) == 0
    assert schedule(database, made["id"]).next_due_at == due + timedelta(hours=1)
    # two hours pass; what comes then was not dealt with, but the third is the one that was
    for passed, found in ((1, 1), (1, 1), (1, 0)):
        move_clock(database, passed * HOUR)
        assert fire(front.app) == found
    assert len({run.due_at for run in runs(database)}) == len(runs(database)) == 3
    assert count_jobs(database) == 3


def test_overlap_skip(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template)
    first = run_by_request(front, made["id"])
    make_due(database, made["id"])
    assert fire(front.app) == 1
    _, skipped = runs(database)
    assert (skipped.state, skipped.reason) == ("skipped", "overlap")
    assert count_jobs(database) == 1
    succeed(front, first["job_id"])
    # it has ended, though nobody has judged it yet
    move_clock(database, HOUR)
    assert fire(front.app) == 1


def test_overlap_queue_waits_for_the_end_and_one_at_most(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, overlap="queue")
    first = run_by_request(front, made["id"])
    make_due(database, made["id"])
    assert fire(front.app) == 1
    refused = front.http.post(f"/v1/schedules/{made['id']}/run")
    assert (refused.status_code, refused.json()["code"]) == (409, "schedule-busy")
    assert [run.state for run in runs(database)] == ["running", "waiting"]
    assert firing.submit_waiting(front.app, MANY) == 0
    succeed(front, first["job_id"])
    assert settle(front.app) == 1
    assert firing.submit_waiting(front.app, MANY) == 1
    assert [run.state for run in runs(database)] == ["passed", "running"]
    assert count_jobs(database) == 2


def test_overlap_cancel_running(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, overlap="cancel_running")
    first = run_by_request(front, made["id"])
    make_due(database, made["id"])
    assert fire(front.app) == 1
    assert front.http.get(f"/v1/jobs/{first['job_id']}").json()["state"] == "canceled"
    assert settle(front.app) == 1
    before, after = runs(database)
    assert (before.state, before.reason) == ("failed", "job-canceled")
    assert after.state == "running"


def test_a_template_that_cannot_be_submitted_any_more_is_a_refused_run_and_the_next_one_comes(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template)
    due = make_due(database, made["id"], timedelta(hours=2))
    with database.write() as session:  # over HTTP it is refused: the schedule needs it
        gone = names.hold_any(session, DATASETS, "default", template["calibration_dataset_id"])
        assert gone is not None
        names.mark_deleted(session, gone)
    assert fire(front.app) == 1
    (run,) = runs(database)
    assert (run.state, run.reason, run.job_id) == ("refused", "dataset-not-found", None)
    assert run.problem["code"] == "dataset-not-found"
    assert fire(front.app) == 0
    assert schedule(database, made["id"]).next_due_at > due
    assert count_jobs(database) == 0


def test_a_quota_refuses_a_run_and_takes_nothing_with_it(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template)
    front.new_job(**template)
    own = front.http.put("/v1/tenants/default/quota", json={"jobs_queued": 1})
    assert own.status_code == 200, own.text
    make_due(database, made["id"])
    assert fire(front.app) == 1
    (run,) = runs(database)
    assert (run.state, run.reason) == ("refused", "quota-exceeded")
    assert count_jobs(database) == 1
    assert fire(front.app) == 0


def test_nothing_has_changed_since_the_last_accepted_run(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, skip_unchanged=True)
    first = run_by_request(front, made["id"])
    succeed(front, first["job_id"])
    assert settle(front.app) == 1
    make_due(database, made["id"])
    assert fire(front.app) == 1
    assert [run.state for run in runs(database)] == ["passed", "skipped"]
    skipped = runs(database)[-1]
    assert skipped.reason == "unchanged"
    assert first["job_id"] in (skipped.detail or "")
    # by request it runs anyway, and another config is a change
    second = run_by_request(front, made["id"])
    succeed(front, second["job_id"])
    assert settle(front.app) == 1
    changed = front.http.patch(
        f"/v1/schedules/{made['id']}", json={"template": {**template, "config": {"seed": 7}}}, headers={"If-Match": "*"}
    )
    assert changed.status_code == 200, changed.text
    move_clock(database, HOUR)
    assert fire(front.app) == 1
    assert runs(database)[-1].state == "running"


def test_a_fault_in_one_keeps_no_other(nightly: Nightly, caplog: pytest.LogCaptureFixture) -> None:
    front, database, template = nightly
    broken, whole = (add_schedule(front, template)["id"] for _ in range(2))
    for schedule_id in (broken, whole):
        make_due(database, schedule_id)
    with database.write() as session:
        session.execute(update(JobSchedule).where(JobSchedule.id == broken).values(timezone="No/Longer"))
    for found in (1, 0):
        assert fire(front.app) == found
    assert [run.schedule_id for run in runs(database)] == [whole]
    assert f"schedule.broken id={broken}" in caplog.text


def test_a_paused_schedule_is_not_due_and_misses_nothing(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template)
    paused = front.http.post(f"/v1/schedules/{made['id']}/pause").json()
    assert paused["paused_at"] is not None
    assert paused["next_due_at"] is None
    move_clock(database, 5 * HOUR)
    assert fire(front.app) == 0
    resumed = front.http.post(f"/v1/schedules/{made['id']}/resume").json()
    assert (resumed["paused_at"], resumed["next_due_at"]) == (None, made["next_due_at"])
    assert fire(front.app) == 0
    assert runs(database) == []


def rewrite(database: Database, schedule_id: str, **documents: Any) -> None:
    """Store documents as another version would."""
    with database.write() as session:
        session.execute(update(JobSchedule).where(JobSchedule.id == schedule_id).values(**documents))


@pytest.mark.both_databases
def test_what_a_newer_version_has_stored_is_left_to_it(nightly: Nightly, caplog: pytest.LogCaptureFixture) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, misfire_grace_seconds=HOUR)["id"]
    known = schedule(database, made)
    rewrite(database, made, template={**known.template, "of_a_later_version": 1})
    due = make_due(database, made)
    assert fire(front.app) == 0
    row = schedule(database, made)
    assert (runs(database), row.next_due_at) == ([], due), "it is due still"
    rewrite(database, made, template=known.template)
    assert fire(front.app) == 1
    (run,) = runs(database)
    succeed(front, str(run.job_id))
    rewrite(database, made, gate={**known.gate, "clauses": [{"kind": "of_a_later_version"}]})
    assert settle(front.app) == 0
    assert [one.state for one in runs(database)] == ["running"]
    left = [record.message for record in caplog.records if "schedule.left" in record.message]
    assert ["template" in left[0], "gate" in left[1]] == [True, True]
    rewrite(database, made, gate=known.gate)
    assert settle(front.app) == 1
    assert [one.state for one in runs(database)] == ["passed"]


def test_a_template_that_nobody_reads_in_time_is_refused(nightly: Nightly) -> None:
    front, database, template = nightly
    made = add_schedule(front, template, misfire_grace_seconds=60)["id"]
    rewrite(database, made, template={**schedule(database, made).template, "of_a_later_version": 1})
    make_due(database, made, timedelta(hours=1))
    assert fire(front.app) == 1
    assert [(run.state, run.reason) for run in runs(database)] == [("refused", "newer-template")]
