"""Drawing: what all pictures of a report have in common."""

from __future__ import annotations

from xml.etree import ElementTree

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
