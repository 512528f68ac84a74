"""Random inputs of a model as a dataset: drawn sample by sample when they are read, never kept."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from service.contracts.base import below
from service.contracts.dataset import InputSpec, PreprocessingSpec, RandomCalibration
from service.contracts.errors import DatasetMismatchError, FieldProblem, InvalidConfigError
from service.contracts.model import TensorInfo
from service.contracts.specs import TensorRange
from worker.quantizer.data.dataset import Dataset
from worker.quantizer.data.preprocess import model_dtype
from worker.quantizer.data.stored import Array, SampleReader
from worker.quantizer.data.summary import Identity

_POINTER = "/config/random_calibration"
_UNIT = TensorRange(minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class RandomArray:
    """Uniform numbers; each sample has a generator of its own, so that reading order does not matter.

    Attributes:
        name: of the input.
        dtype: of the input.
        shape: samples first, then the whole shape of the input.
        limits: smallest and largest value; integers reach both.
        seed: of all samples.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    limits: TensorRange
    seed: int
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


class RandomDataset(Dataset):
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
