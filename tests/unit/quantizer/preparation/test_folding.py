"""What preparation knows beforehand: constants as far as they cost little, and signs."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.each import each
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.preparation.affine import Signs
from worker.quantizer.preparation.passes import constants as folding
from worker.quantizer.preparation.passes.constants import BEYOND_BUDGET, FoldingBudget, fold_constants
from worker.quantizer.preparation.passes.shapes import name_everything

OPSETS = {"": 17}


def folded(text: str, constants: dict[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Operators that are left, and the nodes that were left alone."""
    model = name_everything(ir.from_proto(make_model(text, constants))).model
    outcome = fold_constants(model)
    return [node.op_type for node in outcome.model.graph], dict(outcome.left)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("text", "constants"),
    [
        ("a = Expand(one, huge)", {"one": np.ones(1, np.float32), "huge": integers(1 << 20, 1 << 14)}),
        ("a = Tile(one, huge)", {"one": np.ones(1, np.float32), "huge": integers(1 << 34)}),
        ("a = Pad(one, huge)", {"one": np.ones(1, np.float32), "huge": integers(0, 1 << 34)}),
        ("a = Range(none, most, step)", {k: np.float32(v) for k, v in (("none", 0), ("most", 1e12), ("step", 1))}),
        ("a = Add(row, column)", {"row": np.ones((1, 1 << 15), "f4"), "column": np.ones((1 << 15, 1), "f4")}),
        ("a = MatMul(column, row)", {"row": np.ones((1, 1 << 15), "f4"), "column": np.ones((1 << 15, 1), "f4")}),
        ("a = OneHot(i, depth, values)", {"i": integers(0), "depth": integers(1 << 40), "values": np.ones(2, "f4")}),
        ("a = Gather(wide, many)", {"wide": np.ones((2, 1 << 16), np.float32), "many": np.zeros(1 << 14, np.int64)}),
    ],
)  # fmt: skip
def test_what_would_become_gigabytes_is_left_alone(text: str, constants: dict[str, Any]) -> None:
    """Nothing is allocated, or this process of a test would be ended for it."""
    left, alone = folded(f"(float x) => (float y) {{ {text} b = ReduceSum<keepdims=0>(a) y = Add(x, b) }}", constants)
    assert left[-1] == "Add"
    assert len(left) == 3
    assert list(alone.values()) == [BEYOND_BUDGET()]


def test_chains_are_cut_where_the_budget_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(call: str, length: int, first: np.ndarray) -> tuple[list[str], dict[str, Any]]:
        chain = " ".join(f"a{k + 1} = {call}(a{k}, a{k})" for k in range(length))
        text = f"(float x) => (float y) {{ {chain} b = ReduceSum<keepdims=0>(a{length}) y = Add(x, b) }}"
        return folded(text, {"a0": first})

    assert cut("MatMul", 2, np.ones((4, 4), np.float32)) == (["Add"], {})
    left, alone = cut("Concat<axis=0>", 40, np.ones(1, np.float32))
    assert 10 < left.count("Concat") < 20
    assert len(alone) == 1  # the others have an operand that is no constant
    monkeypatch.setattr(folding, "MOST_FLOP", 7 * 2 * 64**3)
    left, alone = cut("MatMul", 12, np.zeros((64, 64), np.float32))
    assert left == ["MatMul"] * 5 + ["ReduceSum", "Add"]
    assert len(alone) == 1


def test_a_declared_shape_is_not_believed() -> None:
    text = "(float x) => (float y) { a = Expand(one, huge) b = ReduceSum<keepdims=0>(a) y = Add(x, b) }"
    proto = make_model(text, {"one": np.ones(1, np.float32), "huge": integers(1 << 34)})
    proto.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, [1]))
    outcome = fold_constants(name_everything(ir.from_proto(proto)).model)
    assert [node.op_type for node in outcome.model.graph] == ["Expand", "ReduceSum", "Add"]


@pytest.mark.slow
def test_large_weights_are_still_transposed() -> None:
    """The budget grows with the weights: what folds each of them once is within it."""
    weights = {f"w{k}": np.ones((1 << 11, 1 << 11), np.float32) for k in range(8)}
    nodes = " ".join(f"t{k} = Transpose(w{k}) x{k + 1} = MatMul(x{k}, t{k})" for k in range(8))
    left, alone = folded(f"(float[1,2048] x0) => (float[1,2048] x8) {{ {nodes} }}", weights)
    assert (left, alone) == (["MatMul"] * 8, {})


def cost(kind: str, *arrays: np.ndarray, **attributes: Any) -> tuple[int, int]:
    values = [ir.Value(name=f"v{k}", const_value=ir.tensor(array)) for k, array in enumerate(arrays)]
    made = [ir.AttrInt64s(name, value) for name, value in attributes.items()]
    found = FoldingBudget(OPSETS, weight_bytes=0)._cost(ir.Node("", kind, values, made, outputs=[ir.Value(name="out")]))
    assert found is not None
    return found


@given(st.sampled_from(["MatMul", "Conv", "Gemm"]), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_products_are_counted_as_they_are_computed(kind: str, rows: int, inner: int, columns: int) -> None:
    shapes = (rows, inner), (inner, columns)
    if kind == "Conv":
        shapes = (1, inner, rows, 1), (columns, inner, 1, 1)
    first, second = (np.ones(shape, np.float32) for shape in shapes)
    assert cost(kind, first, second) == (2 * rows * inner * columns, 4 * rows * columns)
    image = np.ones((1, 1, 8, 8), np.float32)  # what is slow counts for more
    assert cost("MaxPool", image, kernel_shape=[2, 2])[0] > 1000 * cost("Relu", image)[0] > 0


WEIGHTS = {
    "zero": np.float32(0), "minus": np.float32(-1), "six": np.float32(6), "shape": np.array([2, 32], np.int64),
    "pads": np.array([0, 0, 0, 0, 0, 0, 1, 1], np.int64), "k": normal(4, 4, seed=4),
    "axes": np.array([2, 3], np.int64),
}  # fmt: skip
# body: x is of any sign, p = Relu(x), y is judged
CLAIMED = [
    "y = Sigmoid(x)", "y = Exp(x)", "y = Clip(x, zero, six)", "y = Clip(p, minus, six)", "y = Add(p, p)",
    "y = Mul(p, p)", "y = Concat<axis=1>(p, p)", "y = Max(x, p)", "y = Min(p, p)",
    "y = MaxPool<kernel_shape=[2,2]>(p)", "y = AveragePool<kernel_shape=[2,2], pads=[1,1,1,1]>(p)",
    "y = GlobalAveragePool(p)", "y = ReduceMean<axes=[2,3]>(p)", "y = Reshape(p, shape)",
    "y = Transpose<perm=[0,2,3,1]>(p)", "y = Pad(p, pads, six)", "s = Softmax(x) t = Add(s, p) y = Flatten(t)",
]  # fmt: skip
NOT_CLAIMED = [
    "y = MatMul(p, k)", "y = Clip(x, minus, six)", "y = Add(p, x)", "y = Mul(p, x)", "y = Sub(p, p)", "y = Max(x, x)",
    "y = Min(x, p)", "y = Concat<axis=1>(x, p)", "y = Pad(p, pads, minus)", "y = Neg(p)", "y = Add(p, minus)",
    "y = Tanh(x)", "y = LeakyRelu(x)",
]  # fmt: skip


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
