"""Functions written out: found in every spelling of the exporters, left alone where they differ."""

from __future__ import annotations

import re

import numpy as np
import onnx
import pytest

from tests.unit.quantizer.preparation.preparing import prepare_with, same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, rng, step
from worker.quantizer.graph.rewriting import NODES_STAY, RANK_RAISED

NUMBERS = {
    "epsilon": 1e-5, "zero": 0, "one": 1, "two": 2, "three": 3, "six": 6, "sixth": 1 / 6, "half": 0.5, "fifth": 0.2,
}  # fmt: skip
NUMBERS |= {"root": np.sqrt(2), "inverse": np.sqrt(0.5), "cubic": 0.044715, "flat": np.sqrt(2 / np.pi), "odd": 1.3}
NUMBERS |= {"tiny": 1e-12, "large": 0.1, "minus": -0.5}
WEIGHTS = {name: np.float32(value) for name, value in NUMBERS.items()}
WEIGHTS |= {"axes": np.array([-1]), "places": np.array([-2, -1]), "first": np.array([1])}
WEIGHTS |= {
    "gain": normal(8),
    "shift": normal(8, seed=1),
    "gains": normal(3, 1, 1),
    "shifts": normal(1, 3, 1, 1, seed=1),
}
WEIGHTS |= {"by_sample": normal(2, 5, 1), "by_place": normal(5, 8), "by_row": normal(5, 1), "squares": normal(8) ** 2}


def made(body: str, shape: str = "N,5,8", opset: int = 17) -> onnx.ModelProto:
    outputs = f"float[{shape}] y" + (", float[N,5,8] v" if body.endswith("# v") else "")
    weights = {name: array for name, array in WEIGHTS.items() if re.search(rf"\b{name}\b", body)}
    return make_model(f"(float[{shape}] x) => ({outputs}) {{ {body.removesuffix('# v')} }}", weights, opset=opset)


def feeds_of(shape: str = "N,5,8") -> dict[str, np.ndarray]:
    """Numbers from -8 to 8, two samples of them."""
    sizes = [2 if axis == "N" else int(axis) for axis in shape.split(",")]
    return {"x": rng(2).permutation(np.linspace(-8, 8, np.prod(sizes), dtype=np.float32)).reshape(sizes)}


def norm(axes: str, *, squared: str = "Mul(d, d)", quotient: str = "n = Div(d, s)", axes_input: str = "") -> str:
    """The standardization of x as n; from opset 18 on axes are an input."""
    mean = "ReduceMean({0}, %s)" % axes_input if axes_input else f"ReduceMean<axes={axes}>({{0}})"  # noqa: UP031
    steps = f"v = {mean.format('q')} t = Add(v, epsilon) [root_of] s = Sqrt(t) {quotient}"
    return f"m = {mean.format('x')} d = Sub(x, m) q = {squared} {steps}"


LAYER, INSTANCE = "LayerNormalization", "InstanceNormalization"
END = "w = Mul(n, gain) [last] y = Add(shift, w)"
IMAGES = "N,3,5,8"
LIMITED = {
    "clip": "c = Clip(a, zero, six)", "min of max": "l = Max(a, zero) c = Min(l, six)",
    "max of min": "l = Min(six, a) c = Max(zero, l)", "min of relu": "l = Relu(a) c = Min(l, six)",
}  # fmt: skip
SWISH = {
    "gate, then x": "g = Mul(c, sixth) [last] y = Mul(x, g)", "gate divided": "g = Div(c, six) [last] y = Mul(g, x)",
    "product, then a sixth": "p = Mul(x, c) [last] y = Mul(p, sixth)",
    "product divided": "p = Mul(x, c) [last] y = Div(p, six)",
}  # fmt: skip
GELU = "u = Div(x, root) t = Erf(u) v = Add(t, one) w = Mul(x, v) [last] y = Mul(w, half)"
# name: the pass, what is left of it, the function; and its shape and opset where they are others
FUSED: dict[str, tuple] = {
    "layer": ("fuse_layer_norm", LAYER, f"{norm('[-1]', squared='Pow(d, two)')} {END}"),
    "reciprocal": ("fuse_layer_norm", LAYER, f"{norm('[-1]', quotient='i = Reciprocal(s) n = Mul(d, i)')} {END}"),
    "axes as input": ("fuse_layer_norm", LAYER, f"{norm('', axes_input='axes')} {END}", "N,5,8", 18),
    "one divided": ("fuse_layer_norm", LAYER, f"{norm('[-1]', quotient='i = Div(one, s) n = Mul(i, d)')} {END}"),
    "two axes, no scale, no bias": ("fuse_layer_norm", LAYER, f"{norm('[1,2]', quotient='[last] y = Div(d, s)')}"),
    "a twin of the deviation": (
        "fuse_layer_norm",
        LAYER,
        norm("[-1]", quotient="o = ReduceMean<axes=[2]>(x) f = Sub(x, o) [last] y = Div(f, s)"),
    ),
    "a scale that is none of its own": (
        "fuse_layer_norm",
        f"{LAYER} Mul Add",
        f"{norm('[-1]')} w = Mul(n, by_sample) [last] y = Add(w, shift)",
    ),
    "per place": ("fuse_layer_norm", LAYER, f"{norm('[2,3]')} [last] y = Mul(n, by_place)", IMAGES),
    "instances, bare": ("fuse_instance_norm", INSTANCE, norm("[2,3]", quotient="[last] y = Div(d, s)"), IMAGES),
    "sequences": ("fuse_instance_norm", INSTANCE, f"{norm('[2]')} [last] y = Mul(n, by_row)"),
    "instances": (
        "fuse_instance_norm",
        INSTANCE,
        f"{norm('[2,3]')} w = Mul(n, gains) [last] y = Add(w, gains)",
        IMAGES,
        13,
    ),
    "instances of opset 18": (
        "fuse_instance_norm",
        INSTANCE,
        f"{norm('', axes_input='places')} w = Mul(n, gains) [last] y = Add(w, shifts)",
        IMAGES,
        18,
    ),
    **{
        f"l2 {number}": ("fuse_l2_norm", "LpNormalization", body)
        for number, body in enumerate([
            "n = ReduceL2<axes=[1]>(x) [last] y = Div(x, n)",
            "n = ReduceL2<axes=[-1]>(x) c = Clip(n, tiny) s = Shape(x) f = Expand(c, s) [last] y = Div(x, f)",
            "n = ReduceL2<axes=[2]>(x) c = Max(n, tiny) [last] y = Div(x, c)",
            "q = Mul(x, x) r = ReduceSum(q, first) n = Sqrt(r) [last] y = Div(x, n)",
            "q = Pow(x, two) r = ReduceSum(q, first) c = Max(tiny, r) n = Sqrt(c) [last] y = Div(x, n)",
            "r = ReduceSumSquare<axes=[1]>(x) c = Add(r, tiny) n = Sqrt(c) [last] y = Div(x, n)",
        ])
    },
    **{
        f"gelu {number}": ("fuse_gelu", "Gelu", body, "N,5,8", 20)
        for number, body in enumerate([
            GELU,
            "h = Mul(x, half) u = Mul(x, inverse) t = Erf(u) v = Add(one, t) [last] y = Mul(h, v)",
            "u = Div(x, root) t = Erf(u) v = Add(t, one) w = Mul(half, v) [last] y = Mul(x, w)",
            "u = Mul(inverse, x) t = Erf(u) s = Mul(t, half) v = Add(s, half) [last] y = Mul(v, x)",
            "c = Pow(x, three) d = Mul(c, cubic) s = Add(x, d) u = Mul(flat, s) t = Tanh(u) v = Add(t, one) "
            "w = Mul(x, v) [last] y = Mul(w, half)",
            "q = Mul(x, x) c = Mul(x, q) d = Mul(cubic, c) s = Add(x, d) u = Mul(s, flat) t = Tanh(u) "
            "v = Add(one, t) h = Mul(x, half) [last] y = Mul(h, v)",
            "q = Mul(x, x) d = Mul(q, cubic) s = Add(d, one) f = Mul(x, flat) u = Mul(f, s) t = Tanh(u) "
            "v = Add(t, one) w = Mul(half, v) [last] y = Mul(x, w)",
        ])
    },
    **{
        f"swish: {limited}; {product}": (
            "fuse_hard_swish",
            "HardSwish",
            f"a = Add(x, three) {LIMITED[limited]} {SWISH[product]}",
        )
        for limited in LIMITED
        for product in SWISH
    },
    **{
        f"sigmoid {number}": ("fuse_hard_sigmoid", "HardSigmoid", body)
        for number, body in enumerate([
            "a = Add(x, three) c = Clip(a, zero, six) [last] y = Div(c, six)",
            "m = Mul(x, fifth) a = Add(m, half) [last] y = Clip(a, zero, one)",
            "m = Div(x, six) a = Add(half, m) [last] y = Clip(a, zero, one)",
            "a = Add(x, three) m = Mul(a, sixth) [last] y = Clip(m, zero, one)",
        ])
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_every_spelling_is_fused(name: str) -> None:
    flag, wanted, body, *rest = FUSED[name]
    shape, opset = (*rest, 17)[:2] if len(rest) == 1 else rest or ("N,5,8", 17)
    model, feeds = made(body, shape, opset), feeds_of(shape)
    prepared, proto = same(model, feeds)
    assert op_types(proto) == wanted.split()
    assert proto.graph.node[-1].name == "last"
    assert step(prepared, flag).applied
    if wanted == "Gelu":
        form = {attribute.name: attribute.s for attribute in proto.graph.node[0].attribute}["approximate"]
        assert form == (b"tanh" if "Tanh" in body else b"none")
    if "tiny" in body and "Add" not in body:
        feeds["x"][1] = 0
        same(model, feeds)
    off = {flag: False} | ({"fuse_hard_sigmoid": False} if wanted == "HardSwish" else {})
    assert wanted.split()[0] not in op_types(prepare_with(model, **off)[1])


RAISED = [("sigmoid 0", "three"), ("sigmoid 1", "half"), ("swish: clip; gate divided", "three"), ("gelu 0", "one")]
RAISED += [("layer", "gain"), ("layer", "epsilon"), ("instances", "gains"), ("l2 2", "tiny")]


@pytest.mark.parametrize(("name", "constant"), RAISED)
def test_a_constant_that_gives_the_result_more_axes_keeps_its_function_written_out(name: str, constant: str) -> None:
    flag, wanted, body, *rest = FUSED[name]
    shape, opset = (*rest, 17)[:2] if len(rest) == 1 else rest or ("N,5,8", 17)
    number = WEIGHTS[constant]
    weights = {word: array for word, array in WEIGHTS.items() if re.search(rf"\b{word}\b", body)}
    weights[constant] = number.reshape(*[1] * (shape.count(",") + 2 - number.ndim), *number.shape)
    model = make_model(f"(float[{shape}] x) => (float[1,{shape}] y) {{ {body} }}", weights, opset=opset)
    prepared, proto = same(model, feeds_of(shape))
    told = step(prepared, flag)
    assert (told.applied, list(told.left.values())) == (False, [RANK_RAISED.code])
    assert wanted.split()[0] not in op_types(proto)


# the pass, what is written out, and why it stays, where that is told; "# v": v is an output, too
STAYS = [
    ("fuse_layer_norm", f"{norm('[1]')} y = Relu(n)", "not the last ones"),
    ("fuse_layer_norm", f"{norm('[-1]')} y = Add(n, v)", "an inner tensor is read elsewhere too"),
    ("fuse_layer_norm", f"{norm('[-1]').replace('epsilon', 'squares')} y = Relu(n)", "its epsilon is not a constant"),
    ("fuse_l2_norm", "[root_of] n = ReduceL2<axes=[1]>(x) c = Max(n, large) y = Div(x, c)", "its floor of 0.1"),
    ("fuse_l2_norm", "[root_of] n = ReduceL2<axes=[1,2]>(x) y = Div(x, n)", "more than one axis"),
    ("fuse_l2_norm", "[root_of] n = ReduceL2<axes=[0],keepdims=0>(x) y = Div(x, n)", "does not keep the reduced axis"),
    ("fuse_l2_norm", "n = ReduceL2<axes=[1]>(x) z = Div(x, n) y = Add(z, n)", None),
    *(("fuse_gelu", GELU.replace(word, "odd"), None) for word in ("root", "one", "half")),
    ("fuse_gelu", f"{GELU}# v", None),
    # another height, no offset, falling, starting above zero, another x, read elsewhere, limits per channel
    ("fuse_hard_sigmoid", "a = Add(x, three) c = Clip(a, zero, three) y = Div(c, six)", None),
    ("fuse_hard_sigmoid", "y = Clip(x, zero, six)", None),
    ("fuse_hard_sigmoid", "m = Mul(x, minus) a = Add(m, half) y = Clip(a, zero, one)", None),
    ("fuse_hard_sigmoid", "a = Add(x, three) c = Clip(a, half, six) y = Div(c, six)", None),
    ("fuse_hard_swish", "n = Neg(x) a = Add(x, three) c = Clip(a, zero, six) p = Mul(n, c) y = Div(p, six)", None),
    ("fuse_hard_swish", "a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Add(g, a)", None),
    ("fuse_hard_swish", "a = Add(x, gain) c = Clip(a, zero, six) g = Div(c, six) y = Mul(x, g)", None),
]


@pytest.mark.parametrize(("flag", "body", "reason"), STAYS)
def test_what_is_none_stays(flag: str, body: str, reason: str | None) -> None:
    model = made(body, opset=20 if flag == "fuse_gelu" else 17)
    prepared, proto = same(model, feeds_of())
    assert op_types(proto) == op_types(model)
    told = step(prepared, flag)
    assert not told.applied
    if reason is not None:
        assert reason in told.detail.split("; root_of stays: ")[1]
        assert (told.reason_code, list(told.left)) == (NODES_STAY.code, ["root_of"])


def test_a_swish_of_what_is_affine_itself_is_fused() -> None:
    body = "m = Mul(x, half) o = Add(m, fifth) a = Add(o, three) c = Clip(a, zero, six) p = Mul(o, c) y = Div(p, six)"
    assert op_types(same(made(body), feeds_of())[1]) == ["Mul", "Add", "HardSwish"]


def test_a_gate_of_another_x_becomes_a_hard_sigmoid_alone() -> None:
    body = "n = Neg(x) a = Add(x, three) c = Clip(a, zero, six) g = Div(c, six) y = Mul(n, g)"
    assert op_types(same(made(body), feeds_of())[1]) == ["Neg", "HardSigmoid", "Mul"]


@pytest.mark.parametrize(
    ("flag", "body", "opset", "needed", "wanted"),
    [
        ("fuse_layer_norm", norm("[-1]", quotient="y = Div(d, s)"), 13, 17, LAYER),
        ("fuse_gelu", GELU, 17, 20, "Gelu"),
        ("fuse_hard_swish", "g = HardSigmoid<alpha=0.16666667, beta=0.5>(x) y = Mul(x, g)", 13, 14, "HardSwish"),
    ],
)
def test_what_needs_a_later_opset_is_fused_when_lifted(
    flag: str, body: str, opset: int, needed: int, wanted: str
) -> None:
    model = made(body, opset=opset)
    prepared, proto = same(model, feeds_of(), opset=opset)
    assert op_types(proto) == op_types(model)
    assert f"needs opset {needed}, the model has {opset}" in step(prepared, flag).detail
    assert op_types(same(model, feeds_of(), opset=20)[1]) == [wanted]
