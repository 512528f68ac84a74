"""Scales of functions that stand for others: the network computes what it did, but for the function itself."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from tests.support.each import each
from tests.unit.quantizer.toolbox import config, make_model, normal, plan_for, prepare_proto, run_onnx, sqnr_db
from worker.quantizer.equalization.channel_groups import follow
from worker.quantizer.equalization.channel_scaling import scale_layers
from worker.quantizer.equalization.stand_ins import Scales, fitted_scales
from worker.quantizer.layerwise.models import restore_functions
from worker.quantizer.statistics.sampling import SampledValues

WEIGHTS = {
    "w": normal(4, 3, 3, 3, scale=0.4), "b": normal(4), "w2": normal(4, 4, 3, 3, scale=0.3), "b2": normal(4),
    "w3": normal(2, 4, 1, 1), "w4": normal(2, 8, 1, 1), "first": normal(4, 3, 3, 3, seed=2),
    "six": np.array(6, np.float32), "zero": np.array(0, np.float32),
}  # fmt: skip
FEEDS = {"x": normal(16, 3, 9, 9)}
GATE = "[gate] s = Sigmoid(t) m = Mul(t, s)"
HEAD = "(float[N,3,9,9] x) => (float[N,2,p,q] y)"
TEXTS = {
    "SiLU": f"{HEAD} {{ t = Conv(x, w, b) {GATE} y = Conv(m, w3) }}",
    "SiLU behind SiLU": (
        f"{HEAD} {{ t = Conv(x, w, b) {GATE} u = Conv<pads=[1,1,1,1]>(m, w2, b2) [next] v = Sigmoid(u) n = Mul(v, u) "
        "y = Conv(n, w3) }"
    ),
    "shortcut": (
        f"{HEAD} {{ t = Conv(x, w, b) {GATE} u = Conv<pads=[1,1,1,1]>(m, w2, b2) [next] v = Sigmoid(u) n = Mul(v, u) "
        "a = Add(n, m) y = Conv(a, w3) }"
    ),
    "joined": (
        f"{HEAD} {{ t = Conv(x, w, b) {GATE} p = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(m) "
        "c = Concat<axis=1>(m, p) y = Conv(c, w4) }"
    ),
    "gate of another tensor": (
        f"{HEAD} {{ t = Conv(x, w, b) [gate] s = Sigmoid(t) u = Conv(x, first) m = Mul(u, s) y = Conv(m, w3) }}"
    ),
}


def fitted(text: str) -> tuple[onnx.ModelProto, onnx.ModelProto, onnx.ModelProto, Scales]:
    """The float model, that of the target, and that with fitted scales; and these."""
    proto = make_model(text, WEIGHTS)
    exact = prepare_proto(proto)[1]
    prepared, _ = plan_for(proto, config(target="amd_npu_cnn"))
    before = ir.to_proto(prepared.model)
    flow = follow(prepared.graph, gates=prepared.facts.stand_ins)
    reads = {read for read, _ in flow.gates.values()}
    told = onnx.ModelProto.FromString(exact.SerializeToString())
    told.graph.output.extend(onnx.helper.make_tensor_value_info(read, 1, None) for read in reads)
    seen = {}
    for read, values in run_onnx(told, FEEDS).items():
        if read in reads:
            observer = SampledValues(1 << 12, 16)
            observer.update(values, 16)
            seen[read] = observer.result()
    scales = fitted_scales(flow, seen)
    scale_layers(prepared.graph, flow, scales.factors)
    return exact, before, ir.to_proto(prepared.model), scales


@each(("name",), [(name,) for name in TEXTS])
def test_outputs_come_closer_and_with_the_functions_of_the_float_model_they_are_its_own(name: str) -> None:
    exact, before, after, scales = fitted(TEXTS[name])
    wanted, was, found = (run_onnx(model, FEEDS)["y"] for model in (exact, before, after))
    assert sqnr_db(wanted, found) > sqnr_db(wanted, was) + 1.0
    assert scales.moved and all(1.0 < scale <= 2.0 for scale in scales.moved)
    restore_functions(after.graph, scales.stand_ins)
    np.testing.assert_allclose(run_onnx(after, FEEDS)["y"], wanted, rtol=2e-3, atol=2e-3)


@each(
    ("text",),
    [
        (f"(float[N,3,9,9] x) => (float[N,4,7,7] m) {{ t = Conv(x, w, b) {GATE} }}",),  # an output of the network
        (f"{HEAD} {{ t = Conv(x, w, b) {GATE} e = Exp(m) y = Conv(e, w3) }}",),  # what is read as it is
        (f"{HEAD} {{ c = Conv(x, w, b) t = Clip(c, zero, six) {GATE} y = Conv(m, w3) }}",),  # what has a limit
    ],
)
def test_what_has_to_keep_its_scale_keeps_it(text: str) -> None:
    assert not fitted(text)[3].moved
