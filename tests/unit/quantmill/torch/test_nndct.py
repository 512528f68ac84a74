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

from quantmill.torch.nndct import DeQuantStub, Inspector, QuantStub, dump_xmodel, torch_quantizer
from quantmill.torch.nndct.errors import NotOfferedError, QuantInfoError, StageError
from quantmill.torch.nndct.nn.modules import functional
from service.contracts.errors import InvalidRequestError

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
    """The result of a calibration with finetuning, after all refusals on the way."""
    made = tmp_path_factory.mktemp("nndct")
    net = Net()
    quantizer = torch_quantizer("calib", net, (IMAGES[:4],), output_dir=made, target=TARGET)
    with pytest.raises(StageError, match="has not seen any data"):
        quantizer.export_quant_config()
    with pytest.raises(StageError, match="belongs to mode 'test'"):
        quantizer.load_ft_param()
    with pytest.raises(StageError, match="did not call quant_model"):
        quantizer.fast_finetune(lambda: None, ())
    quantizer.fast_finetune(feed, (quantizer.quant_model, IMAGES[:32]))
    feed(quantizer.quant_model, IMAGES)
    assert torch.equal(quantizer.quant_model(IMAGES[:3]), net(IMAGES[:3]))
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
    model = onnx.load(folder / "Net_calibrated.onnx")
    scales = {tensor.name: float(onnx.numpy_helper.to_array(tensor)) for tensor in model.graph.initializer
              if tensor.name.endswith("_scale")}  # fmt: skip
    ((bits, position),) = info["param"]["conv.weight"]
    assert bits == 8
    assert scales["conv.weight_scale"] == 2.0**-position
    ((bits, position),) = info["input"]["x"]
    assert (bits, scales["x_scale"]) == (8, 2.0**-position)


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
    session = onnxruntime.InferenceSession(fixed)
    assert session.get_inputs()[0].shape == [4, 2, 6, 6]
    assert np.array_equal(session.run(None, {"x": IMAGES[:4].numpy()})[0], quantizer.quant_model(IMAGES[:4]).numpy())
    free = quantizer.export_onnx_model(output_dir=tmp_path, dynamic_batch=True)
    assert onnxruntime.InferenceSession(free).run(None, {"x": IMAGES.numpy()})[0].shape == (48, 3)
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
    """The parameters that a quantized model computes with: stored integers, times their scales."""
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    found = {}
    for node in onnx.load(path).graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in stored:
            found[node.input[0]] = stored[node.input[0]].astype(np.float64) * stored[node.input[1]]
    return found


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
    quantizer.quantize(feed, (model, IMAGES), ft_args=(model, IMAGES[:32]))
    tested = quantizer.test(lambda model: model(IMAGES), (model,))
    other = torch_quantizer("test", Net(), (IMAGES[:4],), output_dir=folder, target=TARGET)
    assert torch.equal(other.test(lambda model: model(IMAGES), (other.quant_model,)), tested)
    assert not torch.equal(tested, net(IMAGES))
    path = quantizer.deploy(feed, (model, IMAGES[:4]))
    assert path == tmp_path / "Net_int.onnx"
    session = onnxruntime.InferenceSession(path)
    assert np.array_equal(session.run(None, {"x": IMAGES[:4].numpy()})[0], other.quant_model(IMAGES[:4]).numpy())
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
    model = late.quant_model
    assert torch.equal(model(IMAGES), before.quant_model(IMAGES))
    shutil.copytree(folder, result, dirs_exist_ok=True)
    late.load_ft_param()
    assert not torch.equal(model(IMAGES), before.quant_model(IMAGES))
    finetuned, others = weights(folder / "Net_calibrated.onnx"), weights(plain / "Net_calibrated.onnx")
    assert finetuned.keys() == others.keys()
    assert any(not np.array_equal(finetuned[name], others[name]) for name in finetuned if "weight" in name)
    assert all(np.array_equal(finetuned[name], held) for name, held in weights(late.export_onnx_model()).items())
    told = json.loads((result / "quant_info.json").read_text())["finetuning"]
    assert (told["method"], told["kept"]) == ("adaquant", True)
    shutil.copyfile(plain / "Net_calibrated.onnx", result / "Net_calibrated.onnx")
    with pytest.raises(QuantInfoError, match=r"Net_calibrated\.onnx is not the model that .* its sha256 is"):
        late.load_ft_param()
    (result / "Net_calibrated.onnx").unlink()
    with pytest.raises(QuantInfoError, match=r"there is no .*Net_calibrated\.onnx, the quantized model that"):
        late.load_ft_param()
    (result / "quant_info.json").unlink()
    with pytest.raises(QuantInfoError, match=r"there is no .*quant_info\.json"):
        late.load_ft_param()


def test_finetuning_that_was_undone_is_a_warning(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    document = json.loads((folder / "quant_info.json").read_text())
    document["finetuning"] |= {"kept": False, "summary": "the network got worse"}
    (tmp_path / "quant_info.json").write_text(json.dumps(document))
    quantizer = torch_quantizer("test", Net(), (IMAGES[:4],), output_dir=tmp_path, target=TARGET)
    with pytest.warns(UserWarning, match="fast finetuning changed nothing: the network got worse"):
        quantizer.load_ft_param()
    del document["finetuning"]
    (tmp_path / "quant_info.json").write_text(json.dumps(document))
    with pytest.raises(QuantInfoError, match="does not say what fast finetuning did"):
        quantizer.load_ft_param()


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


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"quant_mode": 1}, InvalidRequestError, "quant_mode is 1"),
        ({"quant_mode": "float"}, InvalidRequestError, "quant_mode is 'float'"),
        ({"input_args": None}, InvalidRequestError, "needs input_args"),
        ({"mix_bit": True}, NotOfferedError, "mix_bit=True"),
        ({"lstm": True}, NotOfferedError, "lstm=True"),
        ({"app_deploy": "NLP"}, NotOfferedError, "app_deploy='NLP'"),
        ({"custom_quant_ops": ["my_op"]}, NotOfferedError, "custom_quant_ops"),
        ({"state_dict_file": "none.pth"}, InvalidRequestError, "cannot be loaded"),
    ],
)
def test_arguments_that_ask_for_what_is_not_there(given: dict[str, Any], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        torch_quantizer(**{"quant_mode": "calib", "module": Net(), "input_args": IMAGES[:4], **given})


class Stubbed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.quant, self.dequant = QuantStub(), DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        outside: Tensor = self.second(self.dequant(self.first(self.quant(x)))).sigmoid()
        return outside


def test_inspector_prints_which_layers_stay_in_float_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Inspector(TARGET).inspect(Stubbed().eval(), torch.randn(2, 4), output_dir=tmp_path)
    printed = capsys.readouterr().out
    assert printed.splitlines()[0].startswith(f"Target {TARGET} (amd_npu_cnn): 1 of 3 nodes run quantized")
    assert "float     second (Gemm" in printed
    assert "outside the quantized regions" in printed
    assert "first" not in printed
    written = (tmp_path / f"inspect_{TARGET}.txt").read_text()
    assert "quantized first (Gemm" in written
    assert [node.quantized for node in told.nodes] == [True, False, False]
    with pytest.raises(NotOfferedError, match="image_format"):
        Inspector(TARGET).inspect(Stubbed(), torch.randn(2, 4), image_format="svg")


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
