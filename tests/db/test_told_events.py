"""What the page of a job reads of its log, against plain loops over all of it, on both databases."""

from __future__ import annotations

import random

import pytest

from service.db import Database
from service.jobs import events
from service.jobs.events import latest_metrics
from service.jobs.views import event_out
from service.tables import JobEvent
from tests.db.test_transitions import submit
from tests.support.each import each

pytestmark = pytest.mark.both_databases

KINDS: tuple[events.EventType, ...] = ("progress", "metric", "log", "state")


def filled(database: Database, seed: int, *, count: int = 60) -> tuple[str, list[JobEvent]]:
    """A job that two attempts tell of, in some order; its id and all of its log."""
    choice = random.Random(seed)
    with database.write() as session:
        job_id = submit(session).id
    for attempt in (1, 2):
        told: list[events.Entry] = [
            (choice.choice(KINDS), {"stage": choice.choice("abcdef"), "done": number, "step": number % 31})
            for number in range(count // 2)
        ]
        with database.write() as session:
            events.append_all(session, job_id, attempt, told)
    with database.read() as session:
        return job_id, events.list_after(session, "default", job_id, 0, 10_000)


@each("seed", range(4))
def test_the_last_progress_of_each_stage_is_that_of_the_newest_attempt(database: Database, seed: int) -> None:
    job_id, log = filled(database, seed)
    for upto in (len(log), len(log) - 7, 20, 1):
        progress = [event for event in log if event.type == "progress" and event.seq <= upto]
        attempt = max((event.attempt for event in progress), default=0)
        latest = {event.data["stage"]: event.seq for event in progress if event.attempt == attempt}
        with database.read() as session:
            found = events.last_of_stages(session, "default", job_id, upto=upto)
            assert events.last_of_stages(session, "another", job_id, upto=upto) == []
        # a dict keeps the place of a key at which it was seen first
        assert [(event.data["stage"], event.seq) for event in found] == list(latest.items())


@each(("most", "stage"), [(1, None), (4, "c"), (7, None), (100, None)])
def test_each_step_is_told_once_and_long_stages_are_thinned_from_their_end(
    database: Database, most: int, stage: str | None
) -> None:
    job_id, log = filled(database, 3, count=200)
    whole = latest_metrics(map(event_out, log))
    with database.read() as session:
        told = events.latest_figures(session, "default", job_id, most=most, stage=stage)
        assert events.latest_figures(session, "another", job_id, most=most) == []
    found = latest_metrics(map(event_out, told))
    assert len(told) == sum(len(steps) for steps in found.values())
    assert found.keys() == whole.keys() if stage is None else list(found) == [stage]
    for name, steps in found.items():
        every = -(-len(whole[name]) // most)
        kept = sorted(whole[name])[::-1][::every][::-1]
        assert steps == {step: whole[name][step] for step in kept}


def test_the_newest_of_a_kind_come_oldest_first(database: Database) -> None:
    job_id, log = filled(database, 5)
    with database.read() as session:
        found = events.newest(session, "default", job_id, "log", upto=40, limit=5)
        assert events.newest(session, "another", job_id, "log", upto=40, limit=5) == []
    assert [one.seq for one in found] == [one.seq for one in log if one.type == "log" and one.seq <= 40][-5:]
