"""Every operator of the gradient solver against onnxruntime, and its gradient against differences."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch

from service.contracts.errors import NotDifferentiableError
from tests.unit.quantizer.finetune.gradient.gradient_benches import integer_grid
from tests.unit.quantizer.numerics.forms import rounded_grid
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx
from worker.quantizer.autodiff.operators import COMPUTE_INWARD
from worker.quantizer.autodiff.operators.elementwise import clip_inward
from worker.quantizer.finetune.blocks import OPERATORS, Block, BlockParameter, BlockState
from worker.quantizer.finetune.gradient.network import BlockNetwork, Moving, SoftRounding
from worker.quantizer.numerics.blocks import Grid

CPU = torch.device("cpu")


def network_of(model: onnx.ModelProto, constants: dict[str, np.ndarray]) -> BlockNetwork:
    nodes = tuple(ir.from_proto(model).graph)
    return BlockNetwork(BlockState(Block(nodes, (), nodes[-1].outputs[0]), {}, constants), CPU)


def compare_model(model: onnx.ModelProto, x: np.ndarray, constants: dict[str, np.ndarray]) -> None:
    expected = run_onnx(model, {"x": x}, optimized=False)["y"]
    network = network_of(model, constants)
    got = network.limit(network({"x": torch.from_numpy(x)}, {})).numpy()
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


# Every operator once, and what limits in more forms: all others share their computation with trainings.
_CASES = {
    'y = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w, b)': ((2, 4, 7, 9), {"w": (6, 4, 4, 3), "b": (6,)}),
    "y = Conv<group=2, pads=[0,1,0,1,1,0]>(x, w)": ((2, 4, 5, 6, 4), {"w": (6, 2, 2, 2, 2)}),
    "y = ConvTranspose<strides=[2,3], pads=[0,1,1,2]>(x, w, b)": ((2, 4, 7, 9), {"w": (4, 6, 3, 4), "b": (6,)}),
    "y = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b)": ((5, 4), {"w": (3, 4), "b": (3,)}),
    "m = MatMul(x, w) y = Add(m, b)": ((2, 2, 3, 4), {"w": (2, 4, 5), "b": (5,)}),
    "y = LayerNormalization<axis=1, epsilon=0.1>(x, w)": ((2, 3, 8), {"w": (3, 8)}),
    "y = InstanceNormalization<epsilon=0.1>(x, w, b)": ((2, 4, 5, 3), {"w": (4,), "b": (4,)}),
    "y = Relu(x)": ((3, 4), {}), "y = PRelu(x, w)": ((3, 4, 5), {"w": (4, 1)}),
    "y = LeakyRelu<alpha=0.3>(x)": ((3, 4), {}), 'y = Gelu<approximate="tanh">(x)': ((3, 4), {}),
    "t = Tanh(x) y = Sigmoid(t)": ((3, 4), {}), "y = Softmax<axis=1>(x)": ((3, 4, 5), {}),
    "y = HardSigmoid<alpha=0.3, beta=0.4>(x)": ((3, 4), {}), "y = HardSwish(x)": ((30, 4), {}),
    "y = Softplus(x)": ((3, 4), {}), "y = Swish<alpha=0.7>(x)": ((3, 4), {}),
    "y = Identity(x)": ((3, 4), {}), "y = GlobalAveragePool(x)": ((3, 4, 5, 2), {}),
    "y = Min(x, w)": ((3, 4, 5), {"w": (4, 1)}), "y = Max(w, x)": ((3, 4, 5), {"w": (4, 1)}),
    "r = Relu(x) y = Mul(r, x)": ((3, 4), {}),
}  # fmt: skip


@pytest.mark.parametrize("text", _CASES)
def test_operators_of_a_block(text: str) -> None:
    shape, weights = _CASES[text]
    constants = {name: normal(*dims, seed=k + 2) for k, (name, dims) in enumerate(weights.items())}
    rank = ",".join("ABCDE"[: len(shape)])
    model = make_model(f"(float[{rank}] x) => (float y) {{ {text} }}", constants, opset=24, ir_version=11)
    compare_model(model, normal(*shape, seed=1, scale=2.0), constants)


@pytest.mark.parametrize("limits", [["lo", "hi"], ["lo"], ["", "hi"], []])
def test_clip_with_any_of_its_limits(limits: list[str]) -> None:
    constants = {name: np.asarray(value, np.float32) for name, value in (("lo", -0.3), ("hi", 0.8)) if name in limits}
    model = make_model("(float[20,4] x) => (float[20,4] y) { a = Tanh(x) y = Clip(a) }", constants)
    model.graph.node[1].input.extend(limits)
    compare_model(model, normal(20, 4, seed=1), constants)


def test_every_operator_that_a_block_may_hold_is_computed_and_others_are_refused() -> None:
    tried = {part.split("= ")[1].split("(")[0].split("<")[0] for text in _CASES for part in text.split(") ")}
    assert tried | {"Clip"} == set(OPERATORS) <= set(COMPUTE_INWARD), "each needs a case in _CASES"
    # an unknown operator is refused by name
    with pytest.raises(NotDifferentiableError, match="Det"):
        network_of(make_model("(float[3,3] x) => (float y) { y = Det(x) }"), {})


def test_what_is_cut_off_gets_a_gradient_only_towards_the_limits() -> None:
    values = torch.tensor([-2.0, -2.0, 0.5, 0.5, 9.0, 9.0], requires_grad=True)
    upstream = torch.tensor([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    held = clip_inward(values, 0.0, 6.0)
    assert held.tolist() == [0.0, 0.0, 0.5, 0.5, 6.0, 6.0]
    held.backward(upstream)
    # a step against the gradient: the first goes up into the limits, the second would go further away
    assert values.grad.tolist() == [-1.0, 0.0, -1.0, 1.0, 0.0, 1.0]


WEIGHT = normal(5, 7, seed=3)


def weight(grid: Grid | None = None) -> BlockParameter:
    found = grid or integer_grid(WEIGHT)
    return BlockParameter(WEIGHT, found, found.fake(WEIGHT))


@pytest.mark.parametrize("regularizer", [(0.0, 2.0), (0.03, 2.0), (0.5, 7.3)])
@pytest.mark.parametrize("axis", [None, 0])
def test_soft_rounding_by_automatic_differentiation(regularizer: tuple[float, float], axis: int | None) -> None:
    grid = integer_grid(WEIGHT, axis=axis)
    movable = SoftRounding(weight(grid), CPU)
    (alpha,) = movable.variables
    with torch.no_grad():
        alpha.add_(torch.from_numpy(normal(5, 7, seed=4, scale=2.0)))
    upstream = torch.from_numpy(normal(5, 7, seed=5))
    value = movable.value()
    movable.absorb(upstream, *regularizer)
    got = alpha.grad.clone()
    # equations 21 to 24 of the paper, as they stand there
    twin = alpha.detach().clone().requires_grad_()
    h = torch.clamp(torch.sigmoid(twin) * 1.2 - 0.1, 0.0, 1.0)
    scale = torch.from_numpy(grid.scale.reshape(-1, 1) if axis == 0 else grid.scale)
    low, high = grid.limits
    soft = scale * torch.clamp(torch.floor(torch.from_numpy(WEIGHT) / scale) + h, low, high)
    loss = (soft * upstream).sum() + regularizer[0] * (1 - (2 * h - 1).abs() ** regularizer[1]).sum()
    loss.backward()
    torch.testing.assert_close(value, soft.detach())
    torch.testing.assert_close(got, twin.grad, rtol=1e-4, atol=1e-5)


def test_rounding_starts_at_the_float_weight_and_ends_next_to_it() -> None:
    grid = integer_grid(WEIGHT, axis=1)
    movable = SoftRounding(weight(grid), CPU)
    np.testing.assert_allclose(movable.value().numpy(), WEIGHT, atol=1e-5)
    np.testing.assert_array_equal(movable.result().integers, grid.quantize(WEIGHT))
    with torch.no_grad():
        movable.variables[0].copy_(torch.from_numpy(normal(5, 7, seed=9)))
    up = normal(5, 7, seed=9) >= 0
    expected = np.clip(np.floor(WEIGHT / grid.scale) + up, *grid.limits)
    np.testing.assert_array_equal(movable.result().integers, expected)


@pytest.mark.parametrize("axis", [None, 0])
def test_a_moving_scale_by_automatic_differentiation(axis: int | None) -> None:
    grid = integer_grid(WEIGHT * 0.6, axis=axis)  # some values saturate
    movable = Moving(weight(grid), CPU, move_scale=True)
    offset, stretch = movable.variables
    with torch.no_grad():
        offset.copy_(torch.from_numpy(normal(5, 7, seed=4)))
        stretch.copy_(torch.from_numpy(np.resize(normal(5, seed=6, scale=0.1), stretch.shape)))
    upstream = torch.from_numpy(normal(5, 7, seed=5))
    value = movable.value()
    movable.absorb(upstream)

    def shaped(array: torch.Tensor) -> torch.Tensor:
        return array.reshape(-1, 1) if axis == 0 else array.reshape(())

    first, second = offset.detach().clone().requires_grad_(), stretch.detach().clone().requires_grad_()
    start = torch.from_numpy(grid.scale.reshape(-1))
    scale = shaped(start * torch.exp(second))
    quotient = (torch.from_numpy(WEIGHT) + first * shaped(start)) / scale
    held = torch.clamp(quotient, *grid.limits)
    held = held + (torch.round(held) - held).detach()  # rounding passes gradients straight through
    (scale * held * upstream).sum().backward()
    torch.testing.assert_close(value, (scale * held).detach())
    torch.testing.assert_close(offset.grad, first.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(stretch.grad, second.grad, rtol=1e-4, atol=1e-5)
    result = movable.result()
    np.testing.assert_allclose(result.scale.reshape(-1), (start * torch.exp(stretch.detach())).numpy(), rtol=1e-6)
    np.testing.assert_allclose(result.present, value.numpy(), atol=1e-5)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e5m2", "mx6"])
def test_floats_and_blocks_move_before_they_are_rounded(dtype: str) -> None:
    grid = rounded_grid(dtype, 1, np.asarray(0.01, np.float32) if "float8" in dtype else None)
    movable = Moving(weight(grid), CPU, unit=np.float32(1.0))
    with torch.no_grad():
        movable.variables[0].fill_(0.25)
    result = movable.result()
    np.testing.assert_allclose(result.values, WEIGHT + 0.25, rtol=1e-6)
    np.testing.assert_array_equal(result.present, grid.fake(result.values))
    np.testing.assert_array_equal(result.present, movable.value().numpy())
    assert result.integers is None


def test_a_parameter_without_a_grid_just_moves() -> None:
    movable = Moving(BlockParameter(WEIGHT, None, WEIGHT, "bias"), CPU, unit=np.float32(0.5))
    upstream = torch.from_numpy(normal(5, 7, seed=5))
    movable.value()
    movable.absorb(upstream)
    torch.testing.assert_close(movable.variables[0].grad, upstream * 0.5)
    np.testing.assert_array_equal(movable.result().values, WEIGHT)
