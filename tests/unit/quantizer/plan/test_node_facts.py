"""What plans depend on outlives the graph's serialized form, and one target's hardware says nothing about another's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from service.contracts.algorithms import SmoothQuant
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import config, make_model, normal, plan_for
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.types import Role
from worker.quantizer.preparation.prepare import Prepared


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
