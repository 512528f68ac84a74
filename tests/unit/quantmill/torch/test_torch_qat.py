"""prepare_qat(): the quantized network of a module in torch, trained in a loop of the user's own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from quantmill.torch import QatModule, prepare_qat, quantize
from service.contracts.errors import (
    InvalidConfigError,
    InvalidRequestError,
    NotDifferentiableError,
    UnsupportedModelError,
)
from tests.support.each import each
from tests.support.provenance import without_provenance
from tests.unit.quantmill.torch.test_torch_quantize import Answers, in_onnxruntime

QUICK = {"evaluation": {"latency_runs": 1, "layer_samples": 1}}


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(self.drop(torch.relu(x + self.block(x)).mean((2, 3))))


def made(build: type[nn.Module] = Residual) -> nn.Module:
    torch.manual_seed(3)
    network = build()
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.running_mean, std=0.2)
    return network.eval()


def images(samples: int, seed: int = 0) -> Tensor:
    return torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def prepared(config: Any = "int8", seed: int = 0, **options: Any) -> QatModule:
    return prepare_qat(made(), images(2), config, [images(32, seed)], threads=1, **options)


def labelled() -> tuple[Tensor, Tensor]:
    x = images(64, 1)
    return x, x.mean((2, 3)).argmax(1)


def train(network: nn.Module, steps: int, rate: float = 1e-2) -> list[float]:
    x, y = labelled()
    optimizer = torch.optim.Adam([held for held in network.parameters() if held.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


CONFIGS: dict[str, Any] = {
    "int8": {"preset": "int8"},
    "xint8": {"preset": "xint8_qconfig"},
    "4 bits": {"preset": "int8", "weight": {"dtype": "int4"}},
    "qoperator": {"preset": "int8", "format": "qoperator"},
    "nhwc": {"preset": "int8", "preparation": {"nhwc_input": True}},
    "float8": {"preset": "int8", "weight": {"dtype": "float8_e4m3fn"}, "activation": {"dtype": "float8_e4m3fn"}},
    "equalized and rounded": {
        "preset": "int8",
        "algorithms": [{"method": "cross_layer_equalization"}, {"method": "adaround", "num_iterations": 5}],
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_without_training_the_engines_own_bytes_are_written(name: str, tmp_path: Path) -> None:
    expected = quantize(made(), images(2), [images(32)], {**CONFIGS[name], **QUICK}, threads=1)
    written = prepared(CONFIGS[name]).to_onnx(tmp_path / "q.onnx")
    # they say with what data they were made, and are the same but for that
    assert without_provenance(written.read_bytes()) == without_provenance(expected.onnx_path.read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "xint8", "4 bits", "equalized and rounded"])
def test_the_trained_network_computes_what_onnxruntime_computes_of_its_file(name: str, tmp_path: Path) -> None:
    network = prepared(CONFIGS[name])
    assert train(network, 20)[-1] < 0.9 * train(prepared(CONFIGS[name]), 1)[0]
    path = network.to_onnx(tmp_path / "q.onnx")
    x = images(16, 5)
    with torch.no_grad():
        expected = network(x).numpy()
    found = in_onnxruntime(path, x)[0]
    # float32 sums in another order may tip a value over to the next step of its grid
    assert np.abs(found - expected).max() <= 0.05 * np.abs(expected).max()
    assert np.abs(found - expected).mean() <= 1e-3 * np.abs(expected).max()


def test_parameters_have_the_names_of_the_module_and_the_groups_share_them_out() -> None:
    network = prepared()
    names = {name for name, _ in network.named_parameters() if not name.startswith("quantizers.")}
    assert names == {f"{layer}.{part}" for layer in ("stem.0", "block.0", "head") for part in ("weight", "bias")}
    assert torch.equal(network.get_parameter("head.weight"), made().get_parameter("head.weight"))
    scales = {name for name, _ in network.named_parameters()} - names
    assert {"quantizers.weights.stem.0.weight.growth", "quantizers.activations.stem.2/Relu.growth"} <= scales
    assert {id(held) for held in network.quantizer_parameters()} == {id(network.get_parameter(name)) for name in scales}
    assert {id(held) for held in network.non_quantizer_parameters()} == {
        id(network.get_parameter(name)) for name in names
    }
    x, y = labelled()
    nn.functional.cross_entropy(network(x), y).backward()
    assert all(held.grad is not None for held in network.parameters())


def test_frozen_scales_stay_until_they_are_free_again() -> None:
    network = prepared().freeze_scales()
    before = copy.deepcopy(network.state_dict())
    train(network, 3)
    after = network.state_dict()
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert moved == {name for name in after if not name.startswith("quantizers.")}
    network.unfreeze_scales()
    train(network, 3)
    assert any(held.grad is not None and held.grad.any() for held in network.quantizer_parameters())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "xint8"])
def test_a_state_goes_on_in_a_network_that_was_calibrated_on_other_data(name: str, tmp_path: Path) -> None:
    network, other = prepared(CONFIGS[name]), prepared(CONFIGS[name], seed=9)
    train(network, 5)
    torch.save(network.state_dict(), tmp_path / "state.pth")
    other.load_state_dict(torch.load(tmp_path / "state.pth", weights_only=True))
    x = images(8, 4)
    torch.testing.assert_close(other(x), network(x), rtol=0, atol=0)
    written = [one.to_onnx(tmp_path / "q.onnx").read_bytes() for one in (network, other)]
    assert without_provenance(written[0]) == without_provenance(written[1])


@pytest.mark.slow
def test_a_state_with_other_scales_that_are_not_trained_is_refused() -> None:
    state = prepared(CONFIGS["float8"]).state_dict()
    prepared(CONFIGS["float8"]).load_state_dict(state)
    other = prepare_qat(made(), images(2), CONFIGS["float8"], [3 * images(32)], threads=1)
    with pytest.raises(InvalidRequestError, match="other data"):
        other.load_state_dict(state)


def test_copies_are_networks_of_their_own_and_other_parameters_are_used() -> None:
    network = prepared().freeze_scales()
    x = images(4)
    before = network(x).detach()
    twin, average = copy.deepcopy(network), AveragedModel(network)
    train(network, 5)
    assert not torch.equal(network(x), before)
    assert torch.equal(twin(x), before)
    assert not any(held.requires_grad for held in twin.quantizer_parameters())
    average.update_parameters(network)
    assert torch.equal(average(x), network(x))
    zeros = {name: torch.zeros_like(held) for name, held in network.named_parameters() if name.startswith("head.")}
    assert not torch.func.functional_call(network, zeros, (x,)).any()
    assert network(x).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", pytest.param("xint8", marks=pytest.mark.long)])
def test_compiled_it_computes_the_same_in_one_graph(name: str) -> None:
    network = prepared(CONFIGS[name])
    x, y = labelled()
    compiled = torch.compile(network, backend="eager", fullgraph=True)
    found = compiled(x)
    torch.testing.assert_close(found, network(x), rtol=0, atol=0)
    gradients = torch.autograd.grad(nn.functional.cross_entropy(found, y), list(network.parameters()))
    expected = torch.autograd.grad(nn.functional.cross_entropy(network(x), y), list(network.parameters()))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.slow
def test_it_is_called_as_the_module_is() -> None:
    torch.manual_seed(0)
    module = Answers()
    a, b = torch.randn(2, 4, 6)
    batches = [{"a": torch.randn(16, 6), "b": torch.randn(16, 6)}]
    network = prepare_qat(module, {"a": a, "b": b, "scale": 2.0}, "int8", batches, threads=1)
    expected, found = module(a, b, scale=2.0), network(a, b=b, scale=2.0)
    assert set(found) == {"scores", "states"}
    assert isinstance(found["states"], tuple) and found["states"][2] is None
    pairs = [(found["scores"], expected["scores"]), *zip(found["states"][:2], expected["states"][:2], strict=True)]
    for ours, theirs in pairs:
        assert (ours - theirs).square().sum() < 0.01 * theirs.square().sum()
    # a module that is called as one of ours gets another name
    assert {"left.weight", "right.bias", "report_.weight"} <= dict(network.named_parameters()).keys()
    assert module.training
    assert network.training


@pytest.mark.slow
def test_the_report_tells_the_accuracy_of_the_written_model_on_a_loader(tmp_path: Path) -> None:
    config = {"preset": "int8", "evaluation": {"metrics": [{"kind": "top1"}], "latency_runs": 1, "layer_samples": 1}}
    x, y = labelled()
    network = prepare_qat(made(), images(2), config, [(x, y)], threads=1)
    train(network, 10)
    held, classes = images(50, 7), torch.arange(50) % 5
    report = network.report([(held[:20], classes[:20]), (held[20:], classes[20:])])
    scores = in_onnxruntime(network.to_onnx(tmp_path / "q.onnx"), held)[0]
    assert report.quantized.metrics["top1"] == pytest.approx(100 * (scores.argmax(1) == classes.numpy()).mean())
    assert report.manifest.evaluation_sha256 is not None
    assert network.report().manifest.evaluation_sha256 is None


def test_zero_points_move_where_they_are_learned(tmp_path: Path) -> None:
    network = prepared(learn_zero_points=True)
    names = [name for name, _ in network.named_parameters() if name.endswith(".zero")]
    assert names
    before = {name: network.get_parameter(name).detach().clone() for name in names}
    train(network, 10, rate=0.05)
    assert any(not torch.equal(before[name], network.get_parameter(name)) for name in names)
    x = images(8, 5)
    found = in_onnxruntime(network.to_onnx(tmp_path / "q.onnx"), x)[0]
    expected = network(x).detach().numpy()
    assert np.abs(found - expected).mean() <= 1e-3 * np.abs(expected).max()


class Ending(nn.Module):
    """A layer, and behind it a function without derivative."""

    def __init__(self, end: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.head, self.end = nn.Linear(6, 6), end

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.head(x))


def test_configs_that_leave_nothing_to_train_are_refused() -> None:
    two = [{"method": "adaround"}, {"method": "qat"}]
    cases: list[tuple[Any, list[str] | None]] = [
        ({"preset": "int8", "algorithms": two}, ["/algorithms/1"]),
        ("int8_dynamic", ["/mode"]),
        ({"preset": "int8", "include": ["nothing like that"]}, None),
    ]
    for config, pointers in cases:
        with pytest.raises(InvalidConfigError) as refused:
            prepared(config)
        assert refused.value.hint
        assert pointers is None or [problem.pointer for problem in refused.value.errors] == pointers


@pytest.mark.slow
def test_networks_that_cannot_be_trained_are_refused() -> None:
    for end, error, told in (
        (lambda y: y.argmax(1), UnsupportedModelError, "nothing to train"),
        (lambda y: torch.linalg.det(y.reshape(-1, 2, 3) @ y.reshape(-1, 3, 2)), NotDifferentiableError, "Det"),
    ):
        with pytest.raises(error, match=told):
            prepare_qat(Ending(end), torch.randn(2, 6), "int8", [torch.randn(8, 6)], threads=1)


def test_what_would_break_the_network_is_refused_and_autocast_changes_nothing() -> None:
    network = prepared()
    x = images(2)
    before = network(x)
    with pytest.raises(InvalidRequestError, match="float32"):
        network.half()
    with pytest.raises(InvalidRequestError, match="pickled"):
        pickle.dumps(network)
    with pytest.raises(InvalidRequestError, match="DataParallel"):
        network._replicate_for_data_parallel()
    with torch.autocast("cpu", torch.bfloat16):
        found = network(x)
    assert found.dtype == torch.float32
    assert torch.equal(found, before)
    assert torch.equal(network(x), before)


@pytest.mark.slow
@each("name", ["int8", "float8"])
def test_all_of_it_moves_to_another_device(name: str) -> None:
    """On the device meta tensors of other devices are refused, and shapes alone are computed."""
    network = prepared(CONFIGS[name]).to("meta")
    assert network(images(4).to("meta")).shape == (4, 5)
    assert {held.device.type for held in (*network.parameters(), *network.buffers())} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["int8", "xint8", "float8"])
def test_it_moves_to_a_gpu_and_back(name: str, tmp_path: Path) -> None:
    network = prepared(CONFIGS[name])
    x = images(4)
    before = network(x)
    network.to("cuda")
    found = network(x.cuda())
    assert found.device.type == "cuda"
    assert (found.cpu() - before).abs().mean() <= 1e-2 * before.abs().max()
    found.sum().backward()
    network.to_onnx(tmp_path / "gpu.onnx")
    assert (tmp_path / "gpu.onnx").read_bytes() == prepared(CONFIGS[name]).to_onnx(tmp_path / "cpu.onnx").read_bytes()
    assert torch.equal(network.cpu()(x), before)
