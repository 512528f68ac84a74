"""ONNX operators in torch, with gradients. Names follow the ONNX operator reference, opset 13 to 21."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.finetune.gradient.grids import clip_inward
from worker.quantizer.operators.windows import Window

Attributes = Mapping[str, Any]
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


def _layer_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    first = attributes.get("axis", -1) % x.dim()
    normal = functional.layer_norm(x, x.shape[first:], eps=attributes.get("epsilon", 1e-5))
    return normal * scale if bias is None else normal * scale + bias


def _instance_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=attributes.get("epsilon", 1e-5))


def _limited(one: Tensor, other: Tensor, *, low: bool) -> Tensor:
    """Min or Max of a tensor and a limit per channel, the constant of the two."""
    x, limit = one, other
    if x.dim() < limit.dim() or x.numel() < limit.numel():
        x, limit = limit, x
    return clip_inward(x, limit, math.inf) if low else clip_inward(x, -math.inf, limit)


def _hard_sigmoid(attributes: Attributes, x: Tensor) -> Tensor:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return (x * alpha + beta).clamp(0.0, 1.0)


# Each takes the node's attributes and then its inputs, None for one that is left out.
COMPUTE: dict[str, Callable[..., Tensor]] = {
    "Add": lambda _, one, other: one + other,
    "Clip": lambda attributes, x, *_: clip_inward(x, attributes["low"], attributes["high"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gelu": lambda attributes, x: functional.gelu(x, approximate=attributes.get("approximate", "none")),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda _, x: x.mean(dim=tuple(range(2, x.dim())), keepdim=True),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda _, x: functional.hardswish(x),
    "Identity": lambda _, x: x,
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda attributes, x: functional.leaky_relu(x, attributes.get("alpha", 0.01)),
    "MatMul": lambda _, one, other: torch.matmul(one, other),
    "Max": lambda _, one, other: _limited(one, other, low=True),
    "Min": lambda _, one, other: _limited(one, other, low=False),
    "Mul": lambda _, one, other: one * other,
    "PRelu": lambda _, x, slope: torch.where(x < 0.0, x * slope, x),
    "Relu": lambda _, x: clip_inward(x, 0.0, math.inf),
    "Sigmoid": lambda _, x: torch.sigmoid(x),
    "Softmax": lambda attributes, x: torch.softmax(x, dim=attributes.get("axis", -1)),
    "Tanh": lambda _, x: torch.tanh(x),
}
