"""torch_quantizer and Inspector: calibrate, test in the light of what was calibrated, export, refuse."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from quantmill.torch.nndct import Inspector, dump_xmodel, torch_quantizer
from quantmill.torch.nndct.errors import NotOfferedError, QuantInfoError, StageError
from quantmill.torch.nndct.nn.modules import functional
from quantmill.torch.nndct.recipe import make_recipe
from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidConfigError, InvalidRequestError
from tests.unit.contracts.refusals import contains
from tests.unit.quantmill.torch.test_torch_quantize import in_onnxruntime
from tests.unit.quantmill.torch.test_torch_stubs import WholeModule

pytestmark = pytest.mark.slow
TARGET = "AMD_AIE2_Nx4_Overlay_cfg0"
IMAGES = torch.randn(48, 2, 6, 6, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(2, channels, 3, padding=1)
        self.add = functional.Add()
        self.act = nn.Sigmoid()
        self.head = nn.Linear(channels * 36, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x).relu()
        scores: Tensor = self.head(self.add(y, y).flatten(1))
        return scores


def feed(model: nn.Module, images: Tensor) -> None:
    for batch in images.split(16):
        model(batch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("nndct")
    net = Net()
    quantizer = torch_quantizer("calib", net, (IMAGES[:4],), output_dir=made, target=TARGET)
    with pytest.raises(StageError, match="has not seen any data"):
        quantizer.export_quant_config()
    with pytest.raises(StageError, match="belongs to mode 'test'"):
        quantizer.load_ft_param()
    with pytest.raises(StageError, match="did not call quant_model"):
        quantizer.fast_finetune(lambda: None, ())
    quantizer.fast_finetune(feed, (quantizer.quant_model, IMAGES[:48]))
    feed(quantizer.quant_model, IMAGES[:-3])
    assert torch.equal(quantizer.quant_model(IMAGES[-3:]), net(IMAGES[-3:]))
    quantizer.export_quant_config()
    assert quantizer.report is not None
    methods = [algorithm.method for algorithm in quantizer.report.algorithms]
    assert methods == ["cross_layer_equalization", "bias_correction", "adaquant"]
    return made


def test_quant_info_tells_how_every_tensor_is_quantized(folder: Path) -> None:
    info = json.loads((folder / "quant_info.json").read_text())
    assert (info["fast_finetuned"], info["bias_corrected"], info["target"]) == (True, True, TARGET)
    assert set(info["input"]) == {"x"}
    assert {"conv.weight", "conv.bias", "head.weight", "head.bias"} <= set(info["param"])
    stored = {tensor.name: tensor for tensor in onnx.load(folder / "Net_calibrated.onnx").graph.initializer}
    for kind, name in (("param", "conv.weight"), ("input", "x")):
        ((bits, position),) = info[kind][name]
        assert (bits, float(onnx.numpy_helper.to_array(stored[f"{name}_scale"]))) == (8, 2.0**-position)


def test_test_mode_computes_quantized_and_exports(folder: Path, tmp_path: Path) -> None:
    net = Net()
    quantizer = torch_quantizer("test", net, (IMAGES[:4],), output_dir=folder, target=TARGET)
    quantizer.load_ft_param()
    with torch.no_grad():
        scores, expected = quantizer.quant_model(IMAGES), net(IMAGES)
    noise = float(((scores - expected) ** 2).mean() / (expected**2).mean())
    assert 0 < noise < 10**-2.5
    fixed = quantizer.export_onnx_model(output_dir=tmp_path, check_model=True)
    assert fixed.name == "Net_int.onnx"
    assert onnxruntime.InferenceSession(fixed).get_inputs()[0].shape == [4, 2, 6, 6]
    assert np.array_equal(in_onnxruntime(fixed, IMAGES[:4])[0], quantizer.quant_model(IMAGES[:4]).numpy())
    free = quantizer.export_onnx_model(output_dir=tmp_path, dynamic_batch=True)
    assert in_onnxruntime(free, IMAGES)[0].shape == (48, 3)
    with pytest.raises(NotOfferedError, match="not 13"):
        quantizer.export_onnx_model(opset_version=13)
    for refused in ("native_onnx", "dump_layers", "opt_graph"):
        with pytest.raises(NotOfferedError, match=refused):
            quantizer.export_onnx_model(**{refused: refused != "native_onnx"})
    for call in (quantizer.export_xmodel, quantizer.export_torch_script, dump_xmodel):
        with pytest.raises(NotOfferedError):
            call()
    with pytest.raises(StageError, match="belongs to mode 'calib'"):
        quantizer.export_quant_config()
    with pytest.raises(StageError, match="belongs to mode 'calib'"):
        quantizer.fast_finetune(feed, (quantizer.quant_model, IMAGES))


def weights(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    graph = onnx.load(path).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    pairs = [node.input for node in graph.node if node.op_type == "DequantizeLinear" and node.input[0] in stored]
    return {name: stored[name].astype(np.float64) * stored[scale] for name, scale, *_ in pairs}


def test_one_process_quantizes_tests_and_deploys(folder: Path, tmp_path: Path) -> None:
    net = Net()
    quantizer = torch_quantizer("calib", net, (IMAGES[:4],), output_dir=tmp_path, target=TARGET)
    model = quantizer.quant_model
    with pytest.raises(StageError, match="has not seen any data"):
        quantizer.test(lambda model: model(IMAGES), (model,))
    for fmt, told in (("xmodel", "no xmodel compiler"), ("torch_script", "not written as TorchScript")):
        with pytest.raises(NotOfferedError, match=told):
            quantizer.deploy(feed, (model, IMAGES), fmt)
    with pytest.raises(InvalidRequestError, match="fmt is 'tflite'"):
        quantizer.deploy(feed, (model, IMAGES), "tflite")
    quantizer.quantize(feed, (model, IMAGES), ft_args=(model, IMAGES[:48]))
    tested = quantizer.test(lambda model: model(IMAGES), (model,))
    other = torch_quantizer("test", Net(), (IMAGES[:4],), output_dir=folder, target=TARGET)
    assert torch.equal(other.test(lambda model: model(IMAGES), (other.quant_model,)), tested)
    assert not torch.equal(tested, net(IMAGES))
    path = quantizer.deploy(feed, (model, IMAGES[:4]))
    assert path == tmp_path / "Net_int.onnx"
    assert np.array_equal(in_onnxruntime(path, IMAGES[:4])[0], other.quant_model(IMAGES[:4]).numpy())
    with pytest.raises(StageError, match="quantize belongs to mode 'calib'"):
        other.quantize(feed, (other.quant_model, IMAGES))
    assert torch.equal(model(IMAGES), net(IMAGES))  # only while it is tested is it the quantized one


def test_finetuned_parameters_are_loaded_or_it_is_said_why_not(folder: Path, tmp_path: Path) -> None:
    plain, result = tmp_path / "plain", tmp_path / "result"
    quantizer = torch_quantizer("calib", Net(), (IMAGES[:4],), output_dir=plain, target=TARGET)
    quantizer.quantize(feed, (quantizer.quant_model, IMAGES))
    before = torch_quantizer("test", Net(), (IMAGES[:4],), output_dir=plain, target=TARGET)
    with pytest.raises(QuantInfoError, match="was made without fast finetuning"):
        before.load_ft_param()
    shutil.copytree(plain, result)
    late = torch_quantizer("test", Net(), (IMAGES[:4],), output_dir=result, target=TARGET)
    assert torch.equal(late.quant_model(IMAGES), before.quant_model(IMAGES))
    shutil.copytree(folder, result, dirs_exist_ok=True)
    late.load_ft_param()
    assert not torch.equal(late.quant_model(IMAGES), before.quant_model(IMAGES))
    finetuned, others = weights(folder / "Net_calibrated.onnx"), weights(plain / "Net_calibrated.onnx")
    assert finetuned.keys() == others.keys()
    assert any(not np.array_equal(finetuned[name], others[name]) for name in finetuned if "weight" in name)
    assert all(np.array_equal(finetuned[name], held) for name, held in weights(late.export_onnx_model()).items())
    info, model = result / "quant_info.json", result / "Net_calibrated.onnx"
    document = json.loads(info.read_text())
    assert (document["finetuning"]["method"], document["finetuning"]["kept"]) == ("adaquant", True)
    undone = {**document, "finetuning": {**document["finetuning"], "kept": False, "summary": "the network got worse"}}
    info.write_text(json.dumps(undone))
    with pytest.warns(UserWarning, match="fast finetuning changed nothing: the network got worse"):
        late.load_ft_param()
    info.write_text(json.dumps({key: value for key, value in document.items() if key != "finetuning"}))
    with pytest.raises(QuantInfoError, match="does not say what fast finetuning did"):
        late.load_ft_param()
    info.write_text(json.dumps(document))
    shutil.copyfile(plain / "Net_calibrated.onnx", model)
    with pytest.raises(QuantInfoError, match=r"Net_calibrated\.onnx is not the model that .* its sha256 is"):
        late.load_ft_param()
    for path in (model, info):
        path.unlink()
        with pytest.raises(QuantInfoError, match=rf"there is no .*{path.name}"):
            late.load_ft_param()


def test_test_mode_refuses_what_was_calibrated_for_something_else(folder: Path, tmp_path: Path) -> None:
    net = Net()
    nn.init.zeros_(net.head.bias)
    torch.save(net.state_dict(), tmp_path / "float.pth")
    refused = [
        (Net(5), None, folder, TARGET, "the graph of the module is another"),
        (Net(), None, folder, "onnxruntime_cpu", "it was 'AMD_AIE2_Nx4_Overlay_cfg0'"),
        (Net(), tmp_path / "float.pth", folder, TARGET, "the weights of the module are others"),
        (Net(), None, tmp_path, TARGET, "there is no"),
    ]
    for net, state, output_dir, target, told in refused:
        with pytest.raises(QuantInfoError, match=told):
            torch_quantizer("test", net, (IMAGES[:4],), state, output_dir=output_dir, target=target, device="cpu")


def test_arguments_that_ask_for_what_is_not_there() -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"quant_mode": 1}, InvalidRequestError, "quant_mode is 1"),
        ({"quant_mode": "float"}, InvalidRequestError, "quant_mode is 'float'"),
        ({"input_args": None}, InvalidRequestError, "needs input_args"),
        ({"mix_bit": True}, NotOfferedError, "mix_bit=True"),
        ({"lstm": True}, NotOfferedError, "lstm=True"),
        ({"app_deploy": "NLP"}, NotOfferedError, "app_deploy='NLP'"),
        ({"custom_quant_ops": ["my_op"]}, NotOfferedError, "custom_quant_ops"),
        ({"state_dict_file": "none.pth"}, InvalidRequestError, "cannot be loaded"),
    ]
    for given, error, told in cases:
        with pytest.raises(error, match=told):
            torch_quantizer(**{"quant_mode": "calib", "module": Net(), "input_args": IMAGES[:4], **given})


def test_inspector_prints_which_layers_stay_in_float_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Inspector(TARGET).inspect(WholeModule().eval(), torch.randn(2, 4), output_dir=tmp_path)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith(f"Target {TARGET} (amd_npu_cnn): 2 of 4 nodes run quantized")
    assert "float     subm1 (Gemm" in printed
    assert "outside the quantized regions" in printed
    assert "subm0" not in printed
    written = (tmp_path / f"inspect_{TARGET}.txt").read_text()
    assert "quantized subm0 (Gemm" in written
    assert [node.quantized for node in told.nodes] == [True, False, False, True]
    with pytest.raises(NotOfferedError, match="image_format"):
        Inspector(TARGET).inspect(WholeModule(), torch.randn(2, 4), image_format="svg")


def test_operations_as_modules_do_what_the_functions_do() -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    pairs = [
        (functional.Add()(a, b), a + b),
        (functional.Sub()(a, b), a - b),
        (functional.Mul()(a, b), a * b),
        (functional.Matmul()(a, b.T), a @ b.T),
        (functional.Cat()([a, b], dim=1), torch.cat([a, b], 1)),
        (functional.Max()(a, b), torch.maximum(a, b)),
        (functional.Min()(a, 1).values, a.min(1).values),
        (functional.Mean()(a, dim=0), a.mean(0)),
        (functional.Sum()(a), a.sum()),
        (functional.Pad()(a, [1, 1])[:, 1:-1], a),
        (functional.Relu()(a), a.clamp(min=0)),
        (functional.Clamp()(a, max=0.5), a.clamp(max=0.5)),
        (functional.Interpolate()(a[None], scale_factor=2)[..., ::2], a[None]),
    ]
    assert [torch.equal(found, expected) for found, expected in pairs] == [True] * len(pairs)


NETWORK = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Sequential(nn.Conv2d(4, 4, 3)), nn.Flatten(), nn.Linear(4, 2)
)
NO = ("convert_relu6_to_relu", "convert_silu_to_hswish", "keep_first_last_layer_accuracy", "keep_add_layer_accuracy")
DEFAULTS = {  # of the file that Vitis AI shows in its documents
    **dict.fromkeys(NO, False),
    **{"include_cle": True, "include_bias_corr": True, "target_device": "DPU"},
    "quantizable_data_type": ["input", "weights", "bias", "activation"],
    "overall_quantize_config": {
        **{"bit_width": 8, "method": "diffs", "round_mode": "std_round", "symmetry": "symmetric"},
        **{"per_channel": False, "signed": True, "narrow_range": False, "scale_type": "poweroftwo"},
        "calib_statistic_method": "modal",
    },
    "tensor_quantize_config": {"activation": {"bit_width": 8, "round_mode": "half_up"}},
}


def recipe(
    tmp_path: Path, document: dict[str, Any] | None = None, target: str | None = None, bitwidth: int | None = None
) -> tuple[QuantizationConfig, tuple[str, ...]]:
    path = None
    if document is not None:
        path = tmp_path / "quant_config.json"
        path.write_text(json.dumps(document))
    return make_recipe(NETWORK, target=target, bitwidth=bitwidth, quant_config_file=path)


def test_defaults_are_those_of_vitis_ai(tmp_path: Path) -> None:
    config, notes = recipe(tmp_path)
    for spec in (config.activation, config.weight):
        assert (spec.dtype, spec.symmetric, spec.scale) == ("int8", True, "power_of_two")
        assert (spec.granularity, spec.calibration.method) == ("per_tensor", "mse")
    assert (config.bias.dtype, config.target, notes) == ("int8", "amd_npu_cnn", ())
    assert config.target_options == {"sigmoid_to_hard_sigmoid": False}
    assert [algorithm.method for algorithm in config.algorithms] == ["cross_layer_equalization", "bias_correction"]


def test_the_file_of_vitis_ai_s_documents_says_what_holds_anyway(tmp_path: Path) -> None:
    config, notes = recipe(tmp_path, DEFAULTS, TARGET)
    assert config == recipe(tmp_path)[0]
    told = ["round_mode std_round", "calib_statistic_method modal", "round_mode half_up"]
    assert [note.split(":")[0] for note in notes] == told


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"include_cle": False, "include_bias_corr": False}, {"algorithms": []}),
        ({"convert_relu6_to_relu": True}, {"preparation": {"clip6_to_relu": True, "split_to_slice": True}}),
        ({"onnx_opset_version": 21}, {"preparation": {"opset": 21}}),
        ({"change_concat_input_fix": False}, {"target_options": {"align_concat": False}}),
        ({"overall_quantize_config": {"method": "percentile", "percentage": 99.9}},
         {"activation": {"calibration": {"method": "percentile", "percentile": 99.9}}}),
        ({"tensor_quantize_config": {"activation": {"method": "entropy"}}},
         {"activation": {"calibration": {"method": "entropy"}}, "weight": {"calibration": {"method": "mse"}}}),
        ({"target_device": "CPU", "overall_quantize_config": {"scale_type": "float", "symmetry": "asymmetric"},
          "tensor_quantize_config": {"activation": {"signed": False}, "weights": {"symmetry": "symmetric",
                                                                               "per_channel": True, "bit_width": 4}}},
         {"target": "onnxruntime_cpu", "bias": {"dtype": "int32"},
          "activation": {"dtype": "uint8", "symmetric": False, "scale": "float32"},
          "weight": {"dtype": "int4", "symmetric": True, "scale": "float32", "granularity": "per_channel"}}),
        ({"target_device": "GPU", "overall_quantize_config": {"bit_width": 16}},
         {"target": "onnxruntime_gpu", "activation": {"dtype": "int16"}, "weight": {"dtype": "int16"}}),
        ({"quantizable_data_type": ["input", "weights", "activation"]},
         {"bias": {"dtype": "float32"}, "target_options": {"int8_bias": False}}),
        ({"layer_quantize_config": [{"layer_name": "Net::Net/Sequential[2]/Conv2d[0]/input.3",
                                     "tensor_quantize_config": {"weights": {"method": "maxmin"}}}]},
         {"overrides": [{"match": {"module": "2.0"}, "weight": {"calibration": {"method": "minmax"}}}]}),
        ({"layer_quantize_config": [{"layer_type": "torch.nn.Conv2d",
                                     "overall_quantize_config": {"datatype": "float32"}}]},
         {"exclude": [{"module": "0"}, {"module": "2.0"}]}),
    ],
)  # fmt: skip
def test_every_key_has_its_effect(tmp_path: Path, document: dict[str, Any], expected: dict[str, Any]) -> None:
    found = recipe(tmp_path, document)[0].model_dump(mode="json")
    assert contains(found, expected), {key: found[key] for key in expected}


@pytest.mark.parametrize(
    ("document", "at", "told"),
    [
        ({"include_cel": True}, "/include_cel", "did you mean 'include_cle'?"),
        ({"convert_silu_to_hswish": True}, "/convert_silu_to_hswish", "nn.Hardswish"),
        ({"keep_add_layer_accuracy": True}, "/keep_add_layer_accuracy", "no effect"),
        ({"target_device": "FLEXML"}, "/target_device", "not offered"),
        ({"change_pool_input_fix": True}, "/change_pool_input_fix", "never the reverse"),
        ({"quantizable_data_type": ["weights"]}, "/quantizable_data_type", "together"),
        ({"overall_quantize_config": {"method": "magic"}}, "/overall_quantize_config/method", "diffs"),
        ({"overall_quantize_config": {"bit_with": 8}}, "/overall_quantize_config/bit_with", "'bit_width'"),
        ({"overall_quantize_config": {"bit_width": 5}}, "/overall_quantize_config/bit_width", "not 5"),
        ({"overall_quantize_config": {"scale_type": "float"}},
         "/overall_quantize_config/scale_type", "the DPU computes"),
        ({"tensor_quantize_config": {"weights": {"per_channel": True}}},
         "/tensor_quantize_config/weights/per_channel", "the DPU computes"),
        ({"tensor_quantize_config": {"input": {"method": "maxmin"}}}, "/tensor_quantize_config/input/method", "inputs"),
        ({"tensor_quantize_config": {"activation": {"narrow_range": True}}},
         "/tensor_quantize_config/activation/narrow_range", "whole range"),
        ({"layer_quantize_config": [{"layer_name": "3.0"}]}, "/layer_quantize_config/0/layer_name",
         "no such module: '3.0'"),
        ({"layer_quantize_config": [{"layer_type": "LSTM"}]}, "/layer_quantize_config/0/layer_type", "no module is a"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_names_its_key(tmp_path: Path, document: dict[str, Any], at: str, told: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        recipe(tmp_path, document)
    assert at in {problem.pointer for problem in caught.value.errors}
    assert told in caught.value.detail


def test_file_and_target_hold_together_and_must_not_contradict(tmp_path: Path) -> None:
    both, _ = recipe(tmp_path, {"include_cle": False}, TARGET)
    assert both.target == "amd_npu_cnn"
    assert [algorithm.method for algorithm in both.algorithms] == ["bias_correction"]
    assert recipe(tmp_path, target="onnxruntime_cpu", bitwidth=16)[0].activation.dtype == "int16"
    with pytest.raises(InvalidConfigError, match="target_device CPU contradicts the target amd_npu_cnn"):
        recipe(tmp_path, {"target_device": "CPU"}, TARGET)
    with pytest.raises(InvalidConfigError, match="did you mean 'AMD_AIE2_Nx4_Overlay_cfg0'"):
        recipe(tmp_path, target="AMD_AIE2_Nx4_Overlay")
    with pytest.raises(InvalidConfigError, match="/bitwidth: 16 bits: the DPU"):
        recipe(tmp_path, bitwidth=16)
    (tmp_path / "bad.json").write_text("{")
    for name, told in (("none.json", "there is no quant_config_file"), ("bad.json", "is not JSON")):
        with pytest.raises(InvalidConfigError, match=told):
            make_recipe(NETWORK, target=None, bitwidth=None, quant_config_file=tmp_path / name)
