"""Draws the ranges that algorithms moved, before and after, as one SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from service.contracts.report import AlgorithmFigures, RangeChange
from service.contracts.specs import TensorRange
from worker.quantizer.report.svg import GRID, MEDIA_TYPE, picture, printable, text
from worker.quantizer.run.extra import ExtraFile, ExtraFiles

_WIDTH, _HEIGHT, _MARGIN = 640, 220, 44
_BEFORE, _AFTER = "#9aa0a6", "#1a73e8"
_KINDS = (("weight", "Weights"), ("activation", "Activations"))


@dataclass(frozen=True)
class _Point:
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
    root = picture(2 * _WIDTH, 2 * _HEIGHT)
    for line, (kind, words) in enumerate(_KINDS):
        own = [row for row in rows if row.kind == kind]
        magnitudes = [_point(row.tensor, _magnitude(row.before), _magnitude(row.after)) for row in own]
        spreads = [_point(row.tensor, row.spread_before, row.spread_after) for row in own]
        for column, (points, what) in enumerate(
            ((magnitudes, "largest magnitude"), (spreads, "widest channel beside the median one"))
        ):
            place = {"transform": f"translate({column * _WIDTH} {line * _HEIGHT})"}
            panel = ElementTree.SubElement(root, "g", place)
            _draw(panel, f"{words}: {what}", [point for point in points if point is not None])
    drawn: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return drawn


def _magnitude(values: TensorRange) -> float:
    return max(abs(values.minimum), abs(values.maximum))


def _point(tensor: str, before: float | None, after: float | None) -> _Point | None:
    if before is None or after is None or before <= 0.0 or after <= 0.0:
        return None
    return _Point(tensor, before, after)


def _draw(panel: ElementTree.Element, title: str, points: list[_Point]) -> None:
    text(panel, _MARGIN, 16, title)
    if not points:
        text(panel, _MARGIN, _HEIGHT / 2, "nothing to show")
        return
    logs = [math.log10(value) for point in points for value in (point.before, point.after)]
    low, high = math.floor(min(logs) - 1e-9), math.ceil(max(logs) + 1e-9)
    bottom, top = _HEIGHT - 24, 28

    def y(value: float) -> float:
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - top)

    for power in range(low, high + 1, max(1, (high - low) // 6)):
        level = f"{y(10.0**power):.1f}"
        ends = {"x1": str(_MARGIN), "x2": str(_WIDTH - 12), "y1": level, "y2": level}
        ElementTree.SubElement(panel, "line", {**ends, "stroke": GRID})
        text(panel, 4, y(10.0**power) + 4, f"1e{power}")
    step = (_WIDTH - _MARGIN - 24) / max(len(points), 1)
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
        left = _WIDTH - 130 + shift
        ElementTree.SubElement(panel, "circle", {"cx": str(left), "cy": "12", "r": "4", "fill": color})
        text(panel, left + 8, 16, words)
