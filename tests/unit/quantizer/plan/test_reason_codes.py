"""Codes and hints of nodes that stay in float, and decisions that outlive the graph's serialized form."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.algorithms import SmoothQuant
from service.contracts.inspection import NodeInspection
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import config, make_model, normal, plan_for
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.inspection import inspect_nodes
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.types import Role
from worker.quantizer.preparation.prepare import Prepared

WEIGHTS = {"w": normal(4, 4), "bad": np.full((4, 4), np.nan, np.float32), "scale": normal(4), "shift": normal(4)}


def inspected(call: str, **settings: object) -> NodeInspection:
    result = "int64[2]" if call.startswith("Shape") else "float[N,4]"
    text = f"(float[N,4] x, float[4,4] given, bool[N,4] c) => ({result} y) {{ [it] y = {call} }}"
    model = make_model(text, WEIGHTS)
    nodes, _ = inspect_nodes(ir.from_proto(model), config(**settings))
    return next(node for node in nodes if node.name == "it")


@pytest.mark.parametrize(
    ("call", "code", "hint", "by_design"),
    [
        ("Where(c, x, x)", "no-integer-kernel", "Replace the operator", False),
        ("Shape(x)", "shape-arithmetic", "it computes shapes", True),
        ("LayerNormalization(x, scale, shift)", "normalization", "Use BatchNormalization", False),
        ("Softmax(x)", "softmax", "Nothing", True),
        ("Gemm(x, given)", "weight-not-constant", "Fold the weight", False),
        ("MatMul(x, bad)", "weight-not-finite", "training fault", False),
        ("Exp(x)", "wide-result", None, False),
        ("Flatten(x)", "not-fed-by-quantized", "Nothing: it lies where the network is float", True),
        ("MatMul(x, w)", None, None, False),
    ],
)
def test_a_node_in_float_has_a_code_and_a_hint(call: str, code: str | None, hint: str | None, by_design: bool) -> None:
    found = inspected(call)
    assert (found.reason_code, found.by_design, found.quantized) == (code, by_design, code is None)
    assert (found.reason is None) == (code is None)
    assert (hint is None and found.hint is None) or (hint is not None and hint in (found.hint or ""))


def test_what_the_user_leaves_out_is_told_from_what_cannot_be() -> None:
    for call, settings, code in (
        ("MatMul(x, w)", {"exclude": [{"node": "it"}]}, "excluded"),
        ("Gemm(x, w)", {"include": [{"op_type": "Gemm"}]}, None),
        ("MatMul(x, w)", {"mode": "dynamic"}, None),
        ("Relu(x)", {"mode": "dynamic"}, "not-dynamic"),
        ("Relu(x)", {"mode": "weights_only"}, "not-linear"),
    ):
        assert inspected(call, **settings).reason_code == code


def decisions(prepared: Prepared, **settings: Any) -> dict[str, tuple[Role | None, str | None]]:
    plan = build_plan(prepared.graph, config(**settings), prepared.facts)
    return {name: (entry.role, entry.reason) for name, entry in plan.nodes.items()}


def test_a_factor_inside_a_node_is_known_after_serialization() -> None:
    settings = {"preset": "xint8", "target": "amd_npu_cnn"}
    model = make_model(
        "(float[N,3,7,7] x) => (float[N,4] y) { [c] a = Conv(x, w) [pool] p = GlobalAveragePool(a) "
        "[f] b = Flatten(p) [d] y = Gemm(b, v) }",
        {"w": normal(8, 3, 1, 1), "v": normal(8, 4)},
    )
    prepared, plan = plan_for(model, config(**settings))
    factor = next(name for name, entry in plan.nodes.items() if entry.op_type == "Mul")
    assert plan.nodes[factor].role is Role.FUSED
    assert decisions(replace(prepared, model=copy_of(prepared.model)), **settings)[factor] == (Role.FUSED, None)


def test_nodes_that_algorithms_put_in_stay_in_float_after_serialization() -> None:
    # Two readers of the input and nothing before it that could take a scale in: SmoothQuant puts in a Mul.
    model = make_model("(float[N,6] x) => (float[N,4] y) { [m] y = MatMul(x, w) }", {"w": normal(6, 4)})
    feeds = {"x": normal(64, 6) * np.array([40, 1, 1, 1, 1, 0.1], np.float32)}
    bench = Bench(model, feeds, SmoothQuant(alpha=0.5))
    changed = bench.apply().draft
    assert changed is not None
    added = next(name for name, entry in changed.plan.nodes.items() if entry.op_type == "Mul")
    assert changed.plan.nodes[added].role is None
    again = decisions(replace(changed.prepared, model=copy_of(changed.prepared.model)))
    assert again[added] == (None, changed.plan.nodes[added].reason)
    assert again["m"][0] is Role.LINEAR


@pytest.mark.parametrize(("target", "quantized"), [("qnn", True), ("amd_npu_cnn", False)])
def test_only_the_npu_asks_for_its_own_hard_sigmoid(target: str, quantized: bool) -> None:
    model = make_model(
        "(float[N,3,8,8] x) => (float[N,4,6,6] y) { [a] c = Conv(x, w) [h] s = HardSigmoid<alpha=0.2,beta=0.5>(c) "
        "[b] y = Conv(s, v) }",
        {"w": normal(8, 3, 1, 1), "v": normal(4, 8, 3, 3)},
    )
    preset = "xint8" if target == "amd_npu_cnn" else "plain"
    _, plan = plan_for(model, config(preset=preset, target=target))
    assert plan.nodes["h"].quantized is quantized
