"""The gradient solver on single layers: against brute force, by its promises, and by what each setting changes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from service.contracts.algorithms import LearningRateAdjust
from service.contracts.errors import CanceledError
from tests.unit.quantizer.finetune.gradient.gradient_benches import Layer, conv_layer, correlated, integer_grid, method
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.finetune.blocks import BlockResult
from worker.quantizer.finetune.gradient.training import train

pytestmark = pytest.mark.slow  # trains


def stored(layer: Layer, solved: BlockResult) -> dict[str, np.ndarray]:
    """The constants as the emitted model would hold them."""
    found = {name: layer.restored(integers) for name, integers in solved.integers.items()}
    for name, values in solved.values.items():
        grid = layer.state.parameters[name].grid
        found[name] = values if grid is None else grid.fake(values)
    return {**layer.nearest, **found}


def run(layer: Layer, algorithm: str = "adaround", *, seed: int = 1, **changes: Any) -> BlockResult:
    """Solve, and check what holds always."""
    solved = train(layer.state, layer.samples, method(algorithm, **changes), seed=seed)
    assert solved.error_before == pytest.approx(layer.error(layer.nearest), rel=1e-3)
    if not solved.scales:
        assert solved.error_after == pytest.approx(layer.error(stored(layer, solved)), rel=1e-3)
    assert solved.error_after <= solved.error_before
    return solved


def test_rounding_comes_near_the_best_of_all_combinations() -> None:
    x = correlated(64, 8)
    layer = Layer("y = Gemm(x, w, b)", x, {"w": normal(8, 3, seed=5), "b": normal(3, seed=6)})
    grid = layer.state.parameters["w"].grid
    solved = run(layer, num_iterations=600, batch_size=64)
    floor = np.floor(layer.state.parameters["w"].values / grid.scale)
    target = layer.samples.target - layer.state.parameters["b"].values
    best = 0.0
    for channel in range(3):
        ups = np.array(list(itertools.product([0, 1], repeat=8)))
        candidates = np.clip(floor[:, channel] + ups, *grid.limits) * grid.scale
        best += float(np.square(x @ candidates.T - target[:, channel : channel + 1]).mean(axis=0).min()) / 3
    assert solved.error_after < 0.5 * solved.error_before
    assert best * 0.999 <= solved.error_after < 1.6 * best


_IMAGE, _KERNEL = (24, 4, 6, 6), (6, 4, 3, 3)
_LAYERS = {
    "conv": ("y = Conv<pads=[1,1,1,1]>(x, w, b)", _IMAGE, _KERNEL),
    "relu": ("c = Conv<strides=[2,2]>(x, w, b) y = Relu(c)", _IMAGE, _KERNEL),
    "relu6": ("c = Conv(x, w, b) y = Clip(c, lo, hi)", _IMAGE, _KERNEL),
    "gelu": ("c = Conv(x, w, b) y = Gelu(c)", _IMAGE, _KERNEL),
    "prelu": ("c = Conv(x, w, b) y = PRelu(c, slope)", _IMAGE, _KERNEL),
    "softmax": ("c = Conv(x, w, b) y = Softmax<axis=1>(c)", _IMAGE, _KERNEL),
    "conv1d": ("y = Conv<pads=[2,0]>(x, w, b)", (24, 4, 12), (6, 4, 3)),
    "conv3d": ("y = Conv(x, w, b)", (12, 4, 4, 5, 4), (6, 4, 2, 2, 2)),
    "depthwise": ("y = Conv<group=6, pads=[1,1,1,1]>(x, w, b)", (24, 6, 6, 6), (6, 1, 3, 3)),
    "transposed": ("y = ConvTranspose<strides=[2,2], output_padding=[1,1]>(x, w, b)", (24, 4, 4, 4), (4, 6, 3, 3)),
    "grouped transposed": ("y = ConvTranspose<group=2>(x, w, b)", (24, 4, 4, 4), (4, 3, 3, 3)),
    "gemm": ("y = Gemm<transB=1>(x, w, b)", (64, 9), (6, 9)),
    "matmul": ("y = MatMul(x, w)", (16, 5, 9), (9, 6)),
}
_MORE = {"lo": np.float32(0), "hi": np.float32(1), "slope": normal(6, 1, 1, seed=8), "b": normal(6, seed=6)}


def layer_of(name: str) -> Layer:
    text, shape, weight = _LAYERS[name]
    more = {name: array for name, array in _MORE.items() if f", {name}" in text}
    return Layer(text, correlated(*shape), {"w": normal(*weight, seed=5, scale=0.3)} | more)


@pytest.mark.parametrize("name", _LAYERS)
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_error_falls_for_every_kind_of_layer_whatever_follows_it(name: str, turn: int) -> None:
    algorithm = ("adaround", "adaquant")[(list(_LAYERS).index(name) + turn) % 2]  # one by this, the next by that
    solved = run(layer_of(name), algorithm)
    assert solved.error_after < 0.9 * solved.error_before
    assert solved.integers["w"].shape == _LAYERS[name][2]


@pytest.mark.parametrize("text", ["LayerNormalization(x, w, b)", "InstanceNormalization(x, w, b)"])
def test_normalizations_move_their_scale_and_bias(text: str) -> None:
    x = normal(32, 6, 6)
    constants = {"w": normal(6, seed=2) + 1, "b": normal(6, seed=3)}
    noisy = x + normal(32, 6, 6, seed=7)  # the best scale is smaller where part of the variance is noise
    layer = Layer(f"y = {text}", noisy, constants, float_x=x, norms=("w",))
    solved = run(layer, "adaquant")
    assert set(solved.values) == {"w", "b"}
    assert solved.error_after < 0.9 * solved.error_before
    assert not run(layer, "adaround").changed


def test_a_solved_block_is_the_same_for_the_same_seed_only() -> None:
    layer, options = conv_layer(), {"drop_ratio": 0.5, "num_iterations": 60}
    first, again, other = (run(layer, seed=seed, **options).integers["w"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("base", "changes"), [({"reg_param": 5.0}, {"warm_start": 0.0}), ({"reg_param": 0.02}, {"beta_range": (30.0, 9.0)})]
)
def test_how_the_regularizer_sets_in_has_an_effect_where_it_is_strong(base: dict, changes: dict[str, Any]) -> None:
    layer = conv_layer()
    assert (run(layer, **base).integers["w"] != run(layer, **base, **changes).integers["w"]).any()


def test_only_what_is_asked_for_moves() -> None:
    layer = conv_layer()
    assert not run(layer, "adaround").values
    assert set(run(layer, "adaquant").values) == {"b"}
    fixed = run(layer, "adaquant", update_bias=False)
    assert not fixed.values and not fixed.scales
    moved = run(layer, "adaquant", update_bias=False, update_scales=True)
    assert moved.error_after < fixed.error_after
    assert moved.scales["w"].shape == layer.state.parameters["w"].grid.scale.shape
    assert moved.scales["w"] != layer.state.parameters["w"].grid.scale


def test_another_learning_rate_for_layers_far_off() -> None:
    layer, few = conv_layer(), {"num_iterations": 60, "learning_rate": 1e-6}
    error = run(layer, **few).error_before
    near, far = (
        run(layer, **few, lr_adjust=LearningRateAdjust(threshold=limit, learning_rate=0.1))
        for limit in (2 * error, 0.5 * error)
    )
    assert near.error_after == near.error_before  # too slow to move anything
    assert far.error_after < 0.9 * far.error_before


@pytest.mark.parametrize("algorithm", ["adaround", "adaquant"])
def test_an_early_stop_takes_fewer_steps_and_keeps_the_best(algorithm: str) -> None:
    layer = conv_layer()
    whole, early = (
        run(layer, algorithm, num_iterations=500, batch_size=24, early_stop=stops) for stops in (False, True)
    )
    assert early.iterations < whole.iterations == 500
    assert early.error_after < 1.15 * whole.error_after


def test_a_layer_without_an_error_and_channels_that_got_worse_stay_as_they_were() -> None:
    layer = conv_layer()
    solved = run(layer, "adaquant", learning_rate=0.3, num_iterations=3, batch_size=1)  # jumps wildly
    present, after = layer.run(layer.nearest), layer.run(stored(layer, solved))
    target = layer.samples.target
    before = np.square(present - target).mean(axis=(0, 2, 3))
    now = np.square(after - target).mean(axis=(0, 2, 3))
    assert (now <= before * (1 + 1e-5)).all()
    # a layer without an error stays as it is
    weight = integer_grid(normal(4, 3, seed=1)).fake(normal(4, 3, seed=1))
    layer = Layer("y = MatMul(x, w)", normal(8, 4), {"w": weight}, grid=integer_grid(weight))
    solved = train(layer.state, layer.samples, method(), seed=1)
    assert not solved.changed
    assert solved.iterations == 0


def test_it_can_be_stopped_between_steps() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 5:
            raise CanceledError("stop")

    layer = conv_layer()
    with pytest.raises(CanceledError):
        train(layer.state, layer.samples, method(num_iterations=10_000), seed=1, check=check)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU: the solver is not tested on one")
@pytest.mark.parametrize("algorithm", ["adaround", "adaquant"])
def test_a_gpu_comes_to_the_same_error_and_repeats_itself(algorithm: str) -> None:
    layer = layer_of("relu")
    on_cpu = run(layer, algorithm)
    first, again = (run(layer, algorithm, optim_device="cuda", drop_ratio=1.0) for _ in range(2))
    assert first.error_after < 1.1 * on_cpu.error_after
    np.testing.assert_array_equal(first.integers["w"], again.integers["w"])
