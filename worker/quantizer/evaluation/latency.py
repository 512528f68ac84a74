"""Latency of two models, timed in turn, with an interval that says what it is worth.

What else the machine does hits neighbouring runs alike, so runs are compared in pairs: A B, B A, A B ... All pairs are
cut into blocks in the order of time. A block's ratio is that of its fastest runs, those that were disturbed least; the
ratio is the median of the blocks. The interval reaches from the second smallest block to the second largest, on a
machine that others keep busy from the smallest to the largest: for independent blocks far more than 99 % sure to hold
the median (order statistics: David & Nagaraja, Order Statistics, 2003, 7.1). It is that wide on purpose. Load comes and
goes over many runs, so that blocks are not independent, and an interval that shrank with every run would soon be sure
of what the neighbour did and not of the models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from math import comb

import numpy as np

from service.contracts.report import Interval, LatencyFigures, MachineLoad
from worker.quantizer.evaluation.side_by_side import FloatReference
from worker.quantizer.run.interface import Run
from worker.quantizer.runtime.host import LoadMeter
from worker.quantizer.runtime.session import Session

_WARMUP_PAIRS = 3
_BLOCKS = 20
# Fewer blocks than this, or a share of the CPU time like this for others, leave out none.
_BLOCKS_TO_TRIM, BUSY_PERCENT = 16, 10.0
# The least that gives 99 %: 1 - 2^(1 - 8).
LEAST_PAIRS = 8
# What is asked for may be exceeded so many times, and so long, until the interval is as narrow as this.
_MOST_TIMES, _MOST_SECONDS, _NARROW = 10, 3.0, 0.05
_CONFIDENCE = 0.95


def measure_latency(
    reference: FloatReference,
    quantized: Session,
    *,
    runs: int,
    threads: int,
    run: Run,
) -> LatencyFigures:
    """Time one run of either model at the smallest batch, in turn after a warm-up.

    Args:
        reference: float model, and the data whose first sample both are fed.
        quantized: its twin.
        runs: the least number of timed runs of either; 8 at least. Up to ten times as many, for a few seconds, where
            the interval is wide.
        threads: that the sessions use, to be told.
        run: asked before every pair whether to stop.

    Raises:
        DatasetError: the data is damaged or does not fit the model.
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    batch = next(iter(reference.batches(1, samples=range(1))))
    sides = [partial(session.run, batch.feeds) for session in (reference.session, quantized)]
    for _ in range(_WARMUP_PAIRS):
        run.check()
        for side in sides:
            side()
    seconds, load = _timed_pairs(sides, max(runs, LEAST_PAIRS), run)
    ratio, ratio_interval = paired_ratio(seconds, busy=is_busy(load))
    (float_ms, float_interval), (quantized_ms, quantized_interval) = (
        _median_ms(seconds[:, 0]),
        _median_ms(seconds[:, 1]),
    )
    return LatencyFigures(
        float_ms=float_ms,
        quantized_ms=quantized_ms,
        float_interval_ms=float_interval,
        quantized_interval_ms=quantized_interval,
        ratio=ratio,
        ratio_interval=ratio_interval,
        verdict="faster" if ratio_interval.high < 1.0 else "slower" if ratio_interval.low > 1.0 else "undecided",
        runs=len(seconds),
        batch_size=max((len(array) for array in batch.feeds.values() if array.ndim), default=1),
        threads=threads,
        load=load,
    )


def is_busy(load: MachineLoad) -> bool:
    """True if others took so much of the CPU time that they count, or nobody knows."""
    return load.other_busy_percent is None or load.other_busy_percent >= BUSY_PERCENT


def _timed_pairs(sides: Sequence[Callable[[], object]], least: int, run: Run) -> tuple[np.ndarray, MachineLoad]:
    """Seconds of one run of either side, [pairs, 2] in the order of time, and what else the machine did.

    Whether to go on follows from the width of the interval alone, not from where it lies: that would favour a verdict.
    """
    pairs: list[tuple[float, float]] = []
    begun, meter = time.perf_counter(), LoadMeter.start()
    while True:
        for _ in range(least if not pairs else max(1, least // 2)):
            run.check()
            order = (0, 1) if len(pairs) % 2 == 0 else (1, 0)
            taken = {k: _seconds(sides[k]) for k in order}
            pairs.append((taken[0], taken[1]))
        load = meter.read()
        ratio, interval = paired_ratio(np.array(pairs), busy=is_busy(load))
        narrow = interval.high - interval.low <= 2 * _NARROW * ratio
        spent = time.perf_counter() - begun
        if narrow or len(pairs) >= _MOST_TIMES * least or spent >= _MOST_SECONDS:
            return np.array(pairs), load


def _seconds(action: Callable[[], object]) -> float:
    begun = time.perf_counter_ns()
    action()
    return max(1, time.perf_counter_ns() - begun) * 1e-9  # 1 ns where the clock sees none


def paired_ratio(seconds: np.ndarray, *, busy: bool) -> tuple[float, Interval]:
    """Time of the second model over that of the first, and where it lies.

    Args:
        seconds: [pairs, 2] in the order in which they were timed, 8 pairs at least.
        busy: others kept the machine busy meanwhile.
    """
    blocks = np.array_split(seconds, min(_BLOCKS, len(seconds)))
    fastest = np.array([block.min(axis=0) for block in blocks])
    ratios = np.sort(fastest[:, 1] / fastest[:, 0])
    trimmed = 1 if len(ratios) >= _BLOCKS_TO_TRIM and not busy else 0
    return _rounded(np.median(ratios)), _interval(ratios, trimmed, samples=len(seconds))


def _median_ms(seconds: np.ndarray) -> tuple[float, Interval]:
    """The median in milliseconds, with the narrowest pair of order statistics that is sure enough."""
    ordered = np.sort(seconds) * 1e3
    return _rounded(np.median(ordered)), _interval(ordered, _trimmed(len(ordered)), samples=len(ordered))


def _interval(ordered: np.ndarray, trimmed: int, *, samples: int) -> Interval:
    """From the order statistic ``trimmed`` + 1 from either end to the other, of values in ascending order."""
    return Interval(
        low=_rounded(ordered[trimmed]),
        high=_rounded(ordered[-1 - trimmed]),
        confidence=_confidence(len(ordered), trimmed),
        method="order_statistics",
        samples=samples,
    )


def _trimmed(count: int) -> int:
    """The most that may be left out at either end for the rest to hold the median with ``_CONFIDENCE``."""
    trimmed, beyond = 0, 1
    while True:
        beyond += comb(count, trimmed + 1)
        if 1.0 - 2 * beyond / (1 << count) < _CONFIDENCE:
            return trimmed
        trimmed += 1


def _confidence(count: int, trimmed: int) -> float:
    """That the median lies between the order statistics ``trimmed`` + 1 from either end of ``count`` independent ones.

    1 - 2 * sum_{k <= trimmed} C(count, k) / 2^count, rounded down to six places.
    """
    beyond = 2 * sum(comb(count, k) for k in range(trimmed + 1))
    return (((1 << count) - beyond) * 1_000_000 >> count) / 1_000_000


def _rounded(value: np.floating) -> float:
    return float(f"{value:.5g}")
