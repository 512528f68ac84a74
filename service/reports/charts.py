"""Charts as inline SVG, colored by classes for light, dark and paper: intervals, histograms with clip lines, curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from service.contracts.changes import typeset
from service.contracts.report import Histogram, Interval, TrainingFigures
from service.reports.figures import shown

# Drawing: inline SVG whose colors are classes, so that the page's style sets them for light, dark and paper.

Element = ElementTree.Element


class Scale(NamedTuple):
    """From values to places along an axis: ``low`` lies at ``begin``, ``high`` at ``end``."""

    low: float
    high: float
    begin: float
    end: float

    @classmethod
    def around(cls, values: Sequence[float], begin: float, end: float, margin: float = 0.1) -> Scale:
        """One that holds all values, with so large a share of their width beside them."""
        low, high = min(values), max(values)
        beside = margin * (high - low) or abs(high) * 0.1 or 1.0
        return cls(low - beside, high + beside, begin, end)

    def at(self, value: float) -> float:
        """The place of a value."""
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)


def picture(width: float, height: float, label: str) -> Element:
    """The root of a picture of so many pixels, with the words that stand for it where it cannot be seen."""
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return ElementTree.Element("svg", {"class": "chart", "role": "img", "aria-label": typeset(shown(label)), **size})


def line(parent: Element, start: tuple[float, float], end: tuple[float, float], kind: str) -> None:
    """A straight line of a class."""
    (x1, y1), (x2, y2) = start, end
    ends = {"x1": _at(x1), "y1": _at(y1), "x2": _at(x2), "y2": _at(y2)}
    ElementTree.SubElement(parent, "line", {"class": kind, **ends})


def box(parent: Element, corner: tuple[float, float], width: float, height: float, kind: str) -> Element:
    """A rectangle of a class; gives it back for a tooltip."""
    place = {"x": _at(corner[0]), "y": _at(corner[1]), "width": _at(max(width, 0)), "height": _at(max(height, 0))}
    return ElementTree.SubElement(parent, "rect", {"class": kind, **place})


def dot(parent: Element, center: tuple[float, float], radius: float, kind: str) -> None:
    """A disk of a class."""
    place = {"cx": _at(center[0]), "cy": _at(center[1]), "r": _at(radius)}
    ElementTree.SubElement(parent, "circle", {"class": kind, **place})


def path(parent: Element, points: list[tuple[float, float]], kind: str) -> None:
    """A line through points."""
    told = " ".join(f"{_at(x)},{_at(y)}" for x, y in points)
    ElementTree.SubElement(parent, "polyline", {"class": kind, "points": told})


def text(parent: Element, place: tuple[float, float], words: str, *, anchor: str = "start", kind: str = "") -> None:
    """Words that begin, end or have their middle at a place."""
    attributes = {"x": _at(place[0]), "y": _at(place[1])}
    if anchor != "start":
        attributes["text-anchor"] = anchor
    if kind:
        attributes["class"] = kind
    ElementTree.SubElement(parent, "text", attributes).text = typeset(shown(words))


def drawn(root: Element) -> Markup:
    """The picture as text that stands within HTML. ElementTree has escaped every text and attribute."""
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704


def _at(value: float) -> str:
    if not math.isfinite(value):  # the difference of figures that are as large as a float can be
        return "0"
    return f"{value:.1f}".removesuffix(".0")


_WHISKERS_WIDTH, _ROW_HEIGHT = 300.0, 24.0
_HISTOGRAM_WIDTH, _HISTOGRAM_HEIGHT = 320.0, 150.0
_CURVES_WIDTH, _CURVES_HEIGHT = 460.0, 210.0
# Clip lines further out than so many widths of the data are told in words: drawn, they would leave no room for it.
_FAR = 1.0
# No histogram counts more; a file of a stranger may.
_MOST = 2**63
_LETTER = 6.2


@dataclass(frozen=True)
class Whisker:
    """A value with its interval, in a row of its own."""

    label: str
    value: float
    interval: Interval | None
    kind: str


@dataclass(frozen=True)
class Curve:
    """A line of a training; epochs without a value are left out."""

    label: str
    kind: str
    points: list[tuple[float, float]]


def whiskers(
    rows: Sequence[Whisker],
    written: Callable[[float], str],
    label: str,
    *,
    limit: float | None = None,
    lower_limit: bool = False,
) -> Markup:
    """Values with intervals on one scale; with a limit, the side of it that holds is drawn as a band.

    Args:
        rows: at least one.
        written: how a value is told.
        label: the picture in words.
        limit: drawn as a line.
        lower_limit: True if the values have to be above the limit.
    """
    ends = [end for row in rows for end in (row.value, *_ends(row.interval))]
    ends += [limit] if limit is not None else []
    names = max((len(row.label) for row in rows), default=0) * _LETTER
    left, right = names + 8.0, _WHISKERS_WIDTH - 6.0
    height = _ROW_HEIGHT * len(rows) + 30.0

    scale = Scale.around(ends, left, right, margin=0.12)
    x = scale.at
    root = picture(_WHISKERS_WIDTH, height, label)
    bottom = height - 20.0
    if limit is not None:
        begin, end = (x(limit), right) if lower_limit else (left, x(limit))
        box(root, (begin, 4), end - begin, bottom - 4, "allowed")
    line(root, (left, bottom), (right, bottom), "axis")
    for k, row in enumerate(rows):
        y = 4.0 + _ROW_HEIGHT * (k + 0.5)
        text(root, (0, y + 4), row.label)
        if row.interval is not None:
            begin, end = x(row.interval.low), x(row.interval.high)
            line(root, (begin, y), (end, y), f"whisker {row.kind}")
            for place in (begin, end):
                line(root, (place, y - 5), (place, y + 5), f"whisker {row.kind}")
        dot(root, (x(row.value), y), 4.5, f"mark {row.kind}")
    if limit is not None:
        line(root, (x(limit), 2), (x(limit), bottom + 3), "limit")
        words = f"limit {written(limit)}"
        half = len(words) * _LETTER / 2
        text(root, (min(max(x(limit), left + half), right - half), height - 5), words, anchor="middle")
    else:
        text(root, (left, height - 5), written(scale.low))
        text(root, (right, height - 5), written(scale.high), anchor="end")
    return drawn(root)


def histogram(figures: Histogram, label: str) -> Markup:
    """Counts of values, on a logarithmic scale; what the quantized model clips stands outside of the dashed lines."""
    low, high = figures.minimum, figures.maximum
    span = (high - low) or abs(high) or 1.0
    clips = [clip for clip in (figures.clip_low, figures.clip_high) if clip is not None]
    near = [clip for clip in clips if low - _FAR * span <= clip <= high + _FAR * span]
    left_value, right_value = min([low, *near]), max([high, *near])
    if left_value == right_value:
        left_value, right_value = left_value - span / 2, right_value + span / 2
    top, bottom = 16.0, _HISTOGRAM_HEIGHT - 20.0

    x = Scale(left_value, right_value, 4.0, _HISTOGRAM_WIDTH - 4.0).at
    root = picture(_HISTOGRAM_WIDTH, _HISTOGRAM_HEIGHT, label)
    counts = [min(max(number, 0), _MOST) for number in figures.counts]
    most = math.log1p(max(counts)) or 1.0
    width = (high - low) / len(figures.counts)
    for k, number in enumerate(counts):
        if number <= 0:
            continue
        begin = low + k * width
        middle, tall = begin + width / 2, math.log1p(number) / most * (bottom - top)
        clipped = (figures.clip_low is not None and middle < figures.clip_low) or (
            figures.clip_high is not None and middle > figures.clip_high
        )
        wide = max(x(begin + width) - x(begin), 1.0)
        box(root, (x(begin), bottom - tall), wide, tall, "bar clipped" if clipped else "bar")
    line(root, (4, bottom), (_HISTOGRAM_WIDTH - 4, bottom), "axis")
    for clip in near:
        line(root, (x(clip), top - 4), (x(clip), bottom), "limit")
    if figures.clip_low is not None:
        text(root, (4, 9), f"clips below {figures.clip_low:.3g}")
    if figures.clip_high is not None:
        text(root, (_HISTOGRAM_WIDTH - 4, 9), f"above {figures.clip_high:.3g}", anchor="end")
    text(root, (4, _HISTOGRAM_HEIGHT - 5), f"{left_value:.3g}")
    text(root, (_HISTOGRAM_WIDTH - 4, _HISTOGRAM_HEIGHT - 5), f"{right_value:.3g}", anchor="end")
    return drawn(root)


def training_curves(figures: TrainingFigures) -> list[Markup]:
    """The losses by epoch, and the metric that the best epoch was chosen by."""
    epochs = figures.epochs
    losses = [
        Curve("training loss", "first", [(e.epoch, e.train_loss) for e in epochs if e.train_loss is not None]),
        Curve(
            "validation loss",
            "second",
            [(e.epoch, e.validation_loss) for e in epochs if e.validation_loss is not None],
        ),
    ]
    metric = [
        Curve(figures.metric or "metric", "second", [(e.epoch, e.metric) for e in epochs if e.metric is not None])
    ]
    drawn = (_curves(curves, figures.best_epoch) for curves in (losses, metric))
    return [picture for picture in drawn if picture is not None]


def curve(points: Sequence[tuple[float, float]], label: str, unit: str = "step") -> Markup | None:
    """One figure by step, or whatever ``unit`` is; None: it is of one alone."""
    return curves([(label, points)], unit)


def curves(told: Sequence[tuple[str, Sequence[tuple[float, float]]]], unit: str = "step") -> Markup | None:
    """One or two figures, each with its label, by step, or whatever ``unit`` is; None: they are of one alone."""
    kinds = ("first", "second")[-len(told) :]
    drawn = [Curve(label, kind, list(points)) for kind, (label, points) in zip(kinds, told, strict=True)]
    return _curves(drawn, None, unit)


def bar(share: float, kind: str = "bar") -> Markup:
    """A bar within a row of a table; ``share`` is its length, 0 to 1. The figure itself stands beside it."""
    wide = 100.0 * min(max(share, 0.0), 1.0)
    return Markup(  # noqa: S704 - a number and a word of ours
        f'<svg class="inbar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="{kind}" width="{wide:.1f}" height="8"/></svg>'
    )


def _curves(curves: Sequence[Curve], best: int | None, unit: str = "epoch") -> Markup | None:
    places = [point for curve in curves for point in curve.points]
    if len({x for x, _ in places}) < 2:
        return None
    xs, ys = [x for x, _ in places], [y for _, y in places]
    left, right, top, bottom = 76.0, _CURVES_WIDTH - 10.0, 26.0, _CURVES_HEIGHT - 34.0
    first, last = min(xs), max(xs)
    across, up = Scale(first, last, left, right), Scale.around(ys, bottom, top, margin=0.08)

    named = " and ".join(curve.label for curve in curves if curve.points)
    root = picture(_CURVES_WIDTH, _CURVES_HEIGHT, f"{named} by {unit}; the table beside it holds the figures")
    line(root, (left, bottom), (right, bottom), "axis")
    line(root, (left, top), (left, bottom), "axis")
    for value in (min(ys), max(ys)):
        text(root, (left - 5, up.at(value) + 4), f"{value:.3g}", anchor="end")
    text(root, (left, bottom + 14), f"{unit} {first:g}")
    text(root, (right, bottom + 14), f"{unit} {last:g}", anchor="end")
    if best is not None and first <= best <= last:
        taken = across.at(best)
        line(root, (taken, top - 4), (taken, bottom), "limit")
        text(root, (min(max(taken, left + 40), right - 40), bottom + 28), f"taken: epoch {best}", anchor="middle")
    place = left
    for curve in curves:
        if not curve.points:
            continue
        points = [(across.at(x), up.at(y)) for x, y in curve.points]
        path(root, points, f"curve {curve.kind}")
        for point in points:
            dot(root, point, 2.5, f"mark {curve.kind}")
        line(root, (place, 10), (place + 22, 10), f"curve {curve.kind}")
        text(root, (place + 27, 14), curve.label)
        place += 27 + (len(curve.label) + 3) * _LETTER
    return drawn(root)


def _ends(interval: Interval | None) -> tuple[float, ...]:
    return () if interval is None else (interval.low, interval.high)
