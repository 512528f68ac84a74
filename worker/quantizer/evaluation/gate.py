"""The verdict: which conditions of the gate hold."""

from __future__ import annotations

from typing import Literal

from service.contracts.config import Gate
from service.contracts.report import Fidelity, GateClause, ModelFigures

Verdict = Literal["pass", "fail", "none"]


def judge(
    gate: Gate, float_: ModelFigures, quantized: ModelFigures, fidelity: Fidelity
) -> tuple[Verdict, tuple[GateClause, ...]]:
    """Check every given clause; one whose figure was not measured does not hold."""
    clauses: list[GateClause] = []
    value = _metric(gate, quantized, fidelity)
    if gate.max_drop is not None:
        before = 100.0 if gate.metric == "top1_agreement" else float_.metrics.get(gate.metric)
        drop = None if before is None or value is None else round(before - value, 4)
        clauses.append(_at_most("max_drop", gate.max_drop, drop, gate.metric))
    if gate.min_value is not None:
        clauses.append(_at_least("min_value", gate.min_value, value, gate.metric))
    if gate.min_sqnr_db is not None:
        clauses.append(_at_least("min_sqnr_db", gate.min_sqnr_db, fidelity.sqnr_db))
    if gate.max_size_bytes is not None:
        clauses.append(_at_most("max_size_bytes", gate.max_size_bytes, quantized.size_bytes))
    if gate.max_latency_ratio is not None:
        ratio = None
        if quantized.latency_ms is not None and float_.latency_ms:
            ratio = round(quantized.latency_ms / float_.latency_ms, 4)
        clauses.append(_at_most("max_latency_ratio", gate.max_latency_ratio, ratio))
    if not clauses:
        return "none", ()
    return ("pass" if all(clause.holds for clause in clauses) else "fail"), tuple(clauses)


def _metric(gate: Gate, quantized: ModelFigures, fidelity: Fidelity) -> float | None:
    return fidelity.top1_agreement if gate.metric == "top1_agreement" else quantized.metrics.get(gate.metric)


def _at_most(clause: str, wanted: float, got: float | None, metric: str | None = None) -> GateClause:
    return GateClause(clause=clause, metric=metric, wanted=wanted, got=got, holds=got is not None and got <= wanted)


def _at_least(clause: str, wanted: float, got: float | None, metric: str | None = None) -> GateClause:
    return GateClause(clause=clause, metric=metric, wanted=wanted, got=got, holds=got is not None and got >= wanted)
