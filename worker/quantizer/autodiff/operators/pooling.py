"""Pools: what a window, or the whole of the spatial axes, is brought down to."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator
from worker.quantizer.ops.pools import PoolPlaces

_MAX: dict[int, Callable[..., Tensor]] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


def _padded(places: PoolPlaces, x: Tensor, value: float) -> Tensor:
    """The input with what its windows read around it, and no more, so that no window needs padding."""
    pairs = zip(reversed(places.before), reversed(places.read_behind), strict=True)
    return functional.pad(x, [n for before, behind in pairs for n in (before, behind)], value=value)


def _sums(places: PoolPlaces, x: Tensor) -> Tensor:
    """The sum of every window, with zeros as padding."""
    padded, window, rank = _padded(places, x, 0.0), places.window, len(places.size)
    if max(window.dilations) == 1:
        taps = reduce(int.__mul__, window.kernel)
        return _AVERAGE[rank](padded, window.kernel, window.strides) * taps
    for axis in range(rank):
        dilation, stride = window.dilations[axis], window.strides[axis]
        length = (places.count[axis] - 1) * stride + 1
        moved = padded.movedim(axis + 2, 0)
        firsts = [tap * dilation for tap in range(window.kernel[axis])]
        padded = reduce(torch.add, [moved[at : at + length : stride] for at in firsts]).movedim(0, axis + 2)
    return padded


def _max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    places = PoolPlaces.of(attributes, tuple(x.shape[2:]))
    window, pads = places.window, places.torch_pads
    if pads is None:
        x, pads = _padded(places, x, -torch.inf), (0,) * len(places.size)
    return _MAX[len(pads)](x, window.kernel, window.strides, pads, window.dilations)


def _average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    places, with_padding = PoolPlaces.of(attributes, tuple(x.shape[2:])), bool(attributes.get("count_include_pad", 0))
    window, pads = places.window, places.torch_pads
    if pads is not None and max(window.dilations) == 1:
        return _AVERAGE[len(pads)](x, window.kernel, window.strides, pads, False, with_padding)
    sums = _sums(places, x)
    for axis in range(len(places.size)):
        taps = torch.tensor(places.taps(axis, padding=with_padding), dtype=x.dtype, device=x.device)
        sums = sums / taps.reshape(-1, *[1] * (len(places.size) - 1 - axis))
    return sums


def _lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    p = attributes.get("p", 2)
    sums = _sums(PoolPlaces.of(attributes, tuple(x.shape[2:])), x.abs().pow(p))
    # the root has no finite derivative at 0
    above = sums > 0
    return torch.where(above, torch.where(above, sums, torch.ones_like(sums)).pow(1.0 / p), torch.zeros_like(sums))


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.dim()))


def _global_lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    if x.dim() < 3:
        return x.abs()
    norm: Tensor = torch.linalg.vector_norm(x, attributes.get("p", 2), dim=_spatial(x), keepdim=True)
    return norm


COMPUTE: dict[str, Operator] = {
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda _, x: x.mean(dim=_spatial(x), keepdim=True) if x.dim() > 2 else x,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": lambda _, x: x.amax(dim=_spatial(x), keepdim=True) if x.dim() > 2 else x,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
}
STATIC: dict[str, frozenset[int]] = {}
