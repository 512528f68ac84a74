"""The walk gives what whole runs of the float and of the emitted model give, whatever the network's shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.errors import CanceledError, ResourceLimitError
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import (
    config,
    input_infos,
    make_model,
    network,
    normal,
    op_types,
    prepare_proto,
    quantize_model,
)
from worker.quantizer.data import ArrayDataset
from worker.quantizer.emit import emit
from worker.quantizer.graph.serialized import serialized
from worker.quantizer.layerwise import Feed, StoreLimits, Visit, Walk
from worker.quantizer.layerwise.frontier import real_samples
from worker.quantizer.layerwise.models import cut, outside, restore_functions, rests_as_integers
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime.session import Session

_PER_CHANNEL = {"weight": {"granularity": "per_channel"}}
_NPU = {"preset": "xint8", "algorithms": []}


def feed(model: onnx.ModelProto, data: Mapping[str, np.ndarray], **changes: Any) -> Feed:
    samples = len(next(iter(data.values())))
    made = Feed(ArrayDataset(data), input_infos(model), range(samples), threads=1, run=SilentRun())
    return replace(made, **changes)


def whole_run(prepared: Prepared, plan: QuantizationPlan | None, data: Mapping[str, np.ndarray]) -> dict[str, Any]:
    model = ir.from_proto(ir.to_proto(prepared.model))
    names = {
        v.name: v.name for v in (*model.graph.inputs, *(made for n in model.graph for made in n.outputs)) if v.name
    }
    if plan is not None:
        restored = emit(model, plan).restored
        there = {v.name for node in model.graph for v in node.outputs}
        for tensor in plan.activations:
            name = f"{tensor}_QuantizeLinear_Output"
            names[tensor] = name if name in there else restored.get(tensor, tensor)
        names = {tensor: name for tensor, name in names.items() if name in there}
    proto = ir.to_proto(model)
    for name in names.values():
        if name not in {output.name for output in proto.graph.output} and name not in data:
            proto.graph.output.append(onnx.ValueInfoProto(name=name))
    session = Session(serialized(proto), threads=1)
    wanted = [name for name in names.values() if name in session.output_names]
    found = dict(zip(wanted, session.run(dict(data), wanted), strict=True))
    return {tensor: found.get(name, data.get(name)) for tensor, name in names.items()}


def with_own_functions(prepared: Prepared) -> Prepared:
    """The prepared network with the float model's functions in the place of those that its target has instead."""
    proto = ir.to_proto(prepared.model)
    restore_functions(proto.graph, prepared.facts.stand_ins)
    return replace(prepared, model=ir.from_proto(proto))


def check_walk(model: onnx.ModelProto, data: dict[str, np.ndarray], settings: Any) -> int:
    """Compare every visit with whole runs; returns the number of visits."""
    prepared, plan, _ = quantize_model(model, data, settings)
    floats, quantized = whole_run(with_own_functions(prepared), None, data), whole_run(prepared, plan, data)
    seen = 0
    with Walk(prepared, plan, feed(model, data, limits=StoreLimits())) as walk:
        for visit in walk.visits():
            seen += 1
            x = np.concatenate([visit.x(part) for part in visit.parts])
            np.testing.assert_allclose(x, floats[visit.input], rtol=1e-4, atol=1e-5)
            got = np.concatenate([visit.x_quantized(part) for part in visit.parts])
            entry, expected = plan.activations.get(visit.input), quantized[visit.input]
            if entry is not None and entry.quantization is not None:
                grid = entry.quantization.at_run_time()
                if expected.dtype.kind in "iu":
                    expected = grid.dequantize(expected)
                elif not rests_as_integers(visit.node.inputs[0], plan):
                    expected = grid.fake(expected)
            np.testing.assert_array_equal(got, expected)
            made = rest_of(walk, visit, quantized=False)
            for name, array in made.items():
                np.testing.assert_allclose(array, floats[name], rtol=1e-4, atol=1e-5)
        assert not seen or made
    return seen


def rest_of(walk: Walk, visit: Visit, *, quantized: bool) -> dict[str, np.ndarray]:
    """What everything from the visited node on makes of the waiting tensors: outputs of the network, not rounded."""
    nodes, frontier = walk.rest(visit.index), walk.frontier
    made = {value.name for node in nodes for value in node.outputs}
    names = [value.name for value in walk.graph.outputs if value.name in made]
    piece = frontier.piece(nodes, names, quantized=quantized, unrounded=True)
    found = [frontier.run(piece, part, quantized=quantized) for part in visit.parts]
    return {
        name: np.concatenate([real_samples(one[name], part) for one, part in zip(found, visit.parts, strict=True)])
        for name in names
    }


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12))])
def test_random_networks_are_walked_as_they_run(seed: int) -> None:
    made = RandomNetwork(seed)
    data = {name: normal(5, 3, 8, 8, seed=k) for k, name in enumerate(made.inputs)}
    check_walk(made.model, data, config(**(_PER_CHANNEL if seed % 2 else _NPU)))


_OTHER_TYPES = ({"activation": {"dtype": "uint16"}}, {"weight": {"dtype": "int4"}}, {"activation": {"dtype": "bfp16"}})


@pytest.mark.parametrize("settings", [_PER_CHANNEL, _NPU, *_OTHER_TYPES])
def test_a_network_with_a_branch_is_walked_as_it_runs(settings: dict[str, Any]) -> None:
    assert check_walk(network(), {"x": normal(7, 3, 10, 10)}, config(**settings)) == 3


def test_a_replaced_function_is_the_float_model_s_own_in_the_float_network() -> None:
    model = make_model(
        "(float[N,3,8,8] x) => (float[N,4,8,8] y) { t = Conv(x, w) s = Sigmoid(t) m = Mul(t, s) y = Conv(m, v) }",
        {"w": normal(4, 3, 1, 1), "v": normal(4, 4, 1, 1)},
    )
    data = {"x": normal(5, 3, 8, 8)}
    floats = whole_run(prepare_proto(model)[0], None, data)
    prepared, plan, emitted = quantize_model(model, data, config(**_NPU))
    assert "HardSigmoid" in op_types(emitted)
    with Walk(prepared, plan, feed(model, data)) as walk:
        for visit in walk.visits():
            x = np.concatenate([visit.x(part) for part in visit.parts])
            np.testing.assert_allclose(x, floats[visit.input], rtol=1e-3, atol=1e-4)


def test_an_edit_is_in_the_inputs_of_the_nodes_behind_it_and_in_the_outputs() -> None:
    model, data = network(), {"x": normal(7, 3, 10, 10)}
    prepared, plan, _ = quantize_model(model, data, config())
    with Walk(prepared, plan, feed(model, data)) as walk:
        for visit in walk.visits():
            if visit.index == 0:
                weight = walk.parameters.of(visit.node, 1)
                walk.parameters.put_integers(visit.node, 1, -weight.integers, weight.grid)
            outputs = rest_of(walk, visit, quantized=True)
    emitted = emit(ir.from_proto(ir.to_proto(prepared.model)), plan).model
    expected = Session(serialized(ir.to_proto(emitted)), threads=1).run(data, ["scores"])[0]
    np.testing.assert_allclose(outputs["scores"], expected, atol=1e-6)


def test_a_network_is_cut_before_nodes_and_behind_tensors() -> None:
    branch = "{ inner = Add(u, w) }"
    model = make_model(
        f"(float[N,4] x, bool c) => (float[N,4] y) {{ [a] t = Relu(x) [b] u = Neg(t) [d] v = Abs(u) "
        f"[e] z = If(c) <then_branch = g () => (float[N,4] inner) {branch}, "
        f"else_branch = h () => (float[N,4] inner) {branch}> [f] y = Mul(z, v) }}",
        {"w": normal(4)},
    )
    graph = ir.from_proto(model).graph
    first, second, third, last = cut(graph, graph, before={"d"}, behind={"t", "z"})
    parts = (first, second, third, last)
    assert [[node.name for node in part.nodes] for part in parts] == [["a"], ["b"], ["d", "e"], ["f"]]
    assert [part.reads for part in parts] == [("x",), ("t",), ("u", "c"), ("z", "v")]
    assert [part.makes for part in parts] == [("t",), ("u",), ("v", "z"), ("y",)]
    assert third.spent == ("u", "c")
    assert [value.name for value in outside(third.nodes)] == ["u", "c"]  # w is a constant, inner made inside


def _inputs_of_all_visits(limits: StoreLimits) -> tuple[list[np.ndarray], Walk]:
    model, data = network(), {"x": normal(40, 3, 10, 10)}
    prepared, plan, _ = quantize_model(model, data, config())
    with Walk(prepared, plan, feed(model, data, limits=limits)) as walk:
        found = [np.concatenate([visit.x_quantized(part) for part in visit.parts]) for visit in walk.visits()]
    return found, walk


def test_where_tensors_wait_does_not_change_them(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    expected, _ = _inputs_of_all_visits(StoreLimits(level=0))
    for limits in (StoreLimits(level=1), StoreLimits(level=2), StoreLimits(level=0, memory_bytes=30_000)):
        found, walk = _inputs_of_all_visits(limits)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_array_equal(a, b)
        assert not list(tmp_path.iterdir())
        assert any("did not all fit into memory" in note for note in walk.notes) == (limits.memory_bytes is not None)
    found, walk = _inputs_of_all_visits(StoreLimits(level=2, disk_bytes=125_000))
    assert walk.frontier.samples == 32, "without room fewer samples are walked"
    assert any("32 samples were walked to the end" in note for note in walk.notes)
    np.testing.assert_array_equal(found[-1], expected[-1][:32])
    with pytest.raises(ResourceLimitError, match="fit neither"):
        _inputs_of_all_visits(StoreLimits(level=2, disk_bytes=1000))


def test_tensors_go_with_their_last_reader() -> None:
    layers = 6
    weights = {f"w{k}": normal(4, 4, 1, 1, seed=k) for k in range(layers)}
    chain = " ".join(f"[c{k}] t{k + 1} = Conv(t{k}, w{k})" for k in range(layers))
    model = make_model(f"(float[N,4,16,16] t0) => (float[N,4,16,16] t{layers}) {{ {chain} }}", weights)
    data = {"t0": normal(8, 4, 16, 16)}
    prepared, plan, _ = quantize_model(model, data, config(activation={"dtype": "uint8"}))
    one = 8 * 4 * 16 * 16
    with Walk(prepared, plan, feed(model, data)) as walk:
        held = [walk.frontier.waiting_bytes for _ in walk.visits()]
    # the input alone, for both sides; then one tensor, as floats and as bytes
    assert held == [4 * one, *[5 * one] * (layers - 1)]


class _Stopping(SilentRun):
    def __init__(self, after: int) -> None:
        self.left = after

    def check(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise CanceledError("stop")


def test_the_walk_asks_whether_to_stop_before_every_run() -> None:
    model, data = network(), {"x": normal(40, 3, 10, 10)}
    prepared, plan, _ = quantize_model(model, data, config())
    for after in (0, 1, 4, 7):
        stopping = feed(model, data, run=_Stopping(after))
        with pytest.raises(CanceledError), Walk(prepared, plan, stopping) as walk:
            list(walk.visits())


def test_only_wanted_nodes_are_visited() -> None:
    model, data = network(), {"x": normal(5, 3, 10, 10)}
    prepared, plan, _ = quantize_model(model, data, config())
    with Walk(prepared, plan, feed(model, data), lambda node: node.name == "body") as walk:
        assert [visit.name for visit in walk.visits()] == ["body"]
