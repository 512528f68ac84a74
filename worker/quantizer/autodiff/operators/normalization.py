"""Normalizations, as they are computed at inference."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator


def _layer_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    first = attributes.get("axis", -1) % x.dim()
    normal = functional.layer_norm(x, x.shape[first:], eps=attributes.get("epsilon", 1e-5))
    return normal * scale if bias is None else normal * scale + bias


def _instance_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    return functional.instance_norm(x, weight=scale, bias=bias, eps=attributes.get("epsilon", 1e-5))


COMPUTE: dict[str, Operator] = {
    "InstanceNormalization": _instance_norm,
    "LayerNormalization": _layer_norm,
}
