"""SmoothQuant as a step: the float network stays what it is, the quantized one gets better, and every word is kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

from service.contracts.algorithms import SmoothQuant
from service.contracts.config import QuantizationConfig
from tests.unit.quantizer.equalization.benches import Bench, emitted, float_outputs, gain_db
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types
from worker.quantizer.equalization.smooth_quant import NO_PRODUCT, SCALES_CHANNELS

WIDTH = 8
# as calibrated ranges are: outliers of one channel set the range of all
GAINS = np.array([1, 1, 40, 1, 1, 1, 1, 0.2], np.float32)
WEIGHTS = {
    "scale": GAINS, "shift": normal(WIDTH, seed=4) * GAINS, "q": normal(WIDTH, 4, seed=1) / GAINS[:, None] ** 0.8,
    "k": normal(WIDTH, 4, seed=2) / GAINS[:, None] ** 0.8, "v": normal(WIDTH, WIDTH, seed=3) / GAINS[:, None] * GAINS,
    "o": normal(WIDTH, 5, seed=5), "b": normal(5, seed=6),
}  # fmt: skip
BLOCK = (
    "(float[N,6,8] x) => (float[N,6,5] y) { n = LayerNormalization<axis=-1>(x, scale, shift) [q] a = MatMul(n, q) "
    "[k] b0 = MatMul(n, k) t = Transpose<perm=[0,2,1]>(b0) [scores] s = MatMul(a, t) p = Softmax<axis=-1>(s) "
    "[v] c = MatMul(n, v) [mix] m = MatMul(p, c) [o] l = MatMul(m, o) y = Add(l, b) }"
)
INPUT = "(float[N,6,8] x) => (float[N,6,5] y) { [o] y = MatMul(x, o) }"
PER_TENSOR = config(weight={"granularity": "per_tensor"})
NPU = QuantizationConfig.model_validate(config(preset="xint8", algorithms=[]))


def block_feeds() -> dict[str, np.ndarray]:
    return {"x": normal(40, 6, WIDTH, seed=8)}


def input_feeds() -> dict[str, np.ndarray]:
    return {"x": normal(40, 6, WIDTH, seed=8) * GAINS}


def block(weights: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    return make_model(BLOCK, {**WEIGHTS, **(weights or {})})


def bench(model: onnx.ModelProto, feeds: dict[str, np.ndarray], settings: QuantizationConfig | None = None, **options):
    return Bench(model, feeds, SmoothQuant(**options), settings)


@pytest.mark.parametrize("settings", [None, PER_TENSOR, NPU], ids=["per channel", "per tensor", "powers of two"])
@pytest.mark.parametrize("alpha", [None, 0.5])
def test_the_float_network_stays_and_the_quantized_one_gets_better(settings, alpha) -> None:
    it = bench(block(), block_feeds(), settings, alpha=alpha)
    given = emitted(it.draft)
    change = it.apply()
    assert change.draft is not None
    assert gain_db(it, change.draft) > 3
    assert emitted(it.draft) == given  # the old draft is untouched


def test_readers_of_one_tensor_share_a_scale_that_the_normalization_takes_in() -> None:
    it = bench(block(), block_feeds())
    change = it.apply()
    assert change.draft is not None and "1 LayerNormalization" in change.summary and "1 MatMul" in change.summary
    assert op_types(it.model) == [node.op_type for node in change.draft.graph]
    before, after = it.draft.graph.initializers, change.draft.graph.initializers
    ratios = [after[name].const_value.numpy() / before[name].const_value.numpy() for name in ("q", "k")]
    scale = ratios[0][:, 0]
    for ratio in ratios:
        np.testing.assert_allclose(ratio, np.broadcast_to(scale[:, None], ratio.shape), rtol=1e-5)
    norm = after["scale"].const_value.numpy() / before["scale"].const_value.numpy()
    np.testing.assert_allclose(norm * scale, 1, rtol=1e-5)
    assert {"q", "k", "v", "o"} == set(change.nodes)


def test_a_graph_input_gets_one_float_mul_in_front_of_the_quantizer() -> None:
    it = bench(make_model(INPUT, WEIGHTS), input_feeds())
    change = it.apply()
    assert change.draft is not None and "1 Mul of their own" in change.summary
    assert [node.op_type for node in change.draft.graph] == ["Mul", "MatMul"]
    assert gain_db(it, change.draft) > 5
    left = bench(it.model, it.feeds, insert_mul=False).apply()
    assert left.draft is None and "insert_mul is off" in left.summary
    # on an npu the mul stands in front of the quantizer
    change = bench(make_model(INPUT, WEIGHTS), input_feeds(), NPU).apply()
    model = emitted(change.draft)
    mul = next(node for node in model.graph.node if node.op_type == "Mul")
    assert mul.input[0] == "x"
    assert [node.op_type for node in model.graph.node if mul.output[0] in node.input] == ["QuantizeLinear"]
    plan = change.draft.plan.nodes[mul.name]
    assert plan.role is None and plan.reason == SCALES_CHANNELS()


def test_where_nothing_is_to_be_done_it_says_so() -> None:
    even = bench(make_model(INPUT, {"o": np.sign(WEIGHTS["o"])}), {"x": normal(40, 6, WIDTH, seed=8)})
    change = even.apply()
    assert change.draft is None and "no alpha" in change.summary
    forced = bench(make_model(INPUT, WEIGHTS), {"x": normal(40, 6, WIDTH, seed=8)}, alpha=0.5).apply()
    assert forced.draft is not None
    # a second time it finds nothing to do
    it = bench(block(), block_feeds())
    first = it.step.apply(it.draft, replace(it.toolkit, to_come=(it.step,)))
    assert first.draft is not None
    assert not it.step.requests(first.draft)
    assert it.step.apply(first.draft, it.toolkit).draft is None
    # a network without matrix products says so
    model = make_model("(float[N,3,4,4] x) => (float[N,2,4,4] y) { y = Conv(x, w) }", {"w": normal(2, 3, 1, 1)})
    change = bench(model, {"x": normal(8, 3, 4, 4)}).apply()
    assert change.draft is None and change.reason == NO_PRODUCT()


def test_a_residual_reader_keeps_the_tensor_and_behind_integers_no_mul_is_put() -> None:
    model = make_model(
        "(float[N,6,8] x) => (float[N,6,8] y) { n = LayerNormalization<axis=-1>(x, scale, shift) [v] a = MatMul(n, v) "
        "y = Add(n, a) }",
        WEIGHTS,
    )
    it = bench(model, block_feeds())
    change = it.apply()
    assert change.draft is not None and "1 Mul of their own" in change.summary
    gain_db(it, change.draft)
    # behind integers no mul is put
    model = make_model(
        "(float[N,6,8] x) => (float[N,6,5] y, float[N,6,8] z) { [v] a = MatMul(x, v) r = Relu(a) [o] y = MatMul(r, o) "
        "z = Sin(r) }",
        WEIGHTS,
    )
    it = bench(model, {"x": normal(40, 6, WIDTH, seed=8)}, NPU)
    change = it.apply()
    assert "rounds twice" in change.summary


def test_a_weight_of_two_tensors_is_scaled_for_each() -> None:
    model = make_model(
        "(float[N,6,8] x) => (float[N,6,4] y, float[N,6,4] z) { n = LayerNormalization<axis=-1>(x, scale, shift) "
        "t = Tanh(x) m = Mul(t, scale) [one] y = MatMul(n, q) [two] z = MatMul(m, q) }",
        {**WEIGHTS},
    )
    it = bench(model, block_feeds())
    change = it.apply()
    assert change.draft is not None and set(change.nodes) == {"one", "two"}
    for name, expected in float_outputs(it.draft, it.feeds).items():
        got = float_outputs(change.draft, it.feeds)[name]
        assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()


def test_it_learns_nothing_from_samples_held_back() -> None:
    """Rows of held-back samples are not looked at; ranges are those of all samples."""
    feeds = block_feeds()
    one = Bench(block(), feeds, SmoothQuant(), held_back=20).apply()
    changed = {"x": feeds["x"].copy()}
    changed["x"][:20] = changed["x"][:20][::-1]
    other = Bench(block(), changed, SmoothQuant(), held_back=20).apply()
    assert one.draft is not None and other.draft is not None
    assert emitted(one.draft).SerializeToString() == emitted(other.draft).SerializeToString()


def test_readers_of_a_shape_do_not_keep_a_tensor_from_being_scaled_and_tables_of_embeddings_do() -> None:
    text = BLOCK.replace("[mix]", "[size] h = Shape(n) [of] r = Reshape(c, h) [mix]").replace(
        "MatMul(p, c)", "MatMul(p, r)"
    )
    it = bench(make_model(text, WEIGHTS), block_feeds())
    change = it.apply()
    assert change.draft is not None and "1 LayerNormalization" in change.summary
    assert "Mul of their own" not in change.summary
    # a head that is the table of embeddings too is left alone
    model = make_model(
        "(int64[N,6] ids) => (float[N,6,12] y) { e = Gather(table, ids) "
        "n = LayerNormalization<axis=-1>(e, scale, shift) t = Transpose<perm=[1,0]>(table) [head] y = MatMul(n, t) }",
        {"table": normal(12, WIDTH, seed=3), "scale": GAINS, "shift": WEIGHTS["shift"]},
    )
    ids = np.random.default_rng(0).integers(0, 12, (40, 6))
    change = bench(model, {"ids": ids}, config(embedding={"dtype": "int8"})).apply()
    assert change.draft is None and "also an embedding table" in change.summary


def test_ranges_that_are_taken_at_run_time_profit_too() -> None:
    it = bench(block(), block_feeds(), config(preset="int8_dynamic"))
    change = it.apply()
    assert change.draft is not None and "1 LayerNormalization" in change.summary
    assert "MatMulInteger" in op_types(emitted(change.draft))
    assert gain_db(it, change.draft) > 3
