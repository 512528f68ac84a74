"""Places for the boxes of a graph: layers from top to bottom, every edge goes downward.

A graph of many nodes is drawn as boxes that each hold a run of nodes which follow one another in topological order and
stand in the same module. Runs of a topological order can be joined without ever making a cycle, whatever the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from service.contracts.graph_view import GraphView

# So many boxes are drawn at once; and so many more for each group that is opened.
MOST_BOXES, MOST_OPENED = 300, 120
# Of inputs, and of outputs: a network may have one for each of its states.
MOST_ENDS = 32
WIDTH, HEIGHT = 190.0, 46.0
_GAP, _RISE = 22.0, 34.0
_MARGIN, _LANE = 16.0, 7.0
# A layer of more boxes goes on in the next row.
_ROW = 16
# An edge over more layers runs down beside the graph, so that it crosses no box.
_FAR = 6
_LANES = 24
_THREAD = 14.0

Edge = tuple[int, int]
Point = tuple[float, float]


@dataclass(frozen=True)
class Span:
    """Nodes from ``first`` up to and without ``stop``, drawn as one box."""

    first: int
    stop: int
    label: str = ""

    def __len__(self) -> int:
        return self.stop - self.first

    def __contains__(self, node: object) -> bool:
        return isinstance(node, int) and self.first <= node < self.stop


@dataclass(frozen=True)
class Placed:
    """Where a drawing has its boxes and edges, in pixels."""

    corners: tuple[Point, ...]  # left upper corner of each box
    layers: tuple[int, ...]  # number of each box's layer
    paths: dict[Edge, tuple[Point, ...]]  # of each edge, the points that it goes through
    width: float  # of the whole
    height: float  # of the whole


def node_edges(view: GraphView) -> list[Edge]:
    """Who reads what whom makes, each pair once; nodes of a sub-graph hang on the node that holds them.

    Only edges from earlier nodes to later ones count, as there are no others in topological order.
    """
    makers: dict[int, int] = {}
    names: dict[str, int] = {}
    found: dict[Edge, None] = {}
    for place, node in enumerate(view.nodes):
        sources = [makers.get(tensor) for tensor in node.inputs if tensor is not None]
        if node.inside is not None:
            sources.append(names.get(node.inside))
        found.update(dict.fromkeys((source, place) for source in sources if source is not None and source < place))
        for tensor in node.outputs:
            makers.setdefault(tensor, place)
        names.setdefault(node.name, place)
    return list(found)


def spans(view: GraphView, opened: Sequence[tuple[int, int]], shown: int | None = None) -> list[Span]:
    """The boxes of a graph: its nodes, or, where there are too many, groups of them.

    Args:
        view: the graph.
        opened: first and stop of groups that are shown as what is in them.
        shown: a node whose groups are opened as well.
    """
    paths = [node.modules for node in view.nodes]
    wanted = set(opened)
    made: list[Span] = []

    def split(whole: Span, most: int) -> None:
        for part in _parts(paths, whole, most):
            is_open = (part.first, part.stop) in wanted or (shown is not None and shown in part)
            if len(part) > 1 and is_open:
                split(part, MOST_OPENED)
            else:
                made.append(part)

    if paths:
        split(Span(0, len(paths)), MOST_BOXES)
    return made


def _parts(paths: Sequence[tuple[str, ...]], whole: Span, most: int) -> list[Span]:
    """What a box falls into: at least two, at most ``most`` boxes."""
    if len(whole) <= most:
        return [Span(place, place + 1) for place in range(whole.first, whole.stop)]
    deepest = max(len(paths[place]) for place in range(whole.first, whole.stop))
    for depth in range(deepest, 0, -1):
        runs = _runs(paths, whole, depth)
        if 2 <= len(runs) <= most:
            return runs
    return _chunks(whole, max(2, min(most, len(whole) // 20)))


def _runs(paths: Sequence[tuple[str, ...]], whole: Span, depth: int) -> list[Span]:
    """Neighbors that stand in the same module, down to so many levels."""
    starts = [whole.first]
    for before, place in pairwise(range(whole.first, whole.stop)):
        if paths[before][:depth] != paths[place][:depth]:
            starts.append(place)
    return [
        Span(first, stop, (paths[first][:depth] or ("",))[-1] or f"nodes {first + 1} to {stop}")
        for first, stop in pairwise([*starts, whole.stop])
    ]


def _chunks(whole: Span, count: int) -> list[Span]:
    ends = [whole.first + len(whole) * k // count for k in range(count + 1)]
    return [Span(first, stop, f"nodes {first + 1} to {stop}") for first, stop in pairwise(ends)]


def box_edges(boxes: Sequence[Span], edges: Iterable[Edge]) -> list[Edge]:
    """The edges between boxes, each once."""
    owner = [number for number, box in enumerate(boxes) for _ in range(len(box))]
    found = {(owner[source], owner[target]): None for source, target in edges}
    return [(source, target) for source, target in found if source != target]


@dataclass(frozen=True)
class EdgeEnds:
    """Inputs and outputs of a graph as boxes of their own."""

    inputs: tuple[int, ...]  # places of their tensors; their boxes come before those of the nodes
    outputs: tuple[int, ...]  # likewise; theirs come behind them
    edges: list[Edge]  # between all boxes, those of the nodes too


def with_ends(view: GraphView, boxes: Sequence[Span], between: Sequence[Edge]) -> EdgeEnds:
    """The boxes of a graph with what comes in and what goes out, the first ``MOST_ENDS`` of each.

    Args:
        view: the graph.
        boxes: of its nodes.
        between: the edges between these.
    """
    inputs, outputs = view.inputs[:MOST_ENDS], view.outputs[:MOST_ENDS]
    owner = [number for number, box in enumerate(boxes, start=len(inputs)) for _ in range(len(box))]
    makers = {tensor: box for node, box in zip(view.nodes, owner, strict=True) for tensor in node.outputs}
    entering = {tensor: number for number, tensor in enumerate(inputs)}
    found: dict[Edge, None] = {}
    for node, box in zip(view.nodes, owner, strict=True):
        read = [entering[tensor] for tensor in node.inputs if tensor is not None and tensor in entering]
        found.update(dict.fromkeys((source, box) for source in read))
    shift = len(inputs)
    found.update(dict.fromkeys((source + shift, target + shift) for source, target in between))
    for number, tensor in enumerate(outputs, start=shift + len(boxes)):
        source = makers.get(tensor, entering.get(tensor))
        if source is not None:
            found[source, number] = None
    return EdgeEnds(inputs, outputs, list(found))


def place(count: int, edges: Sequence[Edge]) -> Placed:
    """Lay out ``count`` boxes.

    Args:
        count: of boxes, in topological order.
        edges: between them, from an earlier to a later one.
    """
    layers = _layers(count, edges)
    rows: list[list[int]] = [[] for _ in range(max(layers, default=-1) + 1)]
    for box, layer in enumerate(layers):
        rows[layer].append(box)
    # edges over some layers go through threads: places in the layers between, as narrow as a line
    chains: dict[Edge, list[int]] = {}
    long = [edge for edge in edges if layers[edge[1]] - layers[edge[0]] > _FAR]
    links: list[Edge] = []
    following = count
    for source, target in edges:
        if layers[target] - layers[source] > _FAR:
            continue
        chain = [source]
        for layer in range(layers[source] + 1, layers[target]):
            rows[layer].append(following)
            chain.append(following)
            following += 1
        chain.append(target)
        links += pairwise(chain)
        chains[source, target] = chain
    _sort(rows, links)
    lanes = {source: number % _LANES for number, source in enumerate(dict.fromkeys(edge[0] for edge in long))}
    left = _MARGIN + _LANE * (min(len(lanes), _LANES) + 1 if lanes else 0)
    xs, width = _across(rows, links, count, left)
    tops = {box: _MARGIN + layer * (HEIGHT + _RISE) for layer, row in enumerate(rows) for box in row}
    paths: dict[Edge, tuple[Point, ...]] = {}
    for edge, chain in chains.items():
        points = [(xs[edge[0]], tops[edge[0]] + HEIGHT)]
        for thread in chain[1:-1]:
            points += [(xs[thread], tops[thread]), (xs[thread], tops[thread] + HEIGHT)]
        paths[edge] = (*points, (xs[edge[1]], tops[edge[1]]))
    for source, target in long:
        lane, out, into = _MARGIN + _LANE * lanes[source], tops[source] + HEIGHT, tops[target]
        third = _RISE / 3
        paths[source, target] = (
            (xs[source], out), (xs[source], out + third), (lane, out + 2 * third),
            (lane, into - 2 * third), (xs[target], into - third), (xs[target], into),
        )  # fmt: skip
    corners = tuple((xs[box] - WIDTH / 2, tops[box]) for box in range(count))
    height = 2 * _MARGIN + len(rows) * (HEIGHT + _RISE) - (_RISE if rows else 0)
    return Placed(corners, tuple(layers), paths, width, height)


def _layers(count: int, edges: Iterable[Edge]) -> list[int]:
    """The longest way to each box, wide layers broken into rows."""
    readers: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        readers[source].append(target)
    depth = [0] * count
    for box in range(count):
        for reader in readers[box]:
            depth[reader] = max(depth[reader], depth[box] + 1)
    sizes: dict[int, int] = defaultdict(int)
    within = []
    for box in range(count):
        within.append(sizes[depth[box]] // _ROW)
        sizes[depth[box]] += 1
    starts, total = {}, 0
    for layer in range(max(depth, default=-1) + 1):
        starts[layer] = total
        total += -(-sizes[layer] // _ROW)
    return [starts[depth[box]] + within[box] for box in range(count)]


def _sort(rows: list[list[int]], links: Sequence[Edge]) -> None:
    """Order each layer by the middle of its neighbors: once downward, once upward."""
    above: dict[int, list[int]] = defaultdict(list)
    below: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        below[source].append(target)
        above[target].append(source)
    at = {box: float(number) for row in rows for number, box in enumerate(row)}
    for neighbors, order in ((above, rows), (below, rows[::-1])):
        for row in order:
            middle = {box: _mean([at[one] for one in neighbors[box]], at[box]) for box in row}
            row.sort(key=lambda box, middle=middle: (middle[box], at[box]))  # type: ignore[misc]
            at.update({box: float(number) for number, box in enumerate(row)})


def _across(
    rows: Sequence[Sequence[int]], links: Sequence[Edge], count: int, left: float
) -> tuple[dict[int, float], float]:
    """The middle of each box and thread, and the width of the whole."""
    above: dict[int, list[int]] = defaultdict(list)
    for source, target in links:
        above[target].append(source)
    wide = [sum(_wide(box, count) for box in row) + _GAP * max(len(row) - 1, 0) for row in rows]
    inner = max(wide, default=0.0)
    xs: dict[int, float] = {}
    for row, length in zip(rows, wide, strict=True):
        # what is left of the row's width is used to stand below what is read
        slack, used, reached = inner - length, 0.0, 0.0
        for number, box in enumerate(row):
            half = _wide(box, count) / 2
            middle = left + inner / 2 + used + half - length / 2
            wanted = _mean([xs[one] for one in above[box] if one in xs], middle)
            earliest = left + (reached + _GAP if number else 0.0) + half
            latest = left + slack + used + half
            xs[box] = min(max(wanted, earliest), latest)
            reached = xs[box] + half - left
            used += 2 * half + _GAP
    return xs, left + inner + _MARGIN


def _wide(box: int, count: int) -> float:
    return WIDTH if box < count else _THREAD


def _mean(values: Sequence[float], other: float) -> float:
    return sum(values) / len(values) if values else other
