"""QatProcessor: scripts for Vitis AI's quantization-aware training."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from quantmill.torch.nndct import QatProcessor
from quantmill.torch.nndct.apis import torch_quantizer
from quantmill.torch.nndct.errors import NotOfferedError, QuantInfoError, StageError
from quantmill.torch.nndct.nn import DeQuantStub, QuantStub
from quantmill.torch.nndct.nn.modules import functional
from quantmill.torch.nndct.qat_model import WARM_UP_SAMPLES, TrainableModel
from service.contracts.errors import InvalidConfigError, InvalidRequestError
from tests.unit.quantmill.torch.test_torch_quantize import in_onnxruntime

pytestmark = pytest.mark.slow


class Network(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.relu1 = nn.ReLU()
        self.conv2, self.skip_add, self.relu2 = nn.Conv2d(width, width, 3, padding=1), functional.Add(), nn.ReLU()
        self.fc = nn.Linear(width, 5)
        self.quant_stub, self.dequant_stub = QuantStub(), DeQuantStub()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.bn1(self.conv1(self.quant_stub(x))))
        x = self.relu2(self.skip_add(self.conv2(x), x))
        return self.dequant_stub(self.fc(x.mean((2, 3))))


def network(width: int = 8) -> nn.Module:
    torch.manual_seed(1)
    return Network(width).eval()


def images(samples: int, seed: int = 0) -> Tensor:
    return 3 + 5 * torch.rand(samples, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


EXAMPLE = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(8))


def processor(**options: Any) -> QatProcessor:
    return QatProcessor(network(), EXAMPLE, **options)


def train(model: nn.Module, steps: int = 4) -> None:
    x = images(WARM_UP_SAMPLES, 2)
    y = x.mean((2, 3)).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=1e-4)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        for parameter in model.quantizer_parameters():
            loss = loss + 1e-4 * torch.pow(parameter, 2.0)[0].sum()
        loss.backward()
        optimizer.step()


def test_the_way_of_a_script_from_the_float_model_to_the_file_and_to_another_process(tmp_path: Path) -> None:
    first, second, folder = processor(bitwidth=8), processor(), tmp_path / "qat_result"
    trained = first.trainable_model()
    assert trained.training
    train(trained)
    trained.eval()
    deployable = first.to_deployable(trained, folder)
    x = images(8, 4)
    with torch.no_grad():
        torch.testing.assert_close(trained(x), deployable(x), rtol=0, atol=1e-5)
    written = first.export_onnx_model()
    assert written == folder / "Network_int.onnx"
    onnx.checker.check_model(str(written))
    assert onnx.TensorProto.INT8 in {tensor.data_type for tensor in onnx.load(written).graph.initializer}
    assert onnxruntime.InferenceSession(written).get_inputs()[0].shape == [4, 3, 6, 6]
    np.testing.assert_array_equal(in_onnxruntime(written, x[:4])[0], deployable(x)[:4].numpy())
    with pytest.raises(StageError):
        second.export_onnx_model(tmp_path)
    assert torch.equal(second.deployable_model(folder)(x), deployable(x))
    assert second.export_onnx_model(tmp_path / "more", dynamic_batch=True).exists()
    torch.save(trained.state_dict(), tmp_path / "checkpoint.pth")
    resumed = second.trainable_model()
    resumed.load_state_dict(torch.load(tmp_path / "checkpoint.pth", weights_only=True))
    assert not resumed.is_warming_up
    assert torch.equal(resumed.train()(x), trained(x))
    other = QatProcessor(network(width=6), EXAMPLE)
    with pytest.raises(QuantInfoError, match="graph"):
        other.deployable_model(folder)
    with pytest.raises(QuantInfoError, match="no "):
        other.deployable_model(tmp_path / "nothing")


def error(model: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        expected = network()(x)
        return float((model(x) - expected).norm() / expected.norm())


def test_the_first_samples_in_training_mode_give_the_ranges() -> None:
    model, x = processor().trainable_model(), images(64, 3)
    blind = error(model.eval(), x)
    assert error(model.eval(), x) == blind, "eval mode does not warm up"
    model.train()
    for batch in images(WARM_UP_SAMPLES).split(100):
        assert model.is_warming_up
        model(batch)
    assert not model.is_warming_up
    assert error(model.eval(), x) < 0.1 < blind
    calibrated = QatProcessor(network(), images(WARM_UP_SAMPLES)).trainable_model()
    assert dict(calibrated.named_parameters()).keys() == dict(model.named_parameters()).keys()
    grids = {name: held for name, held in model.named_buffers() if name.endswith(".base")}
    others = dict(calibrated.named_buffers())
    same = sum(bool(torch.equal(held, others[name])) for name, held in grids.items())
    assert same >= len(grids) - 1 > 0, "the engine's own calibration on the same samples finds the same scales"
    before = model.state_dict()["quantizers.activations.relu1/Relu.base"].clone()
    model.train()(10 * x)
    assert torch.equal(model.state_dict()["quantizers.activations.relu1/Relu.base"], before)
    model.enable_warmup()
    model(10 * x)
    assert (model.state_dict()["quantizers.activations.relu1/Relu.base"] > before).all()


def test_switches_do_what_they_say() -> None:
    model = processor().trainable_model()
    train(model, 1)
    x = images(8)
    with torch.no_grad():
        quantized = model(x)
        model.disable_quant()
        expected = model(x)
        model.enable_quant()
        assert torch.equal(model(x), quantized)
        assert not torch.equal(expected, quantized)
    # the DPU's approximation of average pooling stays, another target has none
    fresh = processor(target="onnxruntime_cpu").trainable_model().disable_quant()
    with torch.no_grad():
        torch.testing.assert_close(fresh(x), network()(x), rtol=1e-4, atol=1e-5)
    assert fresh.is_warming_up
    model.freeze_quant().freeze_bn_stats().fuse_conv_bn()
    assert not any(held.requires_grad for held in model.quantizer_parameters())
    assert all(held.requires_grad for held in model.non_quantizer_parameters())
    model.unfreeze_quant()
    assert all(held.requires_grad for held in model.parameters())
    cold = processor().trainable_model().disable_warmup()
    state = {name: held.clone() for name, held in cold.state_dict().items()}
    cold.train()(x)
    assert all(torch.equal(held, state[name]) for name, held in cold.state_dict().items())


def calibrate(folder: Path, keys: dict[str, Any]) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(keys))
    with warnings.catch_warnings(action="ignore"):
        quantizer = torch_quantizer("calib", network(), EXAMPLE, output_dir=folder, quant_config_file=file)
        quantizer.quant_model(images(64))
        quantizer.export_quant_config()


def test_the_positions_of_a_calibration_are_where_training_starts_or_are_refused(tmp_path: Path) -> None:
    calibrate(tmp_path, {"include_cle": False, "include_bias_corr": False})
    qat_processor = processor()
    model = qat_processor.trainable_model(calib_dir=tmp_path)
    assert not model.is_warming_up
    deployable = qat_processor.to_deployable(model, tmp_path / "deployable")
    x = images(16, 6)
    calibrated = in_onnxruntime(tmp_path / "Network_calibrated.onnx", x)[0]
    np.testing.assert_array_equal(deployable(x).numpy(), calibrated)
    with pytest.raises(QuantInfoError, match="graph"):
        QatProcessor(network(width=6), EXAMPLE).trainable_model(calib_dir=tmp_path)
    with pytest.raises(QuantInfoError, match="no "):
        processor().trainable_model(calib_dir=tmp_path / "nothing")
    calibrate(tmp_path, {"include_cle": True})
    with pytest.raises(QuantInfoError, match="equalized") as refused:
        processor().trainable_model(calib_dir=tmp_path)
    assert "include_cle" in str(refused.value.hint)


def test_what_is_not_offered_is_refused_with_a_way_out() -> None:
    one, other = processor(), processor()
    cases: list[tuple[Callable[[], Any], type[Exception]]] = [
        (lambda: QatProcessor(nn.DataParallel(network()), EXAMPLE), InvalidRequestError),
        (lambda: processor(mix_bit=True), NotOfferedError),
        (lambda: processor(bitwidth=4), InvalidConfigError),
        (lambda: one.deployable_model("anywhere", used_for_xmodel=True), NotOfferedError),
        (lambda: one.export_onnx_model(native_onnx=False), NotOfferedError),
        (lambda: one.trainable_model().dump_blob(), NotOfferedError),
        (lambda: one.to_deployable(network(), "anywhere"), InvalidRequestError),
        (lambda: one.to_deployable(other.trainable_model(), "anywhere"), InvalidRequestError),
    ]
    for made, expected in cases:
        with pytest.raises(expected) as refused:
            made()
        assert refused.value.hint


def test_what_is_ignored_or_blind_is_told(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="device"):
        processor(device="cpu")
    qat_processor = processor()
    with pytest.warns(UserWarning, match="training mode"):
        qat_processor.to_deployable(qat_processor.trainable_model(), tmp_path)
    model = qat_processor.quant_model()
    assert isinstance(model, TrainableModel)
    train(model, 1)
    with pytest.warns(DeprecationWarning, match="to_deployable"):
        qat_processor.convert_to_deployable(torch.compile(model, backend="eager"), tmp_path)


def test_it_warms_up_and_trains_under_distributed_data_parallel(tmp_path: Path) -> None:
    plain, shared = processor().trainable_model(), processor().trainable_model()
    init = f"file://{tmp_path / 'processes'}"
    torch.distributed.init_process_group("gloo", init_method=init, rank=0, world_size=1)
    try:
        for model in (plain, nn.parallel.DistributedDataParallel(shared)):
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
            for _ in range(3):
                optimizer.zero_grad()
                model(images(WARM_UP_SAMPLES // 2)).square().mean().backward()
                optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    assert not shared.is_warming_up
    for name, held in plain.state_dict().items():
        torch.testing.assert_close(shared.state_dict()[name], held)
