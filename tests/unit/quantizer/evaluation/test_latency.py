"""Latency of two models in pairs: the interval holds what it says, and load beside it turns no verdict around."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.errors import CanceledError
from service.contracts.report import MachineLoad
from tests.unit.quantizer.toolbox import input_infos, make_model, normal
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation import latency
from worker.quantizer.evaluation.latency import LEAST_PAIRS, measure_latency, paired_ratio
from worker.quantizer.evaluation.side_by_side import FloatReference
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.runtime.session import Session

QUIET = MachineLoad(cpu_count=2, load_average=0.1, other_busy_percent=0.0)
MODEL = make_model("(float[N,64] x) => (float[N,64] y) { t = MatMul(x, w) y = Relu(t) }", {"w": normal(64, 64)})


class Clock:
    """A clock that only the models' runs move on."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.order: list[str] = []

    def session(self, name: str, seconds: Callable[[], float]) -> Session:
        def run(feeds: object) -> None:
            self.order.append(name)
            self.seconds += seconds()

        return SimpleNamespace(run=run)  # type: ignore[return-value]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    reads = SimpleNamespace(
        perf_counter=lambda: made.seconds, perf_counter_ns=lambda: round(made.seconds * 1e9), sleep=None
    )
    monkeypatch.setattr(latency, "time", reads)
    monkeypatch.setattr(latency.LoadMeter, "read", lambda self: QUIET)
    return made


def timed(reference: Session, quantized: Session, runs: int = 20, run: Run | None = None) -> latency.LatencyFigures:
    held_against = FloatReference(reference, ArrayDataset({"x": normal(4, 64)}), input_infos(MODEL))
    return measure_latency(held_against, quantized, runs=runs, threads=1, run=run or SilentRun())


def constant(seconds: float) -> Callable[[], float]:
    return lambda: seconds


def test_as_many_runs_as_the_interval_asks_for_within_bounds(clock: Clock) -> None:
    found = timed(clock.session("a", constant(0.002)), clock.session("b", constant(0.001)))
    assert (found.float_ms, found.quantized_ms, found.ratio, found.verdict) == (2.0, 1.0, 0.5, "faster")
    assert (found.ratio_interval.low, found.ratio_interval.high) == (0.5, 0.5)
    assert (found.runs, found.batch_size, found.threads, found.load) == (20, 1, 1, QUIET)
    assert "".join(clock.order[6:14]) == "abbaabba"
    assert clock.order.count("a") == clock.order.count("b") == 23
    # a wide interval asks for more runs within bounds
    noise = np.random.default_rng(0)
    sides = [clock.session(name, lambda: float(noise.exponential(0.001))) for name in "ab"]
    found = timed(*sides)
    assert found.runs == 200
    assert found.verdict == "undecided"
    slow = [clock.session(name, lambda: float(1 + noise.exponential(1.0))) for name in "ab"]
    assert timed(*slow).runs == 20
    assert timed(*slow, runs=1).runs == LEAST_PAIRS


def test_canceling_stops_the_timing(clock: Clock) -> None:
    class Canceled(SilentRun):
        def check(self) -> None:
            raise CanceledError("stop")

    sides = [clock.session(name, constant(0.001)) for name in "ab"]
    with pytest.raises(CanceledError):
        timed(*sides, run=Canceled())
    assert not clock.order


def test_the_ratio_is_that_of_the_fastest_runs_of_the_blocks() -> None:
    seconds = np.tile([[4.0, 2.0], [6.0, 9.0]], (20, 1))  # 20 blocks of 2 pairs
    seconds[:2] = [[4.0, 1.0], [4.0, 1.0]]
    seconds[-2:] = [[1.0, 4.0], [1.0, 4.0]]
    ratio, interval = paired_ratio(seconds, busy=False)
    assert (ratio, interval.low, interval.high, interval.samples) == (0.5, 0.5, 0.5, 40)
    ratio, busy = paired_ratio(seconds, busy=True)
    assert (ratio, busy.low, busy.high) == (0.5, 0.25, 4.0)
    assert busy.confidence > interval.confidence > 0.999


@pytest.mark.parametrize("count", [8, 15, 16])
def test_the_confidence_is_that_of_the_order_statistics(count: int) -> None:
    signs = np.array(list(itertools.product((-1, 1), repeat=count)))  # of each block about the median
    below = (signs < 0).sum(axis=1)
    for busy in (True, False):
        told = paired_ratio(np.ones((count, 2)), busy=busy)[1].confidence
        trimmed = 1 if count >= 16 and not busy else 0
        held = ((below > trimmed) & (below < count - trimmed)).mean()
        assert held - 2e-6 <= told <= held


@given(st.floats(0.2, 5.0), st.integers(8, 60), st.integers(0, 2**32 - 1), st.booleans())
def test_the_interval_holds_the_ratio_and_turns_with_the_models(ratio, pairs, seed, busy) -> None:
    load = np.random.default_rng(seed).uniform(1.0, 10.0, (pairs, 1))
    # load that hits both alike changes nothing: the fastest pair of a block is that of the least load, for both
    found, interval = paired_ratio(load * [[1.0, ratio]], busy=busy)
    assert (found, interval.low, interval.high) == pytest.approx((ratio, ratio, ratio), rel=1e-4)
    seconds = np.random.default_rng(seed).lognormal(0.0, 1.0, (pairs, 2))
    found, interval = paired_ratio(seconds, busy=busy)
    assert interval.low <= found <= interval.high
    _, turned = paired_ratio(seconds[:, ::-1], busy=busy)
    assert turned.low == pytest.approx(1 / interval.high, rel=1e-3)
    assert turned.high == pytest.approx(1 / interval.low, rel=1e-3)


def test_noise_does_not_make_one_model_faster_than_itself() -> None:
    noise = np.random.default_rng(0)
    decided = 0
    for _ in range(400):
        slow_phase = np.repeat(noise.uniform(1.0, 3.0, (10, 1)), 10, axis=0)  # a neighbour that comes and goes
        _, interval = paired_ratio(slow_phase * (1 + noise.exponential(0.3, (100, 2))), busy=True)
        decided += interval.high < 1.0 or interval.low > 1.0
    assert decided == 0
