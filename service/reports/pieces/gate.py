"""A clause of the gate on a small scale."""

from __future__ import annotations

from markupsafe import Markup

from service.contracts.evaluation import AGREEMENT
from service.contracts.report import GateClause, Report
from service.reports import charts, figures
from service.reports.verdict import is_lower_limit


def scale(clause: GateClause, report: Report) -> Markup | None:
    """The limit, what was got and its interval; None for what was not measured."""
    if clause.got is None:
        return None
    units = {metric.name: metric.unit for metric in report.metrics} | {AGREEMENT: "%"}
    unit = units.get(clause.metric or "", "")
    lower = is_lower_limit(clause)
    label = f"limit {clause.wanted:g}, got {clause.got:g}; the band is where the condition holds"
    row = charts.Whisker("", clause.got, clause.interval, "second")
    return charts.whiskers([row], lambda value: _written(value, clause.clause, unit), label, limit=clause.wanted,
                           lower_limit=lower)  # fmt: skip


def _written(value: float, clause: str, unit: str) -> str:
    if clause.endswith("_bytes"):
        return figures.size(value)
    if clause.endswith("latency_ratio"):
        return figures.times(value)
    if clause.endswith("_db"):
        return figures.figure(value, "dB")
    if clause.endswith("max_drop"):
        return figures.difference(value, unit)
    return figures.figure(value, unit)
