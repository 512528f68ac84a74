"""Draws how a training went, epoch by epoch, as one SVG."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from service.contracts.report import AlgorithmFigures, TrainingEpoch, TrainingFigures
from worker.quantizer.report.svg import MEDIA_TYPE, line, picture, printable, text
from worker.quantizer.run.extra import ExtraFile, ExtraFiles

_WIDTH, _HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, _WIDTH - 16, 34, _HEIGHT - 36
# Of a long training so many epochs are drawn, evenly taken.
_MOST_POINTS = 500
_MOST_TICKS = 8
# About, in pixels.
_LETTER_WIDTH = 6
_BLUE, _ORANGE, _GREEN, _PURPLE, _RED, _GRAY = "#1a73e8", "#b06000", "#188038", "#8430ce", "#c5221f", "#5f6368"
# Epoch and value.
_Point = tuple[int, float]


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
    root = picture(2 * _WIDTH, 2 * _HEIGHT)
    drawn = _drawn(figures)
    for place, (title, series) in enumerate(panels):
        shift = f"translate({place % 2 * _WIDTH} {place // 2 * _HEIGHT})"
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
            text(self._panel, _LEFT, _HEIGHT / 2, "nothing to show")
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

    def _part(self, group: ElementTree.Element, part: list[_Point], low: float, high: float) -> None:
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


def _unbroken(points: Sequence[tuple[int, float | None]]) -> list[list[_Point]]:
    """The points that are known, cut where one is not."""
    parts: list[list[_Point]] = [[]]
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
