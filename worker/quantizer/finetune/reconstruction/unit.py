"""What is reconstructed at once, one layer or one residual block: operators, what may move, samples. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from worker.quantizer.graph.values import AttributeValue
from worker.quantizer.numerics.grids import Grid
from worker.quantizer.ops.record import Reconstruction
from worker.quantizer.ops.table import named

NORM_OPERATORS = named(lambda record: record.reconstruction is Reconstruction.NORM)
ACTIVATIONS = named(lambda record: record.reconstruction is Reconstruction.FOLLOWS)
# What a unit may hold.
OPERATORS = frozenset(named(lambda record: record.reconstruction is not None))


@dataclass(frozen=True)
class Operation:
    """One node of a unit.

    Attributes:
        op_type: ONNX operator of the default domain.
        inputs: tensor names; None where an optional one is left out.
        output: tensor name.
        attributes: as the node has them.
    """

    op_type: str
    inputs: tuple[str | None, ...]
    output: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameter:
    """A constant of a unit that the solver may move.

    Attributes:
        values: float32, as the float network has it.
        grid: what it is rounded to; None for one that stays float.
        present: float32, same shape, as the quantized network has it so far.
        kind: weights are rounded or moved; biases follow where that is asked for; norms are the scales of
            normalizations, which have no grid.
        free_scale: the grid's scale may be any number, so that ``update_scales`` concerns it.
    """

    values: np.ndarray
    grid: Grid | None
    present: np.ndarray
    kind: Literal["weight", "bias", "norm"] = "weight"
    free_scale: bool = False


@dataclass(frozen=True)
class Unit:
    """What is reconstructed at once.

    Attributes:
        name: of the node, or of the block's last one.
        operations: in topological order.
        output: tensor that is compared with the float network's.
        parameters: by tensor name.
        constants: other constants, by tensor name.
        grids: of activations between the operations, and of the output if it is to be compared behind its grid.
    """

    name: str
    operations: tuple[Operation, ...]
    output: str
    parameters: Mapping[str, Parameter]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """What the unit reads and should make, on the same calibration samples.

    Attributes:
        quantized: float32 [samples, ...] by tensor: inputs as the quantized network gives them.
        floats: the same of the float network; only needed where ``drop_ratio`` is below 1.
        target: float32 [samples, ...]: the unit's output in the float network.
    """

    quantized: Mapping[str, np.ndarray]
    target: np.ndarray
    floats: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.target)

    @property
    def largest_elements(self) -> int:
        """Elements of the largest of the arrays, of one sample."""
        return max(array[:1].size for array in (self.target, *self.quantized.values()))


class UnsupportedUnitError(Exception):
    """A unit holds what the gradient solver cannot compute; says what."""
