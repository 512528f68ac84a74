"""Weights and tables that are stored as integers, undone: held against onnxruntime, or exact."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.quantizer.preparation.undoing import initializers, microsoft, undo
from tests.unit.quantizer.toolbox import make_model, normal, op_types, rng, run_onnx
from worker.quantizer.preparation.passes.dequantizing.nbits import unpacked
from worker.quantizer.preparation.prepare import undo_quantization


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


def test_only_operators_of_onnxruntimes_own() -> None:
    model = microsoft(
        "(float[N,16] x) => (float[N,2] y) { [op] y = MS.MatMulNBits<K=16, N=2, bits=4, block_size=16>(x, w, s) }",
        {"w": rng(1).integers(0, 256, (2, 1, 8)).astype(np.uint8), "s": np.float32([0.1, 0.2])},
    )
    del model.opset_import[0]
    _, back = undo(model)
    assert op_types(back) == ["MatMul"]


def test_bits_are_unpacked_in_order() -> None:
    np.testing.assert_array_equal(unpacked(np.array([0xE4, 0x1B], np.uint8), 2), [0, 1, 2, 3, 3, 2, 1, 0])
    np.testing.assert_array_equal(unpacked(np.array([0xE4, 0x1B], np.uint8), 4), [4, 14, 11, 1])


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


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("with_zero", [False, True])
@pytest.mark.parametrize("lookup", ["in front", "behind"])
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


def test_positions_are_no_weights() -> None:
    model = make_model(
        "(int64[N] x) => (float[N,6] y) { r = Gather(k, x) c = Cast<to=1>(r) y = Mul(c, s) }",
        {"k": np.arange(30).reshape(5, 6), "s": np.float32(0.1)},
    )
    copy = ir.from_proto(model)
    assert not undo_quantization(copy).applied


def test_two_lookups_in_one_table_stay_two_lookups_in_one_table() -> None:
    model = make_model(
        "(int64[N] x, int64[N] v) => (float[N,6] y) { r = Gather(k, x) a = DequantizeLinear(r, s) t = Gather(k, v) "
        "b = DequantizeLinear(t, s) y = Add(a, b) }",
        {"k": rng(1).integers(-9, 9, (5, 6)).astype(np.int8), "s": np.float32(0.1)},
    )
    _, back = undo(model)
    assert op_types(back) == ["Gather", "Gather", "Add"]
    assert list(initializers(back)) == ["k"]


def test_a_length_of_blocks_is_a_number_that_anyone_may_write() -> None:
    model = make_model(
        "(float[4] x) => (float[4] y) { w = DequantizeLinear<axis=0, block_size=1000000000000>(k, s) y = Add(x, w) }",
        {"k": np.arange(4, dtype=np.int8), "s": np.float32([2])},
        opset=21,
        ir_version=10,
    )
    _, back = undo(model)
    np.testing.assert_array_equal(run_onnx(back, {"x": np.zeros(4, np.float32)})["y"], [0, 2, 4, 6])
