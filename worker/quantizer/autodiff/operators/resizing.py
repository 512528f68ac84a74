"""Resize, one axis after the other, and GridSample.

Where every sample comes from is reckoned in float32, as onnxruntime does, so that ties fall the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Fractions, Numbers, Operator, fractions, whole_numbers

_Array = np.ndarray
_NEAREST: dict[str, Callable[[_Array], _Array]] = {
    "round_prefer_floor": lambda at: np.ceil(at - np.float32(0.5)),
    "round_prefer_ceil": lambda at: np.floor(at + np.float32(0.5)),
    "floor": np.floor,
    "ceil": np.ceil,
}
# torch's own interpolation by rank, where it matches.
_LINEAR = {3: "linear", 4: "bilinear", 5: "trilinear"}
_TORCH_CUBIC = -0.75
COORDINATES = frozenset({"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"})


class _Rule(NamedTuple):
    mode: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool

    @classmethod
    def of(cls, attributes: Attributes) -> _Rule:
        return cls(
            attributes.get("mode", "nearest"),
            attributes.get("coordinate_transformation_mode", "half_pixel"),
            attributes.get("nearest_mode", "round_prefer_floor"),
            float(attributes.get("cubic_coeff_a", -0.75)),
            bool(attributes.get("exclude_outside", 0)),
        )


class _Axis(NamedTuple):
    """One axis: its lengths before and after, and the scale that the node gives."""

    length: int
    made: int
    scale: float


def _resize(
    attributes: Attributes,
    x: Tensor,
    _: Fractions | None = None,
    scales: Fractions | None = None,
    sizes: Numbers | None = None,
) -> Tensor:
    along = [axis % x.dim() for axis in attributes.get("axes", range(x.dim()))]
    found = _axes(attributes, [x.shape[axis] for axis in along], scales, sizes)
    if all(one.made == one.length for one in found):
        return x  # onnxruntime copies what keeps its lengths, whatever the scales are
    if any(one.made == 0 for one in found):
        lengths = dict(zip(along, (one.made for one in found), strict=True))
        return x.new_zeros([lengths.get(axis, n) for axis, n in enumerate(x.shape)])
    axes = {axis: one for axis, one in zip(along, found, strict=True) if one.made != one.length or one.scale != 1.0}
    rule = _Rule.of(attributes)
    made = _by_torch(x, axes, rule)
    if made is not None:
        return made
    for axis, one in axes.items():
        x = _resized(x, axis, one, rule)
    return x


def _axes(attributes: Attributes, lengths: list[int], scales: Fractions | None, sizes: Numbers | None) -> list[_Axis]:
    given = () if scales is None else fractions(scales)
    if given:
        return [
            _Axis(n, int(np.floor(np.float32(n) * np.float32(scale))), scale)
            for n, scale in zip(lengths, given, strict=True)
        ]
    wanted = whole_numbers(() if sizes is None else sizes)
    ratios = [size / n for n, size in zip(lengths, wanted, strict=True)]
    policy = attributes.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return [_Axis(*one) for one in zip(lengths, wanted, ratios, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [_Axis(n, int(np.floor(n * scale + 0.5)), scale) for n in lengths]


def _by_torch(x: Tensor, axes: dict[int, _Axis], rule: _Rule) -> Tensor | None:
    """By torch's own interpolation, where it does the same."""
    if x.dim() not in _LINEAR or min(axes, default=0) < 2 or not x.is_floating_point():
        return None
    every = [axes.get(axis, _Axis(n, n, 1.0)) for axis, n in enumerate(x.shape)][2:]
    sizes, whole = [one.made for one in every], all(one.scale == one.made / one.length for one in every)
    if rule.mode == "nearest":
        repeats = all(_repeats(one, rule) for one in every)
        return functional.interpolate(x, sizes) if repeats else None
    mode = _LINEAR[x.dim()] if rule.mode == "linear" else "bicubic"
    if rule.mode == "cubic" and (x.dim() != 4 or rule.cubic != _TORCH_CUBIC or rule.exclude_outside):
        return None
    if rule.coordinates == "align_corners":
        return functional.interpolate(x, sizes, mode=mode, align_corners=True)
    half = rule.coordinates == "half_pixel" or (rule.coordinates == "pytorch_half_pixel" and min(sizes) > 1)
    return functional.interpolate(x, sizes, mode=mode, align_corners=False) if half and whole else None


def _repeats(one: _Axis, rule: _Rule) -> bool:
    if one.made % one.length:
        return False
    ((index, _),) = _taps(one, rule)
    return bool((index == np.arange(one.made) // (one.made // one.length)).all())


def _resized(x: Tensor, axis: int, one: _Axis, rule: _Rule) -> Tensor:
    parts = []
    for index, weight in _taps(one, rule):
        part = x.index_select(axis, torch.from_numpy(index.copy()).to(x.device))
        if weight is not None:
            shape = [-1 if k == axis else 1 for k in range(x.dim())]
            part = part * torch.from_numpy(weight.copy()).to(x.device, x.dtype).reshape(shape)
        parts.append(part)
    return reduce(torch.add, parts)


@lru_cache(maxsize=256)
def _taps(one: _Axis, rule: _Rule) -> tuple[tuple[_Array, _Array | None], ...]:
    """Index, int64 [made], and weight, float32 [made] (None: 1), of each of the samples that a result is made of."""
    at, last = _origins(one, rule.coordinates), one.length - 1
    if rule.mode == "nearest":
        return ((_NEAREST[rule.nearest](at).clip(0, last).astype(np.int64), None),)
    if rule.mode == "linear":
        at = at.clip(0, last)
        low = np.floor(at).astype(np.int64)
        part = at - low.astype(np.float32)
        return ((low, 1 - part), (np.minimum(low + 1, last), part))
    low = np.floor(at).astype(np.int64)
    weights = _cubic(at - low.astype(np.float32), np.float32(rule.cubic))
    index = low + np.arange(-1, 3)[:, None]
    if rule.exclude_outside:
        weights = np.where((index >= 0) & (index <= last), weights, np.float32(0))
        weights = weights / weights.sum(axis=0)
    return tuple(zip(index.clip(0, last), weights, strict=True))


def _cubic(part: _Array, a: np.float32) -> _Array:
    """Weights [4, n] of the two samples before and the two behind (Keys 1981)."""
    near, far = (part, 1 - part), (part + 1, 2 - part)
    inner = [((a + 2) * d - (a + 3)) * d * d + 1 for d in near]
    outer = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in far]
    return np.stack([outer[0], inner[0], inner[1], outer[1]])


def _origins(one: _Axis, coordinates: str) -> _Array:
    """Where the results lie among the samples, float32 [made]."""
    at, scale, half = np.arange(one.made, dtype=np.float32), np.float32(one.scale), np.float32(0.5)
    if coordinates == "asymmetric":
        return at / scale
    if coordinates == "align_corners":
        return at * np.float32(0 if one.made == 1 else (one.length - 1) / (one.made - 1))
    if coordinates == "pytorch_half_pixel" and one.made == 1:
        return np.zeros_like(at)
    if coordinates == "half_pixel_symmetric":
        adjusted = np.float32(one.made) / (scale * np.float32(one.length))
        return np.float32(one.length) / 2 * (1 - adjusted) + (at + half) / scale - half
    return (at + half) / scale - half


# Words of opset 20, and those of opset 16.
_SAMPLING = {"linear": "bilinear", "cubic": "bicubic", **{word: word for word in ("nearest", "bilinear", "bicubic")}}


def _grid_sample(attributes: Attributes, x: Tensor, grid: Tensor) -> Tensor:
    mode = attributes.get("mode", "linear")
    return functional.grid_sample(
        x,
        grid,
        _SAMPLING[mode],
        attributes.get("padding_mode", "zeros"),
        bool(attributes.get("align_corners", 0)),
    )


COMPUTE: dict[str, Operator] = {"GridSample": _grid_sample, "Resize": _resize}
STATIC: dict[str, frozenset[int]] = {"Resize": frozenset({1, 2, 3})}
