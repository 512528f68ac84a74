"""Functions written out: found in every spelling of the exporters, left alone where they differ."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.each import each
from tests.unit.quantizer.preparation.preparing import prepare_with, same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, step
from worker.quantizer.graph.outcome import NODES_STAY

E = {"e": np.float32(1e-5), "two": np.float32(2)}


def norm_text(axes: str, *, opset: int, squared: str = "Pow(d, two)", quotient: str = "n = Div(d, s)") -> str:
    """The standardization of x as n."""
    if opset < 18:
        mean, variance = f"ReduceMean<axes={axes}>(x)", f"ReduceMean<axes={axes}>(q)"
    else:
        mean, variance = "ReduceMean(x, axes)", "ReduceMean(q, axes)"
    return f"m = {mean} d = Sub(x, m) q = {squared} v = {variance} t = Add(v, e) s = Sqrt(t) {quotient}"


@each(
    ("opset", "squared", "quotient"),
    [
        (17, "Pow(d, two)", "n = Div(d, s)"),
        (17, "Mul(d, d)", "i = Reciprocal(s) n = Mul(d, i)"),
        (18, "Mul(d, d)", "n = Div(d, s)"),
        (21, "Pow(d, two)", "i = Div(one, s) n = Mul(i, d)"),
    ],
)
def test_layer_normalization(opset: int, squared: str, quotient: str) -> None:
    text = norm_text("[-1]", opset=opset, squared=squared, quotient=quotient)
    model = make_model(
        f"(float[N,5,8] x) => (float[N,5,8] y) {{ {text} w = Mul(n, g) [last] y = Add(b, w) }}",
        {**E, "one": np.float32(1), "axes": np.array([-1]), "g": normal(8), "b": normal(8, seed=1)},
        opset=opset,
    )
    prepared, proto = same(model, {"x": normal(3, 5, 8, seed=2)})
    assert [(node.name, node.op_type) for node in proto.graph.node] == [("last", "LayerNormalization")]
    assert step(prepared, "fuse_layer_norm").applied
    assert "LayerNormalization" not in op_types(prepare_with(model, fuse_layer_norm=False)[1])


TWIN = "o = ReduceMean<axes=[2]>(x) f = Sub(x, o) n = Div(f, s)"
BEHIND = {
    "two axes, no scale, no bias": ("N,5,8", norm_text("[1,2]", opset=17), ["LayerNormalization"]),
    "a twin of the deviation": ("N,5,8", norm_text("[-1]", opset=17, quotient=TWIN), ["LayerNormalization"]),
    "a scale that is none of its own": (
        "N,5,8",
        f"{norm_text('[-1]', opset=17)} w = Mul(n, g_samples) y = Add(w, b)",
        ["LayerNormalization", "Mul", "Add"],
    ),
    "a scale per position": ("N,3,5,8", f"{norm_text('[2,3]', opset=17)} y = Mul(n, g_places)", ["LayerNormalization"]),
    "instances, bare": ("N,3,5,8", norm_text("[2,3]", opset=17), ["InstanceNormalization"]),
    "instances of sequences": ("N,5,8", f"{norm_text('[2]', opset=17)} y = Mul(n, g_rows)", ["InstanceNormalization"]),
}


@each("case", BEHIND)
def test_what_follows_decides_which_normalization_it_is(case: str) -> None:
    shape, text, wanted = BEHIND[case]
    weights = {"g_samples": normal(2, 5, 1), "b": normal(8), "g_places": normal(5, 8), "g_rows": normal(5, 1)}
    result = "y" if " y = " in text else "n"
    model = make_model(f"(float[{shape}] x) => (float[{shape}] {result}) {{ {text} }}", {**E, **weights})
    feeds = {"x": normal(*[2 if axis == "N" else int(axis) for axis in shape.split(",")])}
    assert op_types(same(model, feeds)[1]) == wanted


NOT_FUSED = {
    "not the last ones": ("[1]", "y = Relu(n)", {}),
    "an inner tensor is read elsewhere too": ("[-1]", "y = Add(n, v)", {}),
    "its epsilon is not a constant": ("[-1]", "y = Relu(n)", {"e": normal(8) ** 2}),
}


@pytest.mark.parametrize("reason", NOT_FUSED)
def test_what_is_no_layer_normalization_says_why(reason: str) -> None:
    axes, end, weights = NOT_FUSED[reason]
    text = norm_text(axes, opset=17).replace("s = Sqrt", "[root] s = Sqrt")
    model = make_model(f"(float[N,3,8] x) => (float[N,3,8] y) {{ {text} {end} }}", {**E, **weights})
    prepared, proto = same(model, {"x": normal(2, 3, 8)})
    assert "LayerNormalization" not in op_types(proto)
    told = step(prepared, "fuse_layer_norm")
    assert reason in told.detail.split("; root stays: ")[1]
    assert (told.reason_code, list(told.left)) == (NODES_STAY.code, ["root"])


@each(("shape", "opset"), [((3, 1, 1), 13), ((1, 3, 1, 1), 18)])
def test_instance_normalization(shape: tuple[int, ...], opset: int) -> None:
    model = make_model(
        f"(float[N,3,6,7] x) => (float[N,3,6,7] y) {{ {norm_text('[2,3]', opset=opset)} w = Mul(n, g) y = Add(w, b) }}",
        {**E, "axes": np.array([-2, -1]), "g": normal(*shape), "b": normal(*shape, seed=1)},
        opset=opset,
    )
    prepared, proto = same(model, {"x": normal(2, 3, 6, 7)})
    assert op_types(proto) == ["InstanceNormalization"]
    assert step(prepared, "fuse_instance_norm").applied


L2 = {
    "plain": "n = ReduceL2<axes=[1]>(x) y = Div(x, n)",
    "torch": "n = ReduceL2<axes=[-1]>(x) c = Clip(n, tiny) s = Shape(x) f = Expand(c, s) y = Div(x, f)",
    "max": "n = ReduceL2<axes=[2]>(x) c = Max(n, tiny) y = Div(x, c)",
    "squares": "q = Mul(x, x) r = ReduceSum(q, one) n = Sqrt(r) y = Div(x, n)",
    "floored squares": "q = Pow(x, two) r = ReduceSum(q, one) c = Max(tiny, r) n = Sqrt(c) y = Div(x, n)",
    "sum of squares": "r = ReduceSumSquare<axes=[1]>(x) c = Add(r, tiny) n = Sqrt(c) y = Div(x, n)",
}


@pytest.mark.parametrize("name", L2)
def test_l2_normalization(name: str) -> None:
    model = make_model(
        f"(float[N,4,5] x) => (float[N,4,5] y) {{ {L2[name]} }}",
        {"tiny": np.float32(1e-12), "one": np.array([1]), "two": np.float32(2)},
    )
    x = normal(3, 4, 5)
    prepared, proto = same(model, {"x": x})
    assert op_types(proto) == ["LpNormalization"]
    assert step(prepared, "fuse_l2_norm").applied
    if "tiny" in L2[name] and "Add" not in L2[name]:
        x[1] = 0
        same(model, {"x": x})
    assert "LpNormalization" not in op_types(prepare_with(model, fuse_l2_norm=False)[1])


NO_L2 = {
    "its floor of 0.1": "[r] n = ReduceL2<axes=[1]>(x) c = Max(n, large) y = Div(x, c)",
    "more than one axis": "[r] n = ReduceL2<axes=[1,2]>(x) y = Div(x, n)",
    "does not keep the reduced axis": "[r] n = ReduceL2<axes=[0],keepdims=0>(x) y = Div(x, n)",
    "": "[r] n = ReduceL2<axes=[1]>(x) z = Div(x, n) y = Add(z, n)",  # two readers: it does not even look like one
}


@each("reason", NO_L2)
def test_what_is_no_l2_normalization_stays(reason: str) -> None:
    model = make_model(f"(float[N,4,5] x) => (float[N,4,5] y) {{ {NO_L2[reason]} }}", {"large": np.float32(0.1)})
    prepared, proto = same(model, {"x": normal(1, 4, 5)})
    assert "LpNormalization" not in op_types(proto)
    assert not reason or reason in step(prepared, "fuse_l2_norm").detail.split("; r stays: ")[1]


ROOT = {"r": np.float32(np.sqrt(2)), "i": np.float32(np.sqrt(0.5)), "one": np.float32(1), "half": np.float32(0.5)}
TANH = {
    "a": np.float32(0.044715),
    "p": np.float32(np.sqrt(2 / np.pi)),
    "pa": np.float32(np.sqrt(2 / np.pi) * 0.044715),
    "three": np.float32(3),
}
GELU = {
    "torch": "u = Div(x, r) t = Erf(u) v = Add(t, one) w = Mul(x, v) y = Mul(w, half)",
    "half first": "h = Mul(x, half) u = Mul(x, i) t = Erf(u) v = Add(one, t) y = Mul(h, v)",
    "half in the middle": "u = Div(x, r) t = Erf(u) v = Add(t, one) w = Mul(half, v) y = Mul(x, w)",
    "halved sum": "u = Mul(i, x) t = Erf(u) s = Mul(t, half) v = Add(s, half) y = Mul(v, x)",
    "tanh": "c = Pow(x, three) d = Mul(c, a) s = Add(x, d) u = Mul(p, s) t = Tanh(u) v = Add(t, one) w = Mul(x, v) "
    "y = Mul(w, half)",
    "tanh by products": "q = Mul(x, x) c = Mul(x, q) d = Mul(a, c) s = Add(x, d) u = Mul(s, p) t = Tanh(u) "
    "v = Add(one, t) h = Mul(x, half) y = Mul(h, v)",
    "tanh factored": "q = Mul(x, x) d = Mul(q, a) s = Add(d, one) f = Mul(x, p) u = Mul(f, s) t = Tanh(u) "
    "v = Add(t, one) w = Mul(half, v) y = Mul(x, w)",
}


@pytest.mark.parametrize("name", GELU)
def test_gelu(name: str) -> None:
    model = make_model(
        f"(float[N,64] x0) => (float[N,64] y) {{ x = Mul(x0, three) {GELU[name]} }}", {**ROOT, **TANH}, opset=20
    )
    prepared, proto = same(model, {"x0": normal(9, 64)})
    assert op_types(proto) == ["Mul", "Gelu"]
    form = {attribute.name: attribute.s for attribute in proto.graph.node[1].attribute}["approximate"]
    assert form == (b"tanh" if "tanh" in name else b"none")
    assert step(prepared, "fuse_gelu").applied
    assert "Gelu" not in op_types(prepare_with(model, fuse_gelu=False)[1])


@each(("changed", "inner"), [("r", ""), ("one", ""), ("half", ""), (None, ", float[N,64] v")])
def test_what_is_no_gelu_stays(changed: str | None, inner: str) -> None:
    """Constants are others, or a tensor inside is read elsewhere."""
    weights = ROOT if changed is None else {**ROOT, changed: np.float32(1.3)}
    model = make_model(f"(float[N,64] x) => (float[N,64] y{inner}) {{ {GELU['torch']} }}", weights, opset=20)
    prepared, proto = same(model, {"x": normal(2, 64)})
    assert "Gelu" not in op_types(proto)
    assert not step(prepared, "fuse_gelu").applied


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
LINE = np.linspace(-8, 8, 4 * 33, dtype=np.float32).reshape(4, 33)
SIGMOIDS = {
    "six": "a = Add(x, three) c = Clip(a, zero, six) y = Div(c, six)",
    "keras": "m = Mul(x, fifth) a = Add(m, half) y = Clip(a, zero, one)",
    "divided first": "m = Div(x, six) a = Add(half, m) y = Clip(a, zero, one)",
    "scaled behind the sum": "a = Add(x, three) m = Mul(a, sixth) y = Clip(m, zero, one)",
}


@each("limited", LIMITED)
@each("product", SWISH)
def test_hard_swish(limited: str, product: str) -> None:
    body = f"a = Add(x, three) {LIMITED[limited]} {SWISH[product]}"
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {body} }}", NUMBERS)
    prepared, proto = same(model, {"x": LINE})
    assert [(node.name, node.op_type) for node in proto.graph.node] == [("last", "HardSwish")]
    assert step(prepared, "fuse_hard_swish").applied
    if limited == "clip":
        kept = prepare_with(model, fuse_hard_swish=False, fuse_hard_sigmoid=False)[1]
        assert not {"HardSwish", "HardSigmoid"} & set(op_types(kept))


@pytest.mark.parametrize(
    ("flag", "text", "opset", "needed", "wanted"),
    [
        ("fuse_layer_norm", norm_text("[-1]", opset=13), 13, 17, ["LayerNormalization"]),
        ("fuse_gelu", GELU["torch"], 17, 20, ["Gelu"]),
        # x times its own hard-sigmoid
        ("fuse_hard_swish", "g = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, g)", 13, 14, ["HardSwish"]),
    ],
)
def test_what_needs_a_later_opset_is_fused_when_lifted(
    flag: str, text: str, opset: int, needed: int, wanted: list[str]
) -> None:
    result = "y" if " y = " in text else "n"
    model = make_model(f"(float[N,64] x) => (float[N,64] {result}) {{ {text} }}", {**E, **ROOT}, opset=opset)
    prepared, proto = same(model, {"x": normal(2, 64)}, opset=opset)
    assert op_types(proto) == op_types(model)
    assert f"needs opset {needed}, the model has {opset}" in step(prepared, flag).detail
    assert op_types(same(model, {"x": normal(2, 64)}, opset=20)[1]) == wanted


@each("name", SIGMOIDS)
def test_hard_sigmoid(name: str) -> None:
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {SIGMOIDS[name]} }}", NUMBERS)
    prepared, proto = same(model, {"x": LINE})
    assert op_types(proto) == ["HardSigmoid"]
    assert step(prepared, "fuse_hard_sigmoid").applied


NO_SWISH = {
    "a = Add(x, three) c = Clip(a, zero, three) y = Div(c, six)": "Add Clip Div",  # another height
    "y = Clip(x, zero, six)": "Clip",  # no offset
    "m = Mul(x, minus) a = Add(m, half) y = Clip(a, zero, one)": "Mul Add Clip",  # falls
    "a = Add(x, three) c = Clip(a, half, six) y = Div(c, six)": "Add Clip Div",  # starts above zero
    # another x, and a gate of it
    "n = Neg(x) a = Add(x, three) c = Clip(a, zero, six) p = Mul(n, c) y = Div(p, six)": "Neg Add Clip Mul Div",
    "n = Neg(x) a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Mul(n, g)": "Neg HardSigmoid Mul",
    # read elsewhere, and limits per channel
    "a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Add(g, a)": "Add Clip Div Add",
    "a = Add(x, threes) c = Clip(a, zero, six) g = Div(c, six) y = Mul(x, g)": "Add Clip Div Mul",
}


@each("body", NO_SWISH)
def test_what_is_no_hard_swish_stays(body: str) -> None:
    weights = {**NUMBERS, "minus": np.float32(-0.5), "threes": normal(33)}
    model = make_model(f"(float[N,33] x) => (float[N,33] y) {{ {body} }}", weights)
    assert op_types(same(model, {"x": LINE})[1]) == NO_SWISH[body].split()
