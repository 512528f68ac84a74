"""Scales, zero points and integers of real networks against onnxruntime's own quantizer: same config, same data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from tests.data.zoo import mostly_long
from tests.support.data import DATA_MARKS, required_data_dir
from tests.unit.quantizer.toolbox import config, quantize_model

pytestmark = DATA_MARKS

# Folding BatchNormalization in another order or precision moves the last bits of a range.
SCALE_TOLERANCE = 2e-6

Grid = tuple[np.ndarray, np.ndarray]


# model: file, array and number of its samples, granularity of the weights, how many tensors and weights both quantize.
# onnxruntime cannot quantize the MNIST model per channel: it fails on the bias of its last layer.
CASES: dict[str, tuple[str, str, int, str, int, int]] = {
    "cifar10/resnet20.onnx": ("cifar10/calibration.npz", "images", 100, "per_channel", 37, 20),
    "imagenet/mobilenet_v1_0.75_224.onnx": ("imagenet/calibration.npz", "images", 6, "per_channel", 29, 28),
    "speech/kws_dscnn.onnx": ("speech/kws_dscnn_mfcc49x10.npz", "calib", 100, "per_channel", 12, 10),
    "mnist/mnist_cntk_opset8.onnx": ("mnist/mnist.npz", "calib", 100, "per_tensor", 6, 3),
}


def samples_of(name: str) -> np.ndarray:
    file, array, count, *_ = CASES[name]
    values = np.load(required_data_dir() / file)[array][:count].astype(np.float32)
    if array == "images":
        values = (values / np.float32(127.5) - 1).transpose(0, 3, 1, 2)
    return np.ascontiguousarray(values[:, None] if values.ndim == 3 else values)


class OneByOne(CalibrationDataReader):
    def __init__(self, name: str, values: np.ndarray) -> None:
        self._feeds = iter([{name: values[k : k + 1]} for k in range(len(values))])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantized_by_onnxruntime(
    model: onnx.ModelProto, values: np.ndarray, granularity: str, folder: Path
) -> onnx.ModelProto:
    """quant_pre_process and quantize_static, with opset and interface brought to what they can work with."""
    if model.opset_import[0].version < 13:
        model.ir_version = 8
        model = onnx.version_converter.convert_version(model, 17)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    onnx.save(model, folder / "lifted.onnx")
    quant_pre_process(str(folder / "lifted.onnx"), str(folder / "pre.onnx"))
    quantize_static(
        str(folder / "pre.onnx"),
        str(folder / "quantized.onnx"),
        OneByOne(inputs[0].name, values),
        quant_format=QuantFormat.QDQ,
        per_channel=granularity == "per_channel",
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return onnx.load(folder / "quantized.onnx")


def constants(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def activation_grids(model: onnx.ModelProto) -> dict[str, Grid]:
    stored = constants(model)
    return {
        node.input[0].removesuffix("_QuantizeLinear_Input"): (stored[node.input[1]], stored[node.input[2]])
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


def weight_grids(model: onnx.ModelProto) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """By node name: integers with the channels first, scale, zero point."""
    stored = constants(model)
    made = {node.output[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    grids = {}
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm", "MatMul") and made[node.input[1]].input[0] in stored:
            restore = made[node.input[1]]
            integers, scale, zero_point = (stored[name] for name in restore.input)
            axis = next((attribute.i for attribute in restore.attribute if attribute.name == "axis"), 0)
            grids[node.name.removesuffix("/MatMulAddFusion")] = (np.moveaxis(integers, axis, 0), scale, zero_point)
    return grids


@pytest.mark.parametrize("name", mostly_long(CASES, "speech/kws_dscnn.onnx", "mnist/mnist_cntk_opset8.onnx"))
def test_scales_and_zero_points_equal_onnxruntimes(name: str, tmp_path: Path) -> None:
    *_, granularity, common_tensors, common_weights = CASES[name]
    folder, values = required_data_dir(), samples_of(name)
    model = onnx.load(folder / name)
    weights = {tensor.name for tensor in model.graph.initializer}
    input_name = next(value.name for value in model.graph.input if value.name not in weights)
    settings = config(weight={"granularity": granularity})
    ours = quantize_model(model, {input_name: values}, settings)[2]
    theirs = quantized_by_onnxruntime(onnx.load(folder / name), values, granularity, tmp_path)

    found, expected = activation_grids(ours), activation_grids(theirs)
    common = sorted(found.keys() & expected.keys())
    for tensor in common:
        np.testing.assert_allclose(found[tensor][0], expected[tensor][0], rtol=SCALE_TOLERANCE, err_msg=tensor)
        assert found[tensor][1] == expected[tensor][1], tensor

    found, expected = weight_grids(ours), weight_grids(theirs)
    nodes = sorted(found.keys() & expected.keys())
    for node in nodes:
        (integers, scale, zero_point), (other_integers, other_scale, other_zero_point) = found[node], expected[node]
        assert (zero_point == 0).all()
        assert (other_zero_point == 0).all()
        # Where a dead channel has a bias, both raise its scale, onnxruntime to the very edge of int32.
        used = np.abs(integers.astype(int)).reshape(len(integers), -1).max(axis=1)
        usual = used == 127 if scale.shape else used.max() == 127
        np.testing.assert_allclose(scale[usual], other_scale[usual], rtol=SCALE_TOLERANCE, err_msg=node)
        assert (scale >= other_scale * (1 - SCALE_TOLERANCE)).all()
        differing = np.abs(integers.astype(int) - other_integers)[usual]
        assert differing.max() <= 1, node
        assert (differing != 0).mean() < 1e-3, node
    assert len(common) == common_tensors
    assert len(nodes) == common_weights
