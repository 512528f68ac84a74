"""Pictures of a report as SVG: ranges that algorithms moved, and how a training went."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from service.contracts.report import AlgorithmFigures, RangeChange, TrainingEpoch, TrainingFigures
from service.contracts.specs import TensorRange
from worker.quantizer.run.services import ExtraFile, ExtraFiles

AXIS, GRID = "#5f6368", "#e0e0e0"
MEDIA_TYPE = "image/svg+xml"
_NAMESPACE = "http://www.w3.org/2000/svg"


def picture(width: int, height: int) -> ElementTree.Element:
    """The root of a picture of so many pixels, white."""
    size = {"width": str(width), "height": str(height), "font-family": "sans-serif", "font-size": "11"}
    root = ElementTree.Element("svg", {"xmlns": _NAMESPACE, "viewBox": f"0 0 {width} {height}", **size})
    ElementTree.SubElement(root, "rect", {"width": "100%", "height": "100%", "fill": "white"})
    return root


def text(parent: ElementTree.Element, x: float, y: float, words: str, *, anchor: str = "start") -> None:
    """Words that begin, end or have their middle at a place."""
    place = {"x": f"{x:.0f}", "y": f"{y:.0f}", "fill": AXIS}
    if anchor != "start":
        place["text-anchor"] = anchor
    ElementTree.SubElement(parent, "text", place).text = printable(words)


def line(parent: ElementTree.Element, start: tuple[float, float], end: tuple[float, float], **style: str) -> None:
    """A straight line."""
    (x1, y1), (x2, y2) = start, end
    ends = {"x1": f"{x1:.1f}", "y1": f"{y1:.1f}", "x2": f"{x2:.1f}", "y2": f"{y2:.1f}"}
    ElementTree.SubElement(parent, "line", {**ends, "stroke": GRID, **style})


def printable(words: str) -> str:
    """Without the control characters that XML cannot hold; a model may name a tensor as it likes."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)


# Draws the ranges that algorithms moved, before and after, as one SVG.

_RANGES_WIDTH, _RANGES_HEIGHT, _MARGIN = 640, 220, 44
_BEFORE, _AFTER = "#9aa0a6", "#1a73e8"
_KINDS = (("weight", "Weights"), ("activation", "Activations"))


@dataclass(frozen=True)
class _RangePoint:
    """One tensor of a panel: a figure before and after, both positive and finite."""

    tensor: str
    before: float
    after: float


def publish_ranges(algorithms: Sequence[AlgorithmFigures], files: ExtraFiles) -> None:
    """Add ``ranges.svg`` if an algorithm that was kept has moved ranges."""
    changes = [change for figures in algorithms if figures.kept for change in figures.ranges]
    if changes:
        files.add(ExtraFile("ranges_svg", "ranges.svg", MEDIA_TYPE, ranges_svg(changes)))


def ranges_svg(changes: Iterable[RangeChange]) -> bytes:
    """Two rows of panels, weights and activations: largest magnitude, and widest beside median channel.

    Tensors stand from left to right in the order given, both figures on logarithmic axes; a tensor's name and figures
    are its tooltip. Figures that are 0 or not known are left out.

    Args:
        changes: of any number of algorithms, in order.
    """
    rows = list(changes)
    root = picture(2 * _RANGES_WIDTH, 2 * _RANGES_HEIGHT)
    for line, (kind, words) in enumerate(_KINDS):
        own = [row for row in rows if row.kind == kind]
        magnitudes = [_point(row.tensor, _magnitude(row.before), _magnitude(row.after)) for row in own]
        spreads = [_point(row.tensor, row.spread_before, row.spread_after) for row in own]
        for column, (points, what) in enumerate(
            (
                (magnitudes, "largest magnitude"),
                (spreads, "widest channel over the median one"),
            )
        ):
            place = {"transform": f"translate({column * _RANGES_WIDTH} {line * _RANGES_HEIGHT})"}
            panel = ElementTree.SubElement(root, "g", place)
            _draw(panel, f"{words}: {what}", [point for point in points if point is not None])
    drawn: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return drawn


def _magnitude(values: TensorRange) -> float:
    return max(abs(values.minimum), abs(values.maximum))


def _point(tensor: str, before: float | None, after: float | None) -> _RangePoint | None:
    if before is None or after is None or before <= 0.0 or after <= 0.0:
        return None
    return _RangePoint(tensor, before, after)


def _draw(panel: ElementTree.Element, title: str, points: list[_RangePoint]) -> None:
    text(panel, _MARGIN, 16, title)
    if not points:
        text(panel, _MARGIN, _RANGES_HEIGHT / 2, "nothing to show")
        return
    logs = [math.log10(value) for point in points for value in (point.before, point.after)]
    low, high = math.floor(min(logs) - 1e-9), math.ceil(max(logs) + 1e-9)
    bottom, top = _RANGES_HEIGHT - 24, 28

    def y(value: float) -> float:
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - top)

    for power in range(low, high + 1, max(1, (high - low) // 6)):
        level = f"{y(10.0**power):.1f}"
        ends = {"x1": str(_MARGIN), "x2": str(_RANGES_WIDTH - 12), "y1": level, "y2": level}
        ElementTree.SubElement(panel, "line", {**ends, "stroke": GRID})
        text(panel, 4, y(10.0**power) + 4, f"1e{power}")
    step = (_RANGES_WIDTH - _MARGIN - 24) / max(len(points), 1)
    radius = f"{min(3.5, max(1.0, step / 3)):.1f}"
    for k, point in enumerate(points):
        x = f"{_MARGIN + 8 + (k + 0.5) * step:.1f}"
        mark = ElementTree.SubElement(panel, "g")
        told = f"{point.tensor}: {point.before:.4g} -> {point.after:.4g}"
        ElementTree.SubElement(mark, "title").text = printable(told)
        before, after = f"{y(point.before):.1f}", f"{y(point.after):.1f}"
        ElementTree.SubElement(mark, "line", {"x1": x, "x2": x, "y1": before, "y2": after, "stroke": "#dadce0"})
        for level, color in ((before, _BEFORE), (after, _AFTER)):
            ElementTree.SubElement(mark, "circle", {"cx": x, "cy": level, "r": radius, "fill": color})
    for shift, color, words in ((0, _BEFORE, "before"), (60, _AFTER, "after")):
        left = _RANGES_WIDTH - 130 + shift
        ElementTree.SubElement(panel, "circle", {"cx": str(left), "cy": "12", "r": "4", "fill": color})
        text(panel, left + 8, 16, words)


# Draws how a training went, epoch by epoch, as one SVG.

_CURVE_WIDTH, _CURVE_HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, _CURVE_WIDTH - 16, 34, _CURVE_HEIGHT - 36
# Of a long training so many epochs are drawn, evenly taken.
_MOST_POINTS = 500
_MOST_TICKS = 8
# About, in pixels.
_LETTER_WIDTH = 6
_BLUE, _ORANGE, _GREEN, _PURPLE, _RED, _GRAY = "#1a73e8", "#b06000", "#188038", "#8430ce", "#c5221f", "#5f6368"
# Epoch and value.
_CurvePoint = tuple[int, float]


@dataclass(frozen=True)
class _Series:
    """A figure of every epoch; where it has none the line is broken."""

    name: str
    color: str
    value: Callable[[TrainingEpoch], float | None]


def publish_training(algorithms: Sequence[AlgorithmFigures], files: ExtraFiles) -> None:
    """Add ``training.svg`` if an algorithm has trained the network, also if it was undone afterwards."""
    trained = [figures.training for figures in algorithms if figures.training is not None]
    if trained:
        drawn = training_svg(trained[-1]).encode()
        files.add(ExtraFile("training_svg", "training.svg", MEDIA_TYPE, drawn))


def training_svg(figures: TrainingFigures) -> str:
    """Four panels over the epochs: losses, metric, learning rate, shares of weights; the best epoch is marked in each.

    Every series is a group whose title is its name. Values stand on linear axes; those that are not known are left out.
    """
    metric = figures.metric or "metric"
    panels = (
        ("loss", (_Series("train loss", _BLUE, lambda epoch: epoch.train_loss),
                  _Series("validation loss", _ORANGE, lambda epoch: epoch.validation_loss))),
        (f"{metric} of the validation samples", (_Series(metric, _GREEN, lambda epoch: epoch.metric),)),
        ("learning rate of weights", (_Series("learning rate", _PURPLE, lambda epoch: epoch.learning_rate),)),
        ("share of weights (%)", (_Series("oscillating", _RED, lambda epoch: 100.0 * epoch.oscillating),
                                  _Series("frozen", _GRAY, lambda epoch: 100.0 * epoch.frozen))),
    )  # fmt: skip
    root = picture(2 * _CURVE_WIDTH, 2 * _CURVE_HEIGHT)
    drawn = _drawn(figures)
    for place, (title, series) in enumerate(panels):
        shift = f"translate({place % 2 * _CURVE_WIDTH} {place // 2 * _CURVE_HEIGHT})"
        panel = ElementTree.SubElement(root, "g", {"transform": shift})
        _Panel(panel, drawn, figures.best_epoch).draw(title, series)
    return ElementTree.tostring(root, encoding="unicode")


def _drawn(figures: TrainingFigures) -> list[TrainingEpoch]:
    """The epochs in order, no more than can be told apart; the best and the last are among them."""
    epochs = sorted(figures.epochs, key=lambda epoch: epoch.epoch)
    step = -(-len(epochs) // _MOST_POINTS)
    return [
        epoch
        for k, epoch in enumerate(epochs)
        if k % step == 0 or k == len(epochs) - 1 or epoch.epoch == figures.best_epoch
    ]


class _Panel:
    """One diagram with its axes."""

    def __init__(self, panel: ElementTree.Element, epochs: list[TrainingEpoch], best_epoch: int) -> None:
        self._panel, self._epochs, self._best = panel, epochs, best_epoch
        numbers = [epoch.epoch for epoch in epochs]
        self._first, self._last = (numbers[0], numbers[-1]) if numbers else (0, 0)

    def draw(self, title: str, series: Sequence[_Series]) -> None:
        """Title, axes, the best epoch, then the series."""
        text(self._panel, _LEFT, 16, title)
        known = [value for each in series for epoch in self._epochs if (value := each.value(epoch)) is not None]
        if not known:
            text(self._panel, _LEFT, _CURVE_HEIGHT / 2, "nothing to show")
        low, high = _limits(known)
        self._axes(low, high)
        if len(series) > 1:
            self._legend(series)
        for each in series:
            group = ElementTree.SubElement(self._panel, "g", {"stroke": each.color, "fill": "none"})
            ElementTree.SubElement(group, "title").text = printable(each.name)
            for part in _unbroken([(epoch.epoch, each.value(epoch)) for epoch in self._epochs]):
                self._part(group, part, low, high)

    def _legend(self, series: Sequence[_Series]) -> None:
        """The names from right to left, each with its color, above the diagram."""
        right = float(_RIGHT)
        for each in reversed(series):
            text(self._panel, right, 16, each.name, anchor="end")
            left = right - _LETTER_WIDTH * len(each.name) - 4
            line(self._panel, (left - 16, 12), (left, 12), **{"stroke": each.color, "stroke-width": "2"})
            right = left - 30

    def _axes(self, low: float, high: float) -> None:
        for value in (low, low / 2 + high / 2, high):
            y = _y(value, low, high)
            line(self._panel, (_LEFT, y), (_RIGHT, y))
            text(self._panel, _LEFT - 6, y + 4, f"{value:.3g}", anchor="end")
        step = max(1, -(-(self._last - self._first) // _MOST_TICKS))
        for epoch in range(self._first, self._last + 1, step):
            text(self._panel, self._x(epoch), _BOTTOM + 14, str(epoch), anchor="middle")
        text(self._panel, (_LEFT + _RIGHT) / 2, _BOTTOM + 28, "epoch", anchor="middle")
        if self._first <= self._best <= self._last:
            x = self._x(self._best)
            line(self._panel, (x, _TOP), (x, _BOTTOM), **{"stroke": _GRAY, "stroke-dasharray": "4 3"})
            text(self._panel, x + 4 if x < _RIGHT - 40 else x - 4, _TOP - 4, "best",
                 anchor="start" if x < _RIGHT - 40 else "end")  # fmt: skip

    def _part(self, group: ElementTree.Element, part: list[_CurvePoint], low: float, high: float) -> None:
        places = [(f"{self._x(epoch):.1f}", f"{_y(value, low, high):.1f}") for epoch, value in part]
        if len(places) == 1:
            ((x, y),) = places
            ElementTree.SubElement(group, "circle", {"cx": x, "cy": y, "r": "2"})
            return
        listed = " ".join(f"{x},{y}" for x, y in places)
        ElementTree.SubElement(group, "polyline", {"points": listed, "stroke-width": "1.5"})

    def _x(self, epoch: int) -> float:
        if self._first == self._last:
            return (_LEFT + _RIGHT) / 2
        return _LEFT + (epoch - self._first) / (self._last - self._first) * (_RIGHT - _LEFT)


def _unbroken(points: Sequence[tuple[int, float | None]]) -> list[list[_CurvePoint]]:
    """The points that are known, cut where one is not."""
    parts: list[list[_CurvePoint]] = [[]]
    for epoch, value in points:
        if value is None:
            parts.append([])
        else:
            parts[-1].append((epoch, value))
    return [part for part in parts if part]


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """Lowest and highest value, apart from each other."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if low == high:
        room = abs(low) / 10 or 1.0
        return max(low - room, -sys.float_info.max), min(high + room, sys.float_info.max)
    return low, high


def _y(value: float, low: float, high: float) -> float:
    # In halves: the difference of two large values is beyond what a float holds.
    share = (value / 2 - low / 2) / ((high / 2 - low / 2) or 1.0)
    return _BOTTOM - share * (_BOTTOM - _TOP)
