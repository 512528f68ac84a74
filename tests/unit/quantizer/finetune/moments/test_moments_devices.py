"""AdaRound's statistics solver gives the same on every device, and loads torch for a GPU only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from service.contracts.algorithms import AdaRound
from service.contracts.errors import CanceledError, EngineError
from tests.unit.quantizer.search.benches import chain_of_convolutions, toolkit_for
from tests.unit.quantizer.toolbox import config
from worker.quantizer.finetune.moments.problem import LayerProblem, LayerSolution, Patches, Rescaled, solve
from worker.quantizer.finetune.moments.rounding import NUMPY, Arrays, Lattice, torch_arrays
from worker.quantizer.finetune.solvers import arrays_on
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.refine.step import StepResult
from worker.quantizer.runtime import providers
from worker.quantizer.runtime.providers import may_have_gpu

pytestmark = pytest.mark.slow  # solves every problem twice

# groups, outputs, inputs, patches; then what is not as in problem()
SHAPES = {
    "dense": (1, 8, 110, 600), "one block": (1, 6, 48, 400), "grouped": (3, 4, 54, 400), "depthwise": (8, 1, 9, 300),
    "few patches": (1, 3, 30, 20), "one patch": (1, 3, 5, 1),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {}, "per tensor": {"per_channel": False}, "limits": {"limits": True},
    "refit": {"refit": True, "limits": True}, "refit per tensor": {"refit": True, "per_channel": False},
    "bias stays": {"bias": False, "limits": True}, "up or down": {"restricted": True, "limits": True},
}  # fmt: skip
TORCH = torch_arrays(torch.device("cpu"))


def problem(
    shape: tuple[int, int, int, int],
    *,
    per_channel: bool = True,
    limits: bool = False,
    refit: bool = False,
    bias: bool = True,
    restricted: bool = False,
) -> tuple[LayerProblem, Patches]:
    """A layer of 4 bits behind layers that have left some noise, with a silent input."""
    groups, outputs, inputs, patches = shape
    random = np.random.default_rng(groups * inputs)

    def normal(*size: int) -> np.ndarray:
        return random.normal(size=size).astype(np.float32)

    matrix = normal(groups, outputs, inputs) * np.exp2(normal(groups, outputs, 1))
    exact = np.maximum(normal(groups, inputs, inputs) @ normal(groups, inputs, patches), 0) / np.float32(inputs**0.5)
    x = exact + np.float32(0.05) * normal(*exact.shape)
    x[:, 2] = 0
    largest = np.abs(matrix).max(axis=2 if per_channel else None, keepdims=True)
    step = np.broadcast_to(largest / np.float32(7), matrix.shape)

    def lattice(step: np.ndarray) -> Lattice:
        low, high = np.full_like(matrix, -8), np.full_like(matrix, 7)
        if restricted:
            floor = np.floor(matrix / step)
            low, high = np.clip(floor, low, high), np.clip(floor + 1, low, high)
        return Lattice(step, low, high)

    def round_bias(values: np.ndarray) -> np.ndarray:
        assert isinstance(values, np.ndarray) and values.dtype == np.float32
        return np.rint(values * np.float32(64)) / np.float32(64)

    def rescaled(factor: np.ndarray) -> Lattice:
        assert isinstance(factor, np.ndarray)
        return lattice(step * factor)

    zero = np.zeros((groups, outputs, 1), np.float32)
    present = lattice(step)
    layer = LayerProblem(
        matrix=matrix,
        lattice=present,
        z=present.nearest(matrix),
        bias=round_bias(normal(groups, outputs) / 4),
        round_bias=round_bias if bias else None,
        limits=(zero, zero + 6) if limits else None,
        rescaled=Rescaled(((1.0, 0.5, 0.25), (0.9, 1.0, 1.1)), rescaled, per_channel) if refit else None,
    )
    return layer, Patches(x, matrix @ exact + layer.bias[:, :, None])


def solved(shape: str, options: str, arrays: Arrays) -> LayerSolution:
    return solve(*problem(SHAPES[shape], **OPTIONS[options]), arrays=arrays)


def rounded(**options: Any) -> StepResult:
    model, settings = chain_of_convolutions(3), config(weight={"dtype": "int4", "granularity": "per_tensor"})
    return FinetuneStep(AdaRound(**options)).apply(*toolkit_for(model, settings))


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("a tensor has been handed to NumPy")


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_comes_to_what_numpy_comes_to(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a tensor taken for an array of numpy: on torch's CPU device that would work, on a GPU it would not."""
    same = 0
    for options in OPTIONS:
        ours = solved(shape, options, NUMPY)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "__array__", refused)
            other = solved(shape, options, TORCH)
        for name in ("z", "bias", "step"):
            array, expected = getattr(other, name), getattr(ours, name)
            assert type(array) is np.ndarray and array.dtype == np.float32 and array.shape == expected.shape, options
        assert other.before == pytest.approx(ours.before, rel=1e-5), options
        assert other.after <= other.before and other.ridge == ours.ridge, options
        if np.array_equal(other.z, ours.z):
            same += 1
        else:  # sums in another order part ways at ties
            assert other.after == pytest.approx(ours.after, rel=1e-3), options
    assert same > 0.8 * len(OPTIONS)


def test_nothing_that_was_given_is_written_over() -> None:
    layer, patches = problem(SHAPES["dense"], limits=True, refit=True, bias=False)
    given = [layer.matrix, layer.z, layer.bias, layer.lattice.low, *(layer.limits or ()), patches.x, patches.y]
    before = [array.copy() for array in given]
    solve(layer, patches, arrays=TORCH)
    for array, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_it_is_asked_whether_to_go_on_as_often_with_torch() -> None:
    counts = []
    for arrays in (NUMPY, TORCH):
        calls: list[None] = []
        solve(*problem(SHAPES["grouped"], limits=True), lambda calls=calls: calls.append(None), arrays)
        counts.append(len(calls))
    assert counts[0] == counts[1] > 10

    def canceled() -> None:
        raise CanceledError("stop")

    with pytest.raises(CanceledError):
        solve(*problem(SHAPES["grouped"]), canceled, TORCH)
    assert not torch.is_inference_mode_enabled()


def test_the_precision_of_products_is_full_and_then_as_before() -> None:
    seen = []
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        solve(*problem(SHAPES["grouped"]), lambda: seen.append(torch.get_float32_matmul_precision()), TORCH)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(EngineError, match="is not available"):
        rounded(solver="moments", optim_device="cuda:63")


def test_the_step_computes_on_the_device_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def arrays(wanted: str) -> Arrays:
        asked.append(wanted)
        return TORCH

    monkeypatch.setattr("worker.quantizer.finetune.solvers.arrays_on", arrays)
    change = rounded(optim_device="cuda:1")
    assert set(asked) == {"cuda:1"}
    on_cpu = rounded(optim_device="cpu")
    assert set(change.errors) == set(on_cpu.errors) and change.nodes == on_cpu.nodes
    for name, errors in change.errors.items():
        assert errors == pytest.approx(on_cpu.errors[name], rel=1e-3)


def test_a_gpu_that_is_hidden_or_has_no_driver_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(providers, "_DRIVERS", (str(tmp_path / "none"), str(tmp_path)))
    assert may_have_gpu()
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert not may_have_gpu()
        assert arrays_on("auto") is NUMPY
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert may_have_gpu()
    monkeypatch.setattr(providers, "_DRIVERS", (str(tmp_path / "none"),))
    assert not may_have_gpu()


@pytest.mark.parametrize("device", ["auto", pytest.param("cpu", marks=pytest.mark.long)])
def test_without_a_gpu_torch_is_not_loaded(device: str) -> None:
    if device == "auto" and may_have_gpu():
        pytest.skip("there is a GPU's driver")
    script = (
        "import sys\n"
        "from tests.unit.quantizer.search.benches import chain_of_convolutions, toolkit_for\n"
        "from tests.unit.quantizer.toolbox import config\n"
        "from service.contracts.algorithms import AdaRound\n"
        "from worker.quantizer.finetune.step import FinetuneStep\n"
        "draft, toolkit = toolkit_for(chain_of_convolutions(2), config(weight={'dtype': 'int4'}))\n"
        f"change = FinetuneStep(AdaRound(optim_device={device!r})).apply(draft, toolkit)\n"
        "assert change.errors\n"
        "assert 'torch' not in sys.modules\n"
    )
    root = Path(__file__).parents[5]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NO GPU: the moments solver is not tested on one")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_gpu_comes_to_the_same_error_and_repeats_itself(shape: str) -> None:
    for options in OPTIONS:
        on_cpu = solved(shape, options, NUMPY)
        first, again = (solved(shape, options, arrays_on("cuda")) for _ in range(2))
        assert first.after <= first.before
        assert first.after == pytest.approx(on_cpu.after, rel=1e-2, abs=1e-3 * on_cpu.before)
        np.testing.assert_array_equal(first.z, again.z)
        np.testing.assert_array_equal(first.bias, again.bias)
