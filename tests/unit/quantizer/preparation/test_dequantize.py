"""Q/DQ pairs taken off: held against onnxruntime's DequantizeLinear, its quantizer, and the float model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from service.contracts.errors import AlreadyQuantizedError
from service.contracts.preparation import PreparationSpec
from service.contracts.reason import declared
from tests.unit.quantizer.preparation.preparing import prepare_with
from tests.unit.quantizer.toolbox import (
    Arrays,
    config,
    data,
    make_model,
    network,
    normal,
    op_types,
    quantize_file,
    quantize_model,
    rng,
    run_onnx,
    sqnr_db,
    step,
)
from worker.quantizer.graph.outcome import Outcome
from worker.quantizer.numerics.granularity import PER_TENSOR, PerBlock
from worker.quantizer.preparation.passes.dequantize import NOT_QUANTIZED, dequantized
from worker.quantizer.preparation.prepare import prepare, undo_quantization

PAIR = "[q] xq = QuantizeLinear(x, scale, zero) [dq] xd = DequantizeLinear(xq, scale, zero)"
GRID: dict[str, np.ndarray] = {"scale": np.float32(0.05), "zero": np.uint8(128)}


def undo(model: onnx.ModelProto) -> tuple[Outcome, onnx.ModelProto]:
    """``model`` stays as it is."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outcome = undo_quantization(ir.from_proto(copy))
    proto = ir.to_proto(outcome.model)
    onnx.checker.check_model(proto, full_check=True)
    return outcome, proto


class Reader(CalibrationDataReader):
    def __init__(self, arrays: Arrays) -> None:
        self._left = iter([{"x": arrays["x"][k : k + 1]} for k in range(len(arrays["x"]))])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def quantized_by_onnxruntime(folder: Path, model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    onnx.save(model, folder / "float.onnx")
    quant_pre_process(folder / "float.onnx", folder / "prepared.onnx")
    quantize_static(
        folder / "prepared.onnx", folder / "q.onnx", Reader(data()), quant_format=QuantFormat.QDQ, **options
    )
    return onnx.load(folder / "q.onnx")


# Whole models


@pytest.mark.parametrize(
    "options",
    [
        {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8, "per_channel": True},
        {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
        {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8},
        {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8},
        {
            "activation_type": QuantType.QInt8,
            "weight_type": QuantType.QInt8,
            "extra_options": {"ActivationSymmetric": True, "AddQDQPairToWeight": True},
        },
    ],
    ids=["uint8_per_channel", "uint8", "int8", "uint16", "symmetric_and_pairs_on_weights"],
)
def test_what_onnxruntime_quantized_becomes_the_float_model_again(tmp_path: Path, options: dict[str, Any]) -> None:
    model = network()
    quantized = quantized_by_onnxruntime(tmp_path, model, **options)
    outcome, back = undo(quantized)
    assert outcome.applied
    assert not {"QuantizeLinear", "DequantizeLinear"} & set(op_types(back))
    assert "Relu" in op_types(back)
    feeds = {"x": normal(16, 3, 10, 10, seed=5)}
    expected = run_onnx(model, feeds)["scores"]
    got = run_onnx(back, feeds)["scores"]
    # what is lost is the rounding of the weights: the rounding of the activations is gone
    assert sqnr_db(expected, got) > max(30.0, sqnr_db(expected, run_onnx(quantized, feeds)["scores"]))


def test_a_relu_that_onnxruntime_dropped_is_put_back(tmp_path: Path) -> None:
    options = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantized = quantized_by_onnxruntime(tmp_path, network(), **options)
    assert "Relu" not in op_types(quantized)
    outcome, back = undo(quantized)
    assert op_types(back).count("Relu") == 1
    assert "1 Relu put back" in outcome.said


@pytest.mark.parametrize("preset", ["int8", "int8_per_tensor", "a16w8", "xint8"])
def test_what_this_engine_quantized_becomes_the_float_model_again(preset: str) -> None:
    model, arrays = network(), data()
    _, _, quantized = quantize_model(model, {"x": arrays["x"]}, config(preset=preset))
    _, back = undo(quantized)
    feeds = {"x": normal(16, 3, 10, 10, seed=5)}
    expected = run_onnx(model, feeds)["scores"]
    assert sqnr_db(expected, run_onnx(back, feeds)["scores"]) > 25.0
    assert op_types(back).count("Relu") == 1


def test_the_report_tells_what_was_taken_off(tmp_path: Path) -> None:
    arrays = data()
    _, _, quantized = quantize_model(network(), {"x": arrays["x"]})
    result = quantize_file(
        tmp_path, quantized, arrays, config(preparation={"dequantize": True}), evaluation={"x": arrays["x"]}
    )
    (told,) = [found for found in result.report.preparation if found.name == "dequantize"]
    pairs = op_types(quantized).count("QuantizeLinear")
    assert told.applied
    assert told.detail.startswith(f"{pairs} pairs")
    assert result.report.fidelity.sqnr_db is not None
    assert result.report.fidelity.sqnr_db > 20
    assert result.report.float_.size_bytes != len(quantized.SerializeToString())
    assert any("uploaded model is quantized" in note for note in result.report.notes)


def test_a_float_model_is_left_as_it_is() -> None:
    outcome, back = undo(network())
    assert not outcome.applied
    assert outcome.said == NOT_QUANTIZED()
    assert op_types(back) == op_types(network())


def test_preparation_does_it_if_asked_and_says_what_it_did() -> None:
    model = make_model(f"(float[N,4] x) => (float[N,4] y) {{ {PAIR} [act] y = Tanh(xd) }}", GRID)
    prepared, proto = prepare_with(model, dequantize=True)
    assert op_types(proto) == ["Tanh"]
    assert not prepared.keeps_function
    assert step(prepared, "dequantize").detail == (
        "1 pairs of QuantizeLinear and DequantizeLinear taken off, 0 constants made float"
    )
    with pytest.raises(AlreadyQuantizedError) as caught:
        prepare(ir.from_proto(model), PreparationSpec())
    assert "preparation.dequantize" in str(caught.value.hint)


# Constants


@settings(max_examples=60)
@given(drawn=st.data())
def test_constants_are_what_onnxruntime_makes_of_them(drawn: st.DataObject) -> None:
    dtype = drawn.draw(st.sampled_from([np.int8, np.uint8, np.int16, np.uint16, np.int32]))
    shape = tuple(drawn.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    axis = drawn.draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    generator = rng(drawn.draw(st.integers(0, 1000)))
    limits = np.iinfo(dtype)
    integers = generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    length = () if axis is None else (shape[axis],)
    scale = generator.uniform(1e-4, 2.0, length).astype(np.float32)
    with_zero = dtype is not np.int32 and drawn.draw(st.booleans())
    zero = generator.integers(limits.min, limits.max, length, dtype, endpoint=True) if with_zero else None
    attribute = "" if axis is None else f"<axis={axis}>"
    dims = ",".join(map(str, shape))
    model = make_model(
        f"(float[{dims}] x) => (float[{dims}] y) "
        f"{{ w = DequantizeLinear{attribute}(k, s{', z' if with_zero else ''}) y = Add(x, w) }}",
        {"k": integers, "s": scale, **({"z": zero} if zero is not None else {})},
        opset=21,
        ir_version=10,
    )
    _, back = undo(model)
    assert op_types(back) == ["Add"]
    feeds = {"x": np.zeros(shape, np.float32)}
    np.testing.assert_array_equal(run_onnx(back, feeds)["y"], run_onnx(model, feeds, optimized=False)["y"])


def test_blocks_share_a_scale() -> None:
    integers = rng(1).integers(-8, 8, (5, 6)).astype(np.int8)
    scale, zero = rng(2).uniform(0.1, 1, (5, 3)).astype(np.float32), rng(3).integers(-3, 3, (5, 3)).astype(np.int8)
    model = make_model(
        "(float[5,6] x) => (float[5,6] y) { w = DequantizeLinear<axis=1, block_size=2>(k, s, z) y = Add(x, w) }",
        {"k": integers, "s": scale, "z": zero},
        opset=21,
        ir_version=10,
    )
    _, back = undo(model)
    feeds = {"x": np.zeros((5, 6), np.float32)}
    np.testing.assert_array_equal(run_onnx(back, feeds)["y"], run_onnx(model, feeds, optimized=False)["y"])


def test_a_last_block_may_be_shorter() -> None:
    got = dequantized(np.arange(5, dtype=np.int8), np.array([1.0, 10.0], np.float32), None, PerBlock(0, 3))
    np.testing.assert_array_equal(got, [0, 1, 2, 30, 40])


def test_zero_points_of_full_range_do_not_wrap() -> None:
    got = dequantized(np.array([-128], np.int8), np.float32(1), np.array(127, np.int8), PER_TENSOR)
    np.testing.assert_array_equal(got, [-255])


# Pairs


def test_one_quantizer_with_many_readers_and_a_result_under_its_name() -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,4] y, float[N,4] z) { [a] h = Tanh(x) [q] i = QuantizeLinear(h, scale, zero) "
        "[d0] y = DequantizeLinear(i, scale, zero) [d1] j = DequantizeLinear(i, twin, zero) [b] z = Neg(j) }",
        {**GRID, "twin": GRID["scale"]},
    )
    outcome, back = undo(model)
    assert str(outcome.said).startswith("2 pairs")
    assert op_types(back) == ["Tanh", "Neg"]
    feeds = {"x": normal(3, 4)}
    got = run_onnx(back, feeds)
    np.testing.assert_array_equal(got["y"], -got["z"])
    np.testing.assert_allclose(got["y"], np.tanh(feeds["x"]), rtol=1e-5)


def test_an_input_that_is_also_an_output_gets_an_identity() -> None:
    model = make_model(f"(float[N,4] x) => (float[N,4] xd) {{ {PAIR} }}", GRID)
    _, back = undo(model)
    assert op_types(back) == ["Identity"]
    assert [value.name for value in back.graph.output] == ["xd"]


def test_pairs_go_from_functions_and_subgraphs_too() -> None:
    model = make_model(
        f"(float[N,4] x, bool c) => (float[N,4] y) {{ {PAIR} "
        "y = If (c) <then_branch = t () => (float[N,4] a) { e = Tanh(xd) eq = QuantizeLinear(e, scale, zero) "
        "a = DequantizeLinear(eq, scale, zero) }, else_branch = f () => (float[N,4] b) { b = Neg(xd) }> }",
        GRID,
    )
    outcome, back = undo(model)
    assert str(outcome.said).startswith("2 pairs")
    x = normal(3, 4)
    np.testing.assert_allclose(run_onnx(back, {"x": x, "c": np.array(True)})["y"], np.tanh(x), rtol=1e-5)
    np.testing.assert_array_equal(run_onnx(back, {"x": x, "c": np.array(False)})["y"], -x)


# Activation functions


def activation_model(maker: str, scale: float, zero: np.generic) -> onnx.ModelProto:
    return make_model(
        f"(float[N,4] x) => (float[N,5] y) {{ {maker} [q] hq = QuantizeLinear(h, scale, zero) "
        "[dq] hd = DequantizeLinear(hq, scale, zero) [last] y = MatMul(hd, k) }",
        {"w": normal(4, 6, seed=1), "v": normal(6, 5, seed=2), "k": normal(6, 5, seed=3), "scale": np.float32(scale)}
        | {"zero": np.asarray(zero)},
    )


@pytest.mark.parametrize(
    ("zero", "scale", "wanted"),
    [
        (np.uint8(0), 0.1, "Relu"),
        (np.int8(-128), 0.1, "Relu"),
        (np.uint8(0), 6 / 255, "Clip"),
        (np.int8(-128), 6 / 255, "Clip"),
        (np.uint16(0), 6 / 65535, "Clip"),
        (np.uint8(1), 0.1, None),
        (np.int8(0), 0.1, None),
    ],
    ids=str,
)
def test_only_a_range_that_begins_at_zero_brings_one_back(zero: np.generic, scale: float, wanted: str | None) -> None:
    model = activation_model("[first] h = MatMul(x, w)", scale, zero)
    model.opset_import[0].version = 21
    model.ir_version = 10
    _, back = undo(model)
    assert op_types(back) == ["MatMul", *([wanted] if wanted else []), "MatMul"]
    feeds = {"x": normal(64, 4, seed=9, scale=2.0)}
    if wanted:
        assert sqnr_db(run_onnx(back, feeds)["y"], run_onnx(model, feeds)["y"]) > 30


@pytest.mark.parametrize(
    "maker",
    [
        "m = MatMul(x, w) h = Sigmoid(m)",
        "m = MatMul(x, w) r = Relu(m) h = Add(r, r)",
        "m = MatMul(x, w) r = Relu(m) s = Softmax(m) h = Mul(r, s)",
    ],
)
def test_none_is_put_behind_what_is_never_negative(maker: str) -> None:
    _, back = undo(activation_model(maker, 0.1, np.uint8(0)))
    assert op_types(back).count("Relu") == maker.count("Relu")


def test_none_is_put_behind_an_input() -> None:
    model = make_model(f"(float[N,4] x) => (float[N,4] y) {{ {PAIR} y = Neg(xd) }}", GRID | {"zero": np.uint8(0)})
    assert op_types(undo(model)[1]) == ["Neg"]


# Refusals


@pytest.mark.parametrize(
    ("body", "node", "words"),
    [
        (
            "[q] i = QuantizeLinear(x, scale, zero) [dq] y = DequantizeLinear(i, other, zero)",
            "dq",
            "its scale or zero_point is not that of node 'q'",
        ),
        (
            "[q] i = QuantizeLinear(x, scale, zero) [dq] y = DequantizeLinear(i, scale)",
            "dq",
            "its scale or zero_point is not that of node 'q'",
        ),
        (
            "[q] i = QuantizeLinear(x, scale, zero) [mod] p = Mod(i, two) [dq] y = DequantizeLinear(p, scale, zero)",
            "mod",
            "it computes on the integers of node 'q'",
        ),
        (
            "[q] i = QuantizeLinear(x, scale, zero) "
            "[conv] p = QLinearConv(i, other, zero, w, scale, zero, scale, zero) "
            "[dq] y = DequantizeLinear(p, scale, zero)",
            "conv",
            "its scale or zero_point is not that of node 'q'",
        ),
        (
            "[conv] p = ConvInteger(j, w) [cast] y = Cast<to=1>(p)",
            "conv",
            "it is not part of a Q/DQ pair",
        ),
        (
            "[dynamic] i, s, z = DynamicQuantizeLinear(x) [conv] p = ConvInteger(i, w, z) [cast] c = Cast<to=1>(p) "
            "[neg] y = Neg(c)",
            "neg",
            "it computes on the integers of node 'conv'",
        ),
        (
            "[dynamic] i, s, z = DynamicQuantizeLinear(x) [conv] p = ConvInteger(i, w) [cast] c = Cast<to=1>(p) "
            "[mul] y = Mul(c, s)",
            "conv",
            "its scale or zero_point is not that of node 'dynamic'",
        ),
    ],
    ids=["other_scale", "other_zero_point", "integers", "qlinear", "constants", "unscaled", "dynamic_zero_point"],
)
def test_what_is_left_is_named(body: str, node: str, words: str) -> None:
    weights = GRID | {"other": np.float32(0.06), "w": np.ones((1, 3, 1, 1), np.uint8)}
    weights |= {"j": np.ones((1, 3, 4, 4), np.uint8), "two": np.uint8(2)}
    model = make_model(f"(float[1,3,4,4] x) => (float[a,b,c,d] y) {{ {body} }}", weights)
    with pytest.raises(AlreadyQuantizedError) as caught:
        undo_quantization(ir.from_proto(model))
    assert caught.value.where["node"] == node
    assert words in caught.value.detail
    assert caught.value.where["reason_code"] in {kind.code for kind in declared()}
    assert caught.value.hint


@pytest.mark.parametrize(
    ("graph", "node"),
    [
        ("(uint8[N,4] x) => (float[N,4] y) { [dq] y = DequantizeLinear(x, scale, zero) }", "dq"),
        ("(float[N,4] x) => (uint8[N,4] y) { [q] y = QuantizeLinear(x, scale, zero) }", "q"),
    ],
)
def test_integers_at_the_edge_of_the_model_are_refused(graph: str, node: str) -> None:
    with pytest.raises(AlreadyQuantizedError, match=f"node '{node}'") as caught:
        undo_quantization(ir.from_proto(make_model(graph, GRID)))
    assert caught.value.where["node"] == node
