"""graph.json: the prepared graph in order, the same bytes again, left out where it is too large or nobody asked."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.graph_view import NAME_CHARACTERS, GraphUnreadableError, TensorGrid, read_graph
from service.contracts.runner import MAX_FILES
from service.contracts.specs import ActivationSpec, WeightSpec
from tests.unit.quantizer.run.test_checkpoint import Listener
from tests.unit.quantizer.run.test_extra import task_of
from tests.unit.quantizer.toolbox import make_model, normal
from worker.quantizer import command
from worker.quantizer.command import quantize_files
from worker.quantizer.numerics.blocks import BlockGrid, FloatGrid
from worker.quantizer.numerics.integer import IntegerGrid, PerAxis
from worker.quantizer.plan.types import ActivationPlan, QuantizationPlan, WeightPlan
from worker.quantizer.report import graph_view as module
from worker.quantizer.report.graph_view import graph_file, graph_view, grids_of
from worker.quantizer.run.interface import SilentRun

BRANCHES = """(float[N,3] x, bool c) => (float[N,4] y) {
    [fc] h = Gemm(x, w)
    [choice] y = If(c) <
        then_branch = one () => (float[N,4] a) { [inner] a = Relu(h) },
        else_branch = two () => (float[N,4] b) { [other] b = Identity(h) }
    >
}"""


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
    told = [(one.name, one.dtype, one.shape, one.constant) for one in first]
    assert told == [("x", "float32", ("N", 3), False), ("w", "float32", (3, 4), True)]
    assert view.nodes[2].inputs == view.nodes[0].outputs
    assert [view.tensors[place].name for place in view.outputs] == ["y"]
    first_file, second_file = (graph_file(branches(), SilentRun()) for _ in range(2))
    assert first_file is not None and second_file is not None
    assert isinstance(first_file.content, bytes) and first_file.content == second_file.content
    assert read_graph(first_file.content) == view


def test_tensors_have_the_grids_of_the_plan() -> None:
    plan, per_tensor, per_channel = QuantizationPlan(), np.float32(0.5), np.array([0.25, 1.0], np.float32)
    activation = IntegerGrid("uint8", np.asarray(per_tensor), np.asarray(7, np.uint8))
    plan.activations["x"] = ActivationPlan("x", "x", ActivationSpec(), activation)
    plan.activations["h"] = ActivationPlan("h", "h", ActivationSpec())
    weight = IntegerGrid("int8", per_channel, np.zeros(2, np.int8), PerAxis(1))
    plan.weights["w"] = WeightPlan("w", "fc", WeightSpec(), PerAxis(1), weight)
    told = {one.name: one.grid for one in graph_view(branches(), grids_of(plan)).tensors}
    assert told["x"] == TensorGrid(dtype="uint8", scales=1, scale_low=0.5, scale_high=0.5, zero_point=7)
    assert told["w"] == TensorGrid(dtype="int8", scales=2, scale_low=0.25, scale_high=1.0, zero_point=0, axis=1)
    assert told["h"] is None and told["y"] is None
    others = {"half": FloatGrid("bfloat16"), "block": BlockGrid("bfp16", 1)}
    plan.activations = {name: ActivationPlan(name, name, ActivationSpec(), grid) for name, grid in others.items()}
    found = grids_of(plan)
    assert (found["half"], found["block"]) == (TensorGrid(dtype="bfloat16"), TensorGrid(dtype="bfp16", axis=1))


@pytest.mark.parametrize("limit", ["MOST_NODES", "MOST_BYTES"])
def test_what_is_too_large_is_left_out_and_told(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Listener()
    made = list(command._graph(branches(), (), None, run))
    assert [file.filename for file in made] == ["graph.json"]
    # it makes room for what was asked for
    assert list(command._graph(branches(), (), 10, run)) == []
    assert list(command._graph(branches(), made * MAX_FILES, None, run)) == []
    assert len(run.said) == 2
    monkeypatch.setattr(module, limit, 3)
    assert graph_file(branches(), run) is None
    assert "graph.json is left out" in run.said[2][1]


@pytest.mark.parametrize(
    "data",
    [
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


def test_a_task_that_asks_gets_it_and_no_other(tmp_path) -> None:
    for folder in ("asked", "not"):
        (tmp_path / folder).mkdir()
    asked, plain = task_of(tmp_path / "asked", graph=True), task_of(tmp_path / "not")
    made, without = quantize_files(asked, SilentRun()), quantize_files(plain, SilentRun())
    assert "graph" not in [file.kind for file in without.files]
    assert not (tmp_path / "not" / "output" / "graph.json").exists()
    (file,) = [file for file in made.files if file.kind == "graph"]
    view = read_graph((tmp_path / "asked" / "output" / file.file).read_bytes())
    assert {name for row in made.report.layers for name in row.nodes} == {node.name for node in view.nodes}
    first, second = ((tmp_path / folder / "output" / "model.onnx").read_bytes() for folder in ("asked", "not"))
    assert first == second
