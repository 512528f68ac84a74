"""The home of parameters: what they are now, and that int32 biases follow whatever grid moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_model
from worker.quantizer.graph.values import node_name
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan

SHARED = (
    "(float[N,3,9,9] x) => (float[N,4,7,7] y, float[N,4,7,7] z) { [one] y = Conv(x, w, a) [two] z = Conv(x, w, b) }"
)
WEIGHTS = {"w": normal(4, 3, 3, 3), "a": normal(4, seed=1), "b": normal(4, seed=2, scale=3)}
NAMES = {"one": "a", "two": "b"}


def home(**settings: object) -> tuple[dict[str, ir.Node], QuantizationPlan, Parameters]:
    prepared, plan, _ = quantize_model(make_model(SHARED, WEIGHTS), {"x": normal(8, 3, 9, 9)}, config(**settings))
    return {node_name(node): node for node in prepared.graph}, plan, Parameters(prepared.graph, plan)


def assert_on_product(plan: QuantizationPlan, nodes: dict[str, ir.Node], parameters: Parameters) -> None:
    """Both biases lie on input scale times weight scale, and are what they were."""
    scale = plan.activations["x"].quantization.scale * plan.weights["w"].quantization.scale
    for name, initializer in NAMES.items():
        bias = parameters.of(nodes[name], 2)
        np.testing.assert_allclose(bias.grid.scale, scale, rtol=1e-6)
        np.testing.assert_allclose(bias.present, WEIGHTS[initializer], atol=float(np.max(scale)))
        np.testing.assert_array_equal(bias.unrounded, WEIGHTS[initializer])


def test_a_filled_parameter_is_the_rounded_one() -> None:
    nodes, plan, parameters = home()
    weight = parameters.of(nodes["one"], 1)
    np.testing.assert_array_equal(weight.original, WEIGHTS["w"])
    np.testing.assert_array_equal(weight.unrounded, WEIGHTS["w"])
    np.testing.assert_array_equal(weight.present, weight.grid.fake(WEIGHTS["w"]))
    assert parameters.of(nodes["one"], 0) is None and parameters.weight("w").integers is plan.weights["w"].integers
    assert_on_product(plan, nodes, parameters)


@pytest.mark.parametrize("granularity", ["per_tensor", "per_channel"])
def test_every_bias_follows_the_weight_that_one_node_moves(granularity: str) -> None:
    nodes, plan, parameters = home(weight={"granularity": granularity})
    grid = plan.weights["w"].quantization
    wide = replace(grid, scale=grid.scale * np.float32(1.7))
    parameters.put_integers(nodes["one"], 1, wide.quantize(WEIGHTS["w"]), wide)
    assert plan.weights["w"].quantization is wide
    assert_on_product(plan, nodes, parameters)


def test_every_bias_follows_the_grids_that_a_target_moves() -> None:
    nodes, plan, parameters = home()
    source, weight = plan.activations["x"].quantization, plan.weights["w"].quantization
    moved = {"x": replace(source, scale=source.scale * 2)}, {"w": replace(weight, scale=weight.scale * 2)}
    parameters.move(sources=moved[0], weights=moved[1])
    np.testing.assert_array_equal(plan.weights["w"].integers, moved[1]["w"].quantize(WEIGHTS["w"]))
    assert_on_product(plan, nodes, parameters)


def test_a_corrected_bias_keeps_its_value_when_the_weight_moves() -> None:
    nodes, plan, parameters = home()
    corrected = np.linspace(-1, 1, 4)
    parameters.put(nodes["two"], 2, corrected)
    grid = plan.weights["w"].quantization
    parameters.move(weights={"w": replace(grid, scale=grid.scale * np.float32(0.5))})
    after = parameters.of(nodes["two"], 2)
    np.testing.assert_allclose(after.present, corrected, atol=2 * float(np.max(after.grid.scale)))
    np.testing.assert_array_equal(after.unrounded, after.present)
    np.testing.assert_array_equal(parameters.of(nodes["one"], 2).unrounded, WEIGHTS["a"])


def test_a_copy_of_the_plan_puts_parameters_back() -> None:
    nodes, plan, parameters = home()
    before, present = plan.copy(), parameters.of(nodes["one"], 1).present
    parameters.put(nodes["one"], 1, -WEIGHTS["w"], refit=True)
    parameters.put(nodes["one"], 2, np.zeros(4))
    assert not np.array_equal(parameters.of(nodes["one"], 1).present, present)
    parameters.restore(before)
    np.testing.assert_array_equal(parameters.of(nodes["one"], 1).present, present)
    assert_on_product(plan, nodes, parameters)


def test_a_bias_in_float_stands_beside_the_graph() -> None:
    nodes, plan, parameters = home(bias={"dtype": "float32"})
    parameters.put(nodes["one"], 2, np.ones(4))
    bias = parameters.of(nodes["one"], 2)
    np.testing.assert_array_equal(bias.present, np.ones(4, np.float32))
    np.testing.assert_array_equal(bias.original, WEIGHTS["a"])
    assert bias.grid is None and set(plan.moved) == {"a"}
