"""Random inputs of a model as a dataset: shapes are made up where axes are free, samples drawn when read."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from service.contracts.base import below
from service.contracts.dataset import InputSpec, PreprocessingSpec, RandomCalibration
from service.contracts.errors import DatasetMismatchError, FieldProblem, InvalidConfigError, UnsupportedModelError
from service.contracts.model import TensorInfo
from service.contracts.specs import TensorRange
from worker.quantizer.data.dataset import OpenDataset
from worker.quantizer.data.preprocess import model_dtype
from worker.quantizer.data.stored import Array, SampleReader
from worker.quantizer.data.summary import Identity

_POINTER = "/config/random_calibration"
_UNIT = TensorRange(minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class RandomArray:
    """Uniform numbers; each sample has a generator of its own, so that reading order does not matter."""

    name: str  # of the input
    dtype: np.dtype[Any]  # of the input
    shape: tuple[int, ...]  # samples first, then the whole shape of the input
    limits: TensorRange  # smallest and largest value; integers reach both
    seed: int  # of all samples
    refusal: str | None = None

    def open(self) -> SampleReader:
        """A reader that starts at sample 0."""
        return _RandomReader(self)

    def sample(self, number: int) -> Array:
        """The input of one sample."""
        generator = np.random.default_rng([self.seed, zlib.crc32(self.name.encode()), number])
        shape, low, high = self.shape[1:], self.limits.minimum, self.limits.maximum
        if self.dtype.kind == "b":
            return generator.integers(int(low), 2, shape).astype(self.dtype)
        if self.dtype.kind in "iu":
            return generator.integers(
                int(np.ceil(low)), int(np.floor(high)), shape, dtype=np.int64, endpoint=True
            ).astype(self.dtype)
        return generator.uniform(low, high, shape).astype(self.dtype)


class _RandomReader:
    def __init__(self, array: RandomArray) -> None:
        self._array = array
        self._at = 0

    def read(self, count: int) -> Array:
        last = min(self._at + count, self._array.shape[0])
        block = np.empty((last - self._at, *self._array.shape[1:]), self._array.dtype)
        for place, number in enumerate(range(self._at, last)):
            block[place] = self._array.sample(number)
        self._at = last
        return block

    def close(self) -> None:
        """Nothing to give back."""


class RandomDataset(OpenDataset):
    """Random inputs of a model; every sample holds whole inputs, for one run each.

    Args:
        inputs: the model's.
        spec: how many, which shapes, which ranges.
        seed: of the config.
        made_up: names of the inputs whose shapes nobody has given; ``self.made_up`` has them with their shapes.

    Raises:
        InvalidConfigError: ``spec`` speaks of inputs that are not there, leaves an axis free, or gives a range that the
            input's type does not hold.
        DatasetMismatchError: an input takes no numbers.
    """

    is_random = True

    def __init__(
        self, inputs: Sequence[TensorInfo], spec: RandomCalibration, seed: int, *, made_up: Collection[str] = ()
    ) -> None:
        _check_names(inputs, spec)
        self._arrays = [_array(tensor, spec, seed) for tensor in inputs]
        self.made_up = {array.name: array.shape[1:] for array in self._arrays if array.name in made_up}
        named = {array.name: InputSpec(array=array.name) for array in self._arrays}
        super().__init__({array.name: array for array in self._arrays}, PreprocessingSpec(inputs=named))

    def _identity(self) -> Identity:
        told = repr([(a.name, str(a.dtype), a.shape, a.limits.minimum, a.limits.maximum, a.seed) for a in self._arrays])
        size = sum(int(np.prod(array.shape)) * array.dtype.itemsize for array in self._arrays)
        return Identity("npz", size, hashlib.sha256(f"random {told}".encode()).hexdigest())


def _check_names(inputs: Sequence[TensorInfo], spec: RandomCalibration) -> None:
    names = [tensor.name for tensor in inputs]
    problems = tuple(
        FieldProblem(
            pointer=below(_POINTER, word, name),
            code="input-unknown",
            message=f"the model has no input {name!r}; its inputs are {', '.join(map(repr, names))}",
        )
        for word, given in (("shapes", spec.shapes), ("ranges", spec.ranges))
        for name in given
        if name not in names
    )
    if problems:
        raise InvalidConfigError(problems[0].message, errors=problems, hint="Name inputs of the model.")


def _array(tensor: TensorInfo, spec: RandomCalibration, seed: int) -> RandomArray:
    dtype = model_dtype(tensor)
    if dtype.kind == "c":
        raise DatasetMismatchError(f"input {tensor.name!r} takes complex numbers", input=tensor.name)
    shape = spec.shapes.get(tensor.name)
    shape = _own_shape(tensor) if shape is None else _fitting(tensor, shape)
    limits = spec.ranges.get(tensor.name, _UNIT)
    _check_limits(tensor, dtype, limits)
    return RandomArray(tensor.name, dtype, (spec.samples, *shape), limits, seed)


def _own_shape(tensor: TensorInfo) -> tuple[int, ...]:
    """The model's own shape, with one sample where the first axis is free.

    Raises:
        InvalidConfigError: more is free.
    """
    axes = tensor.shape
    found = (
        None if axes is None else [1 if k == 0 and not isinstance(axis, int) else axis for k, axis in enumerate(axes)]
    )
    if found is None or not all(isinstance(axis, int) and axis >= 0 for axis in found):
        raise InvalidConfigError(
            f"input {tensor.name!r} has no fixed shape: {_words(tensor)}",
            pointer=below(_POINTER, "shapes"),
            hint="Give its whole shape in random_calibration.shapes (AMD Quark: RandomDataReaderInputShape), "
            f'such as {{"{tensor.name}": [1, 3, 224, 224]}}.',
        )
    return tuple(int(axis) for axis in found if isinstance(axis, int))


def _fitting(tensor: TensorInfo, shape: tuple[int, ...]) -> tuple[int, ...]:
    axes = tensor.shape
    fits = axes is None or (
        len(axes) == len(shape)
        and all(not isinstance(own, int) or own == n for own, n in zip(axes, shape, strict=True))
    )
    if not fits:
        raise InvalidConfigError(
            f"input {tensor.name!r} takes {_words(tensor)}, not {list(shape)}",
            pointer=below(_POINTER, "shapes", tensor.name),
            hint="Give the whole shape of one run's input, its first axis too.",
        )
    return shape


def _check_limits(tensor: TensorInfo, dtype: np.dtype[Any], limits: TensorRange) -> None:
    low, high, held = limits.minimum, limits.maximum, True
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        held = info.min <= low and high <= info.max and np.ceil(low) <= np.floor(high)
    if low > high or not held:
        raise InvalidConfigError(
            f"input {tensor.name!r} ({tensor.dtype}) cannot take values from {low:g} to {high:g}",
            pointer=below(_POINTER, "ranges", tensor.name),
            hint="Give minimum and maximum within the input's type.",
        )


def _words(tensor: TensorInfo) -> str:
    return "any shape" if tensor.shape is None else str([axis if axis is not None else "?" for axis in tensor.shape])


# Shapes of inputs whose axes are free, made up from names and types; the first that the model runs on is taken.
#
# Pictures have sides, texts a length, a cache what lies before the text; a mask over text and cache spans both. Axes of
# one name are of one size.

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
