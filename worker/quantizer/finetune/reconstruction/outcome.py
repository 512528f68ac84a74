"""What became of a site: parameters to write into the plan, and how near they bring its output."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import name_of
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import Parameters

_FACTS = "facts"
_KINDS = ("integers", "values", "scales")


@dataclass(frozen=True)
class Outcome:
    """What a solver found.

    Attributes:
        error_before: mean squared error of the output over all samples, before.
        error_after: the same with what is given back; never above ``error_before``.
        integers: by weight on an integer grid that is kept changed.
        values: float32 by any other parameter that moved: biases, norms, weights on grids of floats and blocks.
        scales: float32 by weight whose scale moved, shaped like its grid's.
        iterations: steps taken, by gradients.
    """

    error_before: float
    error_after: float
    integers: dict[str, np.ndarray] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    scales: dict[str, np.ndarray] = field(default_factory=dict)
    iterations: int = 0

    @property
    def changed(self) -> bool:
        """True if anything moved."""
        return bool(self.integers or self.values or self.scales)

    def undone(self) -> Outcome:
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
        """For a checkpoint: an .npz archive of plain arrays, no pickles."""
        arrays = {f"{kind}/{name}": array for kind in _KINDS for name, array in getattr(self, kind).items()}
        facts = {
            "error_before": self.error_before,
            "error_after": self.error_after,
            "iterations": self.iterations,
            "names": list(arrays),
        }
        numbered = {f"array{k}": array for k, array in enumerate(arrays.values())}
        file = io.BytesIO()
        np.savez(file, **{_FACTS: np.frombuffer(json.dumps(facts).encode(), np.uint8)}, **numbered)  # type: ignore[arg-type]
        return file.getvalue()

    @staticmethod
    def from_bytes(data: bytes) -> Outcome:
        """The inverse of ``to_bytes``."""
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            facts = json.loads(archive[_FACTS].tobytes())
            found: dict[str, dict[str, np.ndarray]] = {kind: {} for kind in _KINDS}
            for k, full in enumerate(facts.pop("names")):
                kind, _, name = full.partition("/")
                found[kind][name] = archive[f"array{k}"]
        integers, values, scales = (found[kind] for kind in _KINDS)
        return Outcome(facts["error_before"], facts["error_after"], integers, values, scales, facts["iterations"])
