"""Reductions along axes, and what orders elements."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from worker.quantizer.autodiff.operators.forms import Attributes, Numbers, Operator, whole_numbers

# Of a tensor, its axes and whether to keep them; a tensor without axes has one made for it.
_Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _over_axes(reduce: _Reduce) -> Operator:
    """The operator with axes as an attribute or as an input."""

    def compute(attributes: Attributes, x: Tensor, axes: Numbers | None = None) -> Tensor:
        given = attributes.get("axes", ()) if axes is None else whole_numbers(axes)
        if x.dim() == 0 or (not given and attributes.get("noop_with_empty_axes", 0)):
            return reduce(x.unsqueeze(-1), (-1,), False)  # every element for itself
        chosen = sorted({axis % x.dim() for axis in given}) if given else range(x.dim())
        return reduce(x, tuple(chosen), bool(attributes.get("keepdims", 1)))

    return compute


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _norm(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=keep)
    return norm


def _extreme(find: Callable[..., Tensor]) -> Operator:
    """ArgMax or ArgMin: index of the first of the extreme values, or of the last of them."""

    def compute(attributes: Attributes, x: Tensor) -> Tensor:
        axis, keep = attributes.get("axis", 0), bool(attributes.get("keepdims", 1))
        if not attributes.get("select_last_index", 0):
            return find(x, dim=axis, keepdim=keep)
        return x.shape[axis] - 1 - find(x.flip(axis), dim=axis, keepdim=keep)

    return compute


def _cumsum(attributes: Attributes, x: Tensor, axis: Numbers) -> Tensor:
    (along,) = whole_numbers(axis)
    ordered = x.flip(along) if attributes.get("reverse", 0) else x
    summed = torch.cumsum(ordered, along, dtype=x.dtype)
    if attributes.get("exclusive", 0):
        before = torch.zeros_like(summed.narrow(along, 0, min(1, x.shape[along])))
        summed = torch.cat([before, summed.narrow(along, 0, max(0, x.shape[along] - 1))], along)
    return summed.flip(along) if attributes.get("reverse", 0) else summed


def _top_k(attributes: Attributes, x: Tensor, k: Numbers) -> tuple[Tensor, Tensor]:
    """In order even where that is not asked for; of equal elements the first come first, which ``torch.topk`` does
    not promise.
    """
    (count,) = whole_numbers(k)
    axis, largest = attributes.get("axis", -1), bool(attributes.get("largest", 1))
    values, indices = torch.sort(x, stable=True, dim=axis, descending=largest)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


COMPUTE: dict[str, Operator] = {
    "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin),
    "CumSum": _cumsum,
    "ReduceL1": _over_axes(lambda x, axes, keep: _sum(x.abs(), axes, keep)),
    "ReduceL2": _over_axes(_norm),
    "ReduceLogSum": _over_axes(lambda x, axes, keep: _sum(x, axes, keep).log()),
    "ReduceLogSumExp": _over_axes(lambda x, axes, keep: torch.logsumexp(x, axes, keep)),
    "ReduceMax": _over_axes(lambda x, axes, keep: torch.amax(x, axes, keep)),
    "ReduceMean": _over_axes(lambda x, axes, keep: torch.mean(x, axes, keep)),
    "ReduceMin": _over_axes(lambda x, axes, keep: torch.amin(x, axes, keep)),
    "ReduceProd": _over_axes(_prod),
    "ReduceSum": _over_axes(_sum),
    "ReduceSumSquare": _over_axes(lambda x, axes, keep: _sum(x.square(), axes, keep)),
    "TopK": _top_k,
}
STATIC: dict[str, frozenset[int]] = {
    "CumSum": frozenset({1}),
    "TopK": frozenset({1}),
    **{name: frozenset({1}) for name in COMPUTE if name.startswith("Reduce")},
}
