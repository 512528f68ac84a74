"""Detection heads and functions that are written out, told by what they compute; other networks are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.each import each
from tests.unit.quantizer.preparation.preparing import prepare_with
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, plan_for, quantize_model, run_onnx, sqnr_db
from worker.quantizer.plan.rules.functions import PART_OF_FUNCTION, written_functions
from worker.quantizer.plan.rules.heads import detection_heads
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared

GRID = np.stack(np.meshgrid(np.arange(8), np.arange(8)), -1).reshape(1, 64, 2).astype(np.float32)
WEIGHTS = {
    "w": normal(8, 3, 3, 3, scale=0.3),
    "k": normal(9, 8, 1, 1, seed=1, scale=0.3),
    "kb": normal(4, 8, 1, 1, seed=2, scale=0.3),
    "kc": normal(5, 8, 1, 1, seed=3, scale=0.3),
    "kd": normal(64, 8, 1, 1, seed=4, scale=0.3),
    "bins": np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1),
    "grid": GRID,
    "centres": np.ascontiguousarray(GRID.transpose(0, 2, 1)) * 32,
    "stride": np.float32(32),
    "two": np.float32(2),
    "half": np.float32(0.5),
    "tail": np.array([1, 9, 64]),
    "four_rows": np.array([1, 4, 64]),
    "five_rows": np.array([1, 5, 64]),
    "rows": np.array([1, 4, 16, 64]),
    **{f"p{n}": np.array([n]) for n in (0, 1, 2, 4, 5, 9)},
    "ax": np.array([2]),
    "ax1": np.array([1]),
    "w2": normal(8, 8, 3, 3, seed=6, scale=0.3),
    "variances": np.array([0.1, 0.1, 0.2, 0.2], np.float32).reshape(1, 1, 4),
    "prior_centres": np.concatenate([GRID / 8, GRID[:, ::4] / 8], 1),
    "prior_sizes": np.repeat(np.array([0.2, 0.4], np.float32), [64, 16]).reshape(1, 80, 1) * np.ones(2, np.float32),
    **{f"rows_{n}_{m}": np.array([1, n, m]) for n, m in ((64, 4), (16, 4), (64, 5), (16, 5))},
    "most": np.array([10]),
    "iou": np.array([0.5], np.float32),
    "floor": np.array([0.1], np.float32),
}
STEM = "[stem] s = Conv<pads=[1,1,1,1]>(x, w) r = Relu(s) "
ROWS = "[head] h = Conv(r, k) f = Reshape(h, tail) t = Transpose<perm=[0,2,1]>(f) "
BOTH = "[boxes] hb = Conv(r, kb) fb = Reshape(hb, four_rows) [classes] hc = Conv(r, kc) fc = Reshape(hc, five_rows) "
# Two scales; Transpose and Reshape to rows, as SSD's heads are joined.
SSD = (
    f"{STEM} [down] s2 = Conv<pads=[1,1,1,1],strides=[2,2]>(r, w2) r2 = Relu(s2) "
    "[boxes] hb = Conv(r, kb) tb = Transpose<perm=[0,2,3,1]>(hb) fb = Reshape(tb, rows_64_4) "
    "[boxes2] hb2 = Conv(r2, kb) tb2 = Transpose<perm=[0,2,3,1]>(hb2) fb2 = Reshape(tb2, rows_16_4)"
    "l = Concat<axis=1>(fb, fb2) "
    "[classes] hc = Conv(r, kc) tc = Transpose<perm=[0,2,3,1]>(hc) fc = Reshape(tc, rows_64_5) "
    "[classes2] hc2 = Conv(r2, kc) tc2 = Transpose<perm=[0,2,3,1]>(hc2) fc2 = Reshape(tc2, rows_16_5) "
    "j = Concat<axis=1>(fc, fc2) c = Softmax<axis=2>(j) "
    "d = Mul(l, variances) xy = Slice(d, p0, p2, ax) wh = Slice(d, p2, p4, ax) "
    "[centres] xp = Mul(xy, prior_sizes) cxy = Add(xp, prior_centres) e = Exp(wh) [sizes] z = Mul(e, prior_sizes) "
    "hz = Mul(z, half) lo = Sub(cxy, hz) hi = Add(cxy, hz) b = Concat<axis=2>(lo, hi) "
)
HEADS = {
    "ssd: priors and exp of sizes, boxes beside scores": (
        SSD,
        "float[1,80,4] b, float[1,80,5] c",
        {"boxes", "boxes2", "centres", "sizes"},
    ),
    "ssd: boxes and scores joined": (
        f"{SSD} y = Concat<axis=2>(b, c)",
        "float[1,80,9] y",
        {"boxes", "boxes2", "classes", "classes2", "centres", "sizes"},
    ),
    "yolo v5: one layer, sigmoid, grid, anchors": (
        f"{STEM}{ROWS} g = Sigmoid(t) xy = Slice(g, p0, p2, ax) wh = Slice(g, p2, p4, ax) c = Slice(g, p4, p9, ax) "
        "a = Add(xy, grid) b = Mul(a, stride) q = Mul(wh, two) z = Mul(q, q) y = Concat<axis=2>(b, z, c)",
        "float[1,64,9] y",
        {"head"},
    ),
    "yolo x: exp of sizes, no sigmoid": (
        f"{STEM}{ROWS} xy = Slice(t, p0, p2, ax) wh = Slice(t, p2, p4, ax) c = Slice(t, p4, p9, ax) "
        "a = Add(xy, grid) e = Exp(wh) z = Mul(e, stride) y = Concat<axis=2>(a, z, c)",
        "float[1,64,9] y",
        {"head"},
    ),
    "yolo v8: mean of bins, distances to centres": (
        f"{STEM} [boxes] hb = Conv(r, kd) fb = Reshape(hb, rows) tb = Transpose<perm=[0,2,1,3]>(fb) "
        "sb = Softmax<axis=1>(tb) [mean] m = Conv(sb, bins) mb = Reshape(m, four_rows) lt = Slice(mb, p0, p2, ax1) "
        "rb = Slice(mb, p2, p4, ax1) u = Sub(centres, lt) v = Add(rb, centres) b = Concat<axis=1>(u, v) "
        "[classes] hc = Conv(r, kc) fc = Reshape(hc, five_rows) c = Sigmoid(fc) y = Concat<axis=1>(b, c)",
        "float[1,9,64] y",
        {"boxes", "mean", "classes"},
    ),
    "scores times objectness": (
        f"{STEM}{ROWS} g = Sigmoid(t) o = Slice(g, p4, p5, ax) c = Slice(g, p5, p9, ax) y = Mul(o, c)",
        "float[1,64,4] y",
        {"head"},
    ),
    "boxes suppressed in the graph": (
        f"{STEM}{BOTH} tb = Transpose<perm=[0,2,1]>(fb) c = Sigmoid(fc) "
        "n = NonMaxSuppression(tb, c, most, iou, floor) y = Cast<to=1>(n)",
        "float[K,3] y",
        {"boxes", "classes"},
    ),
}


def head(name: str) -> onnx.ModelProto:
    body, outputs, _ = HEADS[name]
    return make_model(f"(float[1,3,8,8] x) => ({outputs}) {{ {body} }}", WEIGHTS)


@pytest.mark.parametrize("name", HEADS)
@each("target", ["onnxruntime_cpu", "openvino", "tensorrt"])
def test_heads_are_told_and_left_in_float(name: str, target: str) -> None:
    plan_log = PlanLog()
    prepared, plan = plan_for(head(name), config(preset="int8_symmetric", target=target), plan_log)
    found = detection_heads(prepared.graph)
    assert HEADS[name][2] <= {node.name for node in found}
    assert plan.nodes["stem"].quantized
    for node in found:
        assert plan.nodes[node.name or ""].quantized is (target == "tensorrt" and node.op_type == "Conv")
    codes = {entry.reason.code for entry in plan.nodes.values() if entry.reason is not None}
    if any(decision.rule == "float_heads" for decision in plan_log.decisions):
        assert codes & {"detection-head", "makes-scores", "scores-beside-others"}


def test_targets_of_whole_networks_tell_it() -> None:
    for target, preset in (("qnn", "plain"), ("amd_npu_cnn", "xint8")):
        plan_log = PlanLog()
        _, plan = plan_for(head("yolo x: exp of sizes, no sigmoid"), config(preset=preset, target=target), plan_log)
        assert plan.nodes["head"].quantized
        assert any("detection head" in note and "exclude" in note for note in plan_log.notes)


OTHERS = {
    "classifier": "p = GlobalAveragePool(r) f = Flatten(p) m = MatMul(f, d) b = Add(m, v) y = Softmax(b)",
    "segmentation": "h = Conv(r, kc) u = Softmax<axis=1>(h) y = Identity(u)",
    "softmax written out": "h = Conv(r, kc) e = Exp(h) t = ReduceSum(e, ax1) y = Div(e, t)",
    "picture": "h = Conv(r, kc) u = Mul(h, scales) y = Add(u, offsets)",
    "gate before a layer": "g = Sigmoid(r) m = Mul(r, g) a = Mul(g, m) y = Conv(a, kc)",
    "positions before a layer": "g = Sigmoid(r) a = Add(g, places) y = Conv(a, kc)",
    "log probabilities": "h = Conv(r, kc) u = Sigmoid(h) y = Log(u)",
}
OF_OTHERS = {
    **WEIGHTS, "d": normal(8, 5), "v": normal(5), "scales": normal(1, 5, 1, 1), "offsets": normal(1, 5, 1, 1),
    "places": normal(1, 1, 8, 8),
}  # fmt: skip


def test_scores_and_boxes_that_leave_by_themselves_are_results_like_others() -> None:
    body = f"{STEM}{BOTH} b = Transpose<perm=[0,2,1]>(fb) tc = Transpose<perm=[0,2,1]>(fc) c = Sigmoid(tc)"
    model = make_model(f"(float[1,3,8,8] x) => (float[1,64,4] b, float[1,64,5] c) {{ {body} }}", WEIGHTS)
    prepared, plan = plan_for(model)
    assert not detection_heads(prepared.graph)
    assert plan.nodes["boxes"].quantized and not plan.nodes["classes"].quantized
    # the scores of an SSD are made in integers
    prepared, plan = plan_for(head("ssd: priors and exp of sizes, boxes beside scores"), config(target="openvino"))
    assert not {node.name for node in detection_heads(prepared.graph)} & {"stem", "down", "classes", "classes2"}
    assert all(plan.nodes[name].quantized for name in ("down", "classes", "classes2"))


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_left_alone(name: str) -> None:
    shape = "float[1,5]" if name == "classifier" else "float[1,5,8,8]"
    model = make_model(f"(float[1,3,8,8] x) => ({shape} y) {{ {STEM} {OTHERS[name]} }}", OF_OTHERS)
    assert not detection_heads(plan_for(model)[0].graph)


ONES = {"e": np.float32(1e-5), "two": np.float32(2), "one": np.float32(1), "beta": np.float32(1.7)}
W = {"w": normal(8, 8, scale=0.4), "v": normal(8, 8, seed=1, scale=0.4), "g": normal(8, seed=2) + 2}
RMS = {
    "torch": "q = Pow(r, two) m = ReduceMean<axes=[-1]>(q) s = Add(m, e) t = Sqrt(s) i = Div(one, t) n = Mul(r, i)",
    "reciprocal": "q = Mul(r, r) m = ReduceMean<axes=[-1]>(q) s = Add(e, m) t = Sqrt(s) i = Reciprocal(t) "
    "n = Mul(i, r)",
    "divided": "q = Mul(r, r) m = ReduceMean<axes=[-1]>(q) s = Add(m, e) t = Sqrt(s) n = Div(r, t)",
}
BY_HALVES = (
    "a = Slice(r, zero, four, last) b = Slice(r, four, eight, last) n = Neg(b) o = Concat<axis=-1>(n, a) "
    "p = Mul(r, cos) s = Mul(o, sin) t = Add(p, s)"
)
BY_PAIRS = (
    "a = Slice(r, zero, four, last) b = Slice(r, four, eight, last) ac = Mul(a, c4) bs = Mul(b, s4) u = Sub(ac, bs) "
    "as = Mul(a, s4) bc = Mul(b, c4) w2 = Add(as, bc) t = Concat<axis=-1>(u, w2)"
)
INDICES = {"zero": np.array([0]), "four": np.array([4]), "eight": np.array([8]), "last": np.array([-1])}


def between_products(body: str, made: str) -> str:
    return f"(float[N,5,8] x) => (float[N,5,8] y) {{ [first] r = MatMul(x, w) {body} [second] y = MatMul({made}, v) }}"


SEQUENCES = {"x": normal(16, 5, 8, seed=3)}


def near(
    model: onnx.ModelProto, feeds: Arrays = SEQUENCES, least: float = 30, **settings: Any
) -> tuple[Prepared, QuantizationPlan, set[str]]:
    """Quantized, and near the float model: what was prepared, the plan, and the tensors that a QuantizeLinear reads."""
    prepared, plan, emitted = quantize_model(model, feeds, config(**settings))
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(emitted, feeds)["y"]) > least
    return prepared, plan, {node.input[0] for node in emitted.graph.node if node.op_type == "QuantizeLinear"}


@pytest.mark.parametrize(
    ("spelling", "target"),
    [
        ("torch", "onnxruntime_cpu"),
        ("reciprocal", "onnxruntime_cpu"),
        ("divided", "onnxruntime_gpu"),
        ("torch", "openvino"),
        ("reciprocal", "tensorrt"),
    ],
)
def test_rms_norm(spelling: str, target: str) -> None:
    model = make_model(between_products(f"{RMS[spelling]} z = Mul(n, g)", "z"), {**W, **ONES})
    prepared, plan, pairs = near(model, preset="int8_symmetric", target=target)
    assert [found.name for found in written_functions(prepared.graph)] == ["RMSNorm"]
    assert pairs & {"q", "m", "s", "t", "i", "n", "z"} == {"z"}
    square = next(node for node in prepared.graph if node.outputs[0].name == "q")
    if spelling == "reciprocal":
        assert plan.nodes[square.name or ""].reason == PART_OF_FUNCTION(function="RMSNorm")
        _, plan, _ = quantize_model(model, SEQUENCES, config(target=target, target_options={"float_functions": False}))
        assert not any(entry.reason and entry.reason.code == "part-of-function" for entry in plan.nodes.values())


@pytest.mark.parametrize(("body", "tables", "width"), [(BY_HALVES, ("cos", "sin"), 8), (BY_PAIRS, ("c4", "s4"), 4)])
def test_rotary_embedding(body: str, tables: tuple[str, str], width: int) -> None:
    inputs = "float[N,5,8] x, " + ", ".join(f"float[N,5,{width}] {name}" for name in tables)
    model = make_model(between_products(body, "t").replace("float[N,5,8] x", inputs), {**W, **INDICES})
    angles = np.outer(np.arange(5), 0.5 ** np.arange(width)) + np.zeros((16, 1, 1))
    turns = {tables[0]: np.cos(angles).astype(np.float32), tables[1]: np.sin(angles).astype(np.float32)}
    prepared, _, pairs = near(model, {**SEQUENCES, **turns})
    assert [found.name for found in written_functions(prepared.graph)] == ["rotary embedding"]
    assert not pairs & {"p", "s", "o", "n", "ac", "bs", "as", "bc", *tables}


@pytest.mark.parametrize("body", ["s = Sigmoid(r) z = Mul(r, s)", "k = Mul(r, beta) s = Sigmoid(k) z = Mul(s, r)"])
def test_silu_has_no_pair_inside(body: str) -> None:
    model = make_model(between_products(body, "z"), {**W, **ONES})
    for target in ("onnxruntime_gpu", "openvino", "tensorrt"):
        assert near(model, preset="int8_symmetric", target=target)[2] & {"k", "s", "z"} == {"z"}
    if "beta" not in body:  # operators that all have integer kernels are left to them
        assert near(model)[2] >= {"s", "z"}


def test_gelu_and_layer_norm_where_the_opset_has_none() -> None:
    gelu = "d = Div(r, root) f = Erf(d) h = Add(f, one) k = Mul(h, half) z = Mul(r, k)"
    norm = (
        "m = ReduceMean<axes=[-1]>(z) d2 = Sub(z, m) q = Mul(d2, d2) vv = ReduceMean<axes=[-1]>(q) s = Add(vv, e) "
        "t = Sqrt(s) n = Div(d2, t)"
    )
    weights = {**W, **ONES, "root": np.float32(2**0.5), "half": np.float32(0.5)}
    model = make_model(between_products(f"{gelu} {norm}", "n"), weights, opset=13)
    prepared, _ = prepare_with(model, opset=13)
    assert [found.name for found in written_functions(prepared.graph)] == ["GELU", "LayerNorm"]
    near(model, least=25, preparation={"opset": 13}, weight={"granularity": "per_tensor"})
