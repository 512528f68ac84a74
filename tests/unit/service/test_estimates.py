"""What earlier runs teach, and when a job comes to its turn: against queues that are played through job by job."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.db import Database
from service.estimates import waiting as lines_of
from service.estimates.forecast import PastRun, forecast
from service.estimates.prior import Prior
from service.estimates.repository import Running, WaitingJob
from service.estimates.waiting import Lines, Queue, left_seconds, queue_now

STAGES = {"start": 0.6, "load": 0.1, "statistics": 4.0, "adaround": 8.0, "evaluation": 3.0}


def prior(times: float = 1.0, *, timed: bool = True) -> Prior:
    return Prior({name: value * times for name, value in STAGES.items()}, 3e8, 1e6, timed)


def run(of: Prior, times: float = 1.0, recipe: str = "r", memory_bytes: float = 3e8) -> PastRun:
    """A run that took so many times what it should have."""
    return PastRun(recipe, of, of.seconds * times, memory_bytes, 1e6)


def test_without_any_run_it_is_what_the_graph_tells() -> None:
    told = forecast(prior(), "r", [])
    assert told.seconds[0] == pytest.approx(sum(STAGES.values()))
    assert told.size_bytes[0] == pytest.approx(1e6)
    assert told.memory_bytes[0] > 3e8, "memory is told with room"
    assert (told.basis, told.runs) == ("timed", 0)
    graph = forecast(prior(timed=False), "r", [])
    assert graph.basis == "graph"
    assert graph.seconds[2] > told.seconds[2], "who knows less says less"


@pytest.mark.parametrize("wrong", [0.2, 5.0])
def test_runs_of_the_same_recipe_are_believed_in_the_median(wrong: float) -> None:
    seen = [run(prior(), wrong), run(prior(), wrong), run(prior(), 11.0), run(prior(), 1.0, recipe="another")]
    told = forecast(prior(), "r", seen)
    assert (told.basis, told.runs) == ("history", 3)
    assert told.seconds[0] == pytest.approx(wrong * prior().seconds)
    more_data = forecast(prior(3.0), "r", seen)
    assert more_data.seconds[0] == pytest.approx(3.0 * told.seconds[0])


def test_another_recipe_teaches_of_memory_where_it_took_more() -> None:
    def told(recipe: str, memory_bytes: float) -> float:
        return forecast(prior(), "r", [run(prior(), recipe=recipe, memory_bytes=memory_bytes)]).memory_bytes[0]

    assert told("r", 1.5e8) < told("r", 3e8) < told("r", 6e8)
    assert told("s", 1.5e8) == told("s", 3e8) < told("s", 6e8)


@given(
    st.lists(
        st.tuples(st.sampled_from("rs"), st.floats(0.0, 1e5), st.floats(0.0, 1e5), st.floats(1.0, 1e12)), max_size=12
    ),
    st.floats(0.0, 1e6),
)
def test_whatever_was_seen_an_estimate_is_a_range_of_numbers(seen: list[tuple[str, float, float, float]], now: float):
    runs = [
        PastRun(recipe, Prior({"a": should}, size, size, timed=True), took, size, size)
        for recipe, should, took, size in seen
    ]
    told = forecast(prior(now), "r", runs)
    for expected, low, high in (told.seconds, told.memory_bytes, told.size_bytes):
        assert math.isfinite(high)
        assert 0.0 <= low <= expected <= high


def played(jobs: list[WaitingJob], wanted: str) -> tuple[float, float]:
    """Seconds before a job begins where one slot takes a job of each tenant in turn: at best, and at worst."""
    one = next(job for job in jobs if job.id == wanted)
    above = sum(job.seconds or 0.0 for job in jobs if job.priority > one.priority)
    lines: dict[str, list[WaitingJob]] = {}
    for job in sorted((job for job in jobs if job.priority == one.priority), key=lambda job: job.id):
        lines.setdefault(job.tenant_id, []).append(job)
    place = [job.id for job in lines[one.tenant_id]].index(wanted)
    rounds = sum(job.seconds or 0.0 for line in lines.values() for job in line[:place])
    last = sum(
        line[place].seconds or 0.0 for tenant, line in lines.items() if tenant != one.tenant_id and place < len(line)
    )
    return above + rounds, above + rounds + last


@given(st.lists(st.tuples(st.sampled_from("AB"), st.integers(-1, 1), st.floats(0.5, 100.0)), min_size=1, max_size=12))
def test_what_is_ahead_is_what_is_done_before(drawn: list[tuple[str, int, float]]) -> None:
    jobs = [WaitingJob(f"job_{k:03}", tenant, priority, seconds) for k, (tenant, priority, seconds) in enumerate(drawn)]
    lines = Lines.of(jobs)
    for job in jobs:
        least, most = played(jobs, job.id)
        assert least - 1e-6 <= lines.ahead_seconds(job.priority, job.tenant_id, job.id) <= most + 1e-6


def waiting(count: int, seconds: float = 10.0) -> Lines:
    return Lines.of([WaitingJob(f"job_{k}", "t", 0, seconds) for k in range(count)])


def test_more_slots_do_it_sooner_and_a_free_one_at_once() -> None:
    ends = [Queue(waiting(8), {}, slots).seconds_until_end("~", "t", 0, 5.0) for slots in (0, 1, 2, 4)]
    assert ends == [None, 85.0, 45.0, 25.0]
    assert Queue(waiting(0), {"job_x": 500.0}, 2).seconds_until_end("~", "t", 0, 5.0) == 5.0
    assert Queue(waiting(0), {"job_x": 500.0, "job_y": 100.0}, 2).seconds_until_end("~", "t", 0, 5.0) == 305.0
    queue = Queue(waiting(3), {}, 1)
    assert [queue.seconds_until_end(f"job_{k}", "t", 0, 10.0) for k in range(3)] == [10.0, 20.0, 30.0]


def test_what_is_overdue_is_about_to_end() -> None:
    assert left_seconds(Running("job", 100.0, 30.0)) == 70.0
    assert left_seconds(Running("job", 100.0, 5000.0)) == 10.0
    assert left_seconds(Running("job", None, None)) > 0.0


@pytest.mark.slow
def test_a_long_queue_is_not_read_for_every_job(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(lines_of, "_read", lambda _, queue: read.append(queue) or Queue(waiting(2), {}, 1))
    monkeypatch.setattr(lines_of, "_QUICK_SECONDS", 1e6)
    database = Database(sqlite_url)
    with database.read() as session:
        for _ in range(3):
            queue_now(session, "cpu")
        assert read == ["cpu"] * 3, "a short one is"
        monkeypatch.setattr(lines_of, "_QUICK_SECONDS", -1e6)
        queue_now(session, "cpu")
        assert queue_now(session, "cpu").slots == 1
        assert queue_now(session, "gpu").slots == 1
        assert read == ["cpu"] * 4 + ["gpu"]
    database.close()
