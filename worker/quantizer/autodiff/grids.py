"""The grids of the plan in torch: what a tensor is rounded to, bit for bit as ``Grid.fake`` in numpy, and the gradient
that is passed straight through (Bengio et al. 2013): 1 where the grid reaches, 0 where a value saturates.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from worker.quantizer.autodiff.program import as_tensor
from worker.quantizer.numerics.blocks import BlockFormat, BlockGrid, FixedPoint, FloatGrid, Grid, Minifloat
from worker.quantizer.numerics.integer import IntegerGrid


class TorchGrid:
    """A grid for tensors of one shape.

    A leading -1 of ``shape`` stands for any number of samples.
    """

    def __init__(self, grid: Grid, shape: tuple[int, ...], device: torch.device) -> None:
        self._grid = grid
        self._shape = shape
        if isinstance(grid, IntegerGrid):
            low, high = grid.limits
            zero = grid.spread(grid.zero_point, shape)
            self.scale: Tensor = as_tensor(grid.spread(grid.scale, shape), device)
            self.low = as_tensor(low - zero, device)
            self.high = as_tensor(high - zero, device)
        elif isinstance(grid, FloatGrid) and (scale := grid.spread_scale(shape)) is not None:
            self.scale = as_tensor(scale, device)

    def move(self, device: torch.device) -> None:
        """Live on another device."""
        for name, held in vars(self).items():
            if isinstance(held, Tensor):
                setattr(self, name, held.to(device))

    def steps(self, quotients: Tensor) -> tuple[Tensor, Tensor]:
        """Values over their scale as whole steps from the zero point, before and after saturation."""
        wide = torch.round(quotients)
        return wide, torch.clamp(wide, self.low, self.high)

    def fake(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """The represented values, and where they did not saturate; same shape each."""
        grid = self._grid
        if isinstance(grid, IntegerGrid):
            wide, held = self.steps(values / self.scale)
            return held * self.scale + 0.0, wide == held  # integers know no -0
        if isinstance(grid, BlockGrid):
            return fake_blocks(values, grid.form, grid.axis), torch.ones_like(values, dtype=torch.bool)
        form = grid.form
        scaled = values if grid.scale is None else values / self.scale
        rounded = fake_minifloat(scaled, form)
        inside = scaled.abs() <= form.maximum
        return (rounded if grid.scale is None else rounded * self.scale), inside

    def through(self, values: Tensor) -> Tensor:
        """The represented values, differentiable."""
        return cast(Tensor, _StraightThrough.apply(values, self))  # type: ignore[no-untyped-call]


class _StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grid: TorchGrid) -> Tensor:
        rounded, inside = grid.fake(values)
        ctx.save_for_backward(inside)
        return rounded

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (inside,) = ctx.saved_tensors
        return gradients[0] * inside, None


def fake_minifloat(values: Tensor, form: Minifloat) -> Tensor:
    """``form.fake(values)``: float32, same shape; saturates."""
    held = values.clamp(-form.maximum, form.maximum)
    exponent = torch.clamp(_floor_log2(held), min=form.smallest_normal_exponent)
    shift = form.mantissa_bits - exponent
    return _ldexp(torch.round(_ldexp(held, shift)), -shift)


def fake_blocks(values: Tensor, form: BlockFormat, axis: int) -> Tensor:
    """``form.fake(values, axis)``: float32, same shape."""
    moved = values.movedim(axis, -1)
    length = moved.shape[-1]
    padded = torch.nn.functional.pad(moved, (0, -length % form.block_size))
    blocks = padded.reshape(*padded.shape[:-1], -1, form.block_size)
    peak = blocks.abs().amax(dim=-1, keepdim=True)
    exponent = torch.clamp(_floor_log2(peak) - form.element.maximum_exponent, min=form.smallest_exponent)
    exponent = torch.where(peak == 0, torch.zeros_like(exponent), exponent).expand(blocks.shape)
    if form.sub_block_size is not None:
        pairs = blocks.reshape(*blocks.shape[:-1], -1, form.sub_block_size)
        limit = _ldexp(torch.ones_like(peak), exponent[..., :1])
        unused = pairs.abs().amax(dim=-1) < limit
        exponent = exponent - unused.repeat_interleave(form.sub_block_size, dim=-1).to(exponent.dtype)
    elements = _fake_element(_ldexp(blocks, -exponent), form.element)
    return _ldexp(elements, exponent).reshape(padded.shape)[..., :length].movedim(-1, axis)


def _fake_element(values: Tensor, element: FixedPoint | Minifloat) -> Tensor:
    if isinstance(element, Minifloat):
        return fake_minifloat(values, element)
    steps = torch.round(values * 2.0**element.fraction_bits).clamp(element.minimum, element.maximum)
    return steps * 2.0**-element.fraction_bits


def _floor_log2(values: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(values)
    return torch.where(mantissa == 0, torch.full_like(exponent, -150), exponent - 1)


def _ldexp(values: Tensor, exponent: Tensor) -> Tensor:
    """Values * 2^exponent in two factors, as a power of two beyond float32's range would be infinite or 0."""
    half = torch.div(exponent, 2, rounding_mode="floor")
    return values * torch.exp2(half.to(values.dtype)) * torch.exp2((exponent - half).to(values.dtype))
