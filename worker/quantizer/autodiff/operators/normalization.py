"""Normalizations, as they are computed at inference."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator

_EPSILON = 1e-5
# What MeanVarianceNormalization adds to the deviation.
_MVN_EPSILON = 1e-9


def _batch_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """With frozen statistics: they get no gradient."""
    epsilon = attributes.get("epsilon", _EPSILON)
    wide = x if x.dim() > 1 else x.reshape(-1, 1)  # a vector has one channel
    return functional.batch_norm(wide, mean.detach(), var.detach(), scale, bias, eps=epsilon).reshape(x.shape)


def _group_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Scale and bias by channel (opset 21) or by group (opset 18)."""
    groups, channels = attributes["num_groups"], x.shape[1]
    if len(scale) != channels:
        scale, bias = (each.repeat_interleave(channels // groups) for each in (scale, bias))
    # ``functional.group_norm`` refuses groups of one element, where the result is the bias
    return torch.group_norm(x, groups, scale, bias, attributes.get("epsilon", _EPSILON))


def _layer_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    first = attributes.get("axis", -1) % x.dim()
    normal = functional.layer_norm(x, x.shape[first:], eps=attributes.get("epsilon", _EPSILON))
    return normal * scale if bias is None else normal * scale + bias


def _rms_norm(attributes: Attributes, x: Tensor, scale: Tensor) -> Tensor:
    first = attributes.get("axis", -1) % x.dim()
    return functional.rms_norm(x, x.shape[first:], eps=attributes.get("epsilon", _EPSILON)) * scale


def _instance_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    # ``functional.instance_norm`` refuses channels of one element, where the result is the bias.
    epsilon = attributes.get("epsilon", _EPSILON)
    return torch.instance_norm(x, scale, bias, None, None, True, 0.1, epsilon, torch.backends.cudnn.enabled)


def _lp_norm(attributes: Attributes, x: Tensor) -> Tensor:
    """Along one axis; zeros stay zeros."""
    norm = torch.linalg.vector_norm(x, attributes.get("p", 2), dim=attributes.get("axis", -1), keepdim=True)
    return x / torch.where(norm == 0, torch.ones_like(norm), norm)


def _lrn(attributes: Attributes, x: Tensor) -> Tensor:
    """Across channels (Krizhevsky et al. 2012, section 3.3); onnxruntime takes odd sizes alone."""
    size = attributes["size"]
    squares = x.square().reshape(x.shape[0], 1, x.shape[1], -1)
    padded = functional.pad(squares, (0, 0, size // 2, size // 2))
    mean = functional.avg_pool2d(padded, (size, 1), stride=1).reshape(x.shape)
    base = mean * attributes.get("alpha", 1e-4) + attributes.get("bias", 1.0)
    return x / torch.pow(base, attributes.get("beta", 0.75))


def _mean_variance_norm(attributes: Attributes, x: Tensor) -> Tensor:
    axes = tuple(axis % x.dim() for axis in attributes.get("axes", (0, 2, 3)))
    centered = x - x.mean(dim=axes, keepdim=True)
    # the norm, unlike a square root, has a finite derivative at 0
    norm: Tensor = torch.linalg.vector_norm(centered, dim=axes, keepdim=True)
    count = prod(x.shape[axis] for axis in axes)
    deviation: Tensor = norm / count**0.5
    return centered / (deviation + _MVN_EPSILON)


COMPUTE: dict[str, Operator] = {
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
}
STATIC: dict[str, frozenset[int]] = {}
