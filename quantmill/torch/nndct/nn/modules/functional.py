"""Operations as modules (``pytorch_nndct.nn.modules.functional``). Each does what the function of torch does.

Every operation is quantized whether it is a module or not; these are for scripts that were written for such modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

Operand = Tensor | float


class Add(nn.Module):
    """``input + alpha * other``."""

    def forward(self, input: Tensor, other: Operand, alpha: float = 1) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.add``."""
        return torch.add(input, other, alpha=alpha)


class Sub(nn.Module):
    """``input - alpha * other``."""

    def forward(self, input: Tensor, other: Operand, alpha: float = 1) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.sub``."""
        return torch.sub(input, other, alpha=alpha)


class Mul(nn.Module):
    """``input * other``."""

    def forward(self, input: Tensor, other: Operand) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.mul``."""
        return torch.mul(input, other)


class Matmul(nn.Module):
    """``input @ other``."""

    def forward(self, input: Tensor, other: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.matmul``."""
        return torch.matmul(input, other)


class Cat(nn.Module):
    """Tensors one behind the other along an axis."""

    def forward(self, tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
        """See ``torch.cat``."""
        return torch.cat(list(tensors), dim=dim)


class Max(nn.Module):
    """The largest value, of all or along an axis, or value by value of two tensors."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - as torch calls it
        """See ``torch.max``."""
        return torch.max(input, *args, **kwargs)


class Min(nn.Module):
    """The smallest value, of all or along an axis, or value by value of two tensors."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - as torch calls it
        """See ``torch.min``."""
        return torch.min(input, *args, **kwargs)


class Mean(nn.Module):
    """The mean, of all values or along axes."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.mean``."""
        return torch.mean(input, *args, **kwargs)


class Sum(nn.Module):
    """The sum, of all values or along axes."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.sum``."""
        return torch.sum(input, *args, **kwargs)


class Pad(nn.Module):
    """Padding."""

    def forward(
        self,
        input: Tensor,  # noqa: A002 - as torch calls it
        pad: Sequence[int],
        mode: str = "constant",
        value: float | None = None,
    ) -> Tensor:
        """See ``torch.nn.functional.pad``."""
        return nn.functional.pad(input, list(pad), mode=mode, value=value)


class Relu(nn.Module):
    """``max(input, 0)``."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.relu``."""
        return torch.relu(input)


class Clamp(nn.Module):
    """Values limited to a range."""

    def forward(
        self,
        input: Tensor,  # noqa: A002 - as torch calls it
        min: float | None = None,  # noqa: A002 - as torch calls it
        max: float | None = None,  # noqa: A002 - as torch calls it
    ) -> Tensor:
        """See ``torch.clamp``."""
        return torch.clamp(input, min=min, max=max)


class Interpolate(nn.Module):
    """Resampling to another size."""

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:  # noqa: A002 - as torch calls it
        """See ``torch.nn.functional.interpolate``."""
        return nn.functional.interpolate(input, *args, **kwargs)
