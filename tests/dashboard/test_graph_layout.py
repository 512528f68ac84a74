"""Places of boxes: nothing overlaps, every edge goes down, whatever the graph; groups never make a cycle."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.graph_view import GraphNode, GraphTensor, GraphView
from service.dashboard.graph_layout import (
    HEIGHT,
    MOST_BOXES,
    MOST_ENDS,
    WIDTH,
    Edge,
    Span,
    box_edges,
    node_edges,
    place,
    spans,
    with_ends,
)


def view_of(modules: list[tuple[str, ...]]) -> GraphView:
    return GraphView(nodes=tuple(GraphNode(name=f"n{k}", op="Relu", modules=path) for k, path in enumerate(modules)))


def check(count: int, edges: list[Edge]) -> None:
    """What holds of every layout."""
    placed = place(count, edges)
    assert set(placed.paths) == set(edges)
    for source, target in edges:
        assert placed.layers[source] < placed.layers[target]
        heights = [y for _, y in placed.paths[source, target]]
        assert heights == sorted(heights)
        assert placed.corners[source][1] + HEIGHT < placed.corners[target][1]
    layers = defaultdict(list)
    for layer, (x, y) in zip(placed.layers, placed.corners, strict=True):
        layers[layer].append(x)
        assert x >= 0
        assert y >= 0
        assert x + WIDTH <= placed.width + 1e-6
        assert y + HEIGHT <= placed.height + 1e-6
    for row in layers.values():
        row.sort()
        assert all(left + WIDTH < right for left, right in pairwise(row))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    count = draw(st.integers(1, 60))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(min(pair), max(pair)): None for pair in draw(st.lists(pairs, max_size=150)) if pair[0] != pair[1]}
    return count, list(edges)


@given(graphs())
def test_nothing_overlaps_and_edges_go_down(graph: tuple[int, list[Edge]]) -> None:
    check(*graph)


@pytest.mark.parametrize(
    ("count", "edges"),
    [
        (0, []),
        (1, []),
        (50, []),
        (40, [(0, k) for k in range(1, 40)]),
        (40, [(k, 39) for k in range(39)]),
        (60, [(k, k + 1) for k in range(59)] + [(0, k) for k in range(2, 60)]),
    ],
)
def test_shapes_at_the_edge(count: int, edges: list[Edge]) -> None:
    check(count, edges)


@given(st.lists(st.lists(st.sampled_from("abc"), max_size=3).map(tuple), max_size=500), st.data())
def test_groups_are_runs_that_cover_all_nodes_once(modules: list[tuple[str, ...]], data: st.DataObject) -> None:
    view = view_of(modules)
    shown = data.draw(st.none() | st.integers(0, max(0, len(modules) - 1)))
    boxes = spans(view, [], shown)
    assert [node for box in boxes for node in range(box.first, box.stop)] == list(range(len(modules)))
    if shown is not None and modules:
        assert sum(box.first == shown and len(box) == 1 for box in boxes) == 1
    last = max(0, len(modules) - 1)
    pairs = st.tuples(st.integers(0, last), st.integers(0, last))
    edges = [(min(pair), max(pair)) for pair in data.draw(st.lists(pairs, max_size=50 if modules else 0))]
    assert all(source < target for source, target in box_edges(boxes, edges))


def test_an_opened_group_always_falls_apart() -> None:
    view = view_of([("only",)] * 5000)
    boxes = spans(view, [])
    assert 2 <= len(boxes) <= MOST_BOXES
    opened = spans(view, [(boxes[0].first, boxes[0].stop)])
    assert len(opened) == len(boxes) + len(boxes[0]) - 1
    assert opened[0] == Span(0, 1)


def test_edges_are_those_of_tensors_and_of_sub_graphs_once_and_never_backward() -> None:
    view = GraphView(
        tensors=tuple(GraphTensor(name=f"t{k}") for k in range(5)),
        nodes=(
            GraphNode(name="a", op="A", inputs=(4, None, 0), outputs=(1,)),
            GraphNode(name="b", op="B", inputs=(1, 1), outputs=(2,)),
            GraphNode(name="c", op="C", inputs=(3,), outputs=(3,), inside="b"),
            GraphNode(name="d", op="D", inputs=(2, 1), outputs=(4,)),
        ),
    )
    assert node_edges(view) == [(0, 1), (1, 2), (1, 3), (0, 3)]


def test_inputs_come_first_and_outputs_last() -> None:
    view = GraphView(
        inputs=(0, 4),
        outputs=(2, 0, 3),
        tensors=tuple(GraphTensor(name=f"t{k}") for k in range(5)),
        nodes=(
            GraphNode(name="a", op="A", inputs=(0, None), outputs=(1,)),
            GraphNode(name="b", op="B", inputs=(1, 0), outputs=(2,)),
        ),
    )
    ends = with_ends(view, spans(view, []), [(0, 1)])
    assert (ends.inputs, ends.outputs) == ((0, 4), (2, 0, 3))
    # boxes: two inputs, of which one is read by nobody; two nodes; three outputs, of which nobody makes the last
    assert set(ends.edges) == {(0, 2), (0, 3), (2, 3), (3, 4), (0, 5)}
    check(7, ends.edges)


def test_the_ends_of_a_group_are_those_of_its_nodes_and_only_so_many_are_drawn() -> None:
    many = MOST_ENDS + 5
    view = GraphView(
        inputs=tuple(range(many)),
        tensors=tuple(GraphTensor(name=f"t{k}") for k in range(many)),
        nodes=tuple(GraphNode(name=f"n{k}", op="A", inputs=(k,)) for k in range(many)),
    )
    ends = with_ends(view, [Span(0, many, "all")], [])
    assert ends.edges == [(number, MOST_ENDS) for number in range(MOST_ENDS)]
