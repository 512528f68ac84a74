"""If, Loop and Scan: what reads across graphs stays right, whatever the passes do to the main graph."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from service.contracts.preparation import PreparationSpec
from tests.unit.quantizer.preparation.preparing import same
from tests.unit.quantizer.toolbox import batchnorm_text, batchnorm_weights, make_model, normal, step
from worker.quantizer.graph.skeleton import Skeleton
from worker.quantizer.intake.loading import load_model
from worker.quantizer.preparation.prepare import prepare

FLAGS = {
    "batch_norm_to_conv": True,
    "reduce_mean_to_global_average_pool": True,
    "split_to_slice": True,
    "unshare_initializers": True,
}
IF = (
    "(float[1,4,6,6] x, bool go) => (float[1,4,6,6] y) {{ {main} d = If(go) <"
    "then_branch = a () => (float[1,4,6,6] p) {{ {then} }}, "
    "else_branch = b () => (float[1,4,6,6] q) {{ q = Neg(x) }}> y = Relu(d) }}"
)


# main graph and branch; ``w`` is the weight of the main graph
CASES = {
    "weight": (f"t = Conv(x, w) {batchnorm_text('t', 'u')}", "p = Conv(u, w)"),
    "bias": ("t = Conv(x, w, v) u = Relu(t)", "s = Conv(u, w, v) p = Add(s, u)"),
    "folded": (f"t = Conv(x, w) {batchnorm_text('t', 'u')}", "p = Add(t, u)"),
    "result": (f"{batchnorm_text('x', 'u')}", "p = Conv(u, w)"),
    "part": ("l, r = Split<axis=1>(x) u = Concat<axis=1>(r, l)", "p = Concat<axis=1>(l, r)"),
    "mean": ("m = ReduceMean<axes=[2,3]>(x) u = Sub(x, m)", "p = Mul(u, m)"),
    "inner": (
        "u = Relu(x)",
        "l, r = Split<axis=1>(u) m = ReduceMean<axes=[2,3]>(x) k = Concat<axis=1>(r, l) p = Mul(k, m)",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("opset", [9, 17])
def test_branches_that_read_the_main_graph(case: str, opset: int) -> None:
    main, then = CASES[case]
    weights = {"w": normal(4, 4, 1, 1), "v": normal(4), **batchnorm_weights(4)}
    model = make_model(IF.format(main=main, then=then), weights, opset=opset)
    for go in (True, False):
        feeds = {"x": normal(1, 4, 6, 6), "go": np.array(go)}
        same(model, feeds)
        same(model, feeds, **FLAGS)


def test_a_group_whose_inside_a_branch_reads_is_not_fused() -> None:
    norm = (
        "m = ReduceMean<axes=[1,2,3]>(x) s = Sub(x, m) k = Mul(s, s) v = ReduceMean<axes=[1,2,3]>(k) e = Add(v, f) "
        "r = Sqrt(e) n = Div(s, r) u = Relu(n)"
    )
    for read, fused in (("r", False), ("n", True)):
        model = make_model(IF.format(main=norm, then=f"p = Mul(u, {read})"), {"f": np.float32(1e-5)})
        for go in (True, False):
            prepared, _ = same(model, {"x": normal(1, 4, 6, 6), "go": np.array(go)})
        assert step(prepared, "fuse_layer_norm").applied is fused


@pytest.mark.parametrize("opset", [11, 17, 21])
def test_scan_reads_weights_of_the_main_graph(opset: int) -> None:
    parts = ", num_outputs=2" if opset >= 18 else ""
    model = make_model(
        "(float[1,4] h, float[5,1,4] xs) => (float[1,4] last, float[5,1,4] ys) { t = MatMul(h, w) "
        "last, ys = Scan<num_scan_inputs=1, body = b (float[1,4] s, float[1,4] x) => (float[1,4] n, float[1,4] o) "
        f"{{ a = MatMul(x, w) k = Add(a, v) l, r = Split<axis=1{parts}>(k) c = Concat<axis=1>(r, l) "
        "i = Add(c, s) n = Tanh(i) o = Identity(n) }>(t, xs) }",
        {"w": normal(4, 4), "v": normal(4)},
        opset=opset,
    )
    feeds = {"h": normal(1, 4), "xs": normal(5, 1, 4, seed=1)}
    same(model, feeds)
    same(model, feeds, **FLAGS)


def with_weight_in_branch(text: str, name: str, array: np.ndarray) -> onnx.ModelProto:
    model = make_model(text)
    branch = next(a.g for node in model.graph.node for a in node.attribute if a.name == "then_branch")
    branch.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_float16_that_only_a_branch_holds_is_widened() -> None:
    model = with_weight_in_branch(
        "(float[2,4] x, bool go) => (float[2,3] y) { y = If(go) <"
        "then_branch = a () => (float[2,3] p) { h = Cast<to=10>(x) t = MatMul(h, w) p = Cast<to=1>(t) }, "
        "else_branch = b () => (float[2,3] q) { u = Cast<to=10>(x) s = ReduceSum<keepdims=1>(u) "
        "z = Cast<to=1>(s) e = Constant<value = int64[2] {2, 3}>() q = Expand(z, e) }> }",
        "w",
        normal(4, 3).astype(np.float16),
    )
    for go in (True, False):
        prepared, _ = same(model, {"x": normal(2, 4), "go": np.array(go)}, tolerance=0.01)
    assert all(value.dtype != ir.DataType.FLOAT16 for node in prepared.graph.all_nodes() for value in node.outputs)
    held = [value for graph in (prepared.graph, *prepared.graph.subgraphs()) for value in graph.initializers.values()]
    assert all(value.const_value.dtype != ir.DataType.FLOAT16 for value in held)


# large weights


def test_the_skeleton_holds_no_large_weight_and_gives_all_back() -> None:
    text = IF.format(main="t = Conv(x, w) u = Relu(t)", then="k = Conv(u, large) p = Relu(k)")
    model = with_weight_in_branch(text, "large", normal(4, 4, 33, 33))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 4, 65, 17), "w"))
    loaded = ir.from_proto(model)
    skeleton = Skeleton(loaded)
    assert skeleton.proto.ByteSize() < 1_000 < 80_000 < model.ByteSize()
    once, again = (ir.to_proto(one).SerializeToString(deterministic=True) for one in (loaded, ir.from_proto(model)))
    assert once == again
    rebuilt = ir.from_proto(skeleton.proto)
    skeleton.restore(rebuilt)
    held, restored = (
        {
            name: value.const_value.numpy()
            for graph in (made.graph, *made.graph.subgraphs())
            for name, value in graph.initializers.items()
            if value.const_value is not None
        }
        for made in (loaded, rebuilt)
    )
    assert held.keys() == restored.keys()
    for name, array in held.items():
        np.testing.assert_array_equal(restored[name], array)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_model_beyond_two_gigabytes_is_prepared_without_reading_its_weights(tmp_path: Path, opset: int) -> None:
    """The weights are a hole in a file: reading them would take the memory that is not there."""
    rows, columns = 4, 190_000_000
    model = make_model(
        f"(float[N,{rows}] x) => (float[N,{columns}] y) "
        "{ [wide] t = MatMul(x, w) [bias] u = Add(t, one) [act] y = Relu(u) }",
        {"one": np.ones(1, np.float32)},
        opset=opset,
    )
    weight = model.graph.initializer.add(name="w", data_type=TensorProto.FLOAT, dims=[rows, columns])
    weight.data_location = TensorProto.EXTERNAL
    bytes_needed = 4 * rows * columns
    assert bytes_needed > 2**31
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(bytes_needed))):
        weight.external_data.add(key=key, value=value)
    onnx.save(model, tmp_path / "m.onnx")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(bytes_needed)
    before = resident_bytes()
    prepared = prepare(
        load_model(tmp_path / "m.onnx"), PreparationSpec(fold_batch_norm=False, unshare_initializers=True)
    )
    assert resident_bytes() - before < 200 * 2**20
    assert [node.op_type for node in prepared.graph] == ["Gemm", "Relu"]
    assert prepared.graph.initializers["w"].const_value is not None
    assert prepared.graph.initializers["w"].const_value.nbytes == bytes_needed


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
