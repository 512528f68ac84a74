"""The regression gate's clauses, on figures that were made up, against numbers that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from service.comparison.evidence import Paired, Side
from service.comparison.pairing import MeanDifference, paired
from service.comparison.samples import Decisions, SamplesUnreadableError
from service.contracts.regression import ClauseResult, RegressionGate
from service.contracts.report import Interval, LatencyFigures, MachineLoad, MetricFigures
from service.schedules.evidence import BaselineFigures, GateFigures, JobFigures
from service.schedules.gate import Judgement, judged

DATA = ("1" * 64, None)
DROP = {"kind": "max_drop", "metric": "top1", "max_drop": 0.5}
WORSE = MeanDifference(-0.5, (-0.8, -0.2), 0.001, "bootstrap", 300)


def metric(quantized: float | None, name: str = "top1", better: str = "higher", unit: str = "%") -> MetricFigures:
    figures = {"name": name, "kind": name, "unit": unit, "better": better, "float": 90.0, "drop": None}
    return MetricFigures.model_validate({**figures, "quantized": quantized})


def latency(ratio: float, low: float, high: float) -> LatencyFigures:
    spread = Interval(low=low, high=high, method="order_statistics", samples=20)
    intervals = {"float_interval_ms": spread, "quantized_interval_ms": spread, "ratio_interval": spread}
    facts = {"runs": 20, "batch_size": 1, "threads": 1, "load": MachineLoad(cpu_count=2), "verdict": "undecided"}
    return LatencyFigures(float_ms=1.0, quantized_ms=ratio, ratio=ratio, **intervals, **facts)


def evidence(job_id: str = "job_new", *metrics: MetricFigures, **given: Any) -> JobFigures:
    facts: dict[str, Any] = {"verdict": "pass", "fallback": None, "size_bytes": 1000, "latency": None}
    facts["side"] = Side(DATA, None)
    return JobFigures(job_id, metrics={found.name: found for found in metrics}, **{**facts, **given})


def both(after: float | None, before: float | None, *of: str) -> tuple[JobFigures, JobFigures]:
    """The new job and the one before."""
    return evidence("job_new", metric(after, *of)), evidence("job_old", metric(before, *of))


def judge(
    clause: dict[str, Any] | None,
    own: JobFigures,
    other: JobFigures | BaselineFigures | None,
    pair: Any = None,
    **gate: Any,
) -> Judgement:
    compared = (
        other if isinstance(other, BaselineFigures) else BaselineFigures(other, None if other else "There is none.")
    )
    clauses = [] if clause is None else [clause]
    found = GateFigures(own, tuple(compared for _ in clauses))
    gate_of = RegressionGate.model_validate({"clauses": clauses, **gate})
    return judged(gate_of, found, pair or (lambda *_: Paired(None, "none")))


def only(judgement: Judgement) -> ClauseResult:
    (result,) = judgement.clauses
    return result


@pytest.mark.parametrize(
    ("before", "after", "better", "holds", "value"),
    [
        (90.0, 89.6, "higher", True, 0.4),
        (91.3, 90.8, "higher", True, 0.5),  # 0.5000000000000000 in decimal, a little more in binary
        (90.0, 89.4, "higher", False, 0.6),
        (90.0, 92.0, "higher", True, -2.0),
        (1.0, 1.6, "lower", False, 0.6),
    ],
)
def test_a_metric_may_be_worse_by_so_much(before: float, after: float, better: str, holds: bool, value: float) -> None:
    judgement = judge(DROP, *both(after, before, "top1", better))
    result = only(judgement)
    assert judgement.passed is result.holds is holds
    assert (result.baseline_job_id, result.limit, result.baseline_value) == ("job_old", 0.5, before)
    assert result.value == pytest.approx(value)
    if not holds:
        assert judgement.reason == "gate" and "max_drop of top1" in (judgement.detail or "")


@pytest.mark.parametrize(
    ("own", "other", "told"),
    [
        (evidence("job_new"), both(1.0, 90.0)[1], ""),
        (both(90.0, 1.0)[0], evidence("job_old"), ""),
        (*both(None, 90.0), ""),
        (both(90.0, 1.0)[0], evidence("job_old", metric(0.9, unit="")), ""),
        (both(90.0, 1.0)[0], None, ""),
        (both(90.0, 1.0)[0], evidence("job_old", metric(90.0), side=Side(("2" * 64, None), None)), "same data"),
    ],
)
def test_what_is_not_known_is_undecided_and_falls(own: JobFigures, other: JobFigures | None, told: str) -> None:
    judgement = judge(DROP, own, other)
    assert (judgement.passed, judgement.reason, only(judgement).holds) == (False, "gate", None)
    assert only(judgement).reason and told in only(judgement).reason
    assert "undecided" in (judgement.detail or "")
    assert judge(DROP, own, other, on_undecided="pass").passed


def test_before_the_first_accepted_job_nothing_can_be_worse_and_it_is_said() -> None:
    first = BaselineFigures(None, "This schedule has not accepted any job yet.", is_first=True)
    judgement = judge(DROP, evidence("job_new", metric(1.0)), first)
    assert judgement.passed
    assert (only(judgement).reason, only(judgement).value) == (first.reason, None)


def test_size() -> None:
    for size, holds in ((1000, True), (1100, True), (1101, False), (500, True)):
        judgement = judge({"kind": "size", "max_ratio": 1.1}, evidence(size_bytes=size), evidence("job_old"))
        assert (judgement.passed, only(judgement).value) == (holds, size / 1000)


@pytest.mark.parametrize(("ratio", "holds"), [(0.5, True), (0.55, True), (0.56, False)])
def test_latency_is_that_of_the_quantized_over_the_float_model(ratio: float, holds: bool) -> None:
    clause = {"kind": "latency", "max_ratio": 1.1}
    own, other = evidence(latency=latency(ratio, 0.45, 0.6)), evidence("job_old", latency=latency(0.5, 0.4, 0.8))
    result = only(judge(clause, own, other))
    assert result.holds is holds
    assert result.value == pytest.approx(ratio / 0.5)
    assert result.interval is not None
    assert (result.interval.low, result.interval.high) == (pytest.approx(0.45 / 0.8), pytest.approx(0.6 / 0.4))
    assert only(judge(clause, evidence(), other)).holds is None


def sides(lost: int, won: int, samples: int = 100) -> Paired:
    """The second is wrong on ``lost`` samples that the first has right, and right on ``won`` others."""
    expected = np.zeros(samples, np.int64)
    first, second = expected.copy(), expected.copy()
    second[:lost] = 1
    first[lost : lost + won] = 1
    return Paired(paired(Decisions(first, expected, True), Decisions(second, expected, True)), None)


# p of McNemar's exact test: 2 * sum(C(n, k) for k <= min) / 2^n
@pytest.mark.parametrize(
    ("lost", "won", "p", "holds"),
    [(6, 0, 2 / 64, False), (5, 0, 2 / 32, True), (8, 1, 20 / 512, False), (1, 8, 20 / 512, True), (3, 3, 1.0, True)],
)
def test_not_significantly_worse(lost: int, won: int, p: float, holds: bool) -> None:
    clause = {"kind": "not_significantly_worse", "alpha": 0.05}
    asked: list[tuple[Side, Side]] = []
    own, other = evidence(side=Side(DATA, ("a" * 64, 1))), evidence("job_old", side=Side(DATA, ("b" * 64, 1)))
    judgement = judge(clause, own, other, pair=lambda *given: asked.append(given) or sides(lost, won))
    result = only(judgement)
    assert asked == [(other.side, own.side)], "the baseline comes first"
    assert (judgement.passed, result.holds) == (holds, holds)
    assert (result.p_value, result.value) == (pytest.approx(p), pytest.approx(lost - won))
    assert result.interval is not None
    assert result.interval.low <= lost - won <= result.interval.high


def test_without_samples_significance_is_undecided_and_falls() -> None:
    def damaged(*_: Side) -> Paired:
        raise SamplesUnreadableError("It is damaged.")

    for pair, told in ((lambda *_: Paired(None, "It keeps none."), "It keeps none."), (damaged, "It is damaged.")):
        judgement = judge({"kind": "not_significantly_worse"}, evidence(), evidence("job_old"), pair=pair)
        assert (judgement.passed, only(judgement).holds, only(judgement).reason) == (False, None, told)


def test_the_verdict_of_the_report_comes_first() -> None:
    for verdict, on_undecided, passed in (
        ("pass", "fail", True),
        ("none", "fail", True),
        ("fail", "pass", False),
        ("undecided", "fail", False),
        ("undecided", "pass", True),
    ):
        judgement = judge(None, evidence(verdict=verdict), None, on_undecided=on_undecided)
        assert (judgement.passed, judgement.verdict) == (passed, verdict)
        assert judgement.reason == (None if passed else "verdict")


@pytest.mark.parametrize(
    "clauses",
    [
        [{"kind": "max_drop", "metric": "top1"}],
        [{"kind": "max_drop", "metric": "top1", "max_drop": -1}],
        [{"kind": "max_drop", "metric": "top1", "max_drop": float("nan")}],
        [{"kind": "size", "max_ratio": 0}],
        [{"kind": "not_significantly_worse", "alpha": 1.0}],
        [{"kind": "speed", "max_ratio": 1}],
        [{**DROP, "baseline": {"kind": "alias", "alias": "latest"}}],
        [{**DROP, "baseline": {"kind": "job"}}],
        [DROP] * 17,
    ],
)
def test_what_is_no_gate(clauses: list[dict[str, Any]]) -> None:
    with pytest.raises(ValidationError):
        RegressionGate.model_validate({"clauses": clauses})


def by_sample(**metrics: MeanDifference) -> Any:
    return lambda *_: Paired(None, "The output of a job's model gives no class per sample.", metrics)


@pytest.mark.parametrize(("difference", "holds"), [(WORSE, False), (replace(WORSE, p_value=0.2), True)])
@pytest.mark.parametrize("named", [False, True])
def test_a_metric_is_judged_by_sample(difference: MeanDifference, holds: bool, named: bool) -> None:
    clause = {"kind": "not_significantly_worse", **({"metric": "perplexity"} if named else {})}
    sample = by_sample(perplexity=difference)
    found = only(judge(clause, *both(5.0, 4.5, "perplexity", "lower", ""), sample))
    assert (found.holds, found.metric, found.value) == (holds, "perplexity", 0.5)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high, found.interval.method) == (0.2, 0.8, "bootstrap")
    assert (found.baseline_value, found.reason is None) == (4.5, holds)


def test_a_metric_that_is_better_is_no_drop_and_one_not_kept_by_sample_undecided() -> None:
    clause = {"kind": "not_significantly_worse", "metric": "top1"}
    assert only(judge(clause, *both(91.0, 90.0), by_sample(top1=WORSE))).holds is True
    for name in ("other", "top1"):
        own, other = evidence("job_new", metric(91.0)), evidence("job_old", metric(90.0, unit="dB"))
        found = only(judge({**clause, "metric": name}, own, other, by_sample(top1=WORSE)))
        assert (found.holds, found.metric) == (None, name)
        assert found.reason
