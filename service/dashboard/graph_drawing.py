"""The drawing of a graph as SVG: boxes that are links, colored by a figure that also stands in them as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from xml.etree import ElementTree

from markupsafe import Markup

from service.contracts.graph_view import GraphTensor, GraphView, cut_name
from service.contracts.report import LayerFigures
from service.dashboard.graph_grids import LEGEND, Carried, carried, grid_words
from service.dashboard.graph_layout import HEIGHT, WIDTH, Span, box_edges, node_edges, place, spans, with_ends
from service.reports import charts
from service.reports.figures import NOTHING, count, name, percent, shown
from service.reports.layers import NOT_APPLICABLE

By = Literal["sqnr", "error", "precision"]
# From so many dB on a box has the next class, 0 to 4.
SQNR_STEPS_DB = (10.0, 20.0, 30.0, 40.0)
# The same of percent of all error, the largest first.
ERROR_STEPS_PERCENT = (25.0, 10.0, 5.0, 1.0)
_OP_CHARACTERS, _NAME_CHARACTERS, _TITLE_CHARACTERS = 17, 29, 120
_BITS = re.compile(r"\d+")
_LOW_BITS, _BYTE_BITS = 4, 8
# Of what is written on edges, in units of the drawing.
_LETTER, _PAIR_PADDING, _PAIR_HEIGHT, _PAIR_CHARACTERS = 6.2, 12.0, 15.0, 16
# How an open dimension without a name is shown.
_LENGTHS: dict[int | str | None, str] = {None: "any"}
# What a legend says of each class.
LEGENDS: dict[By, tuple[tuple[str, str], ...]] = {
    "sqnr": (
        ("sqnr-0", "SQNR below 10 dB"),
        ("sqnr-1", "10 to 20 dB"),
        ("sqnr-2", "20 to 30 dB"),
        ("sqnr-3", "30 to 40 dB"),
        ("sqnr-4", "40 dB or more"),
        ("left", "float"),
        ("unknown", "not measured"),
    ),
    "error": (
        ("sqnr-0", "25 % of all error or more"),
        ("sqnr-1", "10 to 25 %"),
        ("sqnr-2", "5 to 10 %"),
        ("sqnr-3", "1 to 5 %"),
        ("sqnr-4", "below 1 %"),
        ("left", "float"),
        ("unknown", "not estimated"),
    ),
    "precision": (
        ("bits-4", "4 bits or fewer"),
        ("bits-8", "8 bits"),
        ("bits-16", "16 bits or more"),
        ("left", "float"),
        ("unknown", "unknown"),
    ),
}


@dataclass(frozen=True)
class Links:
    """Where boxes and pairs lead to: of a node by its place, of a group by its nodes, of a tensor."""

    node: Callable[[int], str]
    group: Callable[[Span], str]
    tensor: Callable[[int], str]  # by its place: the node that makes it, or reads it


@dataclass(frozen=True)
class Drawing:
    """A graph, drawn."""

    picture: Markup  # the SVG
    boxes: int  # how many there are
    groups: int  # how many of them contain several nodes
    kinds: tuple[str, ...] = ()  # of the edges, where Q/DQ pairs are shown; see ``graph_grids.LEGEND``


def rows_by_node(layers: Iterable[LayerFigures]) -> dict[str, LayerFigures]:
    """The report's row of each node, by the node's name in the graph."""
    found: dict[str, LayerFigures] = {}
    for row in layers:
        for each in (row.name, *row.nodes):
            found.setdefault(cut_name(each), row)
    return found


def sqnr_class(value: float) -> str:
    """The class of a figure."""
    return f"sqnr-{sum(value >= step for step in SQNR_STEPS_DB)}"


def error_class(value: float) -> str:
    """The class of an error contribution."""
    return f"sqnr-{sum(value < step for step in ERROR_STEPS_PERCENT)}"


def bits(row: LayerFigures) -> int | None:
    """The fewest bits that a number of the row has; None: it is not quantized, or nobody tells."""
    if row.reason is not None:
        return None
    words = [_BITS.search(word) for word in (row.weight_dtype, row.activation_dtype) if word is not None]
    return min((int(found.group()) for found in words if found is not None), default=None)


def told(row: LayerFigures | None, by: By) -> tuple[str, str]:
    """Class of a node and the words that say the same."""
    if row is None or row.reason_code == NOT_APPLICABLE:
        return "unknown", NOTHING
    if row.reason is not None:
        return "left", "float"
    if by == "sqnr":
        return ("unknown", NOTHING) if row.sqnr_db is None else (sqnr_class(row.sqnr_db), f"{row.sqnr_db:.1f} dB")
    if by == "error":
        return _told_error([row])
    fewest = bits(row)
    if fewest is None:
        return "unknown", NOTHING
    word = "/".join(dict.fromkeys(one for one in (row.weight_dtype, row.activation_dtype) if one is not None))
    return _bits_class(fewest), word


def _told_error(rows: Iterable[LayerFigures]) -> tuple[str, str]:
    """The same of the error contribution of these rows together; a row that stands for several nodes counts once."""
    shares = [row.error_percent for row in {row.name: row for row in rows}.values() if row.error_percent is not None]
    return (error_class(sum(shares)), percent(sum(shares))) if shares else ("unknown", NOTHING)


def told_group(rows: Sequence[LayerFigures | None], by: By) -> tuple[str, str]:
    """The same of a group: of its worst node, of all error within, or of the node with the fewest bits."""
    known = [row for row in rows if row is not None and row.reason_code != NOT_APPLICABLE]
    quantized = [row for row in known if row.reason is None]
    if by == "sqnr":
        worst = min((row.sqnr_db for row in quantized if row.sqnr_db is not None), default=None)
        if worst is not None:
            return sqnr_class(worst), f"worst {worst:.1f} dB"
    elif by == "error" and quantized:
        return _told_error(quantized)
    else:
        fewest = min((found for row in quantized if (found := bits(row)) is not None), default=None)
        if fewest is not None:
            return _bits_class(fewest), f"from {fewest} bits"
    return ("left", "float") if known and not quantized else ("unknown", NOTHING)


def draw(
    view: GraphView,
    rows: Mapping[str, LayerFigures],
    by: By,
    links: Links,
    *,
    opened: Sequence[tuple[int, int]] = (),
    chosen: int | None = None,
    pairs: bool = False,
) -> Drawing:
    """Draw a graph.

    Args:
        view: the graph.
        rows: of ``rows_by_node``.
        by: what boxes are colored by.
        links: where boxes lead to.
        opened: groups that are shown as what is in them.
        chosen: a node that is shown by itself, and marked.
        pairs: color the edges by their grids, and write on each which Q/DQ pair it has.
    """
    boxes = spans(view, opened, chosen)
    ends = with_ends(view, boxes, box_edges(boxes, node_edges(view)))
    placed = place(len(ends.inputs) + len(boxes) + len(ends.outputs), ends.edges)
    root = _root(placed.width, placed.height, f"Graph of {count(len(view.nodes), 'node')}, drawn top to bottom")
    wires = ElementTree.SubElement(root, "g", {"class": "wires", "aria-hidden": "true"})
    told_edges = carried(view, rows, boxes, ends) if pairs else {}
    for edge in ends.edges:
        path = {"d": _curve(placed.paths[edge]), "marker-end": "url(#arrow)"}
        path |= {"class": told_edges[edge].kind} if edge in told_edges else {}
        ElementTree.SubElement(wires, "path", path)
    if told_edges:
        labels = ElementTree.SubElement(root, "g", {"class": "pairs"})
        for edge, what in told_edges.items():
            if what.words:
                _pair(labels, placed.paths[edge], what, view.tensors[what.tensor], links.tensor(what.tensor))
    first, stop = len(ends.inputs), len(ends.inputs) + len(boxes)
    for kind, tensors, corners in (
        ("input", ends.inputs, placed.corners[:first]),
        ("output", ends.outputs, placed.corners[stop:]),
    ):
        for tensor, corner in zip(tensors, corners, strict=True):
            _end(root, corner, kind, view.tensors[tensor])
    for box, corner in zip(boxes, placed.corners[first:stop], strict=True):
        if len(box) == 1:
            node = view.nodes[box.first]
            kind, words = told(rows.get(node.name), by)
            kind += " chosen" if box.first == chosen else ""
            link = _link(root, corner, links.node(box.first), kind)
            link.set("data-node", "")
            if box.first == chosen:
                link.set("aria-current", "true")
            title = f"{node.op} {name(node.name, _TITLE_CHARACTERS)}: {words}"
            upper, lower = node.op, node.name
        else:
            members = [rows.get(node.name) for node in view.nodes[box.first : box.stop]]
            kind, words = told_group(members, by)
            link = _link(root, corner, links.group(box), f"group {kind}")
            size = count(len(box), "node")
            title = f"{name(box.label, _TITLE_CHARACTERS)}, {size}: {words}; opens the group"
            upper, lower = f"▸ {size}", box.label
        ElementTree.SubElement(link, "title").text = shown(title)
        _words(link, corner, upper, lower, words)
    kinds = {what.kind for what in told_edges.values()}
    return Drawing(
        charts.drawn(root), len(boxes), sum(len(box) > 1 for box in boxes), tuple(one for one in LEGEND if one in kinds)
    )


def _pair(
    parent: charts.Element, points: Sequence[tuple[float, float]], what: Carried, tensor: GraphTensor, address: str
) -> None:
    """The name of a Q/DQ pair on its edge, which leads to the tensor."""
    (x, y), (across, down) = points[-2], points[-1]
    text = what.words if what.tensors == 1 else f"{what.words} ×{what.tensors}"
    words = name(text, _PAIR_CHARACTERS)
    wide = _LETTER * len(words) + _PAIR_PADDING
    left, top = (x + across) / 2 - wide / 2, (y + down) / 2 - _PAIR_HEIGHT / 2 - 2
    link = ElementTree.SubElement(parent, "a", {"href": address, "class": f"pair {what.kind}", "data-node": ""})
    _, scale, zero_point = grid_words(tensor)
    told = f"Q/DQ of {name(tensor.name, _TITLE_CHARACTERS)}: {what.words}"
    told += "" if tensor.grid is None else f", {scale}, zero point {zero_point}"
    ElementTree.SubElement(link, "title").text = shown(told)
    charts.box(link, (left, top), wide, _PAIR_HEIGHT, "back").set("rx", f"{_PAIR_HEIGHT / 2:g}")
    charts.text(link, (left + wide / 2, top + 11), words, anchor="middle")


def _bits_class(number: int) -> str:
    if number <= _LOW_BITS:
        return "bits-4"
    return "bits-8" if number <= _BYTE_BITS else "bits-16"


def _root(width: float, height: float, label: str) -> charts.Element:
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    root = ElementTree.Element("svg", {"class": "graph", "role": "group", "aria-label": label, **size})
    marker = {"viewBox": "0 0 8 8", "refX": "7", "refY": "4", "markerWidth": "8", "markerHeight": "8"}
    marker["markerUnits"] = "userSpaceOnUse"
    definitions = ElementTree.SubElement(root, "defs")
    arrow = ElementTree.SubElement(definitions, "marker", {"id": "arrow", "orient": "auto", **marker})
    ElementTree.SubElement(arrow, "path", {"d": "M0 0L8 4L0 8z", "class": "tip"})
    return root


def _link(root: charts.Element, corner: tuple[float, float], address: str, kind: str) -> charts.Element:
    link = ElementTree.SubElement(root, "a", {"href": address, "class": f"box {kind}"})
    charts.box(link, corner, WIDTH, HEIGHT, "back").set("rx", "6")
    return link


def _end(root: charts.Element, corner: tuple[float, float], kind: str, tensor: GraphTensor) -> None:
    """An input or an output: no link, as there is nothing more to tell of it."""
    group = ElementTree.SubElement(root, "g", {"class": "end"})
    charts.box(group, corner, WIDTH, HEIGHT, "back").set("rx", f"{HEIGHT / 2:g}")
    shape = "" if tensor.shape is None else " × ".join(_LENGTHS.get(one, str(one)) for one in tensor.shape)
    words = " ".join(filter(None, (tensor.dtype, shape)))
    ElementTree.SubElement(group, "title").text = shown(f"{kind} {name(tensor.name, _TITLE_CHARACTERS)}: {words}")
    left, top = corner
    charts.text(
        group, (left + WIDTH / 2, top + 18), name(f"{kind} {tensor.name}", _NAME_CHARACTERS), anchor="middle", kind="op"
    )
    charts.text(group, (left + WIDTH / 2, top + 36), name(words or NOTHING, _NAME_CHARACTERS), anchor="middle")


def _words(link: charts.Element, corner: tuple[float, float], first: str, second: str, figure: str) -> None:
    left, top = corner
    charts.text(link, (left + 9, top + 18), name(first, _OP_CHARACTERS), kind="op")
    charts.text(link, (left + WIDTH - 9, top + 18), name(figure, _OP_CHARACTERS), anchor="end", kind="value")
    charts.text(link, (left + 9, top + 36), name(second, _NAME_CHARACTERS))


def _curve(points: Sequence[tuple[float, float]]) -> str:
    """A path that leaves and enters every point from above."""
    (x, y), *rest = points
    parts = [f"M{x:.0f} {y:.0f}"]
    for across, down in rest:
        middle = (y + down) / 2
        straight = f"V{down:.0f}"
        bent = f"C{x:.0f} {middle:.0f} {across:.0f} {middle:.0f} {across:.0f} {down:.0f}"
        parts.append(straight if round(across) == round(x) else bent)
        x, y = across, down
    return "".join(parts)
