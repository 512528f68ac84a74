"""Hard-sigmoid and hard-swish: found in every order that exporters write, left alone where they differ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.each import each
from tests.unit.quantizer.preparation.preparing import prepare_with, same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, step

NUMBERS = {name: np.float32(value) for name, value in {"three": 3, "zero": 0, "six": 6, "sixth": 1 / 6}.items()}
NUMBERS |= {name: np.float32(value) for name, value in {"half": 0.5, "one": 1, "fifth": 0.2}.items()}
LIMITED = {
    "clip": "c = Clip(a, zero, six)",
    "min of max": "l = Max(a, zero) c = Min(l, six)",
    "max of min": "l = Min(six, a) c = Max(zero, l)",
    "min of relu": "l = Relu(a) c = Min(l, six)",
}
SWISH = {
    "gate, then x": "g = Mul(c, sixth) [last] y = Mul(x, g)",
    "gate divided": "g = Div(c, six) [last] y = Mul(g, x)",
    "product, then a sixth": "p = Mul(x, c) [last] y = Mul(p, sixth)",
    "product divided": "p = Mul(x, c) [last] y = Div(p, six)",
}
X = np.linspace(-8, 8, 4 * 33, dtype=np.float32).reshape(4, 33)


@each("limited", LIMITED)
@each("product", SWISH)
def test_hard_swish(limited: str, product: str) -> None:
    body = f"a = Add(x, three) {LIMITED[limited]} {SWISH[product]}"
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {body} }}", NUMBERS)
    prepared, proto = same(model, {"x": X})
    assert [(node.name, node.op_type) for node in proto.graph.node] == [("last", "HardSwish")]
    assert step(prepared, "fuse_hard_swish").applied
    if limited == "clip":
        kept = prepare_with(model, fuse_hard_swish=False, fuse_hard_sigmoid=False)[1]
        assert not {"HardSwish", "HardSigmoid"} & set(op_types(kept))


def test_x_times_its_own_hard_sigmoid_is_a_hard_swish() -> None:
    body = "g = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, g)"
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {body} }}", opset=13)
    assert op_types(same(model, {"x": X})[1]) == ["HardSwish"]
    prepared, proto = same(model, {"x": X}, opset=13)
    assert op_types(proto) == ["HardSigmoid", "Mul"]
    assert "needs opset 14, the model has 13" in step(prepared, "fuse_hard_swish").detail


SIGMOIDS = {
    "six": "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)",
    "keras": "m = Mul(x, fifth) a = Add(m, half) y = Clip(a, zero, one)",
    "divided first": "m = Div(x, six) a = Add(half, m) y = Clip(a, zero, one)",
    "scaled behind the sum": "a = Add(x, three) m = Mul(a, sixth) y = Clip(m, zero, one)",
}


@pytest.mark.parametrize("name", SIGMOIDS)
def test_hard_sigmoid(name: str) -> None:
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {SIGMOIDS[name]} }}", NUMBERS)
    prepared, proto = same(model, {"x": X})
    assert op_types(proto) == ["HardSigmoid"]
    assert step(prepared, "fuse_hard_sigmoid").applied


OTHERS = {
    "another height": ("a = Add(x, three) c = Clip(a, zero, three) y = Div(c, six)", ["Add", "Clip", "Div"]),
    "no offset": ("y = Clip(x, zero, six)", ["Clip"]),
    "falls": ("m = Mul(x, minus) a = Add(m, half) y = Clip(a, zero, one)", ["Mul", "Add", "Clip"]),
    "starts above zero": ("a = Add(x, three) c = Clip(a, half, six) y = Div(c, six)", ["Add", "Clip", "Div"]),
    "another x": (
        "n = Neg(x) a = Add(x, three) c = Clip(a, zero, six) p = Mul(n, c) y = Div(p, six)",
        ["Neg", "Add", "Clip", "Mul", "Div"],
    ),
    "a gate of another x": (
        "n = Neg(x) a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Mul(n, g)",
        ["Neg", "HardSigmoid", "Mul"],
    ),
    "read elsewhere": (
        "a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Add(g, a)",
        ["Add", "Clip", "Div", "Add"],
    ),
    "limits per channel": (
        "a = Add(x, threes) c = Clip(a, zero, six) g = Div(c, six) y = Mul(x, g)",
        ["Add", "Clip", "Div", "Mul"],
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_hard_swish_stays(name: str) -> None:
    body, wanted = OTHERS[name]
    weights = {**NUMBERS, "minus": np.float32(-0.5), "threes": normal(33)}
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {body} }}", weights)
    assert op_types(same(model, {"x": X})[1]) == wanted
