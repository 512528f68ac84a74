"""Pieces of the page that hold pictures: clauses of the gate, metrics of both models, ranges that were moved."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.evaluation import AGREEMENT
from service.contracts.report import GateClause, LatencyFigures, MetricFigures, RangeChange, Report
from service.contracts.specs import TensorRange
from service.reports import charts, figures
from service.reports.gains import Gain, metric_gain
from service.reports.verdict import interval_words, is_lower_limit


def gate_scale(clause: GateClause, report: Report) -> Markup | None:
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


@dataclass(frozen=True)
class MetricRow:
    """One metric for the table: its gain in words, its intervals in words and as a picture."""

    metric: MetricFigures
    gain: Gain
    float_interval: str
    quantized_interval: str
    chart: Markup | None


def metric_row(metric: MetricFigures, samples: int) -> MetricRow:
    """A row of the table; ``samples`` is taken where the metric does not tell its own."""
    return MetricRow(
        metric,
        metric_gain(metric, samples),
        interval_words(metric.float_interval, metric.unit),
        interval_words(metric.quantized_interval, metric.unit),
        _metric_chart(metric),
    )


def speed_chart(latency: LatencyFigures | None) -> Markup | None:
    """The time of one run of both models, with intervals."""
    if latency is None:
        return None
    rows = [
        charts.Whisker("float", latency.float_ms, latency.float_interval_ms, "first"),
        charts.Whisker("quantized", latency.quantized_ms, latency.quantized_interval_ms, "second"),
    ]
    return charts.whiskers(rows, figures.milliseconds, "time of one run of both models, with intervals")


def _metric_chart(metric: MetricFigures) -> Markup | None:
    if metric.float_interval is None and metric.quantized_interval is None:
        return None
    models = [
        ("float", metric.float_, metric.float_interval, "first"),
        ("quantized", metric.quantized, metric.quantized_interval, "second"),
    ]
    rows = [charts.Whisker(word, value, interval, kind) for word, value, interval, kind in models if value is not None]
    if not rows:
        return None
    label = f"{metric.name} of both models, with intervals"
    return charts.whiskers(rows, lambda value: figures.figure(value, metric.unit), label)


_WIDTH, _MIDDLE, _THIN = 100.0, 50.0, 0.8


def range_picture(change: RangeChange) -> Markup:
    """Both ranges on one scale about zero, the old one above; the figures themselves stand beside it."""
    both = (change.before, change.after)
    # halves, as the difference of the largest floats is none
    reach = max(max(abs(one.minimum), abs(one.maximum)) for one in both) or 1.0
    rows = "".join(
        _range_row(one, reach, top, kind) for one, top, kind in zip(both, (1, 9), ("first", "second"), strict=True)
    )
    return Markup(  # noqa: S704 - numbers and words of ours
        f'<svg class="inrange" viewBox="0 0 100 16" preserveAspectRatio="none" aria-hidden="true">{rows}'
        '<line class="zero" x1="50" x2="50" y1="0" y2="16"/></svg>'
    )


def _range_row(values: TensorRange, reach: float, top: int, kind: str) -> str:
    low, high = (_MIDDLE + end / reach * (_WIDTH - _MIDDLE) for end in (values.minimum, values.maximum))
    return f'<rect class="{kind}" x="{low:.1f}" y="{top}" width="{max(high - low, _THIN):.1f}" height="6"/>'
