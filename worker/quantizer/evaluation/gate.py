"""The verdict: metrics of both models with their intervals, and which conditions of the gate hold by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from service.contracts.algorithms import Algorithm, Autopilot
from service.contracts.evaluation import AGREEMENT, DEFAULT_METRICS, EvaluationSpec, Gate
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import MetricFacts
from service.contracts.report import (
    AlgorithmFigures,
    Fidelity,
    Finding,
    GateClause,
    Interval,
    LatencyFigures,
    MetricFigures,
    ModelFigures,
    Verdict,
)
from service.contracts.report.figures import SANITY
from worker.quantizer.evaluation.certainty import Figure, MetricDifference, negated
from worker.quantizer.evaluation.collapse import sanity_clause
from worker.quantizer.evaluation.compare import ModelComparison
from worker.quantizer.evaluation.metrics import rounded

# Clauses about accuracy: no statement about it, no decision on them.
ACCURACY_CLAUSES = ("max_drop", "min_value", "max_value", "min_sqnr_db", "goal", SANITY)
# The clauses about latency: the gate's own, and that of a search's budget.
GATE_LATENCY, SEARCH_LATENCY = "max_latency_ratio", "budget.max_latency_ratio"
# Why there is no interval, where that is all that is known.
_UNTOLD = ": the samples are too few or do not differ, or the metric does not separate them"
# More than anybody has: the figure lies on the limit.
_MOST_SAMPLES = 10**9


@dataclass(frozen=True)
class _Reached:
    """What a clause judges: the figure, its metric, where it lies, and the samples that tell, unless all are alike."""

    got: float | None
    metric: str | None = None
    interval: Interval | None = None
    samples: int | None = None
    alike: bool = False


@dataclass(frozen=True)
class MeasuredPair:
    """What was measured of the float model and the quantized one."""

    float_: ModelFigures
    quantized: ModelFigures
    fidelity: Fidelity
    metrics: Sequence[MetricFigures]
    latency: LatencyFigures | None = None  # both timed in turn; None: the ratio of both medians is judged


def judge(
    gate: Gate,
    pair: MeasuredPair,
    further: Sequence[GateClause] = (),
    *,
    findings: Sequence[Finding] = (),
    decisions: Mapping[str, np.ndarray] | None = None,
    is_target: bool = True,
) -> tuple[Verdict, tuple[GateClause, ...]]:
    """Check every given clause. A broken one fails the gate; else one that is undecided decides as the gate says.

    With the gate's confidence a clause about accuracy holds, or is broken, if the whole interval is on that side of
    the limit; without, the figure itself decides, told beside its interval. A latency that was timed in pairs is judged
    by its interval always. What was not measured does not hold.

    Args:
        gate: what is wanted.
        pair: both models.
        further: clauses that count as well.
        findings: what was found about model and data; some leave nothing to say about accuracy.
        decisions: of both models, sample by sample, for the sanity check; None: it is not done.
        is_target: latency was measured on the target; otherwise clauses about it are undecided.
    """
    if decisions is not None and gate.sanity and not any(finding.undermines_verdict for finding in findings):
        collapsed = sanity_clause(pair.metrics, pair.fidelity, decisions)
        further = further if collapsed is None else (collapsed, *further)
    reached, latency = _reached(gate, pair), pair.latency
    wanted = {name: getattr(gate, name) for name in reached}
    own = [_decided(name, limit, reached[name], gate, latency) for name, limit in wanted.items() if limit is not None]
    clauses = [_as_far_as_known(clause, findings) for clause in (*further, *own)]
    if not is_target:
        why = None if latency is None else latency.not_representative
        clauses = [_off_target(clause, why) for clause in clauses]
    return verdict_of(gate, clauses), tuple(clauses)


def verdict_of(gate: Gate, clauses: Sequence[GateClause]) -> Verdict:
    """What the clauses of a gate come to."""
    if not clauses:
        return "none"
    if any(clause.holds is False for clause in clauses):
        return "fail"
    return gate.on_undecided if any(clause.holds is None for clause in clauses) else "pass"


def search_clauses(
    algorithms: Sequence[Algorithm], outcomes: Sequence[AlgorithmFigures], gate: Gate, pair: MeasuredPair
) -> tuple[GateClause, ...]:
    """What a search was asked for, as clauses with what it has reached: its goal, and its budget of bytes and latency.

    Args:
        algorithms: of the config.
        outcomes: one for each.
        gate: whose confidence counts.
        pair: both models, on the data that the search has measured on.
    """
    clauses = []
    for algorithm, outcome in zip(algorithms, outcomes, strict=True):
        if not isinstance(algorithm, Autopilot) or outcome.search is None:
            continue
        goal, budget, reached = algorithm.goal, algorithm.budget, outcome.search.reached
        limit = goal.max_drop if goal.kind == "drop" else goal.limit
        met = reached.goal_met
        clause = GateClause(clause="goal", metric=goal.metric, wanted=limit, got=reached.value, holds=met)
        clauses.append(_as_samples_tell(clause, gate, pair) if goal.kind == "drop" else clause)
        if budget.max_size_bytes is not None:
            clauses.append(_clause("budget.max_size_bytes", budget.max_size_bytes, reached.size_bytes))
        if budget.max_latency_ratio is not None:
            clauses.append(_clause(SEARCH_LATENCY, budget.max_latency_ratio, reached.latency_ratio))
    return tuple(clauses)


def _as_samples_tell(goal: GateClause, gate: Gate, pair: MeasuredPair) -> GateClause:
    """A goal that is a drop; undecided where the samples cannot tell on which side of its limit it lies.

    With the gate's confidence the interval decides, as for other clauses. Without, the figure does, unless one sample
    more or less would decide otherwise: the model was chosen among others by these very samples.
    """
    figures = next((figures for figures in pair.metrics if figures.name == goal.metric), None)
    name, unit = (AGREEMENT, "%") if figures is None else (figures.name, figures.unit)
    _, drop = _judged(gate.model_copy(update={"metric": name}), pair.fidelity, pair.metrics)
    if goal.got is None or drop.got is None:
        return goal
    if gate.confidence:
        found = _decided("max_drop", goal.wanted, drop, gate, None)
        return found.model_copy(update={"clause": goal.clause, "metric": goal.metric, "got": goal.got})
    if unit != "%" or not drop.samples:
        return goal
    one = 100.0 / drop.samples
    if (goal.got + one <= goal.wanted) if goal.holds else (goal.got - one > goal.wanted):
        return goal
    why = f"one sample of {drop.samples} is {one:.2g} points, and would decide it otherwise"
    needed = math.ceil(100.0 / abs(goal.wanted - goal.got)) + 1 if goal.got != goal.wanted else None
    return _undecided(goal, why, needed)


def _reached(gate: Gate, pair: MeasuredPair) -> dict[str, _Reached]:
    """The figure of each clause, by its name in the gate."""
    float_, quantized, fidelity = pair.float_, pair.quantized, pair.fidelity
    value, drop = _judged(gate, fidelity, pair.metrics)
    ratio, interval = None, None
    if pair.latency is not None:
        ratio, interval = pair.latency.ratio, pair.latency.ratio_interval
    elif quantized.latency_ms is not None and float_.latency_ms:
        ratio = round(quantized.latency_ms / float_.latency_ms, 4)
    return {
        "max_drop": drop,
        "min_value": value,
        "max_value": value,
        "min_sqnr_db": _Reached(fidelity.sqnr_db, None, fidelity.sqnr_interval_db, fidelity.samples),
        "max_size_bytes": _Reached(quantized.size_bytes),
        "max_latency_ratio": _Reached(ratio, None, interval),
    }


def _judged(gate: Gate, fidelity: Fidelity, metrics: Sequence[MetricFigures]) -> tuple[_Reached, _Reached]:
    """Value and drop of the gate's metric."""
    name = gate.metric
    if name == AGREEMENT:
        value, interval, samples = fidelity.top1_agreement, fidelity.top1_agreement_interval, fidelity.samples
        drop = None if value is None else rounded(100.0 - value, "%")
        return _Reached(value, name, interval, samples), _Reached(drop, name, negated(interval, 100.0), samples)
    found = next((figures for figures in metrics if figures.name == name), None)
    if found is None:
        return _Reached(None, name), _Reached(None, name)
    return (
        _Reached(found.quantized, name, found.quantized_interval, found.samples),
        # there is a test of the difference, but no interval, where no sample differs from another
        _Reached(
            found.drop,
            name,
            found.drop_interval,
            found.samples,
            alike=found.drop_interval is None and found.p_value is not None,
        ),
    )


def _decided(name: str, limit: float, reached: _Reached, gate: Gate, latency: LatencyFigures | None) -> GateClause:
    """The clause, by the figure, or by its interval where that is asked for."""
    clause = _clause(name, limit, reached.got, reached.metric).model_copy(update={"interval": reached.interval})
    by_interval = latency is not None if name == GATE_LATENCY else name in ACCURACY_CLAUSES and bool(gate.confidence)
    if not by_interval or reached.got is None:
        return clause
    interval = reached.interval
    confidence = gate.confidence if interval is None else interval.confidence
    clause = clause.model_copy(update={"confidence": confidence})
    if interval is None:
        why = f"no confidence interval for {reached.metric or 'this figure'} on this data"
        return _undecided(clause, why + (": the samples do not differ" if reached.alike else _UNTOLD))
    within, beyond = interval.high <= limit, interval.low > limit
    if name.startswith("min_"):
        within, beyond = interval.low >= limit, interval.high < limit
    if within or beyond:
        return clause.model_copy(update={"holds": within})
    told = (
        f"the {interval.confidence:.4g} interval [{interval.low:.4g}, {interval.high:.4g}] contains the "
        f"limit {limit:.4g}"
    )
    if reached.samples is None:
        return _undecided(clause, f"{told}: {interval.samples} runs cannot decide it")
    bound = interval.high if reached.got <= limit else interval.low
    needed = samples_needed(reached.got, limit, bound, reached.samples)
    why = f"{told}: {reached.samples} samples cannot decide it"
    return _undecided(clause, why, needed)


def _undecided(clause: GateClause, why: str, needed: int | None = None) -> GateClause:
    return clause.model_copy(update={"holds": None, "why": why, "samples_needed": needed})


def _as_far_as_known(clause: GateClause, findings: Sequence[Finding]) -> GateClause:
    """Undecided where a finding leaves nothing to say about accuracy."""
    found = next((finding for finding in findings if finding.undermines_verdict), None)
    if found is None or clause.clause not in ACCURACY_CLAUSES:
        return clause
    return _undecided(clause, f"nothing can be said about accuracy ({found.code}): {found.message}")


def _off_target(clause: GateClause, why: str | None) -> GateClause:
    """Undecided where it is about the latency of another machine."""
    if clause.clause not in (GATE_LATENCY, SEARCH_LATENCY):
        return clause
    return _undecided(clause, f"latency is not representative of the target{'' if why is None else f': {why}'}")


def _clause(name: str, wanted: float, got: float | None, metric: str | None = None) -> GateClause:
    """One that ``got`` keeps by being at least, or at most, what is wanted, as its name says."""
    holds = got is not None and (got >= wanted if name.startswith("min_") else got <= wanted)
    return GateClause(clause=name, metric=metric, wanted=wanted, got=got, holds=holds)


def samples_needed(figure: float, limit: float, bound: float, samples: int) -> int | None:
    """About so many samples would decide on which side of ``limit`` the figure lies, if it stays where it is.

    The distance of a bound from its figure is sqrt(variance / n) times a quantile, so that n grows with the square of
    what it has to shrink by.

    Args:
        figure: as measured.
        limit: that it is compared with.
        bound: of the figure's interval, the one beyond the limit.
        samples: that the interval rests on.

    Returns:
        More than ``samples``; None if the figure lies on the limit.
    """
    room = abs(figure - limit)
    if room <= 0.0:
        return None
    needed = samples * ((bound - figure) / room) ** 2
    return max(samples + 1, math.ceil(needed)) if needed < _MOST_SAMPLES else None


# The metrics of both models side by side, each with its interval.


def metric_figures(spec: EvaluationSpec, comparison: ModelComparison) -> tuple[MetricFigures, ...]:
    """The metrics of both models, in the order declared."""
    before, after = comparison.float_metrics, comparison.quantized_metrics
    kinds = {metric.name: metric.kind for metric in spec.metrics}
    names = list(kinds) or [name for name in DEFAULT_METRICS if name in before or name in after]
    intervals = _Intervals(spec, comparison)
    found = []
    for name in names:
        facts = spec.facts_of(name)
        reference = facts.ideal if facts.against_float else before.get(name)
        value = after.get(name)
        drop = None
        if reference is not None and value is not None:
            loss = reference - value if facts.better == "higher" else value - reference
            drop = rounded(loss, facts.unit)
        figures = MetricFigures(
            name=name,
            kind=kinds.get(name, name),
            unit=facts.unit,
            better=facts.better,
            float=before.get(name),
            quantized=value,
            drop=drop,
        )
        found.append(figures.model_copy(update=intervals.of(name, facts)))
    return tuple(found)


class _Intervals:
    """What the samples of a comparison can carry.

    Args:
        spec: what was measured.
        comparison: of both models.
    """

    def __init__(self, spec: EvaluationSpec, comparison: ModelComparison) -> None:
        self._confidence = comparison.confidence
        self._samples = comparison.fidelity.samples
        self._float, self._quantized = comparison.float_set.contributions, comparison.quantized_set.contributions
        self._decisions = comparison.decisions
        outputs = [output.name for output in comparison.fidelity.outputs]
        self._outputs = {
            metric.name: find_output(place, outputs)
            for metric in spec.metrics
            for place in [metric.output_refs().get("output")]
            if place is not None
        }
        self._first = next(iter(outputs), None)

    def of(self, name: str, facts: MetricFacts) -> dict[str, object]:
        """The fields of ``MetricFigures`` that tell about samples."""
        is_share = _is_share(facts)
        one, other = (
            None if found is None else Figure(found, is_share=is_share)
            for found in (self._float.get(name), self._quantized.get(name))
        )
        told: dict[str, object] = {"samples": self._samples}
        if one is not None:
            told["float_interval"] = self._told(_possible(one.interval(self._confidence), facts), facts)
        if other is None:
            return told
        interval = other.interval(self._confidence)
        told["quantized_interval"] = self._told(_possible(interval, facts), facts)
        if facts.against_float:
            if facts.ideal is not None:
                loss = negated(interval, facts.ideal)
                loss = loss if facts.better == "higher" else negated(loss)
                told["drop_interval"] = self._told(loss, facts)
            return told
        if one is None:
            return told
        decisions = self._decisions.get(self._outputs.get(name, self._first) or "")
        confident = None if decisions is None else decisions.confident
        return told | self._difference(one.above(other, self._confidence, confident=confident), facts)

    def _difference(self, found: MetricDifference | None, facts: MetricFacts) -> dict[str, object]:
        if found is None:
            return {}
        interval = found.interval if facts.better == "higher" else negated(found.interval)
        p_value = None if found.p_value is None else float(f"{found.p_value:.4g}")
        return {"drop_interval": self._told(interval, facts), "p_value": p_value, "flips": found.flips}

    @staticmethod
    def _told(interval: Interval | None, facts: MetricFacts) -> Interval | None:
        """In as many digits as the figure."""
        if interval is None:
            return None
        low, high = rounded(interval.low, facts.unit), rounded(interval.high, facts.unit)
        return interval.model_copy(update={"low": low, "high": high})


def _is_share(facts: MetricFacts) -> bool:
    """Of 100 % at most; an error rate may be more."""
    return facts.unit == "%" and facts.better == "higher"


def _possible(interval: Interval | None, facts: MetricFacts) -> Interval | None:
    """Without what no share can be."""
    if interval is None or not _is_share(facts):
        return interval
    return interval.model_copy(update={"low": max(interval.low, 0.0), "high": min(interval.high, 100.0)})
