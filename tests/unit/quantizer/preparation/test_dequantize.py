"""Q/DQ pairs and stored integers made float: held against onnxruntime and the float model itself."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.quantizer.preparation.undoing import initializers, microsoft, undo
from tests.unit.quantizer.toolbox import make_model, network, normal, op_types, rng, run_onnx, sqnr_db
from worker.quantizer.numerics.integer import PER_TENSOR, PerBlock
from worker.quantizer.preparation.passes.dequantize import NOT_QUANTIZED, dequantized
from worker.quantizer.preparation.prepare import undo_quantization

PAIR = "[q] xq = QuantizeLinear(x, scale, zero) [dq] xd = DequantizeLinear(xq, scale, zero)"
GRID: dict[str, np.ndarray] = {"scale": np.float32(0.05), "zero": np.uint8(128)}


@given(drawn=st.data())
def test_constants_are_what_onnxruntime_makes_of_them(drawn: st.DataObject) -> None:
    dtype = drawn.draw(st.sampled_from([np.int8, np.uint8, np.int16, np.uint16, np.int32]))
    shape = tuple(drawn.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    axis = drawn.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    generator = rng(drawn.draw(st.integers(0, 1000)))
    limits = np.iinfo(dtype)
    integers = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    length = () if axis is None else (shape[axis],)
    scale = generator.uniform(1e-4, 2.0, length).astype(np.float32)
    with_zero = dtype is not np.int32 and drawn.draw(st.booleans())
    zero = generator.integers(limits.min, limits.max, length, dtype, endpoint=True) if with_zero else None
    attribute = "" if axis is None else f"<axis={axis}>"
    dims = ",".join(map(str, shape))
    model = make_model(
        f"(float[{dims}] x) => (float[{dims}] y) "
        f"{{ w = DequantizeLinear{attribute}(k, s{', z' if with_zero else ''}) y = Add(x, w) }}",
        {"k": integers, "s": scale, **({"z": zero} if zero is not None else {})},
        opset=21,
        ir_version=10,
    )
    _, back = undo(model)
    assert op_types(back) == ["Add"]
    feeds = {"x": np.zeros(shape, np.float32)}
    np.testing.assert_array_equal(run_onnx(back, feeds)["y"], run_onnx(model, feeds, optimized=False)["y"])


@pytest.mark.parametrize(("length", "blocks"), [(2, 3), (10**12, 1)])
def test_blocks_share_a_scale(length: int, blocks: int) -> None:
    """Their length is a number that anyone may write."""
    weights = {"k": rng(1).integers(-8, 8, (5, 6)).astype(np.int8)}
    weights |= {"s": rng(2).uniform(0.1, 1, (5, blocks)).astype(np.float32)}
    weights |= {"z": rng(3).integers(-3, 3, (5, blocks)).astype(np.int8)}
    call = f"DequantizeLinear<axis=1, block_size={length}>(k, s, z)"
    text = f"(float[5,6] x) => (float[5,6] y) {{ w = {call} y = Add(x, w) }}"
    got = run_onnx(undo(make_model(text, weights, opset=21, ir_version=10))[1], {"x": np.zeros((5, 6), np.float32)})[
        "y"
    ]
    scale, zero = (np.repeat(weights[name], 6 // blocks, axis=1) for name in "sz")
    np.testing.assert_array_equal(got, (weights["k"].astype(np.float32) - zero) * scale)


def test_a_last_block_may_be_shorter_and_zero_points_of_full_range_do_not_wrap() -> None:
    got = dequantized(np.arange(5, dtype=np.int8), np.array([1.0, 10.0], np.float32), None, PerBlock(0, 3))
    np.testing.assert_array_equal(got, [0, 1, 2, 30, 40])
    got = dequantized(np.array([-128], np.int8), np.float32(1), np.array(127, np.int8), PER_TENSOR)
    np.testing.assert_array_equal(got, [-255])


def test_one_quantizer_with_many_readers_and_a_result_under_its_name() -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,4] y, float[N,4] z) { [a] h = Tanh(x) [q] i = QuantizeLinear(h, scale, zero) "
        "[d0] y = DequantizeLinear(i, scale, zero) [d1] j = DequantizeLinear(i, twin, zero) [b] z = Neg(j) }",
        {**GRID, "twin": GRID["scale"]},
    )
    outcome, back = undo(model)
    assert str(outcome.said).startswith("2 pairs")
    assert op_types(back) == ["Tanh", "Neg"]
    feeds = {"x": normal(3, 4)}
    got = run_onnx(back, feeds)
    np.testing.assert_array_equal(got["y"], -got["z"])
    np.testing.assert_allclose(got["y"], np.tanh(feeds["x"]), rtol=1e-5)
    # an input that is also an output gets an Identity
    _, back = undo(make_model(f"(float[N,4] x) => (float[N,4] xd) {{ {PAIR} }}", GRID))
    assert (op_types(back), [value.name for value in back.graph.output]) == (["Identity"], ["xd"])


def test_what_is_not_quantized_is_left_as_it_is() -> None:
    outcome, back = undo(network())
    assert (outcome.applied, outcome.said) == (False, NOT_QUANTIZED())
    assert op_types(back) == op_types(network())
    text = "(int64[N] x) => (float[N,6] y) { r = Gather(k, x) c = Cast<to=1>(r) y = Mul(c, s) }"  # of positions
    model = make_model(text, {"k": np.arange(30).reshape(5, 6), "s": np.float32(0.1)})
    assert not undo_quantization(ir.from_proto(model)).applied


def test_pairs_go_from_functions_and_subgraphs_too() -> None:
    model = make_model(
        f"(float[N,4] x, bool c) => (float[N,4] y) {{ {PAIR} "
        "y = If (c) <then_branch = t () => (float[N,4] a) { e = Tanh(xd) eq = QuantizeLinear(e, scale, zero) "
        "a = DequantizeLinear(eq, scale, zero) }, else_branch = f () => (float[N,4] b) { b = Neg(xd) }> }",
        GRID,
    )
    outcome, back = undo(model)
    assert str(outcome.said).startswith("2 pairs")
    x = normal(3, 4)
    np.testing.assert_allclose(run_onnx(back, {"x": x, "c": np.array(True)})["y"], np.tanh(x), rtol=1e-5)
    np.testing.assert_array_equal(run_onnx(back, {"x": x, "c": np.array(False)})["y"], -x)


def activation_model(maker: str, scale: float, zero: np.generic) -> onnx.ModelProto:
    return make_model(
        f"(float[N,4] x) => (float[N,5] y) {{ {maker} [q] hq = QuantizeLinear(h, scale, zero) "
        "[dq] hd = DequantizeLinear(hq, scale, zero) [last] y = MatMul(hd, k) }",
        {"w": normal(4, 6, seed=1), "v": normal(6, 5, seed=2), "k": normal(6, 5, seed=3), "scale": np.float32(scale)}
        | {"zero": np.asarray(zero)},
    )


@pytest.mark.parametrize(
    ("zero", "scale", "wanted"),
    [
        (np.uint8(0), 0.1, "Relu"),
        (np.int8(-128), 0.1, "Relu"),
        (np.uint8(0), 6 / 255, "Clip"),
        (np.int8(-128), 6 / 255, "Clip"),
        (np.uint16(0), 6 / 65535, "Clip"),
        (np.uint8(1), 0.1, None),
        (np.int8(0), 0.1, None),
    ],
    ids=str,
)
def test_only_a_range_that_begins_at_zero_brings_one_back(zero: np.generic, scale: float, wanted: str | None) -> None:
    model = activation_model("[first] h = MatMul(x, w)", scale, zero)
    model.opset_import[0].version = 21
    model.ir_version = 10
    _, back = undo(model)
    assert op_types(back) == ["MatMul", *([wanted] if wanted else []), "MatMul"]
    feeds = {"x": normal(64, 4, seed=9, scale=2.0)}
    if wanted:
        assert sqnr_db(run_onnx(back, feeds)["y"], run_onnx(model, feeds)["y"]) > 30


@pytest.mark.parametrize(
    "maker",
    [
        "m = MatMul(x, w) h = Sigmoid(m)",
        "m = MatMul(x, w) r = Relu(m) h = Add(r, r)",
        "m = MatMul(x, w) r = Relu(m) s = Softmax(m) h = Mul(r, s)",
    ],
)
def test_none_is_put_behind_what_is_never_negative_or_an_input(maker: str) -> None:
    _, back = undo(activation_model(maker, 0.1, np.uint8(0)))
    assert op_types(back).count("Relu") == maker.count("Relu")
    model = make_model(f"(float[N,4] x) => (float[N,4] y) {{ {PAIR} y = Neg(xd) }}", GRID | {"zero": np.uint8(0)})
    assert op_types(undo(model)[1]) == ["Neg"]


@given(drawn=st.data())
def test_weights_of_few_bits_are_what_onnxruntime_makes_of_them(drawn: st.DataObject) -> None:
    generator = rng(drawn.draw(st.integers(0, 1000)))
    bits, size = drawn.draw(st.sampled_from([4, 8])), drawn.draw(st.sampled_from([16, 32]))
    inputs, outputs = drawn.draw(st.sampled_from([16, 32, 40, 64])), drawn.draw(st.integers(1, 5))
    blocks = -(-inputs // size)
    weights = {
        "w": generator.integers(0, 256, (outputs, blocks, size * bits // 8)).astype(np.uint8),
        "s": generator.uniform(0.01, 0.1, outputs * blocks).astype(np.float32),
    }
    if drawn.draw(st.booleans()):
        weights["z"] = generator.integers(0, 256, outputs * -(-blocks * bits // 8)).astype(np.uint8)
    bias = drawn.draw(st.booleans())
    if bias:
        weights["b"] = generator.standard_normal(outputs).astype(np.float32)
    operands = ["x", "w", "s", "z" if "z" in weights else '""', '""', "b" if bias else '""']
    node = onnx.helper.make_node(
        "MatMulNBits", [name.strip('"') for name in operands], ["y"], name="op", domain="com.microsoft",
        K=inputs, N=outputs, bits=bits, block_size=size, accuracy_level=1,
    )  # fmt: skip
    model = microsoft(f"(float[N,{inputs}] x) => (float[N,{outputs}] y) {{ y = Identity(x) }}", weights)
    model.graph.node[0].CopyFrom(node)
    _, back = undo(model)
    assert op_types(back) == ["MatMul", "Add"] if bias else ["MatMul"]
    feeds = {"x": normal(inputs, inputs)}
    np.testing.assert_allclose(run_onnx(back, feeds)["y"], run_onnx(model, feeds)["y"], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("bits", "with_zero"), [(4, False), (4, True), (8, True)])
def test_a_table_in_blocks(bits: int, with_zero: bool) -> None:
    weights = {
        "t": rng(1).integers(0, 256, (10, 32 * bits // 8)).astype(np.uint8),
        "s": rng(2).uniform(0.1, 1, (10, 2)).astype(np.float32),
    }
    if with_zero:
        weights["z"] = rng(3).integers(0, 256, (10, 2 * bits // 8)).astype(np.uint8)
    model = microsoft(
        f"(int64[N] x) => (float[N,32] y) {{ [op] y = MS.GatherBlockQuantized<bits={bits}, block_size=16, "
        f"quantize_axis=1, gather_axis=0>(t, x, s{', z' if with_zero else ''}) }}",
        weights,
    )
    _, back = undo(model)
    assert op_types(back) == ["Gather"]
    feeds = {"x": np.arange(10)}
    np.testing.assert_allclose(run_onnx(back, feeds)["y"], run_onnx(model, feeds)["y"], rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "with_zero", "lookup"),
    [
        (np.int8, True, "in front"),
        (np.uint8, True, "behind"),
        (np.int16, False, "in front"),
        (np.int8, False, "behind"),
    ],
)
def test_integers_restored_by_hand(dtype: type, with_zero: bool, lookup: str) -> None:
    integers, zero = rng(1).integers(0, 100, (5, 6)).astype(dtype), rng(3).integers(0, 9, 6).astype(dtype)
    scale = rng(2).uniform(0.1, 1, 6).astype(np.float32)
    first, last = ("r = Gather(k, x)", "y = Neg(w)") if lookup == "in front" else ("", "v = Gather(w, x) y = Neg(v)")
    middle = "e = Cast<to=1>(z) d = Sub(c, e) w = Mul(s, d)" if with_zero else "w = Mul(c, s)"
    model = make_model(
        f"(int64[N] x) => (float[N,6] y) {{ {first} c = Cast<to=1>({'r' if first else 'k'}) {middle} {last} }}",
        {"k": integers, "s": scale, "z": zero},
    )
    outcome, back = undo(model)
    assert outcome.applied
    assert op_types(back) == ["Gather", "Neg"]
    (table,) = initializers(back).values()
    np.testing.assert_array_equal(table, (integers.astype(np.float32) - (zero if with_zero else 0)) * scale)


def test_two_lookups_in_one_table_stay_two_lookups_in_one_table() -> None:
    model = make_model(
        "(int64[N] x, int64[N] v) => (float[N,6] y) { r = Gather(k, x) a = DequantizeLinear(r, s) t = Gather(k, v) "
        "b = DequantizeLinear(t, s) y = Add(a, b) }",
        {"k": rng(1).integers(-9, 9, (5, 6)).astype(np.int8), "s": np.float32(0.1)},
    )
    _, back = undo(model)
    assert op_types(back) == ["Gather", "Gather", "Add"]
    assert list(initializers(back)) == ["k"]
