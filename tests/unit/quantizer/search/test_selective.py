"""Selective precision: each error against brute force, what is raised where something was planted, and its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.algorithms import SelectivePrecision
from service.contracts.config import parse_config
from service.contracts.report import AlgorithmFigures
from tests.unit.quantizer.search.benches import chain_of_convolutions, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, run_onnx, sqnr_db
from worker.quantizer.pipeline import Result
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.search.selective import (
    OutputErrors,
    Raise,
    SelectivePrecisionStep,
    best_by_the_byte,
    output_errors,
    smallest_set,
    stored_bytes,
)

STEP = {"method": "selective_precision"}
QUICK = {"evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}}
TOKENS = 400
# of CPUs on which products of 8 bits saturate
SEVEN_BITS = {"x86_without_vnni": True}


def quantized(tmp_path: Path, model: onnx.ModelProto, data: dict[str, np.ndarray], **settings: Any) -> Result:
    found = parse_config({"preset": "plain", "algorithms": [STEP], **QUICK, **settings})
    return quantize_file(tmp_path, model, data, found)


def outcome(result: Result) -> AlgorithmFigures:
    return next(one for one in result.report.algorithms if one.method == "selective_precision")


def in_float(result: Result) -> set[str]:
    return {layer.name for layer in result.report.layers if layer.reason_code == "most-error-for-its-bytes"}


def error_db(model: onnx.ModelProto, result: Result, feeds: dict[str, np.ndarray]) -> float:
    return sqnr_db(run_onnx(model, feeds)["y"], run_onnx(result.model, feeds)["y"])


def residual_stream() -> onnx.ModelProto:
    """A normalized tensor that a layer rounds and an addition in float reads as it is."""
    weights = {"g": np.ones(6, np.float32), "b": np.zeros(6, np.float32), "w": normal(6, 6), "k": normal(6, 5, seed=1)}
    return make_model(
        "(float[N,4,6] x) => (float[N,4,5] y) { [norm] n = LayerNormalization<axis=-1>(x, g, b) [mix] m = MatMul(n, w) "
        "[gate] t = Tanh(m) [add] s = Add(n, t) [norm2] z = LayerNormalization<axis=-1>(s, g, b) "
        "[out] y = MatMul(z, k) }",
        weights,
    )


def test_errors_are_those_of_the_network_with_one_tensor_rounded_for_those_that_round_it() -> None:
    model, x = residual_stream(), normal(48, 4, 6)
    draft, toolkit = toolkit_for(model, x=x)
    found = output_errors(draft, toolkit, samples=8)
    feeds = {"x": x[toolkit.learning(8)]}
    expected = run_onnx(model, feeds)["y"].astype(np.float64)

    def measured(proto: onnx.ModelProto) -> float:
        got = run_onnx(proto, feeds, optimized=False)["y"]
        return float(((got - expected) ** 2).sum() / (expected**2).sum())

    prepared = ir.to_proto(draft.prepared.model)
    for (kind, name), noise in found.of.items():
        proto = onnx.ModelProto()
        proto.CopyFrom(prepared)
        if kind == "weight":
            tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
            rounded = Parameters(draft.graph, draft.plan).weight(name).present
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, name))
        else:
            grid = draft.plan.activations[name].quantization
            scale, zero = np.float32(grid.scale), np.uint8(grid.zero_point)
            proto.graph.initializer.extend(
                onnx.numpy_helper.from_array(np.asarray(value), word) for value, word in ((scale, "s_"), (zero, "z_"))
            )
            reader = next(
                k for k, node in enumerate(proto.graph.node) if node.op_type == "MatMul" and name in node.input
            )
            proto.graph.node[reader].input[0] = "rounded_"
            made = (("QuantizeLinear", [name, "s_", "z_"], "q_"), ("DequantizeLinear", ["q_", "s_", "z_"], "rounded_"))
            for place, (op_type, inputs, output) in enumerate(made):
                proto.graph.node.insert(reader + place, onnx.helper.make_node(op_type, inputs, [output]))
        assert noise["y"] == pytest.approx(measured(proto), rel=1e-3), name
    assert {kind for kind, _ in found.of} == {"weight", "activation"}
    assert ("activation", "n") in found.of  # the stream itself goes on unrounded
    together = measured(onnx.load_from_string(draft.emitted_bytes()))
    assert found.total["y"] >= together * 0.999


def dead_input(layers: int = 4) -> onnx.ModelProto:
    """A small depthwise weight whose grids one tap on a place without signal sets, among large layers."""
    weight = normal(6, 1, 3, 3, seed=5, scale=0.3)
    weight[:, 0, 0, 0] = 120.0
    weights, text, source = {"first": weight}, "[first] d = Conv<group=6>(x, first) [act] e = Relu(d) ", "e"
    for k in range(layers):
        weights[f"w{k}"] = normal(24, 6 if k == 0 else 24, 3, 3, seed=k, scale=0.1)
        text += f"[conv{k}] c{k} = Conv<pads=[1,1,1,1]>({source}, w{k}) [relu{k}] r{k} = Relu(c{k}) "
        source = f"r{k}"
    weights["k"] = normal(24, 5, seed=99, scale=0.4)
    text += f"[pool] p = GlobalAveragePool({source}) [flat] f = Flatten(p) [dense] y = MatMul(f, k)"
    return make_model(f"(float[N,6,3,3] x) => (float[N,5] y) {{ {text} }}", weights)


def without_signal() -> dict[str, np.ndarray]:
    x = normal(48, 6, 3, 3, seed=3)
    x[:, :, 0, 0] = 0.0
    return {"x": x}


@pytest.mark.parametrize("mode", ["static", "weights_only", "dynamic"])
def test_a_small_weight_that_costs_most_returns_to_float(tmp_path: Path, mode: str) -> None:
    model, data = dead_input(), without_signal()
    settings = {"mode": mode, "weight": {"granularity": "per_channel", "reduce_range": True}}
    before = quantized(tmp_path, model, data, algorithms=[], **settings)
    after = quantized(tmp_path, model, data, **settings)
    figures = outcome(after)
    assert figures.kept and in_float(after) == {"first"}
    assert "1 node in float (first)" in figures.summary and "bytes of weights" in figures.summary
    assert figures.after.sqnr_db > figures.before.sqnr_db + 6
    feeds = {"x": data["x"]}
    assert error_db(model, after, feeds) > error_db(model, before, feeds) + 6
    grown = after.report.quantized.size_bytes - before.report.quantized.size_bytes
    assert grown < 54 * 4


def test_where_weights_alone_are_quantized_random_inputs_will_do(tmp_path: Path) -> None:
    settings = parse_config({"preset": "int8_weights", **QUICK})
    result = quantize_file(tmp_path, chain_of_convolutions(outlier=2), None, settings)
    assert outcome(result).before is not None or outcome(result).reason_code == "nothing-pays"


def attention() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Attention over many keys, uniform but for few queries, which set the range of the probabilities."""
    weights = {name: normal(16, 16, seed=k, scale=0.25) for k, name in enumerate(["wq", "wv", "wo"])}
    weights |= {"wk": weights["wq"], "s": np.float32(0.25)}
    model = make_model(
        f"(float[N,{TOKENS},16] x) => (float[N,{TOKENS},16] y) {{ [q] q = MatMul(x, wq) [k] k = MatMul(x, wk) "
        "[v] v = MatMul(x, wv) [t] kt = Transpose<perm=[0,2,1]>(k) [qk] a = MatMul(q, kt) [scale] b = Mul(a, s) "
        "[soft] p = Softmax<axis=-1>(b) [pv] o = MatMul(p, v) [out] y = MatMul(o, wo) }",
        weights,
    )
    x = normal(24, TOKENS, 16, scale=0.3)
    x[:, 0] *= 20.0
    x[:, 1:, 0] += 1.0
    return model, {"x": x}


def test_probabilities_times_values_are_left_in_float_where_they_round_to_nothing(tmp_path: Path) -> None:
    model, data = attention()
    result = quantized(tmp_path, model, data, preset="int8", algorithms=[STEP], target_options=SEVEN_BITS)
    assert outcome(result).kept and "pv" in in_float(result) <= {"pv", "qk"}
    assert outcome(result).after.sqnr_db > outcome(result).before.sqnr_db + 1.5


def wide_logits() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A head of probabilities per position, one of whose logits spans far more than the others differ by."""
    weights = {"w": normal(96, 8, 1, 3, seed=1, scale=0.2), "v": normal(96, 96, 1, 3, seed=2, scale=0.06)}
    weights["head"] = normal(8, 96, 1, 1, seed=3, scale=0.3)
    weights["other"] = normal(8, 96, 1, 1, seed=4, scale=0.3)
    weights["b"] = np.zeros(8, np.float32)
    weights["head"][0] *= 40.0
    weights["b"][0] = -60.0
    model = make_model(
        "(float[N,8,1,20] x) => (float[N,20,8] y) { [a] c = Conv<pads=[0,1,0,1]>(x, w) [r] d = Relu(c) "
        "[b] e = Conv<pads=[0,1,0,1]>(d, v) [s] f = Relu(e) [one] g1 = Conv(f, head, b) [other] g2 = Conv(f, other) "
        "[add] g = Add(g1, g2) [squeeze] h = Squeeze(g, two) "
        "[turn] i = Transpose<perm=[0,2,1]>(h) [soft] y = Softmax<axis=-1>(i) }",
        {**weights, "two": np.array([2])},
    )
    return model, {"x": normal(48, 8, 1, 20)}


def test_wide_logits_in_front_of_a_softmax_are_left_in_float(tmp_path: Path) -> None:
    model, data = wide_logits()
    step = {**STEP, "max_weight_growth": 0.1}
    result = quantized(tmp_path, model, data, preset="int8", algorithms=[step], target_options=SEVEN_BITS)
    assert outcome(result).kept and in_float(result) == {"one"}
    assert outcome(result).after.sqnr_db > outcome(result).before.sqnr_db + 3
    assert {layer.name for layer in result.report.layers if layer.reason} >= {"squeeze", "turn"}  # what follows


def test_weights_of_four_bits_get_eight(tmp_path: Path) -> None:
    weight = {"dtype": "int4", "granularity": "per_channel"}
    result = quantized(tmp_path, dead_input(), without_signal(), weight=weight)
    dtypes = {layer.name: layer.weight_dtype for layer in result.report.layers}
    assert outcome(result).kept and "with weights of 8 bits (first" in outcome(result).summary
    assert dtypes["first"] == "int8" and dtypes["conv3"] == "int4"


def test_nothing_is_raised_where_nothing_pays_or_nothing_may_be() -> None:
    settings = config(target_options=SEVEN_BITS)
    draft, toolkit = toolkit_for(chain_of_convolutions(), settings)
    found = SelectivePrecisionStep(SelectivePrecision(max_weight_growth=0.03)).apply(draft, toolkit)
    assert found.draft is None and found.reason.code == "nothing-pays"
    draft, toolkit = toolkit_for(chain_of_convolutions(), config(target="amd_npu_cnn"))
    found = SelectivePrecisionStep(SelectivePrecision(max_weight_growth=8.0)).apply(draft, toolkit)
    assert found.draft is None and found.reason.code == "whole-target"


def one(name: str, size_bytes: float, work: int = 0) -> Raise:
    return Raise(frozenset({name}), frozenset(), frozenset({("weight", name)}), size_bytes, work)


def test_the_smallest_set_within_the_budget() -> None:
    noise = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1, "e": 1e-4}
    errors = OutputErrors({("weight", name): {"y": value} for name, value in noise.items()}, {"y": sum(noise.values())})

    def chosen(candidates: list[Raise], most_bytes: float = 100.0, most_work: int = 100) -> set[str]:
        found = smallest_set(candidates, errors, most_bytes=most_bytes, most_multiply_adds=most_work, worth_db=1.0)
        return {name for raised in found for name in raised.nodes}

    assert chosen([one("a", 200), one("b", 90), one("c", 20)]) == {
        "c"
    }  # dearest by byte first; b does not fit beside it
    assert chosen([one("a", 200), one("b", 90), one("c", 10)]) == {"b", "c"}
    assert chosen([one("a", 0, 60), one("b", 0, 60)]) == {"a"}
    assert chosen([one("e", 1)]) == set()  # too little of the error
    assert chosen([one("a", 1), one("b", 1), one("c", 1), one("d", 1)]) == {"a", "b", "c", "d"}
    assert chosen([]) == set()
    # behind one that holds nearly all, others count by what is left: two decibels are worth their bytes
    loud = OutputErrors({("weight", name): {"y": noise} for name, noise in (("a", 0.9), ("b", 0.04))}, {"y": 0.99})
    found = smallest_set([one("a", 1), one("b", 1)], loud, most_bytes=100.0, most_multiply_adds=100, worth_db=1.0)
    assert len(found) == 2
    # more bits are worth what the budget buys
    bought = best_by_the_byte([one("a", 90), one("b", 20), one("c", 70), one("d", 10)], errors, most_bytes=100.0)
    assert {name for raised in bought for name in raised.nodes} == {"b", "d", "c"}


def test_bytes_bring_what_as_many_bytes_for_all_weights_would() -> None:
    noise = {"a": 0.6, "b": 0.3, "c": 0.1}
    errors = OutputErrors({("weight", name): {"y": value} for name, value in noise.items()}, {"y": 1.0})
    candidates = [one("a", 10), one("b", 10), one("c", 40)]
    # the first gain 10 log10 of 1 / 0.4, 1 / 0.1 and 1 / 0.01 dB, where 1 % of the error stays
    for least, count in ((0.24, 3), (0.26, 2), (0.49, 2), (0.51, 0)):
        found = best_by_the_byte(candidates, errors, most_bytes=100.0, least_db_per_byte=least)
        assert len(found) == count, least


def test_a_limit_in_bytes_is_filled_and_kept() -> None:
    settings = config(weight={"dtype": "int4", "granularity": "per_channel"})
    draft, toolkit = toolkit_for(chain_of_convolutions(), settings)

    def weight_bytes(plan: QuantizationPlan) -> float:
        values = {name: int(np.prod(entry.integers.shape)) for name, entry in plan.weights.items()}
        return sum(stored_bytes(entry, values[name]) for name, entry in plan.weights.items())

    least = weight_bytes(draft.plan)
    reached = []
    for limit in (least, 1.4 * least, 1.6 * least, 2.5 * least):
        spec = SelectivePrecision(max_weight_bytes=int(limit), min_gain_db=0.0)
        made = SelectivePrecisionStep(spec).apply(draft, toolkit).draft
        reached.append(least if made is None else weight_bytes(made.plan))
        assert reached[-1] <= limit
    assert reached[0] == least and reached == sorted(set(reached))
