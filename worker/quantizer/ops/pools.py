"""Where onnxruntime puts the windows of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from worker.quantizer.ops.windows import Window


@dataclass(frozen=True)
class PoolPlaces:
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
    def of(cls, attributes: Mapping[str, Any], size: tuple[int, ...]) -> PoolPlaces:
        """Those on an input of this size, the spatial axes alone."""
        window = Window.of(tuple(attributes["kernel_shape"]), attributes, transposed=False)
        if window.auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            window = replace(window, pads=_same_pads(window, size), auto_pad="NOTSET")
        before, after = window.padding(size)
        places = cls(window, size, before, after, window.extent(size))
        return places.rounded_up() if attributes.get("ceil_mode", 0) else places

    def rounded_up(self) -> PoolPlaces:
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

    def taps(self, axis: int, *, padding: bool) -> list[int]:
        """For every window along an axis: taps on the input, or on the padding that the node asks for as well."""
        low = -self.before[axis] if padding else 0
        high = self.size[axis] + (self.after[axis] if padding else 0)
        stride, dilation = self.window.strides[axis], self.window.dilations[axis]
        first = (k * stride - self.before[axis] for k in range(self.count[axis]))
        return [sum(low <= at + tap * dilation < high for tap in range(self.window.kernel[axis])) for at in first]


def _same_pads(window: Window, size: tuple[int, ...]) -> tuple[int, ...]:
    """As onnxruntime pads pools: for taps without gaps, and cutting where strides are longer than the kernel."""
    needed = [
        (-(-length // stride) - 1) * stride + taps - length
        for length, stride, taps in zip(size, window.strides, window.kernel, strict=True)
    ]
    before = [int((more + (window.auto_pad == "SAME_LOWER")) / 2) for more in needed]
    return (*before, *(more - first for more, first in zip(needed, before, strict=True)))
