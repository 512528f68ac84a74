"""Drawing: inline SVG whose colors are classes, so that the page's style sets them for light, dark and paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from service.reports.names import shown

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
    return ElementTree.Element("svg", {"class": "chart", "role": "img", "aria-label": shown(label), **size})


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
    ElementTree.SubElement(parent, "text", attributes).text = shown(words)


def drawn(root: Element) -> Markup:
    """The picture as text that stands within HTML. ElementTree has escaped every text and attribute."""
    return Markup(ElementTree.tostring(root, encoding="unicode"))  # noqa: S704


def _at(value: float) -> str:
    if not math.isfinite(value):  # the difference of figures that are as large as a float can be
        return "0"
    return f"{value:.1f}".removesuffix(".0")
