"""What a node is drawn with: numbers, shapes and arrays, the same every time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import defs

_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32, "tensor(bool)": np.bool_}


@dataclass
class Draw:
    """One node under way.

    Attributes:
        op_type: of it.
        schema: of the version.
        random: every choice comes from it.
        inputs: arrays by position, None for one that is left out.
        fixed: attributes that the inputs hang on.
    """

    op_type: str
    schema: defs.OpSchema
    random: np.random.Generator
    inputs: list[np.ndarray | None] = field(default_factory=list)
    fixed: dict[str, Any] = field(default_factory=dict)

    def one(self, *values: Any) -> Any:
        return values[int(self.random.integers(len(values)))]

    def coin(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def below(self, low: int, high: int) -> int:
        """From ``low`` up to and with ``high``."""
        return int(self.random.integers(low, high + 1))

    def shape(self, low: int = 0, high: int = 5) -> tuple[int, ...]:
        """An axis in thirty is empty."""
        return tuple(self.one(*[1, 2, 3, 4, 5] * 6, 0) for _ in range(self.below(low, high)))

    def floats(self, *shape: int) -> np.ndarray:
        """Some of them halves and whole numbers, so that there are ties."""
        made = np.asarray(self.random.normal(size=shape) * 1.5)
        return np.asarray(np.where(self.random.random(shape) < 0.3, np.round(made * 2) / 2, made), np.float32)

    def array(self, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
        if dtype is np.bool_:
            return np.asarray(self.random.random(shape) < 0.5)
        if dtype is np.float32:
            return self.floats(*shape)
        return np.asarray(self.random.integers(-4, 5, shape), dtype)

    def dtype(self, index: int = 0) -> Any:
        """A type that an input may have, floats most often."""
        given = self.schema.inputs[min(index, len(self.schema.inputs) - 1)].types
        offered = [kind for word, kind in _TYPES.items() if word in given]
        return offered[0] if self.coin(0.6) else self.one(*offered)

    def broadcast(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that goes with another one: axes of length 1, and fewer of them."""
        kept = shape[self.below(0, len(shape)) :] if self.coin() else shape
        return tuple(1 if self.coin(0.3) else length for length in kept)

    def subset(self, rank: int) -> list[int]:
        """Some axes, none twice, negative or not."""
        axes = self.random.permutation(rank)[: self.below(0, rank)].tolist()
        return [axis - rank if self.coin(0.4) else axis for axis in axes]

    def axis(self, low: int, high: int) -> int:
        return self.below(low, high) if low <= high else 0

    @property
    def rank(self) -> int:
        return self.inputs[0].ndim if self.inputs and self.inputs[0] is not None else 0

    @property
    def spatial(self) -> int:
        return max(self.rank - 2, 0)
