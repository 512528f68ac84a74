"""What earlier runs teach, and when a job comes to its turn: against queues that are played through job by job."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.db import Database
from service.estimates import waiting as lines_of
from service.estimates.prior import Prior
from service.estimates.regression import Fit, Run, fitted, forecast
from service.estimates.repository import Running, Waiting
from service.estimates.waiting import Lines, Queue, left_seconds, queue_now

STAGES = {"start": 0.6, "load": 0.1, "statistics": 4.0, "adaround": 8.0, "evaluation": 3.0}


def prior(times: float = 1.0, *, timed: bool = True, **stages: float) -> Prior:
    return Prior({name: value * times for name, value in {**STAGES, **stages}.items()}, 3e8, 1e6, timed)


def run(model: str, of: Prior, factors: Mapping[str, float] | float = 1.0, recipe: str = "r") -> Run:
    """A run that took ``factors`` times what it should have."""
    taken = {
        name: value * (factors if isinstance(factors, float) else factors.get(name, 1.0))
        for name, value in of.stages.items()
    }
    return Run(model, recipe, of, taken, 3e8, 1e6)


def test_without_any_run_it_is_what_the_graph_tells() -> None:
    told = forecast(prior(), "r", Fit(), [])
    assert told.seconds[0] == pytest.approx(sum(STAGES.values()))
    assert told.size_bytes[0] == pytest.approx(1e6)
    assert told.memory_bytes[0] > 3e8, "memory is told with room"
    assert told.basis == "timed"
    graph = forecast(prior(timed=False), "r", Fit(), [])
    assert graph.basis == "graph"
    assert graph.seconds[2] > told.seconds[2], "who knows less says less"


def test_a_slower_machine_is_learned_from_other_models() -> None:
    dice = random.Random(1)
    seen = [run(f"m{k}", prior(dice.uniform(0.2, 5.0)), 2.0 * dice.uniform(0.9, 1.1)) for k in range(10)]
    told = forecast(prior(3.0), "r", fitted(seen), [])
    assert told.seconds[0] == pytest.approx(2.0 * 3.0 * sum(STAGES.values()), rel=0.2)
    assert told.basis == "timed"


def test_one_stage_is_corrected_and_the_others_stay() -> None:
    seen = [run(f"m{k}", prior(), {"adaround": 4.0}) for k in range(30)]
    fit = fitted(seen)
    assert fit.stages["adaround"] == pytest.approx(math.log(4.0), rel=0.1)
    assert all(abs(factor) < 0.05 for name, factor in fit.stages.items() if name != "adaround")
    without = replace(prior(), stages={name: s for name, s in STAGES.items() if name != "adaround"})
    assert forecast(without, "r", fit, []).seconds[0] == pytest.approx(sum(without.stages.values()), rel=0.05)


@pytest.mark.parametrize("wrong", [0.2, 5.0])
def test_the_models_own_runs_outweigh_all_else(wrong: float) -> None:
    odd = run("odd", prior(), wrong)
    fit = fitted([run(f"m{k}", prior()) for k in range(9)] + [odd])
    told = forecast(prior(), "r", fit, [odd])
    assert told.basis == "history"
    assert 0.55 < told.seconds[0] / odd.seconds < 1.8
    often = forecast(prior(), "r", fit, [odd] * 6)
    assert often.seconds[0] == pytest.approx(odd.seconds, rel=0.15)


def test_another_recipe_teaches_of_memory_where_it_took_more() -> None:
    def told(recipe: str, memory_bytes: float) -> float:
        seen = replace(run("m", prior(), recipe=recipe), memory_bytes=memory_bytes)
        return forecast(prior(), "r", Fit(), [seen]).memory_bytes[0]

    assert told("r", 1.5e8) < told("r", 3e8) < told("r", 6e8)
    assert told("s", 1.5e8) == told("s", 3e8) < told("s", 6e8)


def test_stages_that_two_recipes_share_teach_one_another() -> None:
    plain = replace(prior(), stages={name: s for name, s in STAGES.items() if name != "adaround"})
    slow = run("m", plain, {"evaluation": 10.0}, recipe="plain")
    told = forecast(prior(), "tuned", Fit(), [slow])
    assert told.seconds[0] > sum(STAGES.values()) + 5 * STAGES["evaluation"]


def test_a_stage_that_nothing_foretold_is_expected_again() -> None:
    of = prior()
    advised = replace(run("m", of), stages={**of.stages, "advice": 20.0})
    again = forecast(of, "r", Fit(), [advised]).seconds[0]
    other = forecast(of, "another", Fit(), [advised]).seconds[0]
    assert again - other == pytest.approx(20.0)


def test_ranges_follow_what_was_found() -> None:
    dice = random.Random(2)
    steady = fitted([run(f"m{k}", prior(), dice.uniform(0.98, 1.02)) for k in range(100)])
    wild = fitted([run(f"m{k}", prior(), math.exp(dice.gauss(0.0, 1.0))) for k in range(100)])
    narrow, wide = (forecast(prior(), "r", fit, []).seconds for fit in (steady, wild))
    assert narrow[2] / narrow[1] < 1.5
    assert wide[2] / wide[1] > 5.0
    told = [forecast(prior(), "r", wild, []).seconds] * 500
    came = [sum(STAGES.values()) * math.exp(dice.gauss(0.0, 1.0)) for _ in told]
    inside = sum(low <= seconds <= high for (_, low, high), seconds in zip(told, came, strict=True)) / len(told)
    assert 0.65 < inside < 0.95


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.0, 1e5), st.floats(0.0, 1e5), st.floats(1.0, 1e12)), max_size=12
    ),
    st.floats(0.0, 1e6),
)
def test_whatever_was_seen_an_estimate_is_a_range_of_numbers(seen: list[tuple[str, float, float, float]], now: float):
    runs = [
        Run(model, "r", Prior({"a": should}, size, size, timed=True), {"a": took, "b": took}, size, size)
        for model, should, took, size in seen
    ]
    told = forecast(prior(now), "r", fitted(runs), [one for one in runs if one.model == "a"])
    for expected, low, high in (told.seconds, told.memory_bytes, told.size_bytes):
        assert math.isfinite(high)
        assert 0.0 <= low <= expected <= high


def played(jobs: list[Waiting], wanted: str) -> tuple[float, float]:
    """Seconds before a job begins where one slot takes a job of each tenant in turn: at best, and at worst."""
    one = next(job for job in jobs if job.id == wanted)
    above = sum(job.seconds or 0.0 for job in jobs if job.priority > one.priority)
    lines: dict[str, list[Waiting]] = {}
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
    jobs = [Waiting(f"job_{k:03}", tenant, priority, seconds) for k, (tenant, priority, seconds) in enumerate(drawn)]
    lines = Lines.of(jobs)
    for job in jobs:
        least, most = played(jobs, job.id)
        assert least - 1e-6 <= lines.ahead_seconds(job.priority, job.tenant_id, job.id) <= most + 1e-6


def waiting(count: int, seconds: float = 10.0) -> Lines:
    return Lines.of([Waiting(f"job_{k}", "t", 0, seconds) for k in range(count)])


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
