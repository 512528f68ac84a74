"""Changes from the float model to the quantized one in words, with their sign and their judgement."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.changes import (
    amount,
    change_of,
    confidence_words,
    difference_change,
    latency_change,
    latency_change_of,
    metric_change,
    outlined_change,
    p_words,
    ratio_words,
    signed,
    size_change,
    typeset,
)
from service.contracts.evaluation_report import OutlinedMetric
from service.contracts.report import Interval, LatencyFigures, MachineLoad, MetricFigures


def _interval(low: float, high: float) -> Interval:
    return Interval(low=low, high=high, method="bootstrap", samples=100)


@pytest.mark.parametrize(
    ("drop", "unit", "better", "words", "direction", "arrow"),
    [
        (0.68, "%", "higher", "-0.68 points", "worse", "▼"),
        (-0.91, "%", "higher", "+0.91 points", "better", "▲"),
        (0.68, "%", "lower", "+0.68 points", "worse", ""),
        (-0.5, "", "lower", "-0.5", "better", ""),
        (0.0123, "m", "lower", "+0.0123 m", "worse", ""),
        (3.0, "dB", "higher", "-3.00 dB", "worse", "▼"),
        (0.0, "%", "higher", "no change", "same", ""),
        (0.001, "%", "higher", "no change", "same", ""),
        (None, "%", "higher", "not defined", "same", ""),
    ],
)
def test_metric_change(drop: float | None, unit: str, better: Any, words: str, direction: str, arrow: str) -> None:
    change = metric_change(drop, unit, better=better)
    assert (change.words, change.direction, change.arrow) == (words, direction, arrow)


def test_interval_of_a_change_has_the_sign_of_the_change() -> None:
    worse = metric_change(0.68, "%", drop_interval=_interval(0.2, 1.1))
    assert (worse.interval, worse.significant, worse.tone) == ("95 % CI: -1.10 to -0.20 points", True, "bad")
    unsure = metric_change(0.68, "%", better="lower", drop_interval=_interval(-0.2, 1.1))
    assert (unsure.interval, unsure.tone, unsure.judgement) == (
        "95 % CI: -0.20 to +1.10 points", "plain", "not significant",
    )  # fmt: skip


@pytest.mark.parametrize("drop", [0.23, -0.68])
def test_what_is_not_significant_has_no_colour_and_no_arrow_and_is_told(drop: float) -> None:
    change = metric_change(drop, "%", drop_interval=_interval(-2.0, 2.0))
    assert (change.tone, change.arrow, change.needs_judgement) == ("plain", "", True)
    assert change.told.endswith(" points (not significant)")


def test_change_of_a_metric_of_a_report() -> None:
    metric = MetricFigures.model_validate(
        {"name": "rmse", "kind": "rmse", "unit": "m", "better": "lower", "float": 1.0, "quantized": 1.5, "drop": 0.5}
    )
    assert change_of(metric).words == "+0.5 m"
    assert change_of(metric).tone == "bad"


@pytest.mark.parametrize(
    ("before", "after", "drop", "words"),
    [(70.0, 69.0, 1.0, "-1.00 points"), (20.0, 21.0, 1.0, "+1.00 points"), (None, 99.0, None, "not defined")],
)
def test_outlined_change_finds_the_better_direction(
    before: float | None, after: float, drop: float | None, words: str
) -> None:
    change = outlined_change(before, after, drop, "%")
    assert change.words == words
    assert change.direction == ("same" if drop is None else "worse")


@pytest.mark.parametrize(("significant", "tone"), [(None, "plain"), (False, "plain"), (True, "bad")])
def test_an_outlined_change_has_a_colour_only_if_it_was_tested(significant: bool | None, tone: str) -> None:
    told = {"name": "top1", "unit": "%", "float": 70.0, "quantized": 69.0, "drop": 1.0, "significant": significant}
    assert OutlinedMetric.model_validate(told).change.tone == tone


@pytest.mark.parametrize(
    ("p_value", "words"),
    [(5.22e-199, "p < 0.001"), (0.00099, "p < 0.001"), (0.0012, "p = 0.0012"), (0.0456, "p = 0.0456"), (1.0, "p = 1")],
)
def test_a_p_value_in_words(p_value: float, words: str) -> None:
    assert p_words(p_value) == words


def test_difference_of_two_jobs() -> None:
    assert difference_change(70.0, 71.5, "%").words == "+1.50 points"
    assert difference_change(70.0, 71.5, "%").direction == "better"
    assert difference_change(3.0, 2.0, "nats", better="lower").direction == "better"


@pytest.mark.parametrize(
    ("ratio", "interval", "words", "interval_words", "tone"),
    [
        (2.25, (2.1, 2.4), "2.25x slower", "95 % CI: 2.10x to 2.40x slower", "bad"),
        (1 / 1.8, (0.5, 0.625), "1.80x faster", "95 % CI: 1.60x to 2.00x faster", "good"),
        (1.01, (0.95, 1.1), "no significant difference", "95 % CI: 1.05x faster to 1.10x slower", "plain"),
        (1.001, None, "no change", "", "plain"),
        (0.0, None, "not measured", "", "plain"),
    ],
)
def test_latency_change(
    ratio: float, interval: tuple[float, float] | None, words: str, interval_words: str, tone: str
) -> None:
    change = latency_change(ratio, None if interval is None else _interval(*interval))
    assert (change.words, change.interval, change.tone) == (words, interval_words, tone)


def test_verdict_of_a_report_decides_whether_latency_differs() -> None:
    latency = LatencyFigures(
        float_ms=2.0, quantized_ms=1.0, ratio=0.5,
        float_interval_ms=_interval(1.9, 2.1), quantized_interval_ms=_interval(0.9, 1.1),
        ratio_interval=_interval(0.4, 0.6), verdict="faster", runs=20, batch_size=1, threads=1,
        load=MachineLoad(cpu_count=2),
    )  # fmt: skip
    assert latency_change_of(latency).words == "2.00x faster"
    undecided = latency.model_copy(update={"verdict": "undecided"})
    assert latency_change_of(undecided).words == "no significant difference"
    simulated = latency_change_of(latency.model_copy(update={"not_representative": "simulated"}))
    assert (simulated.words, simulated.tone) == ("not representative of the target", "plain")


@pytest.mark.parametrize(
    ("before", "after", "words", "direction"),
    [
        (1000, 266, "73.4 % smaller", "better"),
        (100, 112, "12.0 % larger", "worse"),
        (100, 100, "no change", "same"),
        (None, 5, "not defined", "same"),
    ],
)
def test_size_change(before: int | None, after: int, words: str, direction: str) -> None:
    change = size_change(before, after)
    assert (change.words, change.direction) == (words, direction)


def test_words_of_numbers() -> None:
    assert ratio_words(0.5) == "2.00x faster"
    assert amount(-0.68, "%") == "0.68 points"
    assert signed(0.0, "%") == "0.00 points"
    assert typeset("95 % CI: -1.10 to -0.20 points of 1e-05 in int8-cle") == (
        "95 % CI: \N{MINUS SIGN}1.10 to \N{MINUS SIGN}0.20 points of 1e-05 in int8-cle"
    )


def test_confidences_are_rounded_down():
    told = [confidence_words(_interval(1.0, 2.0).model_copy(update={"confidence": each})) for each in (0.95, 0.999998)]
    assert told == ["95 % CI", "99.9 % CI"]
