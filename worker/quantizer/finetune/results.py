"""What became of a block: parameters to write into the plan, and how near they bring its output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import name_of
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.run.checkpoint import pack, unpack

# Why a block is left as it is.
BEYOND_SQUARES = "its values are too large, or too far apart, for their squares to be summed"
NO_VALUES = "it has no values on the calibration data"

_FACTS = "facts"
_KINDS = ("integers", "values", "scales")


@dataclass(frozen=True)
class ParameterResult:
    """A parameter as it will be stored."""

    present: np.ndarray  # float32: what the network computes with
    integers: np.ndarray | None  # on an integer grid
    values: np.ndarray | None  # float32, before any rounding
    scale: np.ndarray | None = None  # float32, if it moved


@dataclass(frozen=True)
class BlockResult:
    """What a solver found."""

    error_before: float  # mean squared error of the output over all samples, before
    error_after: float  # the same with what is given back; never above ``error_before``
    integers: dict[str, np.ndarray] = field(default_factory=dict)  # by weight on an integer grid that is kept changed
    # float32 by any other parameter that moved: biases, norms, weights on grids of floats and blocks
    values: dict[str, np.ndarray] = field(default_factory=dict)
    # float32 by weight whose scale moved, shaped like its grid's
    scales: dict[str, np.ndarray] = field(default_factory=dict)
    iterations: int = 0  # steps taken, by gradients

    @property
    def changed(self) -> bool:
        """True if anything moved."""
        return bool(self.integers or self.values or self.scales)

    def undone(self) -> BlockResult:
        """The same with everything as it was."""
        return replace(self, error_after=self.error_before, integers={}, values={}, scales={})

    def write(self, nodes: Sequence[ir.Node], parameters: Parameters) -> None:
        """Put it into the plan; ``nodes`` are those whose parameters moved."""
        for node in nodes:
            for index, value in enumerate(node.inputs):
                name, now = "" if value is None else name_of(value), parameters.of(node, index)
                if name in self.values:
                    parameters.put(node, index, self.values[name])
                elif name in self.integers and now is not None and isinstance(now.grid, IntegerGrid):
                    grid = replace(now.grid, scale=self.scales[name]) if name in self.scales else now.grid
                    parameters.put_integers(node, index, self.integers[name], grid)

    def to_bytes(self) -> bytes:
        """For a checkpoint: plain arrays."""
        arrays = {f"{kind}/{name}": array for kind in _KINDS for name, array in getattr(self, kind).items()}
        facts = np.array([self.error_before, self.error_after, self.iterations], np.float64)
        return pack({_FACTS: facts, **arrays})

    @staticmethod
    def from_bytes(data: bytes) -> BlockResult:
        """The inverse of ``to_bytes``.

        Raises:
            ValueError: these are other bytes.
            LookupError: likewise.
        """
        arrays = unpack(data)
        before, after, iterations = arrays.pop(_FACTS).tolist()
        found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in _KINDS}
        for full, array in arrays.items():
            kind, _, name = full.partition("/")
            found[kind][name] = array
        return BlockResult(before, after, found["integers"], found["values"], found["scales"], int(iterations))
