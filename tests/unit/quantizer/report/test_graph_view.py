"""graph.json: the prepared graph in order, the same bytes again, left out where it is too large or nobody asked."""

from __future__ import annotations

import json

import onnx_ir as ir
import pytest

from service.contracts.graph_view import NAME_CHARACTERS, GraphUnreadableError, cut_name, read_graph
from service.contracts.runner import MAX_FILES
from tests.unit.quantizer.run.test_extra import task_of
from tests.unit.quantizer.toolbox import make_model, network, normal
from worker.quantizer import command
from worker.quantizer.command import quantize_files
from worker.quantizer.report import graph_view as module
from worker.quantizer.report.graph_view import graph_file, graph_view
from worker.quantizer.run.interface import SilentRun

BRANCHES = """(float[N,3] x, bool c) => (float[N,4] y) {
    [fc] h = Gemm(x, w)
    [choice] y = If(c) <
        then_branch = one () => (float[N,4] a) { [inner] a = Relu(h) },
        else_branch = two () => (float[N,4] b) { [other] b = Identity(h) }
    >
}"""


class Listening(SilentRun):
    """A run that keeps its log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(f"{level}: {message}")


def branches() -> ir.Graph:
    model = ir.serde.deserialize_model(make_model(BRANCHES, {"w": normal(3, 4)}))
    next(iter(model.graph)).name = "/enc/fc/Gemm"
    return model.graph


def test_nodes_stand_in_order_with_their_tensors_and_modules() -> None:
    view = graph_view(branches())
    assert [(node.name, node.op, node.inside) for node in view.nodes] == [
        ("/enc/fc/Gemm", "Gemm", None),
        ("choice", "If", None),
        ("inner", "Relu", "choice"),
        ("other", "Identity", "choice"),
    ]
    assert view.nodes[0].modules == ("enc", "enc.fc")
    first = [view.tensors[place] for place in view.nodes[0].inputs if place is not None]
    assert [(one.name, one.dtype, one.shape, one.constant) for one in first] == [
        ("x", "float32", ("N", 3), False),
        ("w", "float32", (3, 4), True),
    ]
    assert view.nodes[2].inputs == view.nodes[0].outputs
    assert [view.tensors[place].name for place in view.outputs] == ["y"]


def test_the_same_graph_gives_the_same_bytes_and_is_read_back() -> None:
    first, second = (graph_file(branches(), SilentRun()) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.content == second.content
    assert isinstance(first.content, bytes)
    assert read_graph(first.content) == graph_view(branches())


def test_long_names_are_cut_and_stay_apart() -> None:
    assert cut_name("a" * NAME_CHARACTERS) == "a" * NAME_CHARACTERS
    names = {cut_name("a" * 5000), cut_name("a" * 5001), cut_name("a" * 300 + "\ud800")}
    assert len(names) == 3
    assert all(len(name) == NAME_CHARACTERS for name in names)


@pytest.mark.parametrize("limit", ["MOST_NODES", "MOST_BYTES"])
def test_what_is_too_large_is_left_out_and_told(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 3)
    run = Listening()
    assert graph_file(branches(), run) is None
    assert len(run.lines) == 1
    assert "graph.json is left out" in run.lines[0]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b'{"more": 1}',
        b'{"inputs": [0]}',
        b'{"inputs": [-1], "tensors": [{"name": "x"}]}',
        b'{"tensors": [{"name": "x"}], "nodes": [{"name": "n", "op": "Relu", "inputs": [0, 1]}]}',
        b'{"nodes": [{"name": "' + b"n" * (NAME_CHARACTERS + 1) + b'", "op": "Relu"}]}',
    ],
)
def test_what_the_engine_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(GraphUnreadableError):
        read_graph(data)


def test_a_task_that_asks_gets_it_and_no_other(tmp_path, monkeypatch) -> None:
    (tmp_path / "asked").mkdir()
    (tmp_path / "not").mkdir()
    asked, plain = task_of(tmp_path / "asked", graph=True), task_of(tmp_path / "not")
    made, without = quantize_files(asked, SilentRun()), quantize_files(plain, SilentRun())
    assert "graph" not in [file.kind for file in without.files]
    assert not (tmp_path / "not" / "output" / "graph.json").exists()
    (file,) = [file for file in made.files if file.kind == "graph"]
    view = read_graph((tmp_path / "asked" / "output" / file.file).read_bytes())
    names = {node.name for node in view.nodes}
    rows = {name for row in made.report.layers for name in row.nodes}
    assert rows == names
    same = [(tmp_path / folder / "output" / "model.onnx").read_bytes() for folder in ("asked", "not")]
    assert same[0] == same[1]
    assert json.loads((tmp_path / "asked" / "output" / "graph.json").read_bytes())["nodes"]


def test_it_makes_room_for_what_was_asked_for() -> None:
    graph = ir.serde.deserialize_model(network()).graph
    for number, node in enumerate(graph):
        node.name = node.name or f"n{number}"
    run = Listening()
    assert list(command._graph(graph, (), 10, run)) == []
    made = list(command._graph(graph, (), None, run))
    assert list(command._graph(graph, made * MAX_FILES, None, run)) == []
    assert [file.filename for file in made] == ["graph.json"]
    assert len(run.lines) == 2
