"""A visited node as a problem of second moments, and its outcome as entries of the plan."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from worker.quantizer.finetune.methods import Freedom
from worker.quantizer.finetune.moments.problem import LayerProblem, LayerSolution, Rescaled
from worker.quantizer.finetune.moments.rounding import Lattice
from worker.quantizer.finetune.results import BlockResult
from worker.quantizer.graph.values import activation_limits, constant, float_attribute, name_of, node_name, users
from worker.quantizer.numerics.granularity import PerBlock
from worker.quantizer.numerics.integer import IntegerGrid, memory_type, snap_scale
from worker.quantizer.ops.linear import LinearNode, UnsupportedLayerError, product_view
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.weights import limited_operand

# An int32 bias may take a quarter of its range: the accumulator adds products on top of it.
_BIAS_LIMIT = 2**29
_OCTAVES = tuple(2.0**-k for k in range(-1, 8))
_WITHIN = tuple(2.0 ** (k / 5) for k in (-2, -1, 0, 1, 2))


class IntegerLayer:
    """A node with an integer weight.

    Raises:
        UnsupportedLayerError: it cannot be solved by second moments.
    """

    def __init__(self, node: ir.Node, parameters: Parameters) -> None:
        weight, self._bias = parameters.of(node, 1), parameters.of(node, 2)
        if weight is None or not isinstance(weight.grid, IntegerGrid) or weight.integers is None:
            raise UnsupportedLayerError("its weight is not stored as integers")
        self._name = name_of(node.inputs[1])  # type: ignore[arg-type]
        first = parameters.plan.weights[self._name].node
        if first != node_name(node):
            raise UnsupportedLayerError(f"its weight is rounded with node {first}")
        self.node, self.grid, self.integers, self._kind = node, weight.grid, weight.integers, weight.scale
        self.linear: LinearNode = product_view(node)
        self.matrix = self.linear.matrix(weight.original.astype(np.float32))
        groups, outputs, _ = self.linear.matrix_shape
        self._channels = groups, outputs
        self._bias_value = self.linear.bias
        if self._bias is None and self._bias_value is not None:
            raise UnsupportedLayerError("its bias is not constant")
        self.float_bias = self._flat(None if self._bias is None else self._bias.original)

    def _flat(self, array: np.ndarray | None) -> np.ndarray:
        """A bias as float32 [groups, outputs]."""
        groups, outputs = self._channels
        if array is None:
            return np.zeros(self._channels, np.float32)
        if array.size not in (1, groups * outputs) or float_attribute(self.node, "beta", 1.0) != 1.0:
            raise UnsupportedLayerError("its bias is not one value per channel")
        flat = np.broadcast_to(array.astype(np.float32).reshape(-1), (groups * outputs,))
        return flat.reshape(self._channels)

    def problem(self, freedom: Freedom, result: ir.Value) -> LayerProblem:
        """The layer as the solver sees it.

        ``result`` is what the layer is solved for: its output, or a sum that this is a part of.
        """
        shape = self.integers.shape
        step, zero = (
            self.linear.matrix(np.broadcast_to(self.grid.spread(part, shape), shape)).astype(np.float32)
            for part in (self.grid.scale, self.grid.zero_point)
        )
        limits = self.grid.limits

        def lattice(step: np.ndarray) -> Lattice:
            low, high = limits[0] - zero, limits[1] - zero
            if not freedom.far:
                floor = np.floor(self.matrix / step)
                low, high = np.clip(floor, low, high), np.clip(floor + 1, low, high)
            return Lattice(step, low, high)

        return LayerProblem(
            matrix=self.matrix,
            lattice=lattice(step),
            z=self.linear.matrix(self.integers).astype(np.float32) - zero,
            bias=self._flat(None if self._bias is None else self._bias.present),
            round_bias=self._bias_rounding() if freedom.bias else None,
            limits=activation_range(result, self._channels),
            rescaled=self._rescaled(step, lattice) if freedom.scale else None,
        )

    def _bias_rounding(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """What rounds a bias to its grid; None where there is none that is the node's own."""
        bias, value = self._bias, self._bias_value
        if bias is None or value is None:
            return None
        grid = bias.grid
        if grid is not None:
            return lambda values: grid.fake(values.reshape(-1)).reshape(values.shape)
        own = len(value.uses()) == 1 and self.float_bias.size == bias.original.size
        return (lambda values: values) if own else None

    def _rescaled(self, step: np.ndarray, lattice: Callable[[np.ndarray], Lattice]) -> Rescaled | None:
        """Scales to choose from: none where groups share scales that other groups would move too."""
        kind, groups, outputs = self._kind, *self._channels
        whole = self.grid.scale.size == 1
        if not whole and not isinstance(self.grid.granularity, PerBlock) and self.grid.scale.size != groups * outputs:
            return None
        least = self._least_factor(step)
        if whole:
            least = np.full_like(least, least.max())
        if kind == "power_of_two":
            least = np.exp2(np.ceil(np.log2(least)))

        def scaled(factor: np.ndarray) -> Lattice:
            wanted = step.astype(np.float64) * np.maximum(factor, least)
            return lattice(snap_scale(wanted, kind).astype(np.float32))

        factors = (_OCTAVES,) if kind == "power_of_two" else (_OCTAVES, _WITHIN)
        return Rescaled(factors, scaled, per_channel=not whole)

    def _least_factor(self, step: np.ndarray) -> np.ndarray:
        """float64 [groups, outputs, 1]: below it the int32 bias could overflow."""
        bias = self._bias
        if bias is None or not isinstance(bias.grid, IntegerGrid) or bias.grid.dtype != "int32":
            return np.full((*self._channels, 1), 2.0**-20)
        scale = np.broadcast_to(bias.grid.scale.astype(np.float64).reshape(-1), (self.float_bias.size,))
        least = np.abs(self.float_bias).reshape(-1) / (scale * _BIAS_LIMIT)
        bounded: np.ndarray = np.maximum(least, 2.0**-20).reshape(*self._channels, 1)
        return bounded

    def outcome(self, solution: LayerSolution) -> BlockResult:
        """The solution in the forms of the plan."""
        if not solution.after < solution.before:
            return BlockResult(solution.before, solution.before)
        shape = self.integers.shape
        zero = self.linear.matrix(np.broadcast_to(self.grid.spread(self.grid.zero_point, shape), shape))
        integers = self.linear.from_matrix(solution.z + zero.astype(np.float32)).astype(memory_type(self.grid.dtype))
        step = self.linear.from_matrix(np.broadcast_to(solution.step, solution.z.shape))
        scale = self.grid.granularity.gathered(step)
        values = {}
        if self._bias_value is not None and self._bias_rounding() is not None:
            values[name_of(self._bias_value)] = solution.bias.reshape(-1)
        scales = {} if np.array_equal(scale, self.grid.scale) else {self._name: scale}
        return BlockResult(solution.before, solution.after, {self._name: integers}, values, scales)


def activation_range(value: ir.Value, channels: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Lowest and highest value that gets through what follows ``value``, float32 [groups, outputs, 1] each.

    None: what follows is no Relu, Clip, or limit per channel behind one, or others read the value too.
    """
    low, high = np.full((*channels, 1), -np.inf, np.float32), np.full((*channels, 1), np.inf, np.float32)
    found = False
    while len(readers := users(value)) == 1 and not value.is_graph_output():
        reader = readers[0]
        if operator(reader.op_type).limits and reader.inputs[0] is value:
            limits = activation_limits(reader)
            if limits is None:
                break
            low, high = np.maximum(low, np.float32(limits[0])), np.minimum(high, np.float32(limits[1]))
        elif (index := limited_operand(reader)) is not None and reader.inputs[index] is value:
            limit = constant(reader.inputs[1 - index])
            if limit is None or limit.size != channels[0] * channels[1]:
                break
            bound = limit.astype(np.float32).reshape(*channels, 1)
            low, high = (low, np.minimum(high, bound)) if reader.op_type == "Min" else (np.maximum(low, bound), high)
        else:
            break
        found, value = True, reader.outputs[0]
    return (low, high) if found else None
