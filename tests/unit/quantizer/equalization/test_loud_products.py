"""Loud channels under ranges of run time: smoothed from data or from norms, and what stays loud read as floats."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
import pytest

from service.contracts.algorithms import SmoothQuant
from tests.unit.quantizer.equalization.benches import Bench, emitted, gain_db
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types
from worker.quantizer.data import ArrayDataset
from worker.quantizer.equalization.loud_products import INPUT_STAYS_LOUD, loudness
from worker.quantizer.refine.step import StepResult

WIDTH, HIDDEN = 8, 12
DYNAMIC = config(preset="int8_dynamic")
NORM = (
    "{0}s = Mul({0}, {0}) {0}m = ReduceMean<axes=[2]>({0}s) {0}e = Add({0}m, epsilon) {0}r = Sqrt({0}e) "
    "{0}u = Div({0}, {0}r) {0}n = Mul({0}u, {1}) "
)
# grouped queries, of one key head to two; and a gated network
LAYER = (
    "(float[N,6,8] x) => (float[N,6,8] y) {" + NORM.format("x", "gain1") + "[q] q0 = MatMul(xn, wq) "
    "q1 = Reshape(q0, split) q2 = Transpose<perm=[0,2,1,3]>(q1) [k] k0 = MatMul(xn, wk) k1 = Reshape(k0, split) "
    "k2 = Transpose<perm=[0,2,3,1]>(k1) [v] v0 = MatMul(xn, wv) v1 = Reshape(v0, single) v2 = Expand(v1, twice) "
    "v3 = Transpose<perm=[0,2,1,3]>(v2) a = MatMul(q2, k2) p = Softmax<axis=-1>(a) o0 = MatMul(p, v3) "
    "o1 = Transpose<perm=[0,2,1,3]>(o0) o2 = Reshape(o1, merge) [o] o3 = MatMul(o2, wo) h = Add(x, o3) "
    + NORM.format("h", "gain2")
    + "[gate] g = MatMul(hn, wg) t = Sigmoid(g) c = Mul(g, t) [up] u = MatMul(hn, wu) d = Mul(c, u) "
    "[down] b = MatMul(d, wd) y = Add(h, b) }"
)
SHAPES = {"wq": (8, 8), "wk": (8, 8), "wv": (8, 4), "wo": (8, 8), "wg": (8, 12), "wu": (8, 12), "wd": (12, 8)}
CONSTANTS = {
    "epsilon": np.array(1e-6, np.float32), "split": np.array([0, 0, 2, 4], np.int64),
    "single": np.array([0, 0, 1, 4], np.int64), "twice": np.array([1, 1, 2, 1], np.int64),
    "merge": np.array([0, 0, 8], np.int64), "gain1": np.ones(WIDTH, np.float32), "gain2": np.ones(WIDTH, np.float32),
}  # fmt: skip
EVEN = {name: normal(*shape, seed=seed) / 3 for seed, (name, shape) in enumerate(SHAPES.items())}
PLANTED = ("norms", "values", "up")


def weights(*planted: str) -> dict[str, np.ndarray]:
    """Weights that all compute the same, with a channel 60 times as large where it is ``planted``."""
    made = {name: array.copy() for name, array in {**EVEN, **CONSTANTS}.items()}
    if "norms" in planted:
        for gain, readers in (("gain1", ("wq", "wk", "wv")), ("gain2", ("wg", "wu"))):
            made[gain][3] *= 60
            for name in readers:
                made[name][3] /= 60
    if "values" in planted:
        made["wv"][:, 1] *= 60
        made["wo"][[1, 5]] /= 60
    if "up" in planted:
        made["wu"][:, 7] *= 60
        made["wd"][7] /= 60
    return made


def feeds() -> dict[str, np.ndarray]:
    return {"x": normal(40, 6, WIDTH, seed=8)}


def bench(model: onnx.ModelProto, data: Mapping[str, np.ndarray], **options: object) -> Bench:
    return Bench(model, dict(data), SmoothQuant(**{"insert_mul": False, **options}), DYNAMIC)


def applied(it: Bench) -> StepResult:
    found = it.apply()
    assert found.draft is not None, found.summary
    return found


@pytest.mark.parametrize("where", [*PLANTED, "all"])
def test_loud_channels_are_smoothed_and_the_float_network_stays(where: str) -> None:
    it = bench(make_model(LAYER, weights(*(PLANTED if where == "all" else (where,)))), feeds())
    change = applied(it)
    assert gain_db(it, change.draft) > 4
    assert op_types(it.model) == [node.op_type for node in change.draft.graph]
    assert op_types(emitted(change.draft)).count("MatMulInteger") == 7


class _Random(ArrayDataset):
    is_random = True


def test_without_data_the_factors_of_the_norms_tell() -> None:
    it = bench(make_model(LAYER, weights("norms")), feeds())
    silent = replace(it.toolkit.case, calibration=_Random({"x": np.zeros((40, 6, WIDTH), np.float32)}))
    it.toolkit = replace(it.toolkit, case=silent)
    change = applied(it)
    assert gain_db(it, change.draft) > 4
    assert "2 of 4 tensors smoothed" in change.summary


FOUR = (
    "(float[N,6,8] x) => (float[N,6,8] y) { t = Tanh(x) l = Mul(t, factors) a = MatMul(l, wq) b = Tanh(a) "
    "c = MatMul(b, wk) d = Tanh(c) e = MatMul(d, wo) f = Tanh(e) [last] g = MatMul(f, wq2) k = Sin(l) "
    "s = Add(g, k) y = Add(s, x) }"
)


def _four(factor: float) -> onnx.ModelProto:
    factors = np.ones(WIDTH, np.float32)
    factors[2] = factor
    first = EVEN["wq"].copy()
    first[2] /= factor
    return make_model(
        FOUR, {"factors": factors, "wq": first, "wk": EVEN["wk"], "wo": EVEN["wo"], "wq2": normal(8, 8, seed=30)}
    )


def test_what_cannot_be_smoothed_and_stays_loud_reads_floats_and_keeps_its_small_weight() -> None:
    it = bench(_four(100.0), feeds())
    change = applied(it)
    model = emitted(change.draft)
    assert op_types(model).count("MatMulInteger") == 3
    assert not [one.name for one in model.graph.initializer if one.name == "wq"]  # it is stored as integers
    assert gain_db(it, change.draft) > 1
    reasons = [entry.activation_reason for entry in change.draft.plan.nodes.values() if entry.activation_reason]
    assert reasons == [INPUT_STAYS_LOUD()]
    assert bench(_four(100.0), feeds(), loud_in_float=False).apply().draft is None


def test_where_nothing_is_loud_nothing_is_tried() -> None:
    change = bench(_four(1.0), feeds()).apply()
    assert change.draft is None and "compute in float" not in change.summary


def test_loudness_is_the_largest_channel_over_the_median_of_those_that_are_heard() -> None:
    low, high = np.array([-1.0, 0, -3, 0, 0]), np.array([0.5, 2, 3, 0, 40])
    assert loudness(low, high) == 40 / 2.5
    assert loudness(low, high, np.array([1.0, 1, 1, 1, 10])) == 4 / 2.5
    assert loudness(np.zeros(3), np.zeros(3)) == 1.0
