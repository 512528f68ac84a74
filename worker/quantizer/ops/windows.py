"""How a kernel moves over what it reads: strides, dilations, padding; and where onnxruntime puts pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import AttributeValue, int_attribute, plain_attributes, string_attribute


@dataclass(frozen=True)
class Window:
    """The window of a Conv or ConvTranspose; all tuples have one entry per spatial axis."""

    kernel: tuple[int, ...]  # taps
    strides: tuple[int, ...]  # steps between positions; of a ConvTranspose, between the places that its inputs go to
    dilations: tuple[int, ...]  # steps between taps
    pads: tuple[int, ...]  # what is padded, or cut off by a ConvTranspose, before each axis and then behind each
    auto_pad: str  # NOTSET, VALID, SAME_UPPER or SAME_LOWER
    output_padding: tuple[int, ...]  # what a ConvTranspose makes behind its last taps
    output_shape: tuple[int, ...] | None  # what a ConvTranspose is to make; None if the pads decide
    transposed: bool  # whether it is a ConvTranspose

    @classmethod
    def of(cls, kernel: tuple[int, ...], attributes: Mapping[str, AttributeValue], *, transposed: bool) -> Window:
        """The window with a node's attributes."""
        rank = len(kernel)

        def numbers(name: str, default: int, count: int = rank) -> tuple[int, ...]:
            found = attributes.get(name)
            return tuple(map(int, found)) if isinstance(found, tuple) and found else (default,) * count

        return cls(
            kernel=kernel,
            strides=numbers("strides", 1),
            dilations=numbers("dilations", 1),
            pads=numbers("pads", 0, 2 * rank),
            auto_pad=str(attributes.get("auto_pad", "NOTSET")),
            output_padding=numbers("output_padding", 0),
            output_shape=numbers("output_shape", 0)[-rank:] if "output_shape" in attributes else None,
            transposed=transposed,
        )

    def padding(self, size: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Elements that are padded (ConvTranspose: cut off) before and behind each axis of an input of this size.

        A negative number is what a ConvTranspose fills up behind to make its ``output_shape``.
        """
        pairs = [self._padding(axis, length) for axis, length in enumerate(size)]
        return tuple(before for before, _ in pairs), tuple(behind for _, behind in pairs)

    def extent(self, size: tuple[int, ...]) -> tuple[int, ...]:
        """Size of the result for an input of this size."""
        before, behind = self.padding(size)
        return tuple(self._extent(axis, size[axis], before[axis] + behind[axis]) for axis in range(len(size)))

    def positions(self, data: np.ndarray) -> int:
        """Positions of the result of all samples of ``data``, [samples, channels, ...]."""
        return len(data) * prod(self.extent(data.shape[2:]))

    def gather(self, data: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the window sees at some positions.

        Args:
            data: [samples, channels, ...] of any type.
            chosen: int64 [n], ascending: positions, sample by sample.

        Returns:
            [channels, taps, n] of the type of ``data``, and bool [taps, n]: False for padding, whatever the values.
        """
        samples, channels = data.shape[:2]
        flat = data.reshape(samples, channels, -1)
        out = self.extent(data.shape[2:])
        of_sample, place = np.divmod(chosen, prod(out))
        index, inside = self._index(np.unravel_index(place, out), data.shape[2:])
        found = np.empty((channels, prod(self.kernel), len(chosen)), data.dtype)
        edges = np.searchsorted(of_sample, np.arange(samples + 1))
        for k in range(samples):
            part = slice(edges[k], edges[k + 1])
            if part.start < part.stop:
                found[:, :, part] = np.take(flat[k], index[:, part], axis=1, mode="clip")
        return found, inside

    def _index(self, places: tuple[np.ndarray, ...], size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Flat input index [taps, n] of every tap at every place, and whether it lies inside."""
        begin, _ = self.padding(size)
        index = np.zeros((1, len(places[0])), np.int64)
        inside = np.ones(index.shape, bool)
        for axis, place in enumerate(places):
            tap = np.arange(self.kernel[axis])[:, None] * self.dilations[axis]
            if self.transposed:
                at, rest = np.divmod(place[None] + begin[axis] - tap, self.strides[axis])
                here = (rest == 0) & (at >= 0) & (at < size[axis])
            else:
                at = place[None] * self.strides[axis] + tap - begin[axis]
                here = (at >= 0) & (at < size[axis])
            at = np.where(here, at, 0)
            index = (index[:, None] * size[axis] + at[None]).reshape(-1, len(place))
            inside = (inside[:, None] & here[None]).reshape(-1, len(place))
        return index, inside

    def _extent(self, axis: int, size: int, padding: int) -> int:
        if self.transposed:
            return self._whole(axis, size) - padding
        return (size + padding - self.reach(axis)) // self.strides[axis] + 1

    def _padding(self, axis: int, size: int) -> tuple[int, int]:
        same = self.auto_pad in ("SAME_UPPER", "SAME_LOWER")
        if not same and self.output_shape is None:
            return (0, 0) if self.auto_pad == "VALID" else (self.pads[axis], self.pads[axis + len(self.kernel)])
        stride = self.strides[axis]
        if self.transposed:
            wanted = self.output_shape[axis] if self.output_shape is not None else size * stride
            total = self._whole(axis, size) - wanted
            if total < 0:
                return (0, total) if self.output_shape is not None else (0, 0)
        else:
            total = max((-(-size // stride) - 1) * stride + self.reach(axis) - size, 0)
        less = total // 2
        return (less, total - less) if self.auto_pad == "SAME_UPPER" else (total - less, less)

    def reach(self, axis: int) -> int:
        """From the first tap to the last one."""
        return (self.kernel[axis] - 1) * self.dilations[axis] + 1

    def _whole(self, axis: int, size: int) -> int:
        """What a ConvTranspose makes before anything is cut off."""
        return self.strides[axis] * (size - 1) + self.output_padding[axis] + self.reach(axis)


def reaches_beyond(node: ir.Node) -> bool:
    """True if the windows of a convolution or a pool may reach beyond what it reads."""
    pads = node.attributes.get("pads")
    automatic = string_attribute(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    return automatic or (pads is not None and any(pads.as_ints())) or bool(int_attribute(node, "ceil_mode", 0))


def has_gaps(node: ir.Node) -> bool:
    """True if the window of a convolution or a pool leaves out positions between those that it takes."""
    dilations = plain_attributes(node).get("dilations", ())
    return isinstance(dilations, tuple) and any(step != 1 for step in dilations)


def counts_beyond(pool: ir.Node) -> bool:
    """True if windows of an AveragePool that count pads may reach beyond them."""
    return bool(int_attribute(pool, "ceil_mode", 0) and int_attribute(pool, "count_include_pad", 0))


def counts_windows_oddly(pool: ir.Node) -> bool:
    """True if shape inference (onnx 1.23) may count other windows of a pool than onnxruntime (1.31) does."""
    same = string_attribute(pool, "auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER")
    return bool(int_attribute(pool, "ceil_mode", 0)) or (same and has_gaps(pool))


# Where onnxruntime puts the windows of a pool.


@dataclass(frozen=True)
class PoolPlaces:
    """Where the windows of a pool stand; all tuples have one entry per spatial axis."""

    window: Window  # what moves
    size: tuple[int, ...]  # of the input
    # before, after: padding that the node asks for
    before: tuple[int, ...]
    after: tuple[int, ...]
    count: tuple[int, ...]  # windows

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
            rest = self.size[axis] + self.before[axis] + self.after[axis] - self.window.reach(axis)
            count = -(-rest // stride) + 1
            counts.append(count - ((count - 1) * stride >= self.size[axis] + self.before[axis]))
        return replace(self, count=tuple(counts))

    @property
    def read_behind(self) -> tuple[int, ...]:
        """Elements behind the input that a window reads; negative where the last windows end before its end."""
        return tuple(
            (count - 1) * stride + self.window.reach(axis) - self.size[axis] - self.before[axis]
            for axis, (count, stride) in enumerate(zip(self.count, self.window.strides, strict=True))
        )

    @property
    def torch_pads(self) -> tuple[int, ...] | None:
        """Padding that torch's own pools take, None if they do not take it."""
        small = all(0 <= 2 * n <= self.window.kernel[axis] for axis, n in enumerate(self.before))
        return (
            self.before if small and self.before == self.after and self.count == self.window.extent(self.size) else None
        )

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
