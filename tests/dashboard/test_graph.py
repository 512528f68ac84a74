"""The page of a job's graph: places of boxes, drawing, panel, table; hostile names, thousands of nodes, no graph."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.contracts.graph_view import GraphNode, GraphTensor, GraphView, TensorGrid, cut_name
from service.dashboard.graph import EVALUATION, known, sources
from service.dashboard.graph_drawing import bits, error_class, rows_by_node, sqnr_class, told, told_group
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
from service.dashboard.overview import Recent
from service.tables import ReportRow
from tests.support.filled import chain, job, large_job
from tests.support.front import Front
from tests.support.reports import HOSTILE, full_report, layer

LIMIT_BYTES = 1_500_000


def page(front: Front, job_id: str, **params: Any) -> str:
    answer = front.http.get(f"/jobs/{job_id}/graph", params=params)
    assert answer.status_code == 200, answer.text
    assert len(answer.content) < LIMIT_BYTES
    return answer.text


def drawing(text: str) -> ElementTree.Element:
    found = re.search(r'<svg class="graph".*?</svg>', text, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found.group())


class Attacks(HTMLParser):
    """What a page must not hold: scripts and styles of its own, handlers, elements of a stranger."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("x", "style") or (tag == "script" and not str(given.get("src")).startswith("/static/")):
            self.found.append(tag)
        self.found += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "img" and given.get("src") == "x":
            self.found.append(tag)


def boxes(text: str) -> list[ElementTree.Element]:
    return drawing(text).findall("a")


def words(box: ElementTree.Element) -> list[str | None]:
    return [one.text for one in box.findall("text")]


@pytest.fixture
def full(sqlite_front: Front) -> str:
    """Four rows of the report; the first holds two nodes."""
    return job(sqlite_front, full_report(), chain(["/features/0", "/features/1", "/features/2", "/softmax", "/shape"]))


def test_boxes_are_links_with_their_figure_as_text_and_as_colour(sqlite_front: Front, full: str) -> None:
    found = boxes(page(sqlite_front, full))
    assert [words(box) for box in found] == [
        ["Conv", "12.5 dB", "/features/0"],
        ["Conv", "12.5 dB", "/features/1"],
        ["Conv", "25.0 dB", "/features/2"],
        ["Conv", "float", "/softmax"],
        ["Conv", "–", "/shape"],
    ]
    kinds = [box.get("class") for box in found]
    assert kinds == ["box sqnr-1 chosen", "box sqnr-1", "box sqnr-2", "box left", "box unknown"]
    assert found[0].get("href") == "?node=%2Ffeatures%2F0#node"
    text = page(sqlite_front, full, by="precision")
    first = boxes(text)[0]
    assert (words(first)[1], first.get("class")) == ("int8/uint8", "box bits-8 chosen")
    assert first.get("href") == "?by=precision&node=%2Ffeatures%2F0#node"
    assert "8 bits" in text
    assert sqlite_front.http.get(f"/jobs/{full}/graph?by=color").status_code == 422


def test_what_comes_in_and_goes_out_is_drawn_and_leads_nowhere(sqlite_front: Front) -> None:
    tensors = (GraphTensor(name="<b>in</b>", dtype="float32", shape=(None, "batch", 3)), GraphTensor(name="out"))
    nodes = (GraphNode(name="n", op="Relu", inputs=(0,), outputs=(1,)),)
    view = GraphView(inputs=(0,), outputs=(1,), tensors=tensors, nodes=nodes)
    root = drawing(page(sqlite_front, job(sqlite_front, full_report(), view)))
    ends = [one for one in root.iter() if one.get("class") == "end"]
    assert [one.tag.rpartition("}")[2] for one in ends] == ["g", "g"]
    texts = [[part.text for part in one.iter() if part.tag.endswith(("title", "text"))] for one in ends]
    assert texts[0] == ["input <b>in</b>: float32 any × batch × 3", "input <b>in</b>", "float32 any × batch × 3"]
    assert texts[1][1:] == ["output out", "–"]
    assert len([one for one in root.iter() if "marker-end" in one.attrib]) == 2


def test_edges_show_their_pairs_with_scale_and_zero_point(sqlite_front: Front) -> None:
    grid = TensorGrid(dtype="uint8", scales=1, scale_low=0.25, scale_high=0.25, zero_point=128)
    weight = TensorGrid(dtype="int8", scales=64, scale_low=0.001, scale_high=0.5, zero_point=0, axis=0)
    grids = {"in": grid, "w": weight, "b": grid.model_copy(update={"dtype": "int16"})}
    tensors = tuple(
        GraphTensor(
            name=each, dtype="int64" if each == "shape" else "float32", constant=each == "w", grid=grids.get(each)
        )
        for each in ("in", "w", "a", "b", "shape", "out")
    )
    wires_of = (("Conv", (0, 1), 2), ("Relu", (2,), 3), ("Shape", (3,), 4), ("Reshape", (3, 4), 5))
    nodes = tuple(GraphNode(name=op.lower(), op=op, inputs=read, outputs=(made,)) for op, read, made in wires_of)
    job_id = job(sqlite_front, full_report(), GraphView(inputs=(0,), outputs=(5,), tensors=tensors, nodes=nodes))
    plain = page(sqlite_front, job_id)
    assert "Show Q/DQ" in plain and 'class="pair' not in plain
    shown = page(sqlite_front, job_id, qdq="1")
    root = drawing(shown)
    (wires,) = [one for one in root.findall("g") if one.get("class") == "wires"]
    kinds = [one.get("class") for one in wires]
    assert sorted(map(str, kinds)) == sorted(["grid-u8", "float", "grid-16", "grid-16", "whole", "float"])
    (pairs,) = [one for one in root.findall("g") if one.get("class") == "pairs"]
    told = [(one.get("class"), one.findtext("title"), one.get("href")) for one in pairs]
    assert ("pair grid-u8", "Q/DQ of in: uint8, scale 0.25, zero point 128", "?qdq=1&node=conv&tensor=0#node") in told
    assert len(told) == 3
    for words in ("uint8", "16-bit integers", "float, no Q/DQ pair", "not float"):
        assert words in shown.partition("Legend of the edges")[2].partition("</ul>")[0]
    panel = page(sqlite_front, job_id, qdq="1", node="conv", tensor="0").partition('id="node"')[2]
    chosen = panel.partition('class="selected"')[2].partition("</tr>")[0]
    assert all(words in chosen for words in ("uint8", "0.25", "128"))
    assert "64 scales along axis 0, 0.001 to 0.5" in panel


def test_edges_within_a_fused_layer_have_no_conversion(sqlite_front: Front) -> None:
    grid = TensorGrid(dtype="uint8", scales=1, scale_low=0.25, scale_high=0.25, zero_point=128)
    grids = {"in": grid, "out": grid}
    tensors = tuple(GraphTensor(name=each, dtype="float32", grid=grids.get(each)) for each in ("in", "a", "out"))
    nodes = (
        GraphNode(name="conv", op="Conv", inputs=(0,), outputs=(1,)),
        GraphNode(name="clip", op="Clip", inputs=(1,), outputs=(2,)),
    )
    report = full_report(layers=[layer("conv", nodes=["conv", "clip"], error_percent=30.0)])
    job_id = job(sqlite_front, report, GraphView(inputs=(0,), outputs=(2,), tensors=tensors, nodes=nodes))
    shown = page(sqlite_front, job_id, qdq="1", by="error")
    (wires,) = [one for one in drawing(shown).findall("g") if one.get("class") == "wires"]
    assert [one.get("class") for one in wires] == ["grid-u8", "fused", "grid-u8"]
    assert "fused, no conversion" in shown
    assert [words(box)[:2] for box in boxes(shown)] == [["Conv", "30.0 %"], ["Clip", "30.0 %"]]


def test_a_graph_of_an_older_release_shows_the_types_of_the_report(sqlite_front: Front, full: str) -> None:
    root = drawing(page(sqlite_front, full, qdq="1"))
    (pairs,) = [one for one in root.findall("g") if one.get("class") == "pairs"]
    assert {one.findtext("title") for one in pairs} >= {"Q/DQ of t1: uint8"}
    groups = drawing(page(sqlite_front, large_job(sqlite_front, 2000)[0], qdq="1"))
    assert len(groups.findall("a")) <= MOST_BOXES


def test_a_chosen_node_tells_all_that_is_known(sqlite_front: Front, full: str) -> None:
    text = page(sqlite_front, full, node="/features/0")
    panel = text[text.index('id="node"') :]
    for fact in (
        "N × 3 × ?", "float32", "12.50 dB", "weights int8, activations uint8", "adaround +3.2 dB", "18.5 %",
        "one scale serves channels", "the widest channel is 75 times", "Keep the two worst layers in float.",
    ):  # fmt: skip
        assert fact in panel
    assert panel.count('class="chart"') == 2
    assert [box.get("aria-current") for box in boxes(text)][:2] == ["true", None]
    other = page(sqlite_front, full, node="/softmax")
    assert "its output needs more than 8 bits near 0" in other[other.index('id="node"') :]
    for key in ("/nowhere", "~99", "~x", "\ud7ff'\"<b>"):
        assert "No such node" in page(sqlite_front, full, node=key)
    assert "1 to 3 of 3 matching, 5 in total" in page(sqlite_front, full, find="FEATURES")
    assert "No matching nodes." in page(sqlite_front, full, find="<nothing>")


def test_hostile_names_stay_text(sqlite_front: Front) -> None:
    layers = [layer(one, op=one[:200], sqnr_db=12.0, gain={one: 1.5}) for one in HOSTILE if one != "\ud800"]
    view = chain([one["name"] for one in layers], [(one["name"][:200],) for one in layers])
    job_id = job(sqlite_front, full_report(layers=layers), view)
    for number, one in enumerate(layers):
        text = page(sqlite_front, job_id, node=one["name"][:800] if number % 2 else f"~{number}")
        assert not Attacks(text).found
        assert "\u202e" not in text and "12.0 dB" in text
        drawing(text)


def test_links_lead_to_nodes_of_any_name(sqlite_front: Front) -> None:
    names = ["n" * 5000, "n" * 5001, "ä" * 200, "a b&c=d#e"]
    job_id = job(sqlite_front, full_report(layers=[layer(one) for one in names]), chain(names))
    for number, box in enumerate(boxes(page(sqlite_front, job_id))):
        answer = sqlite_front.http.get(f"/jobs/{job_id}/graph{(box.get('href') or '').partition('#')[0]}")
        chosen = [one.get("aria-current") for one in boxes(answer.text)]
        assert chosen == ["true" if k == number else None for k in range(len(names))]


def test_two_thousand_nodes_are_drawn_as_groups_that_open(sqlite_front: Front) -> None:
    job_id, names = large_job(sqlite_front, 2000)
    found = boxes(page(sqlite_front, job_id))
    assert len(found) == 209, "the group of the worst node is open"
    assert words(found[10]) == ["▸ 10 nodes", "worst 0.5 dB", "layer.0.block.1"]
    assert found[10].get("href") == "?open=10-20#graph"
    opened = page(sqlite_front, job_id, open=["10-20", "30-40"], page=20)
    assert len(boxes(opened)) == 227
    assert "Close" in opened and "1901 to 2000 of 2000" in opened
    chosen = page(sqlite_front, job_id, node=names[1234])
    assert len(boxes(chosen)) == 209 and "61.70 dB" in chosen


def test_jobs_without_a_graph_say_so_and_list_their_layers(sqlite_front: Front) -> None:
    job_id = job(sqlite_front, full_report(), None)
    text = page(sqlite_front, job_id)
    assert "This job has no stored graph" in text and "/features/2" in text
    assert '<svg class="graph"' not in text
    for data in (b"{", b'{"nodes": 3}', b'{"outputs": [7]}'):
        assert "cannot be read" in page(sqlite_front, job(sqlite_front, full_report(), data))
    assert sqlite_front.http.get(f"/jobs/{sqlite_front.new_job()}/graph").status_code == 409, "it has not ended"
    assert sqlite_front.http.get("/jobs/job_none/graph").status_code == 404
    evaluation = ReportRow(job_id="job_other", attempt=1, body={"kind": "evaluation"})
    found = known(sqlite_front.app, replace(sources(sqlite_front.app, "default", job_id), report=evaluation))
    assert (found.missing, found.layers) == (EVALUATION, ())


def test_a_row_stands_for_all_its_nodes_by_their_cut_names() -> None:
    long = "n" * 1000
    rows = rows_by_node(full_report(layers=[layer("a", nodes=["a", long])]).layers)
    assert rows["a"] is rows[cut_name(long)]


def test_classes_follow_the_figures() -> None:
    classes = [sqnr_class(value) for value in (-5.0, 9.99, 10.0, 25.0, 39.9, 40.0)]
    assert classes == [f"sqnr-{k}" for k in (0, 0, 1, 2, 3, 4)]
    rows = full_report(
        layers=[
            layer("a", weight_dtype="int4", activation_dtype="float16", sqnr_db=5.0),
            layer("b", weight_dtype="float8e4m3fn", sqnr_db=50.0),
            layer("c", reason="so"),
            layer("d", reason="not applicable", reason_code="not-applicable"),
        ]
    ).layers
    assert [bits(row) for row in rows] == [4, 8, None, None]
    assert [told(row, "precision")[0] for row in rows] == ["bits-4", "bits-8", "left", "unknown"]
    assert told_group(rows, "sqnr") == ("sqnr-0", "worst 5.0 dB")
    assert told_group(rows, "precision") == ("bits-4", "from 4 bits")
    assert [error_class(value) for value in (25.0, 24.9, 9.9, 1.0, 0.5)] == [f"sqnr-{k}" for k in range(5)]
    halves = [row.model_copy(update={"error_percent": 6.0}) for row in rows[:2]]
    assert told_group([halves[0], *halves], "error") == ("sqnr-1", "12.0 %"), "a fused row counts once"
    assert told_group(rows[2:], "sqnr") == ("left", "float")
    assert told_group([None], "sqnr") == ("unknown", "–")


def test_recent_values_are_made_once_and_the_oldest_goes() -> None:
    made: list[int] = []
    kept: Recent[int] = Recent(2)
    for key in (1, 2, 1, 3, 1, 2):
        assert kept.get(key, lambda key=key: made.append(key) or key) == key  # type: ignore[misc, func-returns-value]
    assert made == [1, 2, 3, 2]


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
    for number, (x, y) in zip(placed.layers, placed.corners, strict=True):
        layers[number].append(x)
        assert 0 <= x <= placed.width - WIDTH + 1e-6 and 0 <= y <= placed.height - HEIGHT + 1e-6
    for row in layers.values():
        row.sort()
        assert all(left + WIDTH < right for left, right in pairwise(row))


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[Edge]]:
    count = draw(st.integers(1, 60))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(min(pair), max(pair)): None for pair in draw(st.lists(pairs, max_size=150)) if pair[0] != pair[1]}
    return count, list(edges)


@example((0, []))
@example((40, [(0, k) for k in range(1, 40)]))
@example((60, [(k, k + 1) for k in range(59)] + [(0, k) for k in range(2, 60)]))
@given(graphs())
def test_nothing_overlaps_and_edges_go_down(graph: tuple[int, list[Edge]]) -> None:
    check(*graph)


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
