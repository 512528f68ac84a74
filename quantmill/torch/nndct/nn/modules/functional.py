"""Operations as modules (``pytorch_nndct.nn.modules.functional``). Each does what the function of torch does.

Every operation is quantized whether it is a module or not; these are for scripts that were written for such modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class _Operation(nn.Module):
    """Calls a function of torch with what it is called with."""

    _function: Callable[..., Any]

    def __init_subclass__(cls, *, calls: Callable[..., Any]) -> None:
        cls._function = staticmethod(calls)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """See the function."""
        return self._function(*args, **kwargs)


class Add(_Operation, calls=torch.add):
    """``torch.add``: ``input + alpha * other``."""


class Sub(_Operation, calls=torch.sub):
    """``torch.sub``: ``input - alpha * other``."""


class Mul(_Operation, calls=torch.mul):
    """``torch.mul``: ``input * other``."""


class Matmul(_Operation, calls=torch.matmul):
    """``torch.matmul``: ``input @ other``."""


class Cat(_Operation, calls=torch.cat):
    """``torch.cat``: tensors one behind the other along an axis."""


class Max(_Operation, calls=torch.max):
    """``torch.max``: the largest value, of all or along an axis, or value by value of two tensors."""


class Min(_Operation, calls=torch.min):
    """``torch.min``: the smallest value, of all or along an axis, or value by value of two tensors."""


class Mean(_Operation, calls=torch.mean):
    """``torch.mean``, of all values or along axes."""


class Sum(_Operation, calls=torch.sum):
    """``torch.sum``, of all values or along axes."""


class Pad(_Operation, calls=functional.pad):
    """``torch.nn.functional.pad``."""


class Relu(_Operation, calls=torch.relu):
    """``torch.relu``: ``max(input, 0)``."""


class Clamp(_Operation, calls=torch.clamp):
    """``torch.clamp``: values limited to a range."""


class Interpolate(_Operation, calls=functional.interpolate):
    """``torch.nn.functional.interpolate``: resampling to another size."""
