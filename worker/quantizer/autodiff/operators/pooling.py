"""Pools: what a window, or the whole of the spatial axes, is brought down to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Operator
from worker.quantizer.operators.windows import Window

_MAX: dict[int, Callable[..., Tensor]] = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
_AVERAGE: dict[int, Callable[..., Tensor]] = {
    1: functional.avg_pool1d,
    2: functional.avg_pool2d,
    3: functional.avg_pool3d,
}


@dataclass(frozen=True)
class Places:
    """Where the windows of a pool stand; all tuples have one entry per spatial axis.

    Attributes:
        window: what moves.
        size: of the input.
        before, after: padding that the node asks for.
        count: windows.
    """

    window: Window
    size: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    count: tuple[int, ...]

    @classmethod
    def of(cls, attributes: Attributes, size: tuple[int, ...]) -> Places:
        """Those on an input of this size, the spatial axes alone."""
        window = Window.of(tuple(attributes["kernel_shape"]), attributes, transposed=False)
        if window.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            window = replace(window, pads=_same_pads(window, size), auto_pad="NOTSET")
        before, after = window.padding(size)
        places = cls(window, size, before, after, window.extent(size))
        return places.rounded_up() if attributes.get("ceil_mode", 0) else places

    def rounded_up(self) -> Places:
        """With one window more where the last one leaves a rest, unless it would begin in the padding behind."""
        counts = []
        for axis, stride in enumerate(self.window.strides):
            rest = self.size[axis] + self.before[axis] + self.after[axis] - self.reach(axis)
            count = -(-rest // stride) + 1
            counts.append(count - ((count - 1) * stride >= self.size[axis] + self.before[axis]))
        return replace(self, count=tuple(counts))

    def reach(self, axis: int) -> int:
        """From the first tap to the last one."""
        return (self.window.kernel[axis] - 1) * self.window.dilations[axis] + 1

    @property
    def read_behind(self) -> tuple[int, ...]:
        """Elements behind the input that a window reads; negative where the last windows end before its end."""
        return tuple(
            (count - 1) * stride + self.reach(axis) - self.size[axis] - self.before[axis]
            for axis, (count, stride) in enumerate(zip(self.count, self.window.strides, strict=True))
        )

    @property
    def torch_pads(self) -> tuple[int, ...] | None:
        """Padding that torch's own pools take, None if they do not take it."""
        small = all(0 <= 2 * n <= self.window.kernel[axis] for axis, n in enumerate(self.before))
        return self.before if small and self.before == self.after and self.count == self._plain else None

    @property
    def _plain(self) -> tuple[int, ...]:
        return self.window.extent(self.size)

    def padded(self, x: Tensor, value: float) -> Tensor:
        """The input with what its windows read around it, and no more, so that no window needs padding."""
        pairs = zip(reversed(self.before), reversed(self.read_behind), strict=True)
        return functional.pad(x, [n for before, behind in pairs for n in (before, behind)], value=value)

    def taps(self, axis: int, *, padding: bool) -> list[int]:
        """For every window along an axis: taps on the input, or on the padding that the node asks for as well."""
        low = -self.before[axis] if padding else 0
        high = self.size[axis] + (self.after[axis] if padding else 0)
        stride, dilation = self.window.strides[axis], self.window.dilations[axis]
        first = (k * stride - self.before[axis] for k in range(self.count[axis]))
        return [sum(low <= at + tap * dilation < high for tap in range(self.window.kernel[axis])) for at in first]

    def sums(self, x: Tensor) -> Tensor:
        """The sum of every window, with zeros as padding."""
        padded, window, rank = self.padded(x, 0.0), self.window, len(self.size)
        if max(window.dilations) == 1:
            taps = reduce(int.__mul__, window.kernel)
            return _AVERAGE[rank](padded, window.kernel, window.strides) * taps
        for axis in range(rank):
            dilation, stride = window.dilations[axis], window.strides[axis]
            length = (self.count[axis] - 1) * stride + 1
            moved = padded.movedim(axis + 2, 0)
            firsts = [tap * dilation for tap in range(window.kernel[axis])]
            padded = reduce(torch.add, [moved[at : at + length : stride] for at in firsts]).movedim(0, axis + 2)
        return padded


def _same_pads(window: Window, size: tuple[int, ...]) -> tuple[int, ...]:
    """As onnxruntime pads pools: for taps without gaps, and cutting where strides are longer than the kernel."""
    needed = [
        (-(-length // stride) - 1) * stride + taps - length
        for length, stride, taps in zip(size, window.strides, window.kernel, strict=True)
    ]
    before = [int((more + (window.auto_pad == "SAME_LOWER")) / 2) for more in needed]
    return (*before, *(more - first for more, first in zip(needed, before, strict=True)))


def _max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    places = Places.of(attributes, tuple(x.shape[2:]))
    window, pads = places.window, places.torch_pads
    if pads is None:
        x, pads = places.padded(x, -torch.inf), (0,) * len(places.size)
    return _MAX[len(pads)](x, window.kernel, window.strides, pads, window.dilations)


def _average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    places, with_padding = Places.of(attributes, tuple(x.shape[2:])), bool(attributes.get("count_include_pad", 0))
    window, pads = places.window, places.torch_pads
    if pads is not None and max(window.dilations) == 1:
        return _AVERAGE[len(pads)](x, window.kernel, window.strides, pads, False, with_padding)
    sums = places.sums(x)
    for axis in range(len(places.size)):
        taps = torch.tensor(places.taps(axis, padding=with_padding), dtype=x.dtype, device=x.device)
        sums = sums / taps.reshape(-1, *[1] * (len(places.size) - 1 - axis))
    return sums


def _lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    p = attributes.get("p", 2)
    sums = Places.of(attributes, tuple(x.shape[2:])).sums(x.abs().pow(p))
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
