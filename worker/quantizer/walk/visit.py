"""One node of a walk."""

from __future__ import annotations

import numpy as np

from worker.quantizer.graph.values import name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.walk.feed import Part, real_samples
from worker.quantizer.walk.frontier import Frontier
from worker.quantizer.walk.models import rests_as_integers
from worker.quantizer.walk.segments import Segment


class Visit:
    """One node with the tensors that it reads. Good until the next visit.

    Attributes:
        node: the linear node, in the float graph.
        index: number of the visit, from 0.
        total: number of visits of the walk.
    """

    def __init__(self, frontier: Frontier, segment: Segment, index: int, total: int) -> None:
        self._frontier = frontier
        self.index = index
        self.total = total
        self.node = segment.nodes[0]

    @property
    def name(self) -> str:
        """Name of the node."""
        return node_name(self.node)

    @property
    def parts(self) -> list[Part]:
        """The samples, in parts."""
        return self._frontier.parts

    @property
    def samples(self) -> int:
        """Samples that are walked with."""
        return self._frontier.samples

    @property
    def input(self) -> str:
        """Name of the tensor that the node reads."""
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"node {self.name!r} reads nothing")
        return name_of(value)

    def x(self, part: Part) -> np.ndarray:
        """float32 [n, ...]: the node's input in the float network."""
        return real_samples(self._frontier.tensor(self.input, part, quantized=False), part)

    def x_quantized(self, part: Part) -> np.ndarray:
        """float32 [n, ...]: the node's input in the quantized network, on its grid."""
        stored, grid = self.x_stored(part)
        return stored if grid is None else grid.dequantize(stored)

    def x_stored(self, part: Part) -> tuple[np.ndarray, IntegerGrid | None]:
        """``x_quantized`` as it waits: integers and their grid, or float32 values and None."""
        source = self.node.inputs[0]
        entry = self._frontier.plan.activations.get(self.input)
        grid = entry.quantization if entry is not None else None
        if source is not None and isinstance(grid, IntegerGrid) and rests_as_integers(source, self._frontier.plan):
            return real_samples(self._frontier.stored(self.input, part), part), grid
        value = real_samples(self._frontier.tensor(self.input, part, quantized=True), part)
        return value if grid is None else grid.at_run_time().fake(value), None
