"""The regression gate: judged clause by clause, then in total. Undecided clauses never count as met."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from service.comparison.evidence import Paired, Side
from service.comparison.pairing import CONFIDENCE
from service.contracts.changes import p_words
from service.contracts.errors import QuantmillError
from service.contracts.regression import (
    Clause,
    ClauseResult,
    LatencyRatio,
    MaxDrop,
    NotSignificantlyWorse,
    OnUndecided,
    RegressionGate,
    SizeRatio,
)
from service.contracts.report import Interval
from service.schedules.evidence import BaselineFigures, GateFigures, JobFigures

# Of figures that went through decimal numbers.
_TOLERANCE = 1e-9
OTHER_DATA = (
    "The two models were not evaluated on the same data. Quantize the baseline's version again with this "
    "evaluation data; the next run is then compared with that job."
)
Pair = Callable[[Side, Side], Paired]


@dataclass(frozen=True)
class Judgement:
    """What came of a run."""

    passed: bool  # it is accepted
    reason: str | None = None  # a word for why not
    detail: str | None = None  # the same in words
    verdict: str | None = None  # of the job's report
    fallback: str | None = None  # which model the job returns, if the planned one was too slow
    clauses: tuple[ClauseResult, ...] = ()  # of the gate, in its order


def judged(gate: RegressionGate, found: GateFigures, pair: Pair) -> Judgement:
    """Judge a job that has succeeded.

    Args:
        gate: of the schedule.
        found: the job's figures and those that they are compared with.
        pair: compares two jobs sample by sample, the baseline first.
    """
    clauses = tuple(
        _clause(clause, found.own, compared, pair)
        for clause, compared in zip(gate.clauses, found.compared, strict=True)
    )
    verdict, fallback = found.own.verdict, found.own.fallback
    if verdict == "fail" or (verdict == "undecided" and gate.on_undecided == "fail"):
        told = f"The verdict of the job's report is {verdict}."
        return Judgement(False, "verdict", told, verdict, fallback, clauses)
    wrong = [result for result in clauses if not _accepts(result, gate.on_undecided)]
    if wrong:
        return Judgement(False, "gate", " ".join(_words(result) for result in wrong), verdict, fallback, clauses)
    return Judgement(True, verdict=verdict, fallback=fallback, clauses=clauses)


def _accepts(result: ClauseResult, on_undecided: OnUndecided) -> bool:
    return result.holds if result.holds is not None else on_undecided == "pass"


def _words(result: ClauseResult) -> str:
    about = result.kind if result.metric is None else f"{result.kind} of {result.metric}"
    return f"{about}: {'undecided' if result.holds is None else 'not met'}; {result.reason}"


def _clause(clause: Clause, own: JobFigures, compared: BaselineFigures, pair: Pair) -> ClauseResult:
    other = compared.evidence
    if other is None:
        return _result(clause, None, compared.reason, holds=True if compared.is_first else None)
    if isinstance(clause, MaxDrop):
        return _drop(clause, own, other)
    if isinstance(clause, NotSignificantlyWorse):
        return _significance(clause, own, other, pair)
    return _size(clause, own, other) if isinstance(clause, SizeRatio) else _latency(clause, own, other)


def _drop(clause: MaxDrop, own: JobFigures, other: JobFigures) -> ClauseResult:
    figures, before = own.metrics.get(clause.metric), other.metrics.get(clause.metric)
    if figures is None or before is None:
        whose = own if figures is None else other
        return _result(clause, other, f"The report of job {whose.job_id} has no metric {clause.metric!r}.")
    if figures.quantized is None or before.quantized is None:
        return _result(clause, other, "The metric is undefined in one of the two reports.")
    if (figures.unit, figures.better) != (before.unit, before.better):
        return _result(clause, other, "The metric of this name is defined differently in the two reports.")
    if own.side.measured_on is None or own.side.measured_on != other.side.measured_on:
        return _result(clause, other, OTHER_DATA, figures=_Figures(baseline_value=before.quantized))
    drop = before.quantized - figures.quantized
    drop = drop if figures.better == "higher" else -drop
    holds = _at_most(drop, clause.max_drop)
    unit = "points" if figures.unit == "%" else figures.unit
    told = f"worse by {drop:.6g} {unit}".rstrip() + f"; the maximum is {clause.max_drop:.6g}."
    return _result(
        clause,
        other,
        None if holds else told,
        holds=holds,
        figures=_Figures(value=drop, baseline_value=before.quantized),
    )


def _significance(clause: NotSignificantlyWorse, own: JobFigures, other: JobFigures, pair: Pair) -> ClauseResult:
    try:
        found = pair(other.side, own.side)
    except QuantmillError as error:  # a file is gone, or damaged: undecided, as the clause says
        return _result(clause, other, error.detail)
    if clause.metric is not None or (found.pairing is None and found.metrics):
        return _metric_significance(clause, own, other, found)
    if found.pairing is None:
        return _result(clause, other, found.reason)
    pairing = found.pairing
    low, high = pairing.interval_percent
    worse = pairing.significantly_worse(clause.alpha)
    counts = pairing.counts
    told = (
        f"worse by {pairing.drop_percent:.6g} points: of {counts.samples} samples, {counts.lost} changed "
        f"from correct to wrong and {counts.won} from wrong to correct, {p_words(pairing.p_value)}."
    )
    return _result(
        clause,
        other,
        told if worse else None,
        holds=not worse,
        figures=_Figures(
            value=pairing.drop_percent,
            interval=Interval(
                low=low, high=high, confidence=CONFIDENCE, method="mcnemar", samples=pairing.counts.samples
            ),
            p_value=pairing.p_value,
        ),
    )


def _metric_significance(
    clause: NotSignificantlyWorse, own: JobFigures, other: JobFigures, found: Paired
) -> ClauseResult:
    """Of the metric that the clause names, or the first one that both jobs keep by sample."""
    wanted = [clause.metric] if clause.metric is not None else list(own.metrics)
    name = next((name for name in wanted if name in found.metrics and name in own.metrics), None)
    if name is None:
        kept = (
            found.reason
            if not found.metrics
            else "At least one of the two reports has no per-sample results for the metric."
        )
        return _result(clause, other, kept, figures=_Figures(metric=clause.metric))
    figures, before = own.metrics[name], other.metrics.get(name)
    if before is None or (figures.unit, figures.better) != (before.unit, before.better):
        return _result(
            clause,
            other,
            "The metric of this name is defined differently in the two reports.",
            figures=_Figures(metric=name),
        )
    drop = found.metrics[name].drop(figures.better)
    worse = drop.difference > 0 and drop.p_value <= clause.alpha
    amount = f"{drop.difference:.6g} {figures.unit}".rstrip()
    told = f"worse by {amount} on {drop.samples} samples, {p_words(drop.p_value)}."
    return _result(
        clause,
        other,
        told if worse else None,
        holds=not worse,
        figures=_Figures(
            value=drop.difference,
            baseline_value=before.quantized,
            interval=drop.told_interval(CONFIDENCE),
            p_value=drop.p_value,
            metric=name,
        ),
    )


def _size(clause: SizeRatio, own: JobFigures, other: JobFigures) -> ClauseResult:
    ratio = own.size_bytes / other.size_bytes
    holds = _at_most(ratio, clause.max_ratio)
    told = f"{own.size_bytes} bytes is {ratio:.6g} times the baseline's {other.size_bytes} bytes."
    return _result(
        clause,
        other,
        None if holds else told,
        holds=holds,
        figures=_Figures(value=ratio, baseline_value=float(other.size_bytes)),
    )


def _latency(clause: LatencyRatio, own: JobFigures, other: JobFigures) -> ClauseResult:
    now, before = own.latency, other.latency
    if now is None or before is None or before.ratio <= 0 or before.ratio_interval.low <= 0:
        return _result(clause, other, "Latency was not measured for one of the two models.")
    ratio = now.ratio / before.ratio
    holds = _at_most(ratio, clause.max_ratio)
    told = (
        f"latency is {now.ratio:.4g} times that of the float model; this ratio is {ratio:.4g} times the "
        f"baseline's {before.ratio:.4g}."
    )
    # as wide as both intervals allow
    spread = Interval(
        low=now.ratio_interval.low / before.ratio_interval.high,
        high=now.ratio_interval.high / before.ratio_interval.low,
        confidence=min(now.ratio_interval.confidence, before.ratio_interval.confidence),
        method=now.ratio_interval.method,
        samples=min(now.ratio_interval.samples, before.ratio_interval.samples),
    )
    return _result(
        clause,
        other,
        None if holds else told,
        holds=holds,
        figures=_Figures(value=ratio, baseline_value=before.ratio, interval=spread),
    )


def _at_most(value: float, limit: float) -> bool:
    return value <= limit or math.isclose(value, limit, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)


@dataclass(frozen=True)
class _Figures:
    """What a clause has compared, as ``ClauseResult`` tells it."""

    value: float | None = None
    baseline_value: float | None = None
    interval: Interval | None = None
    p_value: float | None = None
    metric: str | None = None


def _result(
    clause: Clause,
    other: JobFigures | None,
    reason: str | None,
    *,
    holds: bool | None = None,
    figures: _Figures = _Figures(),
) -> ClauseResult:
    told = vars(figures)
    if isinstance(clause, MaxDrop):
        told = {**told, "metric": clause.metric}
    return ClauseResult(
        kind=clause.kind,
        baseline_job_id=None if other is None else other.job_id,
        limit=_limit(clause),
        holds=holds,
        reason=reason,
        **told,
    )


def _limit(clause: Clause) -> float:
    if isinstance(clause, MaxDrop):
        return clause.max_drop
    return clause.alpha if isinstance(clause, NotSignificantlyWorse) else clause.max_ratio
