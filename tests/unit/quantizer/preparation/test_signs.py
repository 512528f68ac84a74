"""Values that are said never to be negative are not, whatever onnxruntime is fed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tests.support.each import each
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.preparation.signs import Signs

WEIGHTS = {
    "zero": np.float32(0),
    "minus": np.float32(-1),
    "six": np.float32(6),
    "shape": np.array([2, 32], np.int64),
    "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64),
    "k": normal(4, 4, seed=4),
    "axes": np.array([2, 3], np.int64),
}
# body: x is of any sign, p = Relu(x), y is judged
CLAIMED = [
    "y = Sigmoid(x)",
    "y = Exp(x)",
    "y = Clip(x, zero, six)",
    "y = Clip(p, minus, six)",
    "y = Add(p, p)",
    "y = Mul(p, p)",
    "y = Concat<axis=1>(p, p)",
    "y = Max(x, p)",
    "y = Min(p, p)",
    "y = MaxPool<kernel_shape=[2,2]>(p)",
    "y = AveragePool<kernel_shape=[2,2], pads=[1,1,1,1]>(p)",
    "y = GlobalAveragePool(p)",
    "y = ReduceMean<axes=[2,3]>(p)",
    "y = Reshape(p, shape)",
    "y = Transpose<perm=[0,2,3,1]>(p)",
    "y = Pad(p, pads, six)",
    "s = Softmax(x) t = Add(s, p) y = Flatten(t)",
]
NOT_CLAIMED = [
    "y = MatMul(p, k)",
    "y = Clip(x, minus, six)",
    "y = Add(p, x)",
    "y = Mul(p, x)",
    "y = Sub(p, p)",
    "y = Max(x, x)",
    "y = Min(x, p)",
    "y = Concat<axis=1>(x, p)",
    "y = Pad(p, pads, minus)",
    "y = Neg(p)",
    "y = Add(p, minus)",
    "y = Tanh(x)",
    "y = LeakyRelu(x)",
]


@each(("body", "told"), [*((body, True) for body in CLAIMED), *((body, False) for body in NOT_CLAIMED)])
def test_what_cannot_be_negative_is_told_and_nothing_else(body: str, told: bool) -> None:
    model = make_model(f"(float[2,2,4,4] x) => (float y) {{ p = Relu(x) {body} }}", WEIGHTS)
    found = [run_onnx(model, {"x": normal(2, 2, 4, 4, seed=seed, scale=3.0)})["y"] for seed in range(3)]
    assert not told or min(array.min() for array in found) >= 0
    signs, graph = Signs(), ir.from_proto(model).graph
    for node in graph:
        signs.learn(node)
    assert signs.never_negative(graph.outputs[0]) is told


def test_operators_of_other_domains_are_not_judged_by_their_names() -> None:
    node = ir.node("Relu", [ir.Value(name="x")], domain="com.example")
    signs = Signs()
    signs.learn(node)
    assert not signs.never_negative(node.outputs[0])
