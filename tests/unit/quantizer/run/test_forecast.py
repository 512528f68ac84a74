"""How far a run as a whole has come, on a clock of our own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.progress import OverallRun, Phase, Stages, TimeLeft


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Recorder(SilentRun):
    def __init__(self) -> None:
        self.told: list[tuple[float, float]] = []

    def overall(self, share: float, seconds_left: float) -> None:
        self.told.append((share, seconds_left))


def test_costs_alone_until_a_phase_tells_how_far_it_has_come() -> None:
    forecast = TimeLeft(clock := Clock())
    forecast.expect([Phase("a", 10.0), Phase("b", 5.0)])
    assert forecast.seconds_left == 15.0
    forecast.enter("a")
    clock.now += 4
    assert forecast.seconds_left == 11.0
    clock.now += 26  # three times as long as expected
    assert (forecast.seconds_left or 0.0) > 5.0 + 3.0
    forecast.leave()
    assert forecast.seconds_left == 5.0


def test_its_own_pace_counts_the_more_the_further_it_has_come() -> None:
    errors, forecast = [], TimeLeft(clock := Clock())
    forecast.expect([Phase("a", 10.0)])
    forecast.enter("a")
    for done in range(1, 100):
        clock.now += 1.0
        forecast.tell("a", done / 100, "layers")
        errors.append(abs((forecast.seconds_left or 0.0) - (100 - done)) / 100)
    assert max(errors[50:]) < 0.06
    assert max(errors[20:]) < 0.2


def test_phases_that_do_not_come_are_left_out_and_others_may_come() -> None:
    forecast, recorder = TimeLeft(Clock()), Recorder()
    assert forecast.seconds_left is None, "nothing is told before it is known what there is to do"
    OverallRun(recorder, Clock()).progress("load")
    assert recorder.told == []
    forecast.expect([Phase("a", 10.0), Phase("b", 5.0), Phase("c", 1.0)])
    forecast.enter("b")
    assert forecast.seconds_left == 6.0
    forecast.leave()
    forecast.enter("unheard of")
    assert forecast.seconds_left == 1.0


@given(
    costs=st.lists(st.tuples(st.floats(0.0, 50.0), st.floats(0.01, 50.0)), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_the_share_never_falls_and_is_1_at_the_end_only(costs: list[tuple[float, float]], seed: int) -> None:
    clock, recorder, chance = Clock(), Recorder(), random.Random(seed)
    run = OverallRun(recorder, clock)
    stages = Stages(run)
    run.expect([Phase(f"{k}", expected) for k, (expected, _) in enumerate(costs)])
    for k, (_, taken) in enumerate(costs):
        with stages.stage(f"{k}"):
            for step in range(5):
                clock.now += taken / 5
                if chance.random() < 0.7:
                    run.progress(f"{k}", step, chance.choice([5, None]), chance.choice(["samples", "layers"]))
                run.check()
    shares = [share for share, _ in recorder.told]
    assert shares == sorted(shares)
    assert all(0.0 <= share < 1.0 for share in shares)
    assert all(left >= 0.0 for _, left in recorder.told)
    run.overall(1.0, 0.0)
    assert recorder.told[-1] == (1.0, 0.0)


def test_a_stage_that_says_nothing_has_its_share_told_all_the_same() -> None:
    run = OverallRun(recorder := Recorder(), clock := Clock())
    run.expect([Phase("a", 100.0)])
    run.enter("a")
    for seconds in (10, 0.5):
        clock.now += seconds
        run.check()
    assert [share for share, _ in recorder.told] == [pytest.approx(0.1)]


def test_the_time_left_rises_only_where_much_more_is_left() -> None:
    run = OverallRun(recorder := Recorder(), clock := Clock())
    run.expect([Phase("a", 20.0), Phase("b", 10.0)])
    run.enter("a")
    for done in range(1, 9):  # slower than expected: 3 s a layer instead of 2
        clock.now += 3.0
        run.progress("a", done, 10, "layers")
    told = [left for _, left in recorder.told]
    assert told == sorted(told, reverse=True)
    run.foresee("advice", 60.0)
    run.progress("a", 9, 10, "layers")
    assert recorder.told[-1][1] > 60.0


def test_a_stage_within_another_is_no_phase() -> None:
    run = OverallRun(recorder := Recorder(), clock := Clock())
    stages = Stages(run)
    run.expect([Phase("search", 100.0), Phase("statistics", 7.0)])
    with stages.stage("search"):
        clock.now += 10
        run.progress("statistics", 5, 5, "samples")
        assert recorder.told[-1][1] == pytest.approx(97.0), "of what others tell within it nothing counts"
        with stages.stage("statistics"):
            clock.now += 10
    with stages.stage("statistics"):
        pass
    assert [figures.name for figures in stages.figures] == ["search", "statistics"]
