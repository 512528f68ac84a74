"""The verdict: which conditions of the gate hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from service.contracts.algorithms import Algorithm, Autopilot
from service.contracts.evaluation import AGREEMENT, DEFAULT_METRICS, EvaluationSpec, Gate
from service.contracts.report import AlgorithmFigures, Fidelity, GateClause, MetricFigures, ModelFigures
from worker.quantizer.evaluation.compare import Comparison
from worker.quantizer.evaluation.metrics import rounded

Verdict = Literal["pass", "fail", "none"]


def metric_figures(spec: EvaluationSpec, comparison: Comparison) -> tuple[MetricFigures, ...]:
    """The metrics of both models side by side, in the order declared."""
    before, after = comparison.float_metrics, comparison.quantized_metrics
    kinds = {metric.name: metric.kind for metric in spec.metrics}
    names = list(kinds) or [name for name in DEFAULT_METRICS if name in before or name in after]
    found = []
    for name in names:
        facts = spec.facts_of(name)
        reference = facts.ideal if facts.against_float else before.get(name)
        value = after.get(name)
        drop = None
        if reference is not None and value is not None:
            loss = reference - value if facts.better == "higher" else value - reference
            drop = rounded(loss, facts.unit)
        found.append(
            MetricFigures(
                name=name,
                kind=kinds.get(name, name),
                unit=facts.unit,
                better=facts.better,
                float=before.get(name),
                quantized=value,
                drop=drop,
            )
        )
    return tuple(found)


def judge(
    gate: Gate,
    float_: ModelFigures,
    quantized: ModelFigures,
    fidelity: Fidelity,
    metrics: Sequence[MetricFigures],
    further: Sequence[GateClause] = (),
) -> tuple[Verdict, tuple[GateClause, ...]]:
    """Check every given clause; one whose figure was not measured does not hold. ``further`` ones count as well."""
    value, drop = _judged(gate, fidelity, metrics)
    ratio = None
    if quantized.latency_ms is not None and float_.latency_ms:
        ratio = round(quantized.latency_ms / float_.latency_ms, 4)
    reached: dict[str, tuple[float | None, str | None]] = {
        "max_drop": (drop, gate.metric),
        "min_value": (value, gate.metric),
        "max_value": (value, gate.metric),
        "min_sqnr_db": (fidelity.sqnr_db, None),
        "max_size_bytes": (quantized.size_bytes, None),
        "max_latency_ratio": (ratio, None),
    }
    wanted = {name: getattr(gate, name) for name in reached}
    own = [_clause(name, limit, *reached[name]) for name, limit in wanted.items() if limit is not None]
    clauses = [*further, *own]
    if not clauses:
        return "none", ()
    return ("pass" if all(clause.holds for clause in clauses) else "fail"), tuple(clauses)


def search_clauses(algorithms: Sequence[Algorithm], outcomes: Sequence[AlgorithmFigures]) -> tuple[GateClause, ...]:
    """What a search was asked for, as clauses with what it has reached: its goal, and its budget of bytes and latency.

    Args:
        algorithms: of the config.
        outcomes: one for each.
    """
    clauses = []
    for algorithm, outcome in zip(algorithms, outcomes, strict=True):
        if not isinstance(algorithm, Autopilot) or outcome.search is None:
            continue
        goal, budget = algorithm.goal, algorithm.budget
        chosen = next(trial for trial in outcome.search.trials if trial.chosen)
        limit = goal.max_drop if goal.kind == "drop" else goal.limit
        met = outcome.search.goal_met
        clauses.append(GateClause(clause="goal", metric=goal.metric, wanted=limit, got=chosen.value, holds=met))
        if budget.max_size_bytes is not None:
            clauses.append(_clause("budget.max_size_bytes", budget.max_size_bytes, chosen.size_bytes))
        if budget.max_latency_ratio is not None:
            clauses.append(_clause("budget.max_latency_ratio", budget.max_latency_ratio, chosen.latency_ratio))
    return tuple(clauses)


def _judged(gate: Gate, fidelity: Fidelity, metrics: Sequence[MetricFigures]) -> tuple[float | None, float | None]:
    """Value and drop of the gate's metric."""
    if gate.metric == AGREEMENT:
        value = fidelity.top1_agreement
        return value, None if value is None else rounded(100.0 - value, "%")
    found = next((figures for figures in metrics if figures.name == gate.metric), None)
    return (None, None) if found is None else (found.quantized, found.drop)


def _clause(name: str, wanted: float, got: float | None, metric: str | None = None) -> GateClause:
    """One that ``got`` keeps by being at least, or at most, what is wanted, as its name says."""
    holds = got is not None and (got >= wanted if name.startswith("min_") else got <= wanted)
    return GateClause(clause=name, metric=metric, wanted=wanted, got=got, holds=holds)
