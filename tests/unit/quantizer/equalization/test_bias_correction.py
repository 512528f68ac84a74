"""Bias correction against what it promises: the mean outputs of the float network, and in closed form of a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.algorithms import BiasCorrection
from service.contracts.config import QuantizationConfig
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import Arrays, config, make_model, normal, quantize_file, run_onnx, sqnr_db
from worker.quantizer.equalization.bias_correction import NO_BIAS
from worker.quantizer.refine.draft import Draft

W4 = {"dtype": "int4", "granularity": "per_tensor"}
NETWORK = (
    "(float[N,3,8,8] x) => (float[N,5] y) { [conv0] c0 = Conv<pads=[1,1,1,1]>(x, w0, b0) [relu0] r0 = Relu(c0) "
    "[conv1] c1 = Conv<pads=[1,1,1,1]>(r0, w1) [relu1] r1 = Relu(c1) [pool] p = GlobalAveragePool(r1) "
    "[flat] f = Flatten(p) [dense] y = MatMul(f, k) }"
)


def network() -> onnx.ModelProto:
    return make_model(
        NETWORK,
        {
            "w0": normal(6, 3, 3, 3, scale=0.3),
            "b0": normal(6, seed=1, scale=0.2),
            "w1": normal(6, 6, 3, 3, seed=2, scale=0.3),
            "k": normal(6, 5, seed=3, scale=0.4),
        },
    )


def samples(count: int = 48) -> Arrays:
    return {"x": normal(count, 3, 8, 8, seed=7) + 0.5}


def quantized(folder, model: onnx.ModelProto, algorithms: list[dict[str, Any]], **settings: Any):  # type: ignore[no-untyped-def]
    given = {"weight": W4, "preset": "plain", **settings}
    return quantize_file(folder, model, samples(), config(algorithms=algorithms, **given))


def correction(mode: str, **options: Any) -> dict[str, Any]:
    return {"method": "bias_correction", "mode": mode, "accept": "always", **options}


def mean_error(model: onnx.ModelProto, emitted: bytes) -> float:
    """Largest difference of the outputs' means, float against quantized."""
    expected, got = run_onnx(model, samples())["y"], run_onnx(emitted, samples())["y"]
    return float(np.abs(expected.astype(np.float64).mean(axis=0) - got.mean(axis=0)).max())


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Any:  # type: ignore[no-untyped-def]
    return quantized(tmp_path_factory.mktemp("plain"), network(), []).model


@pytest.mark.slow
def test_the_means_of_the_outputs_come_back_and_full_is_nearer_than_fast(tmp_path, plain: bytes) -> None:
    """Where activations clip, the closed form is a little off."""
    model = network()
    fast, full = (quantized(tmp_path, model, [correction(mode)]) for mode in ("fast", "full"))
    assert mean_error(model, full.model) <= mean_error(model, fast.model) < 0.4 * mean_error(model, plain)
    for corrected in (fast, full):
        (outcome,) = corrected.report.algorithms
        assert outcome.kept and outcome.nodes >= 2
    expected, before, after = (run_onnx(found, samples())["y"] for found in (model, plain, full.model))
    assert sqnr_db(expected, after) > sqnr_db(expected, before)
    # a missing bias is made, and stored as integers
    emitted = onnx.load_from_string(full.model)
    made = {name: node for node in emitted.graph.node for name in node.output}
    stored = {tensor.name: tensor.data_type for tensor in emitted.graph.initializer}
    sources = [made[node.input[2]] for node in emitted.graph.node if node.op_type == "Conv"]
    assert [node.op_type for node in sources] == ["DequantizeLinear"] * 2
    assert {stored[node.input[0]] for node in sources} == {onnx.TensorProto.INT32}


@pytest.mark.slow
def test_the_number_of_samples_counts(tmp_path) -> None:
    few, all_of_them = (quantized(tmp_path, network(), [correction("full", data_size=size)]) for size in (2, None))
    assert few.model != all_of_them.model


@pytest.mark.parametrize("mode", ["fast", "full"])
@pytest.mark.parametrize(("of", "dtype"), [("weights_only", "int4"), ("dynamic", "int8")])
def test_means_come_back_where_activations_have_no_grid(tmp_path, of: str, dtype: str, mode: str) -> None:
    """Ranges at run time say nothing of means: 8 bits with one weight scale for all channels lose them too."""
    model = network()
    wide = model.graph.initializer[2]
    assert wide.name == "w1"
    weight = onnx.numpy_helper.to_array(wide) * np.array([20, 1, 1, 1, 1, 1], np.float32)[:, None, None, None]
    wide.CopyFrom(onnx.numpy_helper.from_array(weight, "w1"))
    settings = {"mode": of, "weight": {"dtype": dtype, "granularity": "per_tensor"}}
    plain = quantized(tmp_path, model, [], **settings)
    corrected = quantized(tmp_path, model, [correction(mode)], **settings)
    assert mean_error(model, corrected.model) < 0.6 * mean_error(model, plain.model)
    types = [node.op_type for node in onnx.load_from_string(corrected.model).graph.node]
    assert of == "dynamic" or ("MatMul" in types and "Gemm" not in types)  # a product of matrices stays one


PER_TENSOR = config(weight={"granularity": "per_tensor"})
NPU = config(preset="xint8", algorithms=[])
GPU = config(target="tensorrt", activation={"dtype": "int8", "symmetric": True}, weight={"granularity": "per_tensor"})


def with_rounded_parameters(draft: Draft) -> onnx.ModelProto:
    """The draft's float model with the plan's dequantized weights and biases: all that correction can see."""
    model = draft.prepared.model.clone()
    plan, stored = draft.plan, model.graph.initializers
    arrays = dict(plan.moved)
    for entry in [*plan.weights.values(), *plan.biases.values()]:
        if entry.integers is not None and entry.quantization is not None:
            array = entry.quantization.dequantize(entry.integers)
            arrays[entry.initializer] = array.reshape(stored[entry.initializer].shape.numpy())
    proto = ir.to_proto(model)
    for k, tensor in enumerate(proto.graph.initializer):
        if tensor.name in arrays:
            proto.graph.initializer[k].CopyFrom(onnx.numpy_helper.from_array(arrays[tensor.name], tensor.name))
    return proto


def channel_means(model: onnx.ModelProto, feeds: Arrays, axis: int) -> np.ndarray:
    output = run_onnx(model, feeds)["y"].astype(np.float64)
    return output.mean(axis=tuple(k for k in range(output.ndim) if k != axis % output.ndim))


# layer, weight, data, axis of the output's channels
LAYERS = {
    "gemm": ("[it] y = Gemm(x, w, b)", (12, 8), (64, 12), 1),
    "gemm alpha": ("[it] y = Gemm<transB=1, alpha=0.5>(x, w, b)", (8, 12), (64, 12), 1),
    "matmul and add": ("[it] m = MatMul(x, w) y = Add(b, m)", (12, 8), (16, 5, 12), -1),
    # 1x1 kernels: every window has the mean of the whole
    "conv": ("[it] y = Conv(x, w, b)", (8, 4, 1, 1), (16, 4, 6, 6), 1),
    "conv1d": ("[it] y = Conv(x, w, b)", (8, 4, 1), (16, 4, 9), 1),
    "conv3d": ("[it] y = Conv(x, w, b)", (8, 4, 1, 1, 1), (9, 4, 3, 3, 3), 1),
    "grouped": ("[it] y = Conv<group=2>(x, w, b)", (8, 2, 1, 1), (16, 4, 6, 6), 1),
    # kernels as large as the stride: every input goes to every output channel once
    "transposed": ("[it] y = ConvTranspose<group=2, strides=[2,2]>(x, w, b)", (4, 4, 2, 2), (16, 4, 6, 6), 1),
}


def layer(case: str, **changed: np.ndarray) -> tuple[onnx.ModelProto, Arrays, int]:
    text, weight, data, axis = LAYERS[case]
    values = normal(*data, seed=9)
    # every channel has a mean of its own, else there is nothing to correct
    length = data[axis]
    along = [length if k == axis % len(data) else 1 for k in range(len(data))]
    values += np.linspace(-3, 5, length, dtype=np.float32).reshape(along)
    fed, made = (",".join(["N", *sizes]) for sizes in (map(str, data[1:]), "abcd"[: len(data) - 1]))
    weights = {"w": normal(*weight, seed=3), "b": normal(8, seed=7), **changed}
    return make_model(f"(float[{fed}] x) => (float[{made}] y) {{ {text} }}", weights), {"x": values}, axis


@pytest.mark.parametrize("settings", [PER_TENSOR, NPU, GPU], ids=["int32", "int8", "float"])
@pytest.mark.parametrize("case", LAYERS)
def test_the_mean_output_of_a_layer_is_restored(case: str, settings: QuantizationConfig) -> None:
    model, feeds, axis = layer(case)
    it = Bench(model, feeds, BiasCorrection(mode="fast"), settings)
    given = with_rounded_parameters(it.draft)
    change = it.apply()
    assert change.draft is not None and change.nodes == ("it",)
    expected = channel_means(model, feeds, axis)
    before = np.abs(channel_means(given, feeds, axis) - expected).max()
    after = np.abs(channel_means(with_rounded_parameters(change.draft), feeds, axis) - expected).max()
    plan = change.draft.plan
    grids = [entry.quantization for entry in plan.biases.values()]
    grids += [entry.quantization for name, entry in plan.weights.items() if name == "b"]
    step = max((float(np.max(grid.scale)) for grid in grids if grid is not None), default=0.0)
    assert after <= step * 0.51 + 1e-5
    assert before > 2 * after
    assert with_rounded_parameters(it.draft) == given  # the old draft is untouched


def test_both_readers_of_a_shared_weight_are_corrected_by_their_own_input() -> None:
    model = make_model(
        "(float[N,12] x) => (float[N,8] y, float[N,8] z) { s = Sin(x) [one] y = Gemm(x, w, b) [two] z = Gemm(s, w, c) "
        "}",
        {"w": normal(12, 8), "b": normal(8, seed=1), "c": normal(8, seed=2)},
    )
    feeds = {"x": normal(64, 12) + 2}
    change = Bench(model, feeds, BiasCorrection(mode="fast"), PER_TENSOR).apply()
    assert change.draft is not None and change.nodes == ("one", "two")
    expected, got = run_onnx(model, feeds), run_onnx(with_rounded_parameters(change.draft), feeds)
    for name in "yz":
        difference = np.abs(got[name].mean(axis=0) - expected[name].mean(axis=0))
        assert difference.max() < 0.01 * np.abs(expected[name]).max()


def test_a_bias_that_outgrows_its_own_grid_gets_another_and_weights_that_fit_leave_nothing_to_do() -> None:
    model, *_ = layer("gemm", b=normal(8, scale=1e-3))
    feeds = {"x": normal(64, 12) + 20}
    it = Bench(model, feeds, BiasCorrection(mode="fast"), NPU)
    change = it.apply()
    before, after = it.draft.plan.biases["it"].quantization, change.draft.plan.biases["it"].quantization
    assert after.scale > 4 * before.scale and np.log2(after.scale) % 1 == 0
    integers = change.draft.plan.biases["it"].integers
    assert np.abs(integers).max() > 40
    weight = np.rint(normal(8, 4, 1, 1, scale=40)).astype(np.float32)
    weight[0, 0] = 127
    model, feeds, _ = layer("conv", w=weight)
    change = Bench(model, feeds, BiasCorrection(mode="fast"), PER_TENSOR).apply()
    assert change.draft is None and change.reason is not None and change.reason.code == NO_BIAS.code
