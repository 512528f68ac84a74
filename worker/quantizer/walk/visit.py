"""One node of a walk."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.carrying import carrier
from worker.quantizer.plan.types import BiasPlan, QuantizationPlan, Role, WeightPlan
from worker.quantizer.walk.feed import Part, real_samples
from worker.quantizer.walk.models import dequantized, rests_as_integers
from worker.quantizer.walk.segments import Segment

if TYPE_CHECKING:
    from worker.quantizer.walk.walk import Walk


class Visit:
    """One node with the tensors that it reads. Good until the next visit.

    Attributes:
        node: the linear node, in the float graph.
        index: number of the visit, from 0.
        activation: the activation function that is fused with the node, if there is one.
        carrier: name of the tensor behind both.
    """

    def __init__(self, walk: Walk, index: int, segment: Segment) -> None:
        self._walk = walk
        self.index = index
        self.node = segment.nodes[0]
        plan = walk.plan
        last = carrier(self.node, plan)
        self.carrier = name_of(last)
        self._fused = _fused_behind(segment, plan)
        self.activation = self._fused[0] if self._fused else None

    @property
    def name(self) -> str:
        """Name of the node."""
        return node_name(self.node)

    @property
    def total(self) -> int:
        """Number of visits of the walk."""
        return self._walk.total

    @property
    def parts(self) -> list[Part]:
        """The samples, in parts."""
        return self._walk.parts

    @property
    def samples(self) -> int:
        """Samples that are walked with."""
        return self._walk.samples

    @property
    def input(self) -> str:
        """Name of the tensor that the node reads."""
        value = self.node.inputs[0]
        if value is None:
            raise ValueError(f"node {self.name!r} reads nothing")
        return name_of(value)

    @property
    def weight(self) -> WeightPlan:
        """The weight's entry in the plan: edit it."""
        value = self.node.inputs[1]
        if value is None:
            raise ValueError(f"node {self.name!r} has no weight")
        return self._walk.plan.weights[name_of(value)]

    @property
    def bias(self) -> BiasPlan | None:
        """The bias's entry in the plan, if there is one: edit it."""
        return self._walk.plan.biases.get(self.name)

    def x(self, part: Part) -> np.ndarray:
        """float32 [n, ...]: the node's input in the float network."""
        return real_samples(self._walk.tensor(self.input, part, quantized=False), part)

    def x_quantized(self, part: Part) -> np.ndarray:
        """float32 [n, ...]: the node's input in the quantized network, on its grid."""
        stored, grid = self.x_stored(part)
        return stored if grid is None else dequantized(stored, grid)

    def x_stored(self, part: Part) -> tuple[np.ndarray, IntegerGrid | None]:
        """``x_quantized`` as it waits: integers and their grid, or float32 values and None."""
        source = self.node.inputs[0]
        entry = self._walk.plan.activations.get(self.input)
        grid = entry.quantization if entry is not None else None
        if source is not None and isinstance(grid, IntegerGrid) and rests_as_integers(source, self._walk.plan):
            return real_samples(self._walk.stored(self.input, part), part), grid
        value = real_samples(self._walk.tensor(self.input, part, quantized=True), part)
        return value if grid is None else grid.at_run_time().fake(value), None

    def float_outputs(self, *, activated: bool) -> Iterator[np.ndarray]:
        """float32 [n, ...] per part: what the node makes in the float network, before or behind its activation."""
        return self._outputs(quantized=False, activated=activated)

    def quantized_outputs(self, *, activated: bool) -> Iterator[np.ndarray]:
        """The same in the quantized network, with the weight and the bias as the plan has them now.

        Not rounded to the grid of the node's output.
        """
        return self._outputs(quantized=True, activated=activated)

    def _outputs(self, *, quantized: bool, activated: bool) -> Iterator[np.ndarray]:
        walk = self._walk
        nodes = [self.node, *(self._fused if activated else [])]
        made = self.carrier if activated else name_of(self.node.outputs[0])
        piece = walk.piece(nodes, [made], quantized=quantized, unrounded=True)
        for part in self.parts:
            yield real_samples(walk.run(piece, part, quantized=quantized)[made], part)


def _fused_behind(segment: Segment, plan: QuantizationPlan) -> list[ir.Node]:
    """What is fused with the first node of a segment, in order."""
    found = [segment.nodes[0]]
    for node in segment.nodes[1:]:
        producer = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
        if producer in found and plan.nodes[node_name(node)].role is Role.FUSED:
            found.append(node)
    return found[1:]
