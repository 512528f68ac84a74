"""Pieces of the page that hold pictures: gate, metrics, moved ranges, and the gain of each algorithm that was kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.changes import difference_change, signed, turned
from service.contracts.evaluation import AGREEMENT
from service.contracts.report import AlgorithmFigures, GateClause, LatencyFigures, MetricFigures, RangeChange, Report
from service.contracts.specs import TensorRange
from service.reports import charts, figures
from service.reports.figures import figure, name
from service.reports.gains import Card, metric_card
from service.reports.verdict import Tone, interval_words, is_lower_limit


def gate_scale(clause: GateClause, report: Report) -> Markup | None:
    """The limit, what was got and its interval; None for what was not measured."""
    if clause.got is None:
        return None
    units = {metric.name: metric.unit for metric in report.metrics} | {AGREEMENT: "%"}
    if clause.clause == "max_drop":
        return _change_scale(clause, report)
    in_db = clause.metric == "sqnr_db" or clause.clause == "runtime_agreement"
    unit = "dB" if in_db else units.get(clause.metric or "", "")
    lower = is_lower_limit(clause)
    label = f"limit {clause.wanted:g}, measured {clause.got:g}; values in the shaded band pass"
    row = charts.Whisker("", clause.got, clause.interval, "second")
    return charts.whiskers([row], lambda value: _written(value, clause.clause, unit), label, limit=clause.wanted,
                           lower_limit=lower)  # fmt: skip


def _change_scale(clause: GateClause, report: Report) -> Markup | None:
    """A drop, as the change that it is called everywhere."""
    found = next((metric for metric in report.metrics if metric.name == clause.metric), None)
    unit, falls = ("%", True) if found is None else (found.unit, found.better == "higher")
    sign = -1.0 if falls else 1.0
    got, limit = sign * (clause.got or 0.0), sign * clause.wanted
    interval = None if clause.interval is None else turned(clause.interval, sign)
    label = f"limit {signed(limit, unit)}, measured {signed(got, unit)}; values in the shaded band pass"
    row = charts.Whisker("", got, interval, "second")
    return charts.whiskers([row], lambda value: signed(value, unit), label, limit=limit, lower_limit=falls)


def _written(value: float, clause: str, unit: str) -> str:
    if clause.endswith("_bytes"):
        return figures.size(value)
    if clause.endswith("latency_ratio"):
        return figures.times(value)
    if clause.endswith("_db"):
        return figures.figure(value, "dB")
    return figures.figure(value, unit)


@dataclass(frozen=True)
class MetricRow:
    """One metric for the table: its card, its intervals in words and as a picture."""

    metric: MetricFigures
    card: Card
    float_interval: str
    quantized_interval: str
    chart: Markup | None


def metric_row(metric: MetricFigures, samples: int) -> MetricRow:
    """A row of the table; ``samples`` is taken where the metric does not tell its own."""
    return MetricRow(
        metric,
        metric_card(metric, samples),
        interval_words(metric.float_interval, metric.unit),
        interval_words(metric.quantized_interval, metric.unit),
        _metric_chart(metric),
    )


def speed_chart(latency: LatencyFigures | None) -> Markup | None:
    """Latency of both models, with intervals."""
    if latency is None:
        return None
    rows = [
        charts.Whisker("float", latency.float_ms, latency.float_interval_ms, "first"),
        charts.Whisker("quantized", latency.quantized_ms, latency.quantized_interval_ms, "second"),
    ]
    return charts.whiskers(rows, figures.milliseconds, "latency of both models, with confidence intervals")


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
    label = f"{metric.name} of both models, with confidence intervals"
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


# What each algorithm that was kept has gained: a picture of steps, and the same as rows.

_STEPS_WIDTH, _ROW, _TOP, _FOOT = 460.0, 28.0, 6.0, 24.0
_LETTER, _LABEL_CHARACTERS, _MOST = 6.2, 26, 40
_SQNR = "Output SQNR"


@dataclass(frozen=True)
class AlgorithmGain:
    """One algorithm.

    Attributes:
        method: its name.
        before, after: the figure without it and with it.
        change: the difference in words.
        tone: whether it is one for the better.
    """

    method: str
    before: float
    after: float
    change: str
    tone: Tone


@dataclass(frozen=True)
class Waterfall:
    """One figure through all algorithms that it was judged by."""

    title: str
    unit: str
    steps: list[AlgorithmGain]
    picture: Markup


def waterfalls(report: Report) -> list[Waterfall]:
    """Of SQNR and of each metric that algorithms were judged by; those without a figure on both sides are left out."""
    known = {metric.name: (metric.unit, metric.better == "higher") for metric in report.metrics}
    kept = [entry for entry in report.algorithms if entry.kept and entry.before is not None and entry.after is not None]
    found = [_waterfall(_SQNR, "dB", True, [(one, *_sqnr(one)) for one in kept])]
    for metric in dict.fromkeys(one.after.metric for one in kept if one.after is not None):
        unit, higher = known.get(metric, ("", True))
        found.append(_waterfall(name(metric), unit, higher, [(one, *_value(one, metric)) for one in kept]))
    return [one for one in found if one is not None]


def _sqnr(entry: AlgorithmFigures) -> tuple[float | None, float | None]:
    before, after = (None if score is None else score.sqnr_db for score in (entry.before, entry.after))
    return before, after


def _value(entry: AlgorithmFigures, metric: str) -> tuple[float | None, float | None]:
    before, after = (
        score.value if score is not None and score.metric == metric else None for score in (entry.before, entry.after)
    )
    return before, after


def _waterfall(
    title: str, unit: str, higher: bool, rows: Sequence[tuple[AlgorithmFigures, float | None, float | None]]
) -> Waterfall | None:
    steps = [
        AlgorithmGain(entry.method, before, after, *_change(before, after, unit, higher))
        for entry, before, after in rows
        if before is not None and after is not None and math.isfinite(before) and math.isfinite(after)
    ]
    return Waterfall(title, unit, steps, _picture(title, unit, steps[:_MOST])) if steps else None


def _change(before: float, after: float, unit: str, higher: bool) -> tuple[str, Tone]:
    change = difference_change(before, after, unit, better="higher" if higher else "lower")
    return change.words, change.tone


def _picture(title: str, unit: str, steps: Sequence[AlgorithmGain]) -> Markup:
    ends = [end for step in steps for end in (step.before, step.after)]
    labels = [name(step.method, _LABEL_CHARACTERS) for step in steps]
    left, right = max(len(label) for label in labels) * _LETTER + 12.0, _STEPS_WIDTH - 12.0
    height = _TOP + _ROW * len(steps) + _FOOT

    x = charts.Scale.around(ends, left, right).at
    root = charts.picture(
        _STEPS_WIDTH, height, f"{title} without and with each kept algorithm; the table lists the figures"
    )
    bottom = height - _FOOT
    charts.line(root, (left, bottom), (right, bottom), "axis")
    for k, (step, label) in enumerate(zip(steps, labels, strict=True)):
        middle = _TOP + _ROW * (k + 0.5)
        charts.text(root, (0, middle + 4), label)
        begin, end = sorted((x(step.before), x(step.after)))
        charts.box(root, (begin, middle - 5), max(end - begin, 1.0), 10, "step down" if step.tone == "bad" else "step")
        charts.dot(root, (x(step.before), middle), 4.5, "from")
        charts.dot(root, (x(step.after), middle), 4.5, "mark second")
        if k + 1 < len(steps):
            charts.line(root, (x(step.after), middle + 6), (x(step.after), middle + _ROW - 6), "link")
    charts.text(root, (left, height - 6), figure(min(ends), unit))
    charts.text(root, (right, height - 6), figure(max(ends), unit), anchor="end")
    return charts.drawn(root)
