"""Shapes of inputs whose axes are free, made up from names and types; the first that the model runs on is taken.

Pictures have sides, texts a length, a cache what lies before the text; a mask over text and cache spans both. Axes of
one name are of one size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from service.contracts.base import below
from service.contracts.dataset import RandomCalibration
from service.contracts.errors import DatasetMismatchError, InvalidConfigError, UnsupportedModelError
from service.contracts.model import TensorInfo
from service.contracts.specs import TensorRange
from worker.quantizer.data.random_inputs import RandomDataset
from worker.quantizer.data.stored import Array

Shapes = dict[str, tuple[int, ...]]
_ONES = TensorRange(minimum=1.0, maximum=1.0)
_CHANNELS, _HEADS = 3, 4


class _Sizes(NamedTuple):
    """Elements along the axes of a kind."""

    side: int
    length: int
    past: int


# What is tried, in this order: then one token behind a cache, longer texts, sounds.
_SIZES = (_Sizes(224, 16, 4), _Sizes(64, 1, 4), _Sizes(32, 64, 8), _Sizes(256, 512, 4), _Sizes(512, 16_000, 4))
_PAST = re.compile(r"past|cache|(^|[._])present", re.IGNORECASE)
_MASK = re.compile(r"mask", re.IGNORECASE)
_TOTAL = re.compile(r"\+|total", re.IGNORECASE)
_LENGTH = re.compile(r"seq|len|time|token|frame", re.IGNORECASE)
_SIDE = re.compile(r"height|width|^[hw]$", re.IGNORECASE)


def is_free(tensor: TensorInfo) -> bool:
    """Whether more than the first axis of the input has no size."""
    axes = tensor.shape
    return axes is None or not all(isinstance(axis, int) and axis >= 0 for axis in axes[1:])


def random_dataset(
    inputs: Sequence[TensorInfo], spec: RandomCalibration, seed: int, run: Callable[[dict[str, Array]], object]
) -> RandomDataset:
    """Random inputs; shapes that ``spec`` lacks are made up, and masks of inputs without a shape are ones.

    Args:
        inputs: the model's.
        spec: what is given stays.
        seed: of the config.
        run: runs the model, to try it on the first sample.

    Raises:
        InvalidConfigError: the model runs on none of the shapes that were tried, or ``spec`` does not fit the inputs.
        DatasetMismatchError: an input takes no numbers.
    """
    missing = [tensor for tensor in inputs if tensor.name not in spec.shapes and is_free(tensor)]
    if not missing:
        return RandomDataset(inputs, spec, seed)
    ones = {tensor.name: _ONES for tensor in missing if _MASK.search(tensor.name)}
    said = ""
    for shapes in _distinct(inputs, missing, spec):
        tried = spec.model_copy(update={"shapes": {**spec.shapes, **shapes}, "ranges": {**ones, **spec.ranges}})
        made = RandomDataset(inputs, tried, seed, made_up=shapes.keys())
        try:
            run(next(made.batches(inputs, 1)).feeds)
        except (DatasetMismatchError, UnsupportedModelError) as error:
            said = said or error.detail
        else:
            return made
    example = next(_distinct(inputs, missing, spec))
    raise InvalidConfigError(
        f"the model runs on no shape that could be made up for {', '.join(repr(one.name) for one in missing)}: {said}",
        pointer=below("/config/random_calibration", "shapes"),
        hint="Give their whole shapes in random_calibration.shapes (AMD Quark: RandomDataReaderInputShape), such as "
        + "{" + ", ".join(f'"{name}": {list(shape)}' for name, shape in example.items()) + "}, or calibration data.",
    )  # fmt: skip


def _distinct(inputs: Sequence[TensorInfo], missing: Sequence[TensorInfo], spec: RandomCalibration) -> Iterator[Shapes]:
    seen: list[Shapes] = []
    ranks = (0, 1, 2) if any(tensor.shape is None for tensor in missing) else (0,)
    given = {
        axis: size
        for tensor in inputs
        for axis, size in zip(tensor.shape or (), spec.shapes.get(tensor.name, ()), strict=False)
        if isinstance(axis, str)
    }
    for sizes, rank, spans in product(_SIZES, ranks, (True, False)):
        shapes = _shapes(inputs, missing, sizes, rank, named=dict(given), spans=spans)
        if shapes not in seen:
            seen.append(shapes)
            yield shapes


def _shapes(
    inputs: Sequence[TensorInfo],
    missing: Sequence[TensorInfo],
    sizes: _Sizes,
    rank: int,
    *,
    named: dict[str, int],
    spans: bool,
) -> Shapes:
    past = next((fixed for tensor in inputs if (fixed := _fixed_past(tensor)) is not None), sizes.past)
    cached = any(_PAST.search(tensor.name) for tensor in inputs)
    sizes = sizes._replace(past=past)
    found: Shapes = {}
    for tensor in missing:
        axes = _of_rank(tensor, rank) if tensor.shape is None else tensor.shape
        shape = []
        for place, axis in enumerate(axes):
            if isinstance(axis, int) and axis >= 0:
                shape.append(axis)
                continue
            size = _size(tensor, axes, place, sizes, total=cached and spans)
            shape.append(named.setdefault(axis, size) if isinstance(axis, str) else size)
        # where nothing is known of an input, samples are stacked along a first axis
        found[tensor.name] = tuple(shape[1:] if tensor.shape is None else shape)
    return found


def _size(tensor: TensorInfo, axes: Sequence[int | str | None], place: int, sizes: _Sizes, *, total: bool) -> int:
    """Of one free axis: by its own name, else by that of the input and where it stands."""
    word = str(axes[place] or "")
    if place == 0 or "batch" in word.lower():
        return 1
    if _TOTAL.search(word):
        return sizes.past + sizes.length
    if "past" in word.lower():
        return sizes.past
    if _SIDE.search(word):
        return sizes.side
    if _PAST.search(tensor.name):
        return sizes.past if place == len(axes) - 2 or len(axes) < 4 else _HEADS
    if _MASK.search(tensor.name):
        return sizes.past + sizes.length if total and place == len(axes) - 1 else sizes.length
    if _LENGTH.search(word) or len(axes) < 4 or tensor.dtype.startswith(("int", "bool")):
        return sizes.length
    is_last = axes[-1] in (1, 3, 4) and axes[1] not in (1, 3, 4)
    return _CHANNELS if place == (len(axes) - 1 if is_last else 1) else sizes.side


def _fixed_past(tensor: TensorInfo) -> int | None:
    """Length of a cache whose shape says it."""
    axis = tensor.shape[-2] if _PAST.search(tensor.name) and tensor.shape and len(tensor.shape) == 4 else None
    return axis if isinstance(axis, int) else None


def _of_rank(tensor: TensorInfo, choice: int) -> tuple[None, ...]:
    """Free axes of an input that does not even say how many it has."""
    ranks = (2, 1, 3) if tensor.dtype.startswith(("int", "bool")) else (4, 2, 3)
    return (None,) * ranks[choice]
