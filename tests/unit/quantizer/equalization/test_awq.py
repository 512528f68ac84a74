"""AWQ as a step: in mode weights_only, weights that meet large inputs are rounded least, and nothing is put in."""

from __future__ import annotations

import numpy as np
import pytest

from service.contracts.algorithms import Awq
from tests.unit.quantizer.equalization.benches import Bench, gain_db
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types

WIDTH = 32
# as a trained network has them: a few channels of the normalization's result are large
GAINS = np.where(np.arange(WIDTH) % 16 == 3, 12, 1).astype(np.float32)
WEIGHTS = {
    "scale": GAINS, "shift": normal(WIDTH, seed=4) * 0.1, "up": normal(WIDTH, 16, seed=1),
    "gate": normal(WIDTH, 16, seed=2), "down": normal(16, WIDTH, seed=3),
}  # fmt: skip
NETWORK = (
    "(float[N,4,32] x) => (float[N,4,32] y) { n = LayerNormalization<axis=-1>(x, scale, shift) [up] u = MatMul(n, up) "
    "[gate] g = MatMul(n, gate) s = Sigmoid(g) m = Mul(u, s) [down] y = MatMul(m, down) }"
)
BLOCKS = config(preset="int4_weights", weight={"block_size": 16, "granularity": "per_block", "dtype": "int4"})
SEARCHED = config(preset="int4_weights", weight={"granularity": "per_channel", "dtype": "int4"})
CHANNELS = config(
    preset="int4_weights", weight={"granularity": "per_channel", "dtype": "int4", "calibration": {"method": "minmax"}}
)


def bench(settings=BLOCKS, **options) -> Bench:
    feeds = {"x": normal(32, 4, WIDTH, seed=8)}
    return Bench(make_model(NETWORK, WEIGHTS, opset=21), feeds, Awq(**options), settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "alpha"),
    [
        *((settings, alpha) for settings in (BLOCKS, CHANNELS) for alpha in (None, 0.5)),
        pytest.param(SEARCHED, 0.5, marks=pytest.mark.long),
    ],
)
def test_the_float_network_stays_and_the_quantized_one_gets_better(settings, alpha) -> None:
    it = bench(settings, alpha=alpha)
    change = it.apply()
    assert change.draft is not None and "1 LayerNormalization" in change.summary
    assert [node.op_type for node in change.draft.graph] == op_types(it.model)  # nothing is put in
    assert gain_db(it, change.draft) > 0.5


def test_channels_that_meet_large_inputs_get_larger_weights() -> None:
    """Equation 5: s_j = mean|x_j|^alpha, but for a factor of all."""
    it = bench(alpha=0.5)
    change = it.apply()
    before, after = it.draft.graph.initializers["up"], change.draft.graph.initializers["up"]
    factors = (after.const_value.numpy() / before.const_value.numpy()).mean(axis=1)
    x = it.feeds["x"]
    normalized = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    sizes = np.abs(normalized * GAINS + WEIGHTS["shift"]).mean(axis=(0, 1))
    ratio = factors / np.sqrt(sizes)
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=0.02)
