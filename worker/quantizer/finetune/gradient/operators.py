"""ONNX operators in torch, with gradients. Each gets its inputs and the node's attributes; names follow the ONNX
operator reference, opset 13 to 21.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.finetune.gradient.grids import clip_inward
from worker.quantizer.operators.windows import Window

Inputs = Sequence[Tensor | None]
Attributes = Mapping[str, Any]


def _needed(inputs: Inputs, index: int) -> Tensor:
    value = inputs[index]
    if value is None:
        raise ValueError(f"input {index} is missing")
    return value


def _optional(inputs: Inputs, index: int) -> Tensor | None:
    return inputs[index] if len(inputs) > index else None


_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d,
    2: functional.conv2d,
    3: functional.conv3d,
}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}


def _pad(x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Zeros around the spatial axes; negative numbers cut."""
    return functional.pad(x, [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair])


def _conv(inputs: Inputs, attributes: Attributes) -> Tensor:
    x, weight = _needed(inputs, 0), _needed(inputs, 1)
    window = _window(weight, attributes, transposed=False)
    before, after = window.padding(tuple(x.shape[2:]))
    padding = before
    if before != after:
        x, padding = _pad(x, before, after), (0,) * len(before)
    return _CONVOLUTIONS[len(before)](
        x,
        weight,
        _optional(inputs, 2),
        stride=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=attributes.get("group", 1),
    )


def _conv_transpose(inputs: Inputs, attributes: Attributes) -> Tensor:
    """The whole transposed convolution, cut (or filled with zeros) to what the pads leave; the bias comes last."""
    x, weight, bias = _needed(inputs, 0), _needed(inputs, 1), _optional(inputs, 2)
    window, size = _window(weight, attributes, transposed=True), tuple(x.shape[2:])
    whole = _TRANSPOSED[len(size)](
        x, weight, stride=window.strides, dilation=window.dilations, groups=attributes.get("group", 1)
    )
    before, after = window.padding(size)
    extra = window.output_padding
    cut = _pad(whole, [-n for n in before], [more - n for n, more in zip(after, extra, strict=True)])
    return cut if bias is None else cut + bias.reshape(-1, *[1] * len(size))


def _window(weight: Tensor, attributes: Attributes, *, transposed: bool) -> Window:
    return Window.of(tuple(weight.shape[2:]), attributes, transposed=transposed)


def _gemm(inputs: Inputs, attributes: Attributes) -> Tensor:
    a, b, c = _needed(inputs, 0), _needed(inputs, 1), _optional(inputs, 2)
    a = a.T if attributes.get("transA", 0) else a
    b = b.T if attributes.get("transB", 0) else b
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    if alpha == 1.0 and beta == 1.0 and c is not None:
        return torch.addmm(c, a, b)
    if c is None:
        return torch.matmul(a, b) * alpha
    return torch.matmul(a, b) * alpha + c * beta


def _layer_norm(inputs: Inputs, attributes: Attributes) -> Tensor:
    x, scale, bias = _needed(inputs, 0), _needed(inputs, 1), _optional(inputs, 2)
    first = attributes.get("axis", -1) % x.dim()
    normal = functional.layer_norm(x, x.shape[first:], eps=attributes.get("epsilon", 1e-5))
    return normal * scale if bias is None else normal * scale + bias


def _instance_norm(inputs: Inputs, attributes: Attributes) -> Tensor:
    x, scale, bias = _needed(inputs, 0), _needed(inputs, 1), _needed(inputs, 2)
    return functional.instance_norm(x, weight=scale, bias=bias, eps=attributes.get("epsilon", 1e-5))


def _p_relu(inputs: Inputs, attributes: Attributes) -> Tensor:
    x = _needed(inputs, 0)
    return torch.where(x < 0.0, x * _needed(inputs, 1), x)


def _limited(inputs: Inputs, *, low: bool) -> Tensor:
    """Min or Max of a tensor and a limit per channel, the constant of the two."""
    x, limit = _needed(inputs, 0), _needed(inputs, 1)
    if x.dim() < limit.dim() or x.numel() < limit.numel():
        x, limit = limit, x
    return clip_inward(x, limit, math.inf) if low else clip_inward(x, -math.inf, limit)


def _gelu(inputs: Inputs, attributes: Attributes) -> Tensor:
    return functional.gelu(_needed(inputs, 0), approximate=attributes.get("approximate", "none"))


def _hard_sigmoid(inputs: Inputs, attributes: Attributes) -> Tensor:
    alpha, beta = float(attributes.get("alpha", 0.2)), float(attributes.get("beta", 0.5))
    return (_needed(inputs, 0) * alpha + beta).clamp(0.0, 1.0)


def _softmax(inputs: Inputs, attributes: Attributes) -> Tensor:
    return torch.softmax(_needed(inputs, 0), dim=attributes.get("axis", -1))


def _global_average_pool(inputs: Inputs, attributes: Attributes) -> Tensor:
    x = _needed(inputs, 0)
    return x.mean(dim=tuple(range(2, x.dim())), keepdim=True)


COMPUTE: dict[str, Callable[[Inputs, Attributes], Tensor]] = {
    "Add": lambda inputs, _: _needed(inputs, 0) + _needed(inputs, 1),
    "Clip": lambda inputs, a: clip_inward(_needed(inputs, 0), a["low"], a["high"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda inputs, _: functional.hardswish(_needed(inputs, 0)),
    "Identity": lambda inputs, _: _needed(inputs, 0),
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda inputs, a: functional.leaky_relu(_needed(inputs, 0), a.get("alpha", 0.01)),
    "MatMul": lambda inputs, _: torch.matmul(_needed(inputs, 0), _needed(inputs, 1)),
    "Mul": lambda inputs, _: _needed(inputs, 0) * _needed(inputs, 1),
    "PRelu": _p_relu,
    "Max": lambda inputs, _: _limited(inputs, low=True),
    "Min": lambda inputs, _: _limited(inputs, low=False),
    "Relu": lambda inputs, _: clip_inward(_needed(inputs, 0), 0.0, math.inf),
    "Sigmoid": lambda inputs, _: torch.sigmoid(_needed(inputs, 0)),
    "Softmax": _softmax,
    "Tanh": lambda inputs, _: torch.tanh(_needed(inputs, 0)),
}
