"""Weights inside If, Loop and Scan: stored in integers, restored where they are read, and nothing else touched."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from service.contracts.errors import InvalidConfigError
from tests.support.each import each
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, plan_for, quantize_file, run_onnx, sqnr_db
from worker.quantizer.modes.planning import inspect_nodes
from worker.quantizer.pipeline import Result
from worker.quantizer.plan.candidates import ACTIVATIONS_IN_FLOAT, IN_FLOAT
from worker.quantizer.plan.targets import TARGETS
from worker.quantizer.plan.types import PlanLog, Role, RuleContext, Stage
from worker.quantizer.report.layers import NOT_APPLICABLE

OPSET = 21
BRANCHES = (
    "(float[N,4] x, bool[N] go) => (float[N,5] y) {{ {main} f = Squeeze(g) [choice] y = If(f) <"
    "then_branch = a () => (float[N,5] p) {{ {then} }}, "
    "else_branch = b () => (float[N,5] q) {{ {other} }}> }}"
)
FIRST = "g = Slice(go, zero, one)"
MIXED = {"w": normal(4, 4), "b": normal(4), "z": normal(4, 4, seed=1), "k": normal(4, 5)}
LIMITS = {"zero": np.array([0]), "one": np.array([1])}
LOOP = (
    "(float[N,4] x) => (float[N,4] y) { [loop] y = Loop(n, , x) <"
    "body = l (int64 k, bool c, float[N,4] s) => (bool d, float[N,4] t) "
    "{ d = Identity(c) [inner] m = MatMul(s, w) t = Tanh(m) }> }"
)
SCAN = (
    "(float[N,3,4] x) => (float[N,3,5] y) { u = Transpose<perm=[1,0,2]>(x) v = Scan<num_scan_inputs=1, "
    "body = s (float[N,4] e) => (float[N,5] r) { [inner] r = Gemm<transB=1>(e, h, b) }>(u) "
    "y = Transpose<perm=[1,0,2]>(v) }"
)


def body_constants(model: onnx.ModelProto, graph: str, **arrays: np.ndarray) -> onnx.ModelProto:
    """Give the sub-graph of this name initializers of its own."""
    found = next(part for part in graphs(model.graph) if part.name == graph)
    found.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """The graph and its sub-graphs at any depth."""
    inner = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return [graph, *(part for each in inner for part in graphs(each))]


def holders(model: onnx.ModelProto) -> list[str]:
    """Names of the graphs in which weights are restored, one for each weight; each graph holds what it restores."""
    found = []
    for part in graphs(model.graph):
        stored = {tensor.name for tensor in part.initializer}
        found += [part.name for node in part.node if node.op_type == "DequantizeLinear" and node.input[0] in stored]
    return sorted(found)


def rounded(array: np.ndarray, axis: int, limit: int = 127) -> np.ndarray:
    """Symmetric per channel, by the definition."""
    peak = np.abs(array).max(axis=tuple(k for k in range(array.ndim) if k != axis), keepdims=True)
    scale = (peak / limit).astype(np.float32)
    return (np.clip(np.rint(array / scale), -limit, limit) * scale).astype(np.float32)


def with_rounded(model: onnx.ModelProto, limit: int = 127, **axes: int) -> onnx.ModelProto:
    """The float model with weights, wherever they stand, rounded along an axis."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    for part in graphs(made.graph):
        for tensor in part.initializer:
            if tensor.name in axes:
                array = rounded(numpy_helper.to_array(tensor), axes[tensor.name], limit)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return made


def quantized(
    folder: Path, model: onnx.ModelProto, feeds: Arrays, **settings: object
) -> tuple[onnx.ModelProto, Result]:
    """The emitted model, checked, and what came with it; inspection tells the same of every node."""
    chosen = config(**{"mode": "weights_only", "subgraphs": "weights", **settings})
    result = quantize_file(folder, model, feeds, chosen)
    found = onnx.load_from_string(result.model)
    onnx.checker.check_model(found, full_check=True)
    rows = {name: row for row in result.report.layers for name in row.nodes}
    for node in inspect_nodes(ir.from_proto(model), chosen)[0]:
        row = rows[node.name]
        assert node.activation_reason == row.activation_reason
        assert node.activation_reason_code == row.activation_reason_code
        assert node.quantized or row.reason_code in (node.reason_code, NOT_APPLICABLE.code)
        assert node.quantized == (row.reason is None)
    return found, result


def agree(found: onnx.ModelProto, reference: onnx.ModelProto, feeds: Arrays) -> None:
    """Exactly; optimized, the runtime computes a MatMul of stored weights with activations of 8 bits."""
    expected = run_onnx(reference, feeds, optimized=False)
    got, fast = run_onnx(found, feeds, optimized=False), run_onnx(found, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)
        assert sqnr_db(array, fast[name]) > 40


def tiny(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    return make_model(text, weights, opset=OPSET, ir_version=10)


def branches(main: str, then: str, other: str, **weights: np.ndarray) -> onnx.ModelProto:
    return tiny(BRANCHES.format(main=main, then=then, other=other), **LIMITS, **weights)


def feeds_of(go: bool) -> dict[str, np.ndarray]:
    return {"x": normal(6, 4), "go": np.full(6, go)}


MODES = [
    {"mode": "weights_only"}, {"mode": "static"},
    {"mode": "static", "activation": {"dtype": "int8", "symmetric": True}},
]  # fmt: skip


@pytest.mark.parametrize(("settings", "dtype"), [(MODES[0], "int8"), (MODES[1], "int4"), (MODES[2], "int8")])
def test_branches_restore_their_own_weights(tmp_path: Path, settings: dict[str, object], dtype: str) -> None:
    limit, kind = (127, TensorProto.INT8) if dtype == "int8" else (7, TensorProto.INT4)
    model = branches(FIRST, "[one] p = MatMul(x, w)", "[other] q = Gemm(x, w, b)")
    body_constants(model, "a", w=normal(4, 5))
    body_constants(model, "b", w=normal(4, 5, seed=1), b=normal(5))
    for go in (True, False):
        found, result = quantized(tmp_path, model, feeds_of(go), weight={"dtype": dtype}, **settings)
        agree(found, with_rounded(model, limit, w=1), feeds_of(go))
    assert holders(found) == ["a", "b"]
    stored = [tensor for part in graphs(found.graph)[1:] for tensor in part.initializer]
    assert [tensor.data_type for tensor in stored if tensor.dims == [4, 5]] == [kind, kind]
    rows = {row.name: row for row in result.report.layers}
    for name in ("one", "other"):
        assert (rows[name].weight_dtype, rows[name].activation_dtype, rows[name].reason) == (dtype, None, None)
        assert rows[name].activation_reason_code == ACTIVATIONS_IN_FLOAT.code


@pytest.mark.parametrize(
    ("body", "settings"),
    [("own", MODES[0]), ("outer", MODES[1]), ("own", MODES[2]), ("scan", MODES[0]), ("scan", MODES[1])],
)
def test_a_loop_restores_its_weight_once(tmp_path: Path, body: str, settings: dict[str, object]) -> None:
    weight, axes, feeds = {"w": normal(4, 4, scale=0.5)}, {"w": 1}, {"x": normal(6, 4)}
    if body == "scan":
        model, axes, feeds = tiny(SCAN, h=normal(5, 4), b=normal(5)), {"h": 0}, {"x": normal(6, 3, 4)}
    else:
        model = tiny(LOOP, n=np.array(3), **({} if body == "own" else weight))
    if body == "own":
        body_constants(model, "l", **weight)
    found, result = quantized(tmp_path, model, feeds, **settings)
    agree(found, with_rounded(model, **axes), feeds)
    assert holders(found) == ["g"]
    assert next(row for row in result.report.layers if row.name == "inner").weight_dtype == "int8"
    assert {tensor.name for part in graphs(found.graph) for tensor in part.initializer} & {"w", "w_1", "h"} == set()


def test_a_loop_within_a_branch_and_a_branch_within_a_loop(tmp_path: Path) -> None:
    loop = (
        "m = Loop(n, , x) <body = l (int64 k, bool c, float[N,4] s) => (bool d, float[N,4] t) {"
        " d = Identity(c) r = MatMul(s, w) o = Equal(k, zero) e = Squeeze(o) t = If(e) <"
        "then_branch = i () => (float[N,4] i1) { j = MatMul(r, v) i1 = Tanh(j) }, "
        "else_branch = f () => (float[N,4] f1) { f1 = Tanh(r) }> }> p = MatMul(m, z)"
    )
    model = branches(FIRST, loop, "q = MatMul(x, z)", n=np.array(3), w=normal(4, 4, scale=0.5), z=normal(4, 5))
    body_constants(model, "i", v=normal(4, 4, scale=0.5, seed=1))
    for go in (True, False):
        found, _ = quantized(tmp_path, model, feeds_of(go))
        agree(found, with_rounded(model, w=1, v=1, z=1), feeds_of(go))
    # w and v where the loop begins, z, which both branches read, before them
    assert holders(found) == ["a", "a", "g"]


def test_a_weight_shared_with_the_main_graph_has_one_form(tmp_path: Path) -> None:
    weights = {"w": normal(4, 4, scale=0.5), "z": normal(4, 5)}
    model = branches(
        f"{FIRST} [outer] u = MatMul(x, w) [outer2] i = MatMul(u, z)",
        "j = MatMul(x, w) p = MatMul(j, z)",
        "q = Neg(i)",
        **weights,
    )
    found, _ = quantized(tmp_path, model, feeds_of(True))
    agree(found, with_rounded(model, w=1, z=1), feeds_of(True))
    assert holders(found) == ["g", "g"]
    assert {"w", "z"}.isdisjoint(tensor.name for tensor in found.graph.initializer)
    static, _ = quantized(tmp_path, model, feeds_of(True), mode="static")
    expected = run_onnx(model, feeds_of(True))["y"]
    assert sqnr_db(expected, run_onnx(static, feeds_of(True))["y"]) > 30


def test_names_of_weights_are_read_where_they_stand(tmp_path: Path) -> None:
    """What is read otherwise too stays there, and a tensor of another branch may have the same name."""
    k = normal(4, 5, seed=1)
    then = "m = MatMul(x, w) s = ReduceMax<keepdims=1>(w) p = Mul(m, s)"
    model = body_constants(branches(FIRST, then, "w = Tanh(x) q = MatMul(w, k)", k=k), "a", w=normal(4, 5))
    found, _ = quantized(tmp_path, model, feeds_of(True))
    expected = (feeds_of(True)["x"] @ rounded(normal(4, 5), 1)) * normal(4, 5).max()
    np.testing.assert_allclose(run_onnx(found, feeds_of(True), optimized=False)["y"], expected, rtol=1e-5, atol=1e-5)
    agree(quantized(tmp_path, model, feeds_of(False))[0], with_rounded(model, k=1), feeds_of(False))


def test_convolutions_in_branches_and_power_of_two_scales(tmp_path: Path) -> None:
    text = (
        "(float[N,3,6,6] x, bool[N] go) => (float[N,4,4,4] y) { g = Slice(go, zero, one) f = Squeeze(g) y = If(f) <"
        "then_branch = a () => (float[N,4,4,4] p) { p = Conv(x, w, b) }, "
        "else_branch = b () => (float[N,4,4,4] q) { h = Conv(x, w) q = ConvTranspose<pads=[1,1,1,1]>(h, t) }> }"
    )
    model = tiny(text, **LIMITS, w=normal(4, 3, 3, 3), b=normal(4), t=normal(4, 4, 3, 3))
    for go in (True, False):
        feeds = {"x": normal(4, 3, 6, 6), "go": np.full(4, go)}
        found, _ = quantized(tmp_path, model, feeds, mode="static")
        agree(found, with_rounded(model, w=0, t=1), feeds)
        xint8, _ = quantized(tmp_path, model, feeds, mode="static", preset="xint8", target="amd_npu_cnn")
        stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in xint8.graph.initializer}
        assert stored["w_scale"].shape == ()
        assert np.log2(stored["w_scale"]) % 1 == 0


@pytest.mark.parametrize(
    ("weight", "settings"),
    [
        ({"dtype": "int4", "granularity": "per_block", "block_size": 16}, MODES[0]),
        ({"dtype": "mxfp4_e2m1"}, MODES[1]),
        ({"dtype": "float8_e4m3fn"}, MODES[0]),
        ({"dtype": "int8", "symmetric": False, "granularity": "per_tensor"}, MODES[1]),
    ],
)
def test_other_types(tmp_path: Path, weight: dict[str, object], settings: dict[str, object]) -> None:
    model = tiny(LOOP.replace("4]", "32]"), n=np.array(2), w=normal(32, 32, scale=0.2))
    feeds = {"x": normal(8, 32)}
    found, result = quantized(tmp_path, model, feeds, weight=weight, **settings)
    assert sqnr_db(run_onnx(model, feeds)["y"], run_onnx(found, feeds)["y"]) > 14
    assert next(row for row in result.report.layers if row.name == "inner").weight_dtype == weight["dtype"]


def test_excluded_nodes_and_overrides_count_inside_too(tmp_path: Path) -> None:
    model = branches(
        FIRST, "[one] p = MatMul(x, w)", "[other] h = MatMul(x, v) q = MatMul(h, w)", w=normal(4, 5), v=normal(4, 4)
    )
    settings = {"exclude": [{"node": "one"}], "overrides": [{"match": {"node": "other"}, "weight": {"dtype": "int4"}}]}
    found, result = quantized(tmp_path, model, feeds_of(False), **settings)
    rows = {row.name: row for row in result.report.layers}
    assert rows["one"].reason == "excluded by node 'one'"
    assert rows["other"].weight_dtype == "int4"
    assert "w" in {tensor.name for tensor in found.graph.initializer}  # what the excluded node reads


def test_sub_graphs_stay_in_float_unless_asked_for(tmp_path: Path) -> None:
    model = tiny(LOOP, n=np.array(3), w=normal(4, 4))
    result = quantize_file(tmp_path, model, {"x": normal(6, 4)}, config(mode="weights_only"))
    assert result.model == (tmp_path / "float.onnx").read_bytes()
    assert {row.reason_code for row in result.report.layers if row.name == "inner"} == {IN_FLOAT.code}
    told = next(node for node in inspect_nodes(ir.from_proto(model), config())[0] if node.name == "inner")
    assert "subgraphs" in told.hint
    for mode in ("dynamic", "float16"):
        with pytest.raises(InvalidConfigError) as caught:
            config(mode=mode, subgraphs="weights")
        assert caught.value.errors[0].pointer == "/subgraphs"
    text = (
        "(float[N,4] x) => (float[N,4] y) { y, o = Loop(n, , x, w) <"
        "body = l (int64 k, bool c, float[N,4] s, float[4,4] v) => (bool d, float[N,4] t, float[4,4] u) "
        "{ d = Identity(c) [inner] t = MatMul(s, v) u = Tanh(v) }> }"
    )
    result = quantized(tmp_path, tiny(text, n=np.array(2), w=normal(4, 4)), {"x": normal(6, 4)})[1]
    rows = {row.name: row for row in result.report.layers}
    assert rows["inner"].reason == "its weight is not constant"  # but carried by the loop


@each("target", sorted(TARGETS))
def test_rules_of_targets_may_run_again_over_weights_of_bodies(target: str) -> None:
    """As mixed precision has them do."""
    wanted = config(subgraphs="weights", target=target)
    then, other = "[inner] p = MatMul(x, w)", "h = MatMul(x, v) q = MatMul(h, w)"
    prepared, plan = plan_for(branches(FIRST, then, other, w=normal(4, 5), v=normal(4, 4)), wanted)
    before = {name: weight.spec.calibration for name, weight in plan.weights.items()}
    TARGETS[target].run(Stage.SPECS, RuleContext(prepared.graph, plan, wanted, PlanLog()))
    assert {name: weight.spec.calibration for name, weight in plan.weights.items()} == before
    assert (len(before), plan.nodes["inner"].role) == (2, Role.STORED)


@pytest.mark.parametrize(
    "method", ["bias_correction", "cross_layer_equalization", pytest.param("adaround", marks=pytest.mark.long)]
)
def test_algorithms_run_beside_bodies(tmp_path: Path, method: str) -> None:
    """The main graph's layers are changed, one of which shares its weight with a body."""
    main = f"{FIRST} u = Gemm(x, w, b) r = Relu(u) i = Gemm(r, z, b)"
    model = branches(main, "j = MatMul(i, w) p = MatMul(j, k)", "q = MatMul(i, k)", **MIXED)
    steps = [{"method": method, "accept": "always"}]
    for go in (True, False):
        found, result = quantized(tmp_path, model, feeds_of(go), mode="static", algorithms=steps)
        expected = run_onnx(model, feeds_of(go))["y"]
        assert sqnr_db(expected, run_onnx(found, feeds_of(go))["y"]) > 25
        assert sum(row.activation_reason is not None for row in result.report.layers) == 3
