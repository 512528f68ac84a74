"""The passes that a config switches, and graphs within graphs: what a model computes is kept, or it is said why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from service.contracts.errors import InvalidConfigError
from service.contracts.preparation import PreparationSpec
from tests.support.each import each
from tests.unit.quantizer.preparation.preparing import assert_equal_outputs, prepare_with, same
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    make_model,
    normal,
    op_types,
    quantize_model,
    run_onnx,
    sqnr_db,
    step,
)
from worker.quantizer.graph.serialized import WeightlessProto
from worker.quantizer.intake.loading import load_model
from worker.quantizer.preparation.prepare import prepare

FLAGS = [name for name, field in PreparationSpec.model_fields.items() if field.annotation is bool]


@each("flag", FLAGS)
def test_every_flag_that_is_off_is_named_in_the_report(flag: str) -> None:
    model = make_model("(float[1,4] x) => (float[1,6] y) { y = MatMul(x, w) }", {"w": normal(4, 6)})
    prepared, _ = prepare_with(model, **{flag: False})
    assert f"switched off by preparation.{flag}" in [found.detail for found in prepared.steps]


NORM, MEAN = "BatchNormalization(x, bn_scale, bn_bias, bn_mean, bn_var)", "(float[N,4,6,5] c) => (float[A,B,C,D] y)"
STAYS = [
    ("batch_norm_to_conv", f"(float[2,4] x) => (float[2,4] y) {{ [it] y = {NORM} }}", "2 axes"),
    ("split_to_slice", "(float[2,W] x) => (float[2,A] y, float[2,B] z) { [it] y, z = Split<axis=1>(x) }", "not known"),
    ("split_large_pooling", "(float[N,4,H,W] c) => (float[N,4,1,1] y) { [it] y = GlobalAveragePool(c) }", "not known"),
    *(
        ("reduce_mean_to_global_average_pool", f"{MEAN} {{ [it] y = ReduceMean<axes={axes}>(c) }}", "averages over")
        for axes in ("[1]", "[1,2,3]", "[3]")
    ),
]


@each(("flag", "text", "reason"), STAYS)
def test_what_a_pass_cannot_change_stays(flag: str, text: str, reason: str) -> None:
    model = make_model(text, batchnorm_weights(4))
    feeds = {"x": normal(2, 4)} if "[2," in text else {"c": normal(2, 4, 6, 5)}
    prepared, proto = same(model, feeds, **{flag: True})
    assert op_types(proto) == op_types(model)
    assert "it stays: " in step(prepared, flag).detail
    assert reason in step(prepared, flag).detail


def test_clip_at_6_becomes_relu_and_says_that_the_model_changes() -> None:
    limits = {"low": np.float32(0), "high": np.float32(6), "five": np.float32(5)}
    text = "[six] y = Clip(x, low, high) [five] z = Clip(x, low, five)"
    model = make_model(f"(float[1,8] x) => (float[1,8] y, float[1,8] z) {{ {text} }}", limits)
    prepared, proto = prepare_with(model, clip6_to_relu=True)
    assert [(node.name, node.op_type) for node in proto.graph.node] == [("six", "Relu"), ("five", "Clip")]
    assert (prepared.keeps_function, prepared.op_types["six"]) == (False, "Clip")
    x = normal(1, 8, scale=5)
    np.testing.assert_array_equal(run_onnx(proto, {"x": x})["y"], np.maximum(x, 0))
    assert prepare_with(model)[0].keeps_function


@each("shape", ["N,4,6,5", "N,4,9", "N,4,3,4,5"])
def test_a_lonely_batchnorm_becomes_a_depthwise_convolution(shape: str) -> None:
    text = f"(float[{shape}] x) => (float[{shape}] y) {{ {batchnorm_text('x', 'y')} }}"
    feeds = {"x": normal(*[2 if axis == "N" else int(axis) for axis in shape.split(",")])}
    prepared, proto = same(make_model(text, batchnorm_weights(4)), feeds, batch_norm_to_conv=True)
    assert [(node.name, node.op_type) for node in proto.graph.node] == [("bn", "Conv")]
    assert "bn stays: it does not follow" in step(prepared, "fold_affine").detail


def test_folding_can_be_switched_off() -> None:
    text = f"(float[1,3,8,8] x) => (float[1,4,6,6] y) {{ t = Conv(x, w) {batchnorm_text('t', 'y')} }}"
    model, feeds = make_model(text, {"w": normal(4, 3, 3, 3), **batchnorm_weights(4)}), {"x": normal(1, 3, 8, 8)}
    assert op_types(same(model, feeds)[1]) == ["Conv"]
    assert op_types(same(model, feeds, fold_batch_norm=False)[1]) == ["Conv", "BatchNormalization"]
    assert op_types(same(model, feeds, fold_batch_norm=False, batch_norm_to_conv=True)[1]) == ["Conv", "Conv"]


@each(("axes", "keepdims", "opset"), [([2, 3], 0, 13), ([-2, -1], 1, 17), ([3, 2], 0, 18), ([-1, 2], 1, 18)])
def test_a_mean_over_positions_becomes_global_average_pool(axes: list[int], keepdims: int, opset: int) -> None:
    result = "N,4,1,1" if keepdims else "N,4"
    where, given_axes = ("", ", a") if opset >= 18 else (f", axes={axes}", "")
    model = make_model(
        f"(float[N,4,6,5] x) => (float[{result}] y) "
        f"{{ [mean] y = ReduceMean<keepdims={keepdims}{where}>(x{given_axes}) }}",
        {"a": np.array(axes)} if opset >= 18 else {},
        opset=opset,
    )
    _, proto = same(model, {"x": normal(2, 4, 6, 5)}, reduce_mean_to_global_average_pool=True)
    assert op_types(proto) == ["GlobalAveragePool"] + ["Squeeze"] * (1 - keepdims)
    assert proto.graph.node[0].name == "mean"
    assert op_types(prepare_with(model)[1]) == ["ReduceMean"]


@given(height=st.integers(1, 96), width=st.integers(1, 96), channels=st.integers(1, 3), seed=st.integers(0, 2**32 - 1))
def test_a_large_pooling_is_split_exactly(height: int, width: int, channels: int, seed: int) -> None:
    model = make_model("(float[N,C,H,W] x) => (float[N,C,1,1] y) { [pool] y = GlobalAveragePool(x) }")
    feeds = {"x": normal(2, channels, height, width, seed=seed) + 1}
    flags = {"split_large_pooling": True, "fixed_shapes": {"x": feeds["x"].shape}}
    prepared, proto = same(model, feeds, tolerance=2e-6, **flags)
    said = step(prepared, "split_large_pooling")
    if height * width <= 512:
        assert op_types(proto) == ["GlobalAveragePool"]
    elif said.applied:
        assert op_types(proto) == ["AveragePool", "GlobalAveragePool"]
        tile = next(list(a.ints) for a in proto.graph.node[0].attribute if a.name == "kernel_shape")
        assert np.prod(tile) <= 512
        assert height * width / np.prod(tile) <= 512
    else:
        assert f"pool stays: {height} x {width} positions cannot be split" in said.detail


SPLITS: dict[str, tuple[str, dict[str, Any], int]] = {
    "sizes": ("Split<axis=1>(x, sizes)", {"sizes": np.array([1, 3, 2])}, 17), "equal": ("Split<axis=-2>(x)", {}, 17),
    "number": ("Split<axis=1, num_outputs=3>(x)", {}, 18), "uneven": ("Split<axis=2, num_outputs=3>(x)", {}, 18),
    "old": ("Split<axis=1, split=[2, 1, 3]>(x)", {}, 11),
}  # fmt: skip


@each("name", SPLITS)
def test_split_becomes_slices(name: str) -> None:
    call, weights, opset = SPLITS[name]
    height = 7 if name == "uneven" else 9
    model = make_model(
        f"(float[N,6,{height}] x) => (float[a,b,c] p, float[d,e,f] q, float[g,h,i] r) {{ [part] p, q, r = {call} }}",
        weights,
        opset=opset,
    )
    prepared, proto = same(model, {"x": normal(2, 6, height)}, split_to_slice=True)
    assert op_types(proto) == ["Slice"] * 3
    assert ("part_Slice_1", "Split") in prepared.known_nodes()
    assert op_types(prepare_with(model)[1]) == ["Split"]
    del model.graph.output[2], model.graph.output[0]  # parts that nothing reads are left out
    assert op_types(same(model, {"x": normal(2, 6, height)}, split_to_slice=True)[1]) == ["Slice"]


def test_every_reader_gets_a_weight_of_its_own() -> None:
    model = make_model(
        "(float[2,4] x, bool go) => (float[2,4] y) { [a] p = Gemm(x, w, v) [b] q = Gemm(p, w, v) s = Add(q, v) "
        "d = If(go) <then_branch = t () => (float[2,4] g) { [c] g = MatMul(s, w) }, "
        "else_branch = e () => (float[2,4] h) { h = Neg(s) }> k = Clip(d, low, high) y = Clip(k, low, high) }",
        {"w": normal(4, 4), "v": normal(4), "low": np.float32(-1), "high": np.float32(1)},
    )
    for go in (True, False):
        feeds = {"x": normal(2, 4), "go": np.array(go)}
        prepared, proto = same(model, feeds, unshare_initializers=True, fold_batch_norm=False)
    assert [tensor.name for tensor in proto.graph.initializer][:2] == ["w", "v"]
    assert step(prepared, "unshare_initializers").detail.startswith("4 copies of 2 ")
    held = prepared.graph.initializers
    assert {"w_of_b", "w_of_c", "v_of_b"} < set(held)
    # limits are no weights: they stay shared
    assert {name for name, value in held.items() if len(value.uses()) > 1} == {"low", "high"}
    assert len(prepare_with(model, fold_batch_norm=False)[0].graph.initializers) == 4


DYNAMIC = (
    "(float[N,3,H,W] x, float[N,4] z) => (float[N,4] y) "
    "{ t = Conv(x, w) p = GlobalAveragePool(t) f = Flatten(p) y = Add(f, z) }"
)


def test_shapes_are_fixed_to_the_end() -> None:
    model = make_model(DYNAMIC, {"w": normal(4, 3, 3, 3)})
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("t", 1, ["N", 4, "h", "w"]))
    feeds = {"x": normal(2, 3, 9, 8), "z": normal(2, 4)}
    prepared, proto = same(model, feeds, fixed_shapes={"x": (2, 3, 9, 8), "z": (2, 4)})
    shapes = {
        value.name: [axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    }
    assert shapes["x"] == [2, 3, 9, 8]
    assert shapes["t"] == [2, 4, 7, 6]
    assert shapes["y"] == [2, 4]
    assert step(prepared, "fix_shapes").detail == "x: [2, 3, 9, 8], z: [2, 4]"


BAD_SHAPES = {
    "image": ({"image": (1, 3, 8, 8)}, "no such input; it has 'x', 'z'"),
    "x": ({"x": (1, 8, 8)}, "3 axes, the model declares 4"),
    "z": ({"z": (1, 5)}, "axis 1 is 4 in the model and cannot become 5"), "a~1b": ({"a/b": (1,)}, "no such input"),
}  # fmt: skip


@pytest.mark.parametrize("pointer", BAD_SHAPES)
def test_shapes_that_do_not_fit_are_refused(pointer: str) -> None:
    shapes, says = BAD_SHAPES[pointer]
    with pytest.raises(InvalidConfigError, match=says) as caught:
        prepare_with(make_model(DYNAMIC, {"w": normal(4, 3, 3, 3)}), fixed_shapes=shapes)
    assert [problem.pointer for problem in caught.value.errors] == [f"/config/preparation/fixed_shapes/{pointer}"]


@pytest.mark.parametrize("wanted", [13, 17, 18, 20, 23])
def test_the_wanted_opset(wanted: int) -> None:
    model = make_model(
        f"(float[2,3,8,8] x) => (float[2,4] y) {{ t = Conv(x, w) {batchnorm_text('t', 'u')} v = Relu(u) "
        "p, q = Split<axis=1>(v) a = Add(p, q) m = ReduceMean<axes=[2,3], keepdims=0>(a) "
        "i = Concat<axis=1>(m, m) y = Softmax<axis=1>(i) }",
        {"w": normal(4, 3, 3, 3), **batchnorm_weights(4)},
        opset=11,
    )
    prepared, proto = same(model, {"x": normal(2, 3, 8, 8)}, opset=wanted)
    assert proto.opset_import[0].version == wanted
    assert step(prepared, "lift_opset").detail == f"opset 11 converted to {wanted}"


@each(
    ("opset", "wanted", "says"),
    [
        (18, 15, "18; it cannot be converted down to 15"),
        (17, 30, "30 is not supported"),
        (1, 17, "1 to 17: No Adapter"),
    ],
)
def test_an_opset_out_of_reach_is_refused(opset: int, wanted: int, says: str) -> None:
    text = "y = Pad<paddings=[0,0,1,1,0,0,1,1]>(x)" if opset == 1 else "y = Relu(x)"
    model = make_model(f"(float[1,1,4,4] x) => (float[1,1,a,b] y) {{ {text} }}", opset=opset)
    with pytest.raises(InvalidConfigError, match=says) as caught:
        prepare_with(model, opset=wanted)
    assert caught.value.errors[0].pointer == "/config/preparation/opset"
    assert caught.value.hint


@each("shape", [(5, 2, 3), (5, 3), (1, 2, 3), (1, 1, 3), (3,), (1, 3), (1,), ()])
def test_an_add_is_a_bias_unless_it_widens_the_product(shape: tuple[int, ...]) -> None:
    text = "(float[N,4] x) => (float[] y) { t = MatMul(x, w) y = Add(b, t) }"
    model = make_model(text, {"w": normal(4, 3), "b": normal(*shape)})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    widens = len(shape) > 2 or shape == (5, 3)
    feeds = {"x": normal(1 if shape == (5, 3) else 2, 4)}
    assert op_types(same(model, feeds)[1]) == (["MatMul", "Add"] if widens else ["Gemm"])


@given(
    seed=st.integers(0, 2**32 - 1),
    flags=st.fixed_dictionaries({name: st.booleans() for name in FLAGS if name not in ("clip6_to_relu", "nhwc_input")}),
    opset=st.sampled_from([None, 21, 22]),
    fixed=st.booleans(),
)
def test_no_pass_changes_what_a_random_network_computes(
    seed: int, flags: dict[str, bool], opset: int | None, fixed: bool
) -> None:
    network = RandomNetwork(seed)
    feeds = {name: normal(2, 3, 8, 8, seed=seed + k) for k, name in enumerate(network.inputs)}
    shapes = dict.fromkeys(network.inputs, (2, 3, 8, 8)) if fixed else {}
    _, proto = prepare_with(network.model, **flags, opset=opset, fixed_shapes=shapes)
    assert_equal_outputs(network.model, proto, feeds, tolerance=1e-4)


SWITCHED = {
    "batch_norm_to_conv": True, "reduce_mean_to_global_average_pool": True, "split_to_slice": True,
    "unshare_initializers": True,
}  # fmt: skip
IF = (
    "(float[1,4,6,6] x, bool go) => (float[1,4,6,6] y) {{ {main} d = If(go) <"
    "then_branch = a () => (float[1,4,6,6] p) {{ {then} }}, "
    "else_branch = b () => (float[1,4,6,6] q) {{ q = Neg(x) }}> y = Relu(d) }}"
)


# main graph and branch; ``w`` is the weight of the main graph
READERS = {
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


@pytest.mark.parametrize("case", READERS)
@pytest.mark.parametrize("opset", [9, 17])
def test_branches_that_read_the_main_graph(case: str, opset: int) -> None:
    main, then = READERS[case]
    weights = {"w": normal(4, 4, 1, 1), "v": normal(4), **batchnorm_weights(4)}
    model = make_model(IF.format(main=main, then=then), weights, opset=opset)
    for go in (True, False):
        feeds = {"x": normal(1, 4, 6, 6), "go": np.array(go)}
        same(model, feeds)
        same(model, feeds, **SWITCHED)


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
    same(model, feeds, **SWITCHED)


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


def test_the_weightless_proto_holds_no_large_weight_and_gives_all_back() -> None:
    text = IF.format(main="t = Conv(x, w) u = Relu(t)", then="k = Conv(u, large) p = Relu(k)")
    model = with_weight_in_branch(text, "large", normal(4, 4, 33, 33))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 4, 65, 17), "w"))
    loaded = ir.from_proto(model)
    weightless = WeightlessProto(loaded)
    assert weightless.proto.ByteSize() < 1_000 < 80_000 < model.ByteSize()
    once, again = (ir.to_proto(one).SerializeToString(deterministic=True) for one in (loaded, ir.from_proto(model)))
    assert once == again
    rebuilt = ir.from_proto(weightless.proto)
    weightless.restore(rebuilt)
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


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge"])
@pytest.mark.parametrize("pads", ["stored", "fed"])
def test_pads_are_told_for_all_axes(mode: str, pads: str) -> None:
    fed = "" if pads == "stored" else ", int64[4] fed"
    model = make_model(
        f"(float[N,3,8,8] x{fed}) => (float[N,4,H,W] y) {{ c = Conv(x, w) r = Relu(c) "
        f'q = Pad<mode="{mode}">(r, {pads}, , axes) y = Conv(q, k) }}',
        {"w": normal(4, 3, 3, 3), "k": normal(4, 4, 3, 3), "axes": np.array([2, -1])}
        | ({"stored": np.array([1, 0, 2, 1])} if pads == "stored" else {}),
        opset=18,
    )
    feeds = {"x": normal(4, 3, 8, 8)} | ({} if pads == "stored" else {"fed": np.array([1, 0, 2, 1])})
    prepared, proto = same(model, feeds)
    assert step(prepared, "pads_of_all_axes").applied
    (pad,) = [node for node in proto.graph.node if node.op_type == "Pad"]
    assert len(pad.input) < 4
    if pads == "stored":
        emitted = quantize_model(model, feeds, config())[2]
        exact = run_onnx(emitted, feeds, optimized=False)["y"]
        np.testing.assert_allclose(run_onnx(emitted, feeds)["y"], exact, rtol=1e-4, atol=0.05)
        assert sqnr_db(run_onnx(model, feeds)["y"], exact) > 30
