"""Writes docs/metrics.md: every metric and every condition of the gate, made from the contracts."""

from __future__ import annotations

from typing import get_args

from service.contracts.base import Contract
from service.contracts.evaluation import EvaluationSpec, Gate
from service.contracts.metrics import BoxLabels, GraphInput, GraphSource, Metric, MetricBase
from service.docs.fields import FIELD_HEAD, FieldTables, code, table, text_of, title_of
from service.docs.metrics_words import GRAPHS, INTRO, METRIC_WORDS, OPTION_WORDS, REPORT, STATISTICS

METRICS: tuple[type[MetricBase], ...] = get_args(get_args(Metric)[0])
_PARTS: tuple[type[Contract], ...] = (BoxLabels, GraphSource, GraphInput)
_SPECS: tuple[type[Contract], ...] = (EvaluationSpec, Gate)
RECORDS: tuple[type[Contract], ...] = (*_SPECS, *METRICS, *_PARTS)
_TABLES = FieldTables(
    {record.__name__: (title_of(record), f"#{title_of(record).lower()}") for record in (*_SPECS, *_PARTS)},
    {frozenset(record.__name__ for record in METRICS): "[metric](#metrics)"},
)


def metrics_page() -> str:
    """The whole page, as Markdown."""
    parts = (
        INTRO,
        *map(_section, _SPECS),
        METRIC_WORDS,
        _metrics(),
        OPTION_WORDS,
        _options(),
        *map(_section, _PARTS),
        GRAPHS,
        STATISTICS,
        REPORT,
    )
    return "\n".join(parts).rstrip() + "\n"


def _section(record: type[Contract]) -> str:
    return f"### {title_of(record)}\n\n{text_of(record)}\n\n{_TABLES.table(record)}"


def _metrics() -> str:
    rows = []
    for metric in METRICS:
        facts = metric.FACTS
        declared = isinstance(vars(metric).get("facts"), property)
        unit, better = ("as declared", "as declared") if declared else (facts.unit, facts.better)
        judged = (
            "the float model's output"
            if facts.against_float
            else "as its graph or function says"
            if declared
            else "labels"
        )
        rows.append((code(title_of(metric)), " ".join(text_of(metric).split()), judged, unit, better))
    return table(("kind", "value", "against", "unit", "better"), rows)


def _options() -> str:
    """The fields of all metrics; those that several metrics have stand in one row."""
    owners: dict[tuple[str, ...], list[str]] = {}
    for metric in METRICS:
        for row in _TABLES.rows(metric):
            if row[0] != code("kind"):
                owners.setdefault(row, []).append(title_of(metric))
    return table(("of", *FIELD_HEAD), ((_who(kinds), *row) for row, kinds in owners.items()))


def _who(kinds: list[str]) -> str:
    every = [title_of(metric) for metric in METRICS]
    if kinds == every:
        return "all"
    others = [kind for kind in every if kind not in kinds]
    if len(kinds) <= len(others):
        return ", ".join(map(code, kinds))
    return f"all but {', '.join(map(code, others))}"
