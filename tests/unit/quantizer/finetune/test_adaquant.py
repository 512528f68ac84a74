"""AdaQuant, and AdaRound by gradients, as steps on small networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.errors import CanceledError
from tests.unit.quantizer.finetune.gradient.gradient_benches import (
    INT4,
    changed,
    finetuned,
    grids_stay,
    integers,
    output_sqnr,
    residual_network,
)
from tests.unit.quantizer.search.benches import Canceling, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal
from worker.quantizer.finetune.gradient import training
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import StepResult
from worker.quantizer.run.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow  # trains

KINDS: dict[str, dict[str, Any]] = {
    "int4 per tensor": INT4,
    "int4 per channel": {"weight": {"dtype": "int4", "granularity": "per_channel"}},
    "uint4": {"weight": {"dtype": "uint4", "symmetric": False}},
    "power of two": {"preset": "xint8", "target": "onnxruntime_cpu", "algorithms": [], "bias": {"dtype": "int8"}},
    "16-bit activations": {**INT4, "activation": {"dtype": "uint16"}},
}


@pytest.fixture(scope="module")
def usual() -> tuple[Draft, StepResult]:
    return finetuned()


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *((kind, "adaquant") for kind in ("int4 per channel", "uint4")),
        *((kind, "adaround") for kind in ("int4 per tensor", "power of two", "16-bit activations")),
        *(pytest.param(kind, "adaround", marks=pytest.mark.long) for kind in ("int4 per channel", "uint4")),
        *(pytest.param(kind, "adaquant", marks=pytest.mark.long) for kind in ("power of two", "16-bit activations")),
    ],
)
def test_the_network_comes_nearer_and_its_grids_stay(kind: str, method: str) -> None:
    draft, change = finetuned(method, KINDS[kind])
    after = changed(change)
    assert set(change.errors) == {"conv0", "conv1", "conv2", "dense"}
    assert all(now <= before for before, now in change.errors.values())
    assert any(now < 0.9 * before for before, now in change.errors.values())
    assert output_sqnr(after) > output_sqnr(draft)
    grids_stay(draft.plan, after.plan)
    for name, bias in after.plan.biases.items():
        if bias.quantization is not None:
            np.testing.assert_array_equal(bias.quantization.scale, draft.plan.biases[name].quantization.scale)


def test_four_bits_gain_much_at_the_output_and_the_given_draft_is_not_changed(usual: tuple[Draft, StepResult]) -> None:
    draft, change = usual
    assert output_sqnr(changed(change)) > output_sqnr(draft) + 3.0
    assert not draft.plan.moved and "conv1" in change.nodes
    fresh, _ = toolkit_for(residual_network(), config(**INT4))
    for name, values in integers(fresh.plan).items():
        np.testing.assert_array_equal(integers(draft.plan)[name], values)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "mx4", pytest.param("bfp16", marks=pytest.mark.long)])
def test_weights_of_floats_and_blocks_move_in_float_and_are_emitted_so(dtype: str) -> None:
    settings = {"weight": {"dtype": dtype}, "activation": {"dtype": "uint16"}, "bias": {"dtype": "float32"}}
    model = residual_network()
    model.opset_import[0].version, model.ir_version = 21, 10
    draft, change = finetuned(settings=settings, batch_size=40, model=model)
    after = changed(change)
    assert {"w0", "w1"} & set(after.plan.moved)
    assert output_sqnr(after) > output_sqnr(draft) + 0.5
    # the float network stays what it was: the moved weights are in the plan alone
    np.testing.assert_array_equal(
        after.graph.initializers["w1"].const_value.numpy(), normal(6, 6, 3, 3, seed=2, scale=0.2)
    )


def normalized_network() -> onnx.ModelProto:
    weights = {
        "w": normal(6, 3, 3, 3, seed=1, scale=0.3),
        "g": normal(6, seed=2, scale=0.1) + 1,
        "h": normal(6, seed=3, scale=0.1),
        "k": normal(6, 5, seed=4, scale=0.4),
    }
    return make_model(
        "(float[N,3,8,8] x) => (float[N,5] y) { [conv] c = Conv<pads=[1,1,1,1]>(x, w) "
        "[norm] n = InstanceNormalization(c, g, h) [act] r = Relu(n) [pool] p = GlobalAveragePool(r) "
        "[flat] f = Flatten(p) [last] l = LayerNormalization(f, g, h) [dense] y = MatMul(l, k) }",
        weights,
    )


def test_a_moved_normalization_is_emitted_and_parameters_that_two_share_stay() -> None:
    model = normalized_network()
    model.graph.node[-2].input[1:] = ["g2", "h2"]
    for name, seed in (("g2", 7), ("h2", 8)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(normal(6, seed=seed, scale=0.1) + 1, name))
    _, change = finetuned(settings={"weight": {"dtype": "int4"}}, model=model)
    moved = changed(change).plan.moved
    assert {"g", "g2"} & set(moved)
    emitted = onnx.load_from_string(changed(change).emitted_bytes())
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in emitted.graph.initializer}
    for name, values in moved.items():
        np.testing.assert_array_equal(stored[name], values)
    # parameters that two normalizations share stay and are named
    draft, change = finetuned(settings={"weight": {"dtype": "int4"}}, model=normalized_network(), num_iterations=20)
    assert len(draft.graph.initializers["g"].uses()) > 1
    assert "norm, last left out: nothing in it moves" in change.summary
    assert not changed(change).plan.moved


def test_a_scale_moves_with_its_int32_bias_and_a_power_of_two_stays_one() -> None:
    draft, change = finetuned(update_scales=True)
    plan = changed(change).plan
    assert plan.weights["w1"].quantization.scale != draft.plan.weights["w1"].quantization.scale
    bias, grid = plan.biases["conv1"], plan.activations["r0"].quantization
    expected = float(grid.scale) * float(plan.weights["w1"].quantization.scale)
    np.testing.assert_allclose(bias.quantization.scale, expected, rtol=1e-6)
    assert np.abs(bias.quantization.dequantize(bias.integers)).max() < 10
    assert output_sqnr(changed(change)) > output_sqnr(draft) + 3.0
    # a power of two stays one
    draft, change = finetuned(settings=KINDS["power of two"], update_scales=True, num_iterations=20)
    for name, weight in changed(change).plan.weights.items():
        np.testing.assert_array_equal(weight.quantization.scale, draft.plan.weights[name].quantization.scale)


@pytest.mark.parametrize("method", ["adaquant", pytest.param("adaround", marks=pytest.mark.long)])
def test_a_residual_block_is_reconstructed_as_one(method: str) -> None:
    draft, change = finetuned(method, block_wise=True, batch_size=40, num_iterations=200)
    assert set(change.errors) == {"conv0", "conv1", "dense"}
    before, after = change.errors["conv1"]
    assert after < 0.85 * before
    assert {"conv1", "conv2"} <= set(change.nodes)
    assert output_sqnr(changed(change)) > output_sqnr(draft) + 1.0


def test_a_layer_that_makes_the_network_worse_is_taken_back(monkeypatch) -> None:
    original = training.train

    def spoiled(state: Any, *args: Any, **options: Any) -> Any:
        solved = original(state, *args, **options)
        if state.block.name == "conv1":
            solved.integers["w1"] = -solved.integers["w1"]
        return solved

    monkeypatch.setattr(training, "train", spoiled)
    draft, change = finetuned(selective_update=True)
    after = changed(change)
    assert "conv1" not in change.nodes
    assert "taken back" in change.summary
    np.testing.assert_array_equal(after.plan.weights["w1"].integers, draft.plan.weights["w1"].integers)
    assert change.errors["conv1"][0] == change.errors["conv1"][1]
    assert output_sqnr(after) > output_sqnr(draft)


def test_a_run_that_was_broken_off_goes_on_to_the_same_bytes(tmp_path: Path, monkeypatch) -> None:
    options: dict[str, Any] = {"update_scales": True, "drop_ratio": 0.5, "num_iterations": 40}
    _, whole = finetuned(**options)
    with pytest.raises(CanceledError):
        finetuned(store=CheckpointStore(tmp_path), run=Canceling("adaquant", 3), **options)
    solved: list[str] = []
    original = training.train

    def counted(state: Any, *args: Any, **options: Any) -> Any:
        solved.append(state.block.name)
        return original(state, *args, **options)

    monkeypatch.setattr(training, "train", counted)
    _, resumed = finetuned(store=CheckpointStore(tmp_path), **options)
    assert solved == ["conv2", "dense"]
    assert "2 reused from" in resumed.summary
    assert resumed.errors == whole.errors
    assert changed(resumed).emitted_bytes() == changed(whole).emitted_bytes()
