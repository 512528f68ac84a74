"""What each algorithm that was kept has gained: a picture of steps, and the same as rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.report import AlgorithmFigures, Report
from service.reports import svg
from service.reports.figures import difference, figure
from service.reports.names import name
from service.reports.verdict import Tone

_WIDTH, _ROW, _TOP, _FOOT = 460.0, 28.0, 6.0, 24.0
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
        AlgorithmGain(entry.method, before, after, *_change(after - before, unit, higher))
        for entry, before, after in rows
        if before is not None and after is not None and math.isfinite(before) and math.isfinite(after)
    ]
    return Waterfall(title, unit, steps, _picture(title, unit, steps[:_MOST])) if steps else None


def _change(gained: float, unit: str, higher: bool) -> tuple[str, Tone]:
    if round(gained, 4) == 0:
        return "unchanged", "plain"
    better = (gained > 0) == higher
    return f"{difference(gained, unit)} {'better' if better else 'worse'}", "good" if better else "bad"


def _picture(title: str, unit: str, steps: Sequence[AlgorithmGain]) -> Markup:
    ends = [end for step in steps for end in (step.before, step.after)]
    labels = [name(step.method, _LABEL_CHARACTERS) for step in steps]
    left, right = max(len(label) for label in labels) * _LETTER + 12.0, _WIDTH - 12.0
    height = _TOP + _ROW * len(steps) + _FOOT

    x = svg.Scale.around(ends, left, right).at
    root = svg.picture(
        _WIDTH, height, f"{title} without and with each kept algorithm; the table beside it has the figures"
    )
    bottom = height - _FOOT
    svg.line(root, (left, bottom), (right, bottom), "axis")
    for k, (step, label) in enumerate(zip(steps, labels, strict=True)):
        middle = _TOP + _ROW * (k + 0.5)
        svg.text(root, (0, middle + 4), label)
        begin, end = sorted((x(step.before), x(step.after)))
        svg.box(root, (begin, middle - 5), max(end - begin, 1.0), 10, "step down" if step.tone == "bad" else "step")
        svg.dot(root, (x(step.before), middle), 4.5, "from")
        svg.dot(root, (x(step.after), middle), 4.5, "mark second")
        if k + 1 < len(steps):
            svg.line(root, (x(step.after), middle + 6), (x(step.after), middle + _ROW - 6), "link")
    svg.text(root, (left, height - 6), figure(min(ends), unit))
    svg.text(root, (right, height - 6), figure(max(ends), unit), anchor="end")
    return svg.drawn(root)
