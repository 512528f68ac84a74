"""Random changes of the inputs of a training, sample by sample and all samples at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from service.contracts.algorithms.training import Augmentation, Crop, Cutout, Flip, Noise, Shift
from service.contracts.base import below
from service.contracts.errors import InvalidConfigError
from service.contracts.model import TensorInfo

Draw = np.random.Generator
Axis = int | str | None

_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_COLOURS = (1, 3, 4)
_PICTURES = "pictures are [n, channels, height, width]"


class Augmenter:
    """Changes inputs as a config says.

    What is drawn hangs on the seed, the epoch, the step and the place of the augmentation alone, and is the same on
    every device, but for the numbers of ``noise``.

    ``specs`` are in the order applied; ``pointer`` is that of the algorithm in the config's document.

    Raises:
        InvalidConfigError: an input is not there, or not of a kind that can be changed so.
    """

    def __init__(
        self, specs: Sequence[Augmentation], inputs: Sequence[TensorInfo], seed: int, *, pointer: str = ""
    ) -> None:
        self._seed = seed
        self._pointer = pointer
        self._steps = [(spec, self._input(k, spec, inputs)) for k, spec in enumerate(specs)]
        for k, (spec, tensor) in enumerate(self._steps):
            self._check(k, spec, tensor.name, tensor.dtype, tensor.shape)

    def augment(self, feeds: Mapping[str, Tensor], *, epoch: int, step: int) -> dict[str, Tensor]:
        """New feeds, of the same shapes and dtypes on the same devices; those given stay as they are.

        ``feeds`` are by input name, [n, ...].

        Raises:
            InvalidConfigError: an axis that the model leaves open is too short.
        """
        made = dict(feeds)
        for k, (spec, tensor) in enumerate(self._steps):
            values = made[tensor.name]
            self._check(k, spec, tensor.name, tensor.dtype, tuple(values.shape))
            draw = np.random.default_rng([self._seed, epoch, step, k])
            made[tensor.name] = _APPLY[type(spec)](spec, values, draw)
        return made

    def _input(self, k: int, spec: Augmentation, inputs: Sequence[TensorInfo]) -> TensorInfo:
        found = [tensor for tensor in inputs if spec.input in (None, tensor.name)]
        if not found:
            names = ", ".join(repr(tensor.name) for tensor in inputs) or "none"
            raise self._unfit(k, spec, "input", f"the model has no input {spec.input!r}; its inputs: {names}")
        return found[0]

    def _check(self, k: int, spec: Augmentation, name: str, dtype: str, shape: tuple[Axis, ...] | None) -> None:
        fault = _dtype_fault(spec, dtype)
        if fault is None and shape is not None:
            fault = _shape_fault(spec, shape)
        if fault is not None:
            place, told = fault
            raise self._unfit(k, spec, place, f"{told}; input {name!r} is {dtype}{_shown(shape)}")

    def _unfit(self, k: int, spec: Augmentation, place: str, told: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"{spec.kind}: {told}",
            pointer=below(self._pointer, "augmentations", k, place),
            hint="Name the input that is to be changed, or leave the augmentation out.",
        )


def _shown(shape: tuple[Axis, ...] | None) -> str:
    return "" if shape is None else "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def _dtype_fault(spec: Augmentation, dtype: str) -> tuple[str, str] | None:
    if isinstance(spec, Noise) and dtype not in _FLOATS:
        return "input", "noise needs an input of floats"
    if isinstance(spec, Cutout) and dtype not in _FLOATS and not dtype.startswith(("int", "uint")):
        return "input", "a mean needs an input of numbers"
    return None


def _shape_fault(spec: Augmentation, shape: tuple[Axis, ...]) -> tuple[str, str] | None:
    if isinstance(spec, Flip | Crop | Cutout):
        return _picture_fault(spec, shape)
    if isinstance(spec, Noise):
        rest = shape[1:]
        if all(axis == 1 for axis in rest):
            return "input", "a sample of one element has no deviation"
        return None
    rank = len(shape)
    if not -rank <= spec.axis < rank:
        return "axis", f"there is no axis {spec.axis}"
    if spec.axis % rank == 0:
        return "axis", f"axis {spec.axis} is that of samples"
    length = shape[spec.axis]
    if isinstance(length, int) and spec.steps >= length:
        return "steps", f"{spec.steps} steps leave nothing of an axis of length {length}"
    return None


def _picture_fault(spec: Flip | Crop | Cutout, shape: tuple[Axis, ...]) -> tuple[str, str] | None:
    if len(shape) != 4:
        return "input", _PICTURES
    channels, height, width = shape[1:]
    # A picture with its channels last would be mirrored from red to blue.
    if width in _COLOURS and isinstance(channels, int) and isinstance(height, int) and min(channels, height) > 4:
        return "input", f"{_PICTURES}, and here channels seem to come last"
    if isinstance(spec, Flip):
        return None
    short = min((side for side in (height, width) if isinstance(side, int)), default=None)
    if short is not None and spec.pixels >= short:
        return "pixels", f"{spec.pixels} pixels leave nothing of a side of {short}"
    return None


def _tensor(array: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)


def _chosen(draw: Draw, count: int, probability: float) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return draw.random(count) < probability


def _flip(spec: Flip, values: Tensor, draw: Draw) -> Tensor:
    mirrored = _tensor(_chosen(draw, len(values), spec.probability), values)
    return torch.where(mirrored[:, None, None, None], values.flip(-1), values)


def _crop(spec: Crop, values: Tensor, draw: Draw) -> Tensor:
    """Each picture by its own number of rows and columns, uniform in [-pixels, pixels]."""
    count, channels, height, width = values.shape
    moves = _tensor(draw.integers(-spec.pixels, spec.pixels, (2, count), endpoint=True), values)
    steps = [torch.arange(length, device=values.device) for length in (count, channels, height, width)]
    rows = (steps[2] - moves[0, :, None]).clamp_(0, height - 1)
    columns = (steps[3] - moves[1, :, None]).clamp_(0, width - 1)
    return values[
        steps[0][:, None, None, None], steps[1][:, None, None], rows[:, None, :, None], columns[:, None, None, :]
    ]


def _cutout(spec: Cutout, values: Tensor, draw: Draw) -> Tensor:
    """A square round a uniform pixel, as far as it lies in the picture; each channel gets its own mean."""
    count, _, height, width = values.shape
    chosen = _tensor(_chosen(draw, count, spec.probability), values)
    top = _tensor(draw.integers(0, height, count) - spec.pixels // 2, values)[:, None]
    left = _tensor(draw.integers(0, width, count) - spec.pixels // 2, values)[:, None]
    y, x = torch.arange(height, device=values.device), torch.arange(width, device=values.device)
    rows = (y >= top) & (y < top + spec.pixels)
    columns = (x >= left) & (x < left + spec.pixels)
    within = (rows[:, :, None] & columns[:, None, :] & chosen[:, None, None])[:, None]
    means = values.to(torch.float64).mean(dim=(2, 3), keepdim=True)
    return torch.where(within, (means if values.is_floating_point() else means.round()).to(values.dtype), values)


def _shift(spec: Shift, values: Tensor, draw: Draw) -> Tensor:
    """Each sample by its own number of steps, uniform in [-steps, steps]."""
    moved = values.movedim(spec.axis, 1)
    count, length = moved.shape[:2]
    by = _tensor(draw.integers(-spec.steps, spec.steps, count, endpoint=True), values)
    source = torch.arange(length, device=values.device) - by[:, None]
    shape = (count, length, *[1] * (moved.ndim - 2))
    there = ((source >= 0) & (source < length)).reshape(shape)
    taken = moved.gather(1, source.clamp(0, length - 1).reshape(shape).expand(moved.shape))
    return torch.where(there, taken, torch.zeros_like(taken)).movedim(1, spec.axis).contiguous()


def _noise(spec: Noise, values: Tensor, draw: Draw) -> Tensor:
    generator = torch.Generator(values.device).manual_seed(int(draw.integers(1 << 62)))
    wide = values if values.dtype == torch.float64 else values.float()
    deviation = wide.flatten(1).std(dim=1, correction=0).reshape(-1, *[1] * (values.ndim - 1))
    numbers = torch.randn(wide.shape, generator=generator, device=values.device, dtype=wide.dtype)
    return (wide + spec.level * deviation * numbers).to(values.dtype)


_APPLY: dict[type, Callable[[Any, Tensor, Draw], Tensor]] = {
    Flip: _flip,
    Crop: _crop,
    Cutout: _cutout,
    Shift: _shift,
    Noise: _noise,
}
