"""Drawings of a dataset's content: samples per class, values of an array, waveforms."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from service.contracts.dataset import WAVEFORM_STEPS, ValueProfile, Waveform
from service.contracts.report import Histogram
from service.reports import charts, svg
from service.reports.names import name

# Up to so many classes each has a row with its name; more are drawn side by side.
MOST_ROWS = 30
_WIDTH, _ROW, _NAMES, _NUMBERS = 320.0, 20.0, 130.0, 56.0
_NAME_CHARACTERS = 18
_SIDE_WIDTH, _SIDE_HEIGHT = 460.0, 180.0
_WAVE_WIDTH, _WAVE_HEIGHT = 260.0, 64.0


def class_rows(rows: Sequence[tuple[str, int]], label: str) -> Markup:
    """A bar per class, with its name and its number of samples.

    Args:
        rows: name and samples, at least one row.
        label: the picture in words.
    """
    root = svg.picture(_WIDTH, _ROW * len(rows) + 4, label)
    room = _WIDTH - _NAMES - _NUMBERS
    most = max(number for _, number in rows) or 1
    for k, (words, number) in enumerate(rows):
        top = 2 + _ROW * k
        svg.text(root, (_NAMES - 6, top + 14), name(words, _NAME_CHARACTERS), anchor="end")
        wide = max(room * number / most, 1.0)
        svg.box(root, (_NAMES, top + 3), wide, _ROW - 6, "bar")
        svg.text(root, (_NAMES + wide + 5, top + 14), f"{number:,}")
    svg.line(root, (_NAMES, 0), (_NAMES, _ROW * len(rows) + 4), "axis")
    return svg.drawn(root)


def class_outline(numbers: Sequence[int], counts: Sequence[int], label: str) -> Markup:
    """Many classes side by side, by their number, as one outline.

    Args:
        numbers: of the classes, ascending.
        counts: samples of each.
        label: the picture in words.
    """
    left, right, top, bottom = 8.0, _SIDE_WIDTH - 8.0, 20.0, _SIDE_HEIGHT - 20.0
    wide, most = (right - left) / len(counts), max(counts) or 1
    points = [(left, bottom)]
    for k, count in enumerate(counts):
        height = bottom - (bottom - top) * count / most
        points += [(left + k * wide, height), (left + (k + 1) * wide, height)]
    root = svg.picture(_SIDE_WIDTH, _SIDE_HEIGHT, label)
    svg.path(root, [*points, (right, bottom)], "bar")
    svg.line(root, (left, bottom), (right, bottom), "axis")
    svg.line(root, (left, top), (right, top), "limit")
    svg.text(root, (left, top - 6), f"{most:,} samples")
    svg.text(root, (left, _SIDE_HEIGHT - 5), f"class {numbers[0]}")
    svg.text(root, (right, _SIDE_HEIGHT - 5), f"class {numbers[-1]}", anchor="end")
    return svg.drawn(root)


def values(profile: ValueProfile, label: str) -> Markup:
    """How often which values occur, on a logarithmic scale."""
    return charts.histogram(Histogram(minimum=profile.low, maximum=profile.high, counts=profile.counts), label)


def waveform(wave: Waveform, loudest: float, label: str) -> Markup:
    """A sound over time, from its least to its greatest value.

    Args:
        wave: the sound.
        loudest: magnitude that fills the height.
        label: the picture in words.
    """
    middle = _WAVE_HEIGHT / 2
    root = svg.picture(_WAVE_WIDTH, _WAVE_HEIGHT, label)
    svg.line(root, (0, middle), (_WAVE_WIDTH, middle), "axis")
    if wave.lows:
        step = (middle - 2) * (wave.peak / loudest if loudest else 0.0) / WAVEFORM_STEPS
        across = [_WAVE_WIDTH * (k + 0.5) / len(wave.lows) for k in range(len(wave.lows))]
        upper = [(x, middle - high * step) for x, high in zip(across, wave.highs, strict=True)]
        lower = [(x, middle - low * step) for x, low in zip(across, wave.lows, strict=True)]
        svg.path(root, [*upper, *reversed(lower)], "bar second")
    return svg.drawn(root)
