"""Selectors: who is meant, who is left, and what is said when nobody is."""

from __future__ import annotations

from typing import Any

import onnx
import pytest

from service.contracts.errors import InvalidConfigError
from service.contracts.selectors import (
    ModuleSelector,
    OpTypeSelector,
    RegexSelector,
    Selector,
    SubgraphSelector,
    TensorSelector,
)
from tests.support.simulator import simulate
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    data,
    make_model,
    network,
    normal,
    plan_for,
    prepare_proto,
    quantize_model,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.graph.metadata import module_paths
from worker.quantizer.numerics.integer import PER_TENSOR, PerAxis
from worker.quantizer.plan.selection import Matcher, check_selectors
from worker.quantizer.plan.types import PlanLog

FEEDS = {"x": data(16)["x"]}


def diamond() -> onnx.ModelProto:
    """a -> b -> d -> e, a -> c -> d."""
    return make_model(
        "(float[N,2,4,4] x) => (float[N,2,4,4] y) { [a] s = Relu(x) [b] t = Conv(s, wb) [c] u = Conv(s, wc) "
        "[d] v = Add(t, u) [e] y = Sigmoid(v) }",
        {"wb": normal(2, 2, 1, 1), "wc": normal(2, 2, 1, 1, seed=1)},
    )


def matched(selector: Selector, model: onnx.ModelProto | None = None) -> set[str]:
    prepared, _ = prepare_proto(model or diamond())
    return set(Matcher(prepared.graph, prepared.op_types).nodes(selector))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        (RegexSelector(regex="[ab]"), {"a", "b"}),
        (RegexSelector(regex="a.+"), set()),
        (OpTypeSelector(op_type="Conv"), {"b", "c"}),
        (TensorSelector(tensor="v"), {"d"}),
        (TensorSelector(tensor="wc"), {"c"}),
        (TensorSelector(tensor="x"), {"a"}),
        (SubgraphSelector(from_nodes=("a",), to_nodes=("d",)), {"a", "b", "c", "d"}),
        (SubgraphSelector(from_nodes=("b",), to_nodes=("e",)), {"b", "d", "e"}),
        (SubgraphSelector(from_nodes=("b", "c"), to_nodes=("d",)), {"b", "c", "d"}),
        (SubgraphSelector(from_nodes=("d",), to_nodes=("b",)), set()),
    ],
)
def test_who_is_meant(selector: Selector, names: set[str]) -> None:
    assert matched(selector) == names


def test_modules_of_both_exporters() -> None:
    model = diamond()
    model.graph.node[1].metadata_props.add(
        key="pkg.torch.onnx.name_scopes", value="['', 'encoder', 'encoder.layers', 'encoder.layers.1@1', 'conv2d']"
    )
    model.graph.node[2].name = "/encoder/layers.10/conv/Conv"
    assert matched(ModuleSelector(module="encoder.layers.1"), model) == {"b"}
    assert matched(ModuleSelector(module="encoder.layers.10"), model) == {"/encoder/layers.10/conv/Conv"}
    assert matched(ModuleSelector(module="encoder"), model) == {"b", "/encoder/layers.10/conv/Conv"}
    prepared, _ = prepare_proto(model)
    assert module_paths(prepared.graph[2]) == ["encoder", "encoder.layers.10", "encoder.layers.10.conv"]


def test_overrides_change_single_fields_of_single_nodes() -> None:
    """The first match that gives a weight counts, and the input takes the spec of its reader."""
    wanted = config(
        overrides=[
            {"match": {"node": "body"}, "weight": {"granularity": "per_tensor"}},
            {"match": {"op_type": "Conv"}, "weight": {"dtype": "int16"}, "activation": {"dtype": "int16"}},
            {"match": {"node": "dense"}, "bias": {"dtype": "float32"}},
        ]
    )
    _, plan = plan_for(network(), wanted)
    assert {weight.node: (weight.spec.dtype, weight.granularity) for weight in plan.weights.values()} == {
        "stem": ("int16", PerAxis(0)),
        "body": ("int8", PER_TENSOR),
        "dense": ("int8", PerAxis(1)),
    }
    types = {tensor: entry.spec.dtype for tensor, entry in plan.activations.items()}
    assert types == dict.fromkeys("xrd", "int16") | dict.fromkeys("spf", "uint8")
    assert "float32" in str(plan.biases["dense"].reason)
    assert plan.biases["stem"].reason is None


def test_a_node_may_ask_for_what_it_reads() -> None:
    """Of several readers of a tensor, the first counts."""
    plan_log = PlanLog()
    wanted = config(
        activation={"calibration": {"method": "percentile"}},
        overrides=[
            {"match": {"node": "join"}, "input_activation": {"dtype": "int8"}},
            {"match": {"node": "body"}, "input_activation": {"dtype": "int16", "symmetric": True}},
            {"match": {"node": "stem"}, "activation": {"dtype": "int8"}, "input_activation": {"dtype": "uint16"}},
        ],
    )
    prepared, plan, model = quantize_model(network(opset=21), FEEDS, wanted, plan_log)
    found = {tensor: entry.spec for tensor, entry in plan.activations.items()}
    reads = {node.name: node.inputs[0].name for node in prepared.graph}
    assert found[reads["stem"]].dtype == "uint16"  # a model input
    assert (found[reads["body"]].dtype, found[reads["body"]].symmetric) == ("int16", True)  # over what stem makes
    assert {spec.calibration.method for spec in found.values()} == {"percentile"}
    assert any(repr(reads["body"]) in note and "'join'" in note for note in plan_log.notes)
    assert sqnr_db(simulate(prepared.model, plan, FEEDS)["scores"], run_onnx(model, FEEDS)["scores"]) > 50


def folded_network() -> object:
    return make_model(
        "(float[N,3,9,9] x) => (float[N,5] y) { [stem] a = Conv(x, w) "
        f"{batchnorm_text('a', 'c')} [act] r = Relu(c) [body] d = Conv(r, w2) [pool] p = GlobalAveragePool(d) "
        "f = Flatten(p) [dense] m = MatMul(f, k) [bias] y = Add(m, b) }",
        {"w": normal(4, 3, 3, 3), "w2": normal(4, 4, 3, 3), "k": normal(4, 5), "b": normal(5), **batchnorm_weights(4)},
    )


def check(**settings: object) -> list[str]:
    model = folded_network()
    prepared, _ = prepare_proto(model)
    uploaded = [(node.name, node.op_type) for node in model.graph.node]
    return check_selectors(
        config(**settings),
        [*uploaded, *prepared.op_types.items()],
        prepared.known_nodes(),
        Matcher(prepared.graph, prepared.op_types),
    )


ALL = {"stem", "act", "body", "pool", "Flatten_5", "dense"}


@pytest.mark.parametrize(
    ("settings", "quantized", "told"),
    [
        ({}, ALL, {}),
        ({"exclude": [{"node": "stem"}]}, ALL - {"stem", "act"}, {"stem": "excluded"}),
        ({"exclude": [{"op_type": "Conv"}]}, {"dense"}, {"stem": "excluded", "body": "excluded"}),
        ({"include": [{"node": "body"}]}, {"body"}, {"stem": "not-included"}),
        ({"include": [{"op_type": "Conv"}, {"op_type": "Relu"}]}, {"stem", "act", "body"}, {}),
        ({"include": [{"op_type": "Conv"}], "exclude": [{"node": "stem"}]}, {"body"}, {"stem": "excluded"}),
        # a MatMul that became Gemm is known by either name
        ({"exclude": [{"op_type": "MatMul"}]}, {"stem", "act", "body"}, {"dense": "excluded"}),
        ({"exclude": [{"op_type": "Gemm"}]}, {"stem", "act", "body"}, {"dense": "excluded"}),
        ({"include": [{"op_type": "MatMul"}]}, {"dense"}, {}),
        ({"exclude": [{"from_nodes": ["stem"], "to_nodes": ["body"]}]}, {"dense"}, {"body": "excluded"}),
    ],
)
def test_who_is_left(settings: dict[str, Any], quantized: set[str], told: dict[str, str]) -> None:
    nodes = plan_for(folded_network(), config(**settings))[1].nodes
    assert {name for name, entry in nodes.items() if entry.quantized} == quantized
    assert {name: entry.reason.code for name, entry in nodes.items() if name in told} == told
    assert check(**settings) == []


@pytest.mark.parametrize(
    ("selector", "pointer", "message"),
    [
        ({"node": "sten"}, "/config/exclude/0/node", "no node 'sten'; did you mean 'stem'?"),
        ({"op_type": "conv"}, "/config/exclude/0/op_type", "no operator 'conv'; did you mean 'Conv'?"),
        ({"regex": "zz.*"}, "/config/exclude/0/regex", "regex 'zz.*'"),
        ({"tensor": "zz"}, "/config/exclude/0/tensor", "tensor 'zz'"),
        ({"module": "zz"}, "/config/exclude/0/module", "module 'zz'"),
        ({"from_nodes": ["stem"], "to_nodes": ["dens"]}, "/config/exclude/0/to_nodes/0", "did you mean 'dense'?"),
        ({"from_nodes": ["dense"], "to_nodes": ["stem"]}, "/config/exclude/0", "no path leads from ['dense']"),
        ({"node": "Conv"}, "/config/exclude/0/node", "no node 'Conv'"),
    ],
)
def test_a_selector_that_nobody_fits_is_an_error(selector: dict[str, Any], pointer: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check(include=[{"node": "stem"}, {"node": "nobody"}], exclude=[selector])
    assert [problem.pointer for problem in caught.value.errors] == ["/config/include/1/node", pointer]
    assert caught.value.errors[1].code == "selector-unmatched"
    assert message in caught.value.errors[1].message
    assert caught.value.errors[1].message.endswith(message) or "node" not in selector


def test_selectors_of_folded_nodes_are_accepted_with_a_note() -> None:
    notes = check(exclude=[{"node": "bn"}, {"op_type": "BatchNormalization"}, {"node": "stem"}, {"node": "bias"}])
    assert len(notes) == 3
    for note, name in zip(notes, ("node 'bn'", "op_type 'BatchNormalization'", "node 'bias'"), strict=True):
        assert name in note and "no effect" in note
