"""Unfolded normalizations beside those of PyTorch, and what is written of them beside onnxruntime."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch.nn import functional

from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, rng, run_onnx, sqnr_db
from tests.unit.quantizer.training import networks
from worker.quantizer.pipeline import Quantizing
from worker.quantizer.training.loop import state_of
from worker.quantizer.training.operands import ChannelStatistics, Normalization, is_frozen, measure
from worker.quantizer.training.optimizer import ScheduledOptimizer
from worker.quantizer.training.twin import Twin

CPU = torch.device("cpu")
QAT = {"method": "qat", "accept": "always", "epochs": 3, "batch_size": 8, "losses": [{"kind": "cross_entropy"}]}
# text of a convolution of x [n, 4, 6, 6], shape of its weight, the same in torch
CONVOLUTIONS: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "plain": ("Conv <pads = [1, 1, 1, 1]>", (6, 4, 3, 3), lambda x, w: functional.conv2d(x, w, padding=1)),
    "grouped": ("Conv <group = 2>", (6, 2, 3, 3), lambda x, w: functional.conv2d(x, w, groups=2)),
    "transposed": (
        "ConvTranspose <group = 2, strides = [2, 2]>",
        (4, 3, 2, 2),
        lambda x, w: functional.conv_transpose2d(x, w, stride=2, groups=2),
    ),
}


def one_convolution(kind: str) -> onnx.ModelProto:
    text, shape, _ = CONVOLUTIONS[kind]
    weights = {"conv.weight": normal(*shape, seed=1, scale=0.4), "b": normal(6, seed=2) + 1.0}
    return make_model(f'(float[N,4,6,6] x) => (float[N,6,H,W] y) {{ y = {text} (x, "conv.weight", b) }}', weights)


def small(batch: str = "N") -> onnx.ModelProto:
    """Convolutions of all kinds, then a classifier."""
    return make_model(
        f"(float[{batch},4,6,6] x) => (float[{batch},3] y) {{ a = Conv <pads = [1, 1, 1, 1]> (x, w1, b1)\n"
        " r = Relu (a)\n d = Conv <group = 6> (r, w2, b2)\n c = Clip (d, low, high)\n"
        " t = ConvTranspose <strides = [2, 2]> (c, w3, b3)\n n = Conv (t, w4)\n g = GlobalAveragePool (n)\n"
        " f = Flatten (g)\n y = Gemm (f, w5, b5) }",
        {
            "w1": normal(6, 4, 3, 3, seed=1, scale=0.3),
            "b1": normal(6, seed=2),
            "w2": normal(6, 1, 3, 3, seed=3, scale=0.5),
            "b2": normal(6, seed=4) + 1.0,
            "low": np.float32(0.0),
            "high": np.float32(6.0),
            "w3": normal(6, 5, 2, 2, seed=5, scale=0.4),
            "b3": normal(5, seed=6),
            "w4": normal(5, 5, 1, 1, seed=7, scale=0.5),
            "w5": normal(5, 3, seed=8),
            "b5": normal(3, seed=9),
        },
    )


def data(samples: int = 24) -> dict[str, np.ndarray]:
    return {"x": normal(samples, 4, 6, 6, seed=10) + 0.3, "labels": rng(11).integers(0, 3, samples)}


def filled(folder: Path, model: onnx.ModelProto, preset: str = "int8") -> Quantizing:
    return networks.filled(folder, model, data(), preset=preset)


def unfolded(quantizing: Quantizing, parts: int = 2) -> Twin:
    draft = quantizing.filled.draft
    twin = Twin(draft, device=CPU)
    feeds = ({"x": part} for part in torch.from_numpy(data()["x"]).chunk(parts))
    twin.unfold(measure(draft.graph, twin.normalizable, feeds, CPU))
    return twin


def stir(twin: Twin, seed: int = 0) -> None:
    """Take normalizations away from where they began; one gamma becomes negative."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name in twin.norms:
            norm = twin.norms[name]
            norm.gamma.mul_(0.7 + 0.6 * torch.rand_like(norm.gamma))
            norm.gamma[0] *= -1.0
            norm.beta.add_(0.3 * torch.randn_like(norm.beta))


def train(twin: Twin, steps: int = 4) -> None:
    arrays = data()
    feeds, labels = {"x": torch.from_numpy(arrays["x"])}, torch.from_numpy(arrays["labels"])
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02)
    twin.train()
    for _ in range(steps):
        loss = functional.cross_entropy(twin(feeds)["y"], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    twin.eval()


def batch_norm_of(twin: Twin, name: str) -> torch.nn.BatchNorm2d:
    norm = twin.norms[name]
    made = torch.nn.BatchNorm2d(len(norm.gamma), eps=float(norm.epsilon), momentum=0.1)
    state = {"weight": norm.gamma.detach(), "bias": norm.beta.detach()}
    made.load_state_dict(state | {"running_mean": norm.mean, "running_var": norm.variance}, strict=False)
    return made


def test_the_statistics_are_those_of_all_samples() -> None:
    values = normal(20, 3, 5, seed=3) * 2.0 + 50.0
    moments = ChannelStatistics()
    for part in np.split(values, [7, 8]):
        moments.add(torch.from_numpy(part))
    wide = values.astype(np.float64)
    assert moments.count == 100
    np.testing.assert_allclose(moments.mean.numpy(), wide.mean((0, 2)), rtol=1e-12)
    np.testing.assert_allclose(moments.variance.numpy(), wide.var((0, 2)), rtol=1e-10)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Quantizing:
    return filled(tmp_path_factory.mktemp("usual"), small())


@pytest.mark.parametrize(("weight", "bias", "count"), [("v", "c", 2), ("v", "b", 0), ("w", "c", 0)])
def test_what_is_shared_is_no_part_of_a_normalization(tmp_path: Path, weight: str, bias: str, count: int) -> None:
    weights = {"w": normal(4, 4, 1, 1, seed=1), "v": normal(4, 4, 1, 1, seed=2), "b": normal(4), "c": normal(4, seed=3)}
    model = make_model(
        "(float[N,4,6,6] x) => (float[N,4,6,6] y) { a = Conv (x, w, b)\n r = Relu (a)\n"
        f" c_ = Conv (r, {weight}, {bias})\n y = Add (c_, x) }}",
        weights,
    )
    assert len(Twin(filled(tmp_path, model).filled.draft, device=CPU).normalizable) == count


@pytest.mark.parametrize("preset", ["int8", "xint8"])
def test_it_begins_where_the_folded_network_stands(tmp_path: Path, preset: str) -> None:
    quantizing = filled(tmp_path, small(), preset)
    draft, feeds = quantizing.filled.draft, {"x": torch.from_numpy(data()["x"])}
    folded, twin = Twin(draft, device=CPU), unfolded(quantizing)
    assert sorted(twin.norms) == ["w1", "w2", "w3"]
    with torch.no_grad():
        assert sqnr_db(folded(feeds)["y"].numpy(), twin(feeds)["y"].numpy()) > 50.0
    written = twin.write().plan
    for name, entry in draft.plan.weights.items():
        np.testing.assert_array_equal(written.weights[name].integers, entry.integers)
    for name, bias in draft.plan.biases.items():
        before, after = bias.integers, written.biases[name].integers
        assert np.abs(after.astype(np.int64) - before).max() <= 1 + 1e-5 * np.abs(before.astype(np.int64)).max()


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_batch_is_normalized_as_pytorch_does_it(tmp_path: Path, kind: str) -> None:
    """u is the convolution by the rounded folded weight, taken back to the weight's own size."""
    twin = unfolded(filled(tmp_path, one_convolution(kind), "a16w8_per_channel"))
    stir(twin)
    norm, convolve = twin.norms["conv.weight"], CONVOLUTIONS[kind][2]
    reference = batch_norm_of(twin, "conv.weight").train()
    x = torch.from_numpy(data()["x"])
    with torch.no_grad():
        weight = twin.weight_grids["conv.weight"](twin.masters["conv.weight"] * norm.factor())
        wanted = reference(convolve(twin.activation_grids["x"](x), weight / norm.factor()))
        wanted = twin.activation_grids["y"](wanted)
        made = twin.train()({"x": x})["y"]
    step = float(twin.activation_grids["y"].scale().detach())
    assert float((made - wanted).abs().max()) < 4 * step
    torch.testing.assert_close(norm.mean, reference.running_mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm.variance, reference.running_var, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_gradients_are_those_of_pytorch(tmp_path: Path, kind: str) -> None:
    """Of gamma, beta and the weight, through the statistics of the batch, without rounding."""
    twin = unfolded(filled(tmp_path, one_convolution(kind)))
    stir(twin)
    norm, convolve = twin.norms["conv.weight"], CONVOLUTIONS[kind][2]
    reference = batch_norm_of(twin, "conv.weight").train()
    x = torch.from_numpy(data(6)["x"])
    mine, theirs = (twin.masters["conv.weight"].detach().clone().requires_grad_() for _ in range(2))
    made, wanted = norm(convolve(x, mine * norm.factor())), reference(convolve(x, theirs))
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-4)
    shares = torch.from_numpy(normal(*made.shape, seed=12))
    (made.tanh() * shares).sum().backward()
    (wanted.tanh() * shares).sum().backward()
    for here, there in ((norm.gamma, reference.weight), (norm.beta, reference.bias), (mine, theirs)):
        assert sqnr_db(there.grad.numpy(), here.grad.numpy()) > 60.0


@pytest.mark.parametrize("preset", ["int8", "npu_int8"])
def test_what_is_written_is_what_evaluation_computes(tmp_path: Path, preset: str) -> None:
    quantizing = filled(tmp_path, small(), preset)
    twin = unfolded(quantizing)
    begin = state_of(twin)
    train(twin)
    for name in twin.norms:
        for part in ("gamma", "beta", "mean", "variance"):
            assert not torch.equal(begin[f"norms.{name}.{part}"], twin.state_dict()[f"norms.{name}.{part}"])
    written = twin.write().on_target(quantizing.case.config)
    twin.follow(written)
    feeds = data()["x"]
    with torch.no_grad():
        mine = twin({"x": torch.from_numpy(feeds)})["y"].numpy()
    theirs = run_onnx(written.emitted_bytes(), {"x": feeds}, optimized=False)["y"]
    assert sqnr_db(theirs, mine) > 40.0
    for name, master, grid in twin.weights_on_grids():
        integers = written.plan.weights[name].integers
        np.testing.assert_array_equal(grid.integers(master * twin.factor(name)).numpy(), integers.astype(np.float32))


def test_frozen_statistics_are_those_of_evaluation(usual: Quantizing) -> None:
    twin, feeds = unfolded(usual), {"x": torch.from_numpy(data()["x"])}
    train(twin)
    with torch.no_grad():
        evaluated = twin(feeds)["y"]
        twin.train()
        twin.norms_frozen = True
        before = state_of(twin)
        assert torch.equal(twin(feeds)["y"], evaluated)
        assert all(torch.equal(before[name], tensor) for name, tensor in twin.state_dict().items())
        twin.norms_frozen = False
        assert not torch.equal(twin(feeds)["y"], evaluated)
    loss = twin.eval()(feeds)["y"].square().sum()
    loss.backward()
    for name in twin.norms:
        assert float(twin.norms[name].gamma.grad.abs().max()) > 0.0


def test_one_sample_alone_is_normalized_by_running_statistics(tmp_path: Path) -> None:
    twin, feeds = unfolded(filled(tmp_path, small(), "a16w8_per_channel")), {"x": torch.from_numpy(data()["x"][:1])}
    with torch.no_grad():
        evaluated = twin(feeds)["y"].numpy()
        before = state_of(twin)
        made = twin.train()(feeds)["y"].numpy()
    assert sqnr_db(evaluated, made) > 50.0
    assert all(torch.equal(before[name], tensor) for name, tensor in twin.state_dict().items())


def test_shifts_move_by_parts_of_the_deviation(usual: Quantizing) -> None:
    twin = unfolded(usual)
    assert {"norms.w1.gamma", "norms.w1.beta"} <= {name for name, _ in twin.named_parameters()}
    spec = config(algorithms=[QAT]).algorithms[0]
    assert spec.method == "qat"
    mover = ScheduledOptimizer.of(twin, spec.optimizer, spec.schedule, None, 0.01)
    peaks = {id(tensor): group["peak"] for group in mover.optimizer.param_groups for tensor in group["params"]}
    for name in twin.norms:
        size = float(twin.norms[name].sigma().square().mean().sqrt())
        assert peaks[id(twin.norms[name].gamma)] == pytest.approx(0.01 * size, rel=1e-5)
        assert peaks[id(twin.norms[name].beta)] == pytest.approx(0.01 * size, rel=1e-5)
    moved = {id(tensor) for tensor in twin.parameters() if tensor.requires_grad}
    assert set(peaks) == moved
    assert id(twin.masters["b1"]) not in moved


def test_the_last_third_is_frozen() -> None:
    assert [is_frozen(step, 9) for step in range(9)] == [False] * 6 + [True] * 3
    assert [is_frozen(step, 1) for step in range(1)] == [False]
    assert [is_frozen(step, 10) for step in range(10)].count(True) == 3


@pytest.mark.slow
def test_a_training_normalizes_by_batches_for_two_thirds_and_tells(tmp_path, monkeypatch) -> None:
    sizes = []
    forward = Normalization.forward

    def counted(norm: Normalization, made: torch.Tensor) -> torch.Tensor:
        sizes.append(len(made))
        return forward(norm, made)

    monkeypatch.setattr(Normalization, "forward", counted)
    settings = config(preset="int8", algorithms=[QAT | {"batch_norm": "unfolded"}])
    (outcome,) = quantize_file(tmp_path, small(), data(40), settings).report.algorithms
    assert "3 convolutions were normalized by batches" in outcome.summary
    assert len(outcome.training.epochs) == 4
    steps = outcome.training.epochs[-1].steps
    assert len(sizes) == 3 * math.ceil(steps * 2 / 3)
    assert max(sizes) == 8


@pytest.mark.parametrize(("batch", "size", "told"), [("1", 8, "takes 1 samples at once"), ("N", 1, "one sample runs")])
def test_batches_without_statistics_are_refused(tmp_path: Path, batch: str, size: int, told: str) -> None:
    settings = config(preset="int8", algorithms=[QAT | {"batch_norm": "unfolded", "batch_size": size}])
    with pytest.raises(InvalidConfigError, match=told) as caught:
        quantize_file(tmp_path, small(batch), data(40), settings)
    assert [problem.pointer for problem in caught.value.errors] == ["/algorithms/0/batch_norm"]
