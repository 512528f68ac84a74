"""What cannot be made float is refused by the name of its node."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.compatibility import is_quantized_op
from service.contracts.errors import AlreadyQuantizedError
from service.contracts.reason import declared
from tests.unit.quantizer.preparation.undoing import microsoft
from tests.unit.quantizer.toolbox import make_model, rng
from worker.quantizer.preparation.prepare import undo_quantization

PAIR = "[q] j = QuantizeLinear(x, t, z)"
PRODUCT = "[d] j, k, l = DynamicQuantizeLinear(x) [p] m = MatMulInteger(j, c, l) f = Cast<to=1>(m)"

WEIGHTS = {
    "w": rng(1).integers(0, 256, (2, 1, 8)).astype(np.uint8),
    "s": np.float32([0.1, 0.2]),
    "g": np.zeros(16, np.int32),
    "t": np.float32(0.1),
    "o": np.float32(0.2),
    "z": np.uint8(3),
    "c": np.ones((16, 2), np.int8),
    "held": np.ones((4, 16), np.uint8),
    "ones": np.ones((16, 2), np.uint8),
}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("[bad] y = MS.MatMulNBits<K=16, N=2, bits=4, block_size=16>(x, w, s, \"\", g)", "g_idx"),
        ("[bad] y = MS.MatMulNBits<K=16, N=2, bits=3, block_size=16>(x, w, s)", "3 bits"),
        ("[bad] y = MS.MatMulNBits<K=32, N=2, bits=4, block_size=16>(x, w, s)", "shape of its scales"),
        ("[bad] y = MS.QAttention<num_heads=1>(x, w, s)", "not part of a Q/DQ pair"),
        ("[bad] y = MS.QLinearAdd(i, t, z, i, t, z, t, z)", "neither constant nor"),
        (
            "[q] j = QuantizeLinear(x, t, z) [bad] k = MS.QLinearGlobalAveragePool<channels_last=1>(j, t, z, t, z) "
            "y = DequantizeLinear(k, t, z)",
            "channels lie behind",
        ),
        (
            "[q] j = QuantizeLinear(x, t, z) [bad] k = MS.QLinearSoftmax<axis=1, opset=12>(j, t, z, t, z) "
            "y = DequantizeLinear(k, t, z)",
            "opset 12",
        ),
        (f"{PRODUCT} [bad] y = Tanh(f)", "'p'"),
        (f"{PRODUCT} e = ReduceMax(x) [bad] y = Mul(f, e)", "not multiplied by the scales"),
        ("[bad] m = MatMulInteger(i, c) f = Cast<to=1>(m) y = Mul(f, t)", "neither constant nor"),
        ("[bad] m = MatMulInteger(held, c) y = Cast<to=1>(m)", "not part of a Q/DQ pair"),
        (
            "[d] j, k, l = DynamicQuantizeLinear(x) [bad] m = MatMulInteger(j, c) f = Cast<to=1>(m) y = Mul(f, k)",
            "not that of node 'd'",
        ),
        (f"{PAIR} [bad] y = DequantizeLinear(j, o, z)", "not that of node 'q'"),
        (f"{PAIR} [bad] y = DequantizeLinear(j, t)", "not that of node 'q'"),
        (f"{PAIR} [bad] p = Mod(j, z) y = DequantizeLinear(p, t, z)", "computes on the integers of node 'q'"),
        (f"{PAIR} [bad] p = QLinearMatMul(j, o, z, ones, t, z, t, z) y = DequantizeLinear(p, t, z)", "of node 'q'"),
        (
            "[d] j, k, l = DynamicQuantizeLinear(x) [bad] m = MatMulInteger(j, n, l) f = Cast<to=1>(m) y = Mul(f, k)",
            "neither constant nor",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_undone_is_refused_by_name(body: str, words: str) -> None:
    model = microsoft(f"(float[4,16] x, uint8[4,16] i, int8[16,2] n) => (float[a,b] y) {{ {body} }}", WEIGHTS)
    with pytest.raises(AlreadyQuantizedError) as caught:
        undo_quantization(ir.from_proto(model))
    assert caught.value.where["node"] == "bad"
    assert words in caught.value.detail
    assert caught.value.where["reason_code"] in {kind.code for kind in declared()}
    assert is_quantized_op(caught.value.where["op_type"]) or "Mul" in body or "Mod" in body
    assert caught.value.hint


@pytest.mark.parametrize(
    "body",
    [
        '[bad] y = MS.MatMulNBits<K="a", N=2, bits=4, block_size=16>(x, w, s)',
        "[bad] y = MS.MatMulNBits<K=16, N=2, bits=4, block_size=16>(x)",
        "[bad] y = MS.DynamicQuantizeMatMul(x)",
        "[bad] y = MS.DynamicQuantizeLSTM(x)",
        "[bad] y = MS.MatMulIntegerToFloat(x)",
        "[bad] y = MS.GatherBlockQuantized<gather_axis=0.5>(w, x, s)",
        "[bad] y = MS.QLinearConcat(t)",
        "[bad] y = MS.QLinearSigmoid()",
        "[bad] y = MS.QuantizeLinear()",
        "[bad] k = DynamicQuantizeLinear(x) y = MatMulInteger(k, w)",
        '[q] j = QuantizeLinear(x, t, z) [bad] k = MS.QLinearLeakyRelu<alpha="h">(j, t, z, t, z) '
        "y = DequantizeLinear(k, t, z)",
    ],
)
def test_malformed_operators_are_refused_by_name(body: str) -> None:
    model = microsoft(f"(float[4,16] x) => (float[a,b] y) {{ {body} }}", WEIGHTS)
    with pytest.raises(AlreadyQuantizedError) as caught:
        undo_quantization(ir.from_proto(model))
    assert caught.value.where["node"] == "bad"
    assert caught.value.where["reason_code"] == "malformed-operator"


@pytest.mark.parametrize("body", ["[odd] y = Mul()", "[odd] y = MS.Transpose()", "[odd] y = MS.Pad()"])
def test_malformed_operators_on_floats_are_left_alone(body: str) -> None:
    model = microsoft(f"(float[4,16] x) => (float[a,b] y) {{ {body} }}", {})
    assert not undo_quantization(ir.from_proto(model)).applied


def test_integers_at_the_edge_of_the_model_are_refused() -> None:
    for graph, node in (
        ("(uint8[N,4] x) => (float[N,4] y) { [dq] y = DequantizeLinear(x, t, z) }", "dq"),
        ("(float[N,4] x) => (uint8[N,4] y) { [q] y = QuantizeLinear(x, t, z) }", "q"),
    ):
        with pytest.raises(AlreadyQuantizedError, match=f"node '{node}'") as caught:
            undo_quantization(ir.from_proto(make_model(graph, {"t": WEIGHTS["t"], "z": WEIGHTS["z"]})))
        assert caught.value.where["node"] == node
