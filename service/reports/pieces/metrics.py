"""Metrics of both models as rows, and intervals as pictures."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.report import LatencyFigures, MetricFigures
from service.reports import charts, figures
from service.reports.gains import Gain, metric_gain
from service.reports.verdict import interval_words


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
        _chart(metric),
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


def _chart(metric: MetricFigures) -> Markup | None:
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
