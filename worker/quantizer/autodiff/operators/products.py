"""Sums of products: convolutions and matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator
from worker.quantizer.ops.windows import Window

# Spatial convolutions by the number of axes, straight and transposed.
_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _pad(x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Zeros around the spatial axes; negative numbers cut."""
    return functional.pad(x, [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair])


def _conv(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    window = Window.of(tuple(weight.shape[2:]), attributes, transposed=False)
    before, after = window.padding(tuple(x.shape[2:]))
    padding = before
    if before != after:
        x, padding = _pad(x, before, after), (0,) * len(before)
    if x.dim() == 4:  # CPU kernels take less time with channels last, most of all depthwise ones
        x = x.contiguous(memory_format=torch.channels_last)
    return _CONVOLUTIONS[len(before)](
        x,
        weight,
        bias,
        stride=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=attributes.get("group", 1),
    )


def _conv_transpose(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The whole transposed convolution, cut (or filled with zeros) to what the pads leave; the bias comes last."""
    window, size = Window.of(tuple(weight.shape[2:]), attributes, transposed=True), tuple(x.shape[2:])
    whole = _TRANSPOSED[len(size)](
        x, weight, stride=window.strides, dilation=window.dilations, groups=attributes.get("group", 1)
    )
    before, after = window.padding(size)
    extra = window.output_padding
    cut = _pad(whole, [-n for n in before], [more - n for n, more in zip(after, extra, strict=True)])
    return cut if bias is None else cut + bias.reshape(-1, *[1] * len(size))


def _gemm(attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if attributes.get("transA", 0) else a
    b = b.T if attributes.get("transB", 0) else b
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    if alpha == 1.0 and beta == 1.0 and c is not None:
        return torch.addmm(c, a, b)
    product = torch.matmul(a, b) * alpha
    return product if c is None else product + c * beta


def _einsum(attributes: Attributes, *terms: Tensor) -> Tensor:
    return torch.einsum(attributes["equation"].replace(" ", ""), *terms)


COMPUTE: dict[str, Operator] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": _einsum,
    "Gemm": _gemm,
    "MatMul": lambda _, one, other: torch.matmul(one, other),
}
STATIC: dict[str, frozenset[int]] = {}
