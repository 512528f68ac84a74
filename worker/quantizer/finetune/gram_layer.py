"""A visited node as a problem of second moments, and its outcome as entries of the plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from service.contracts.algorithms import AdaQuant, AdaRound
from worker.quantizer.finetune.geometry import Geometry, UnsupportedLayerError, geometry_of
from worker.quantizer.finetune.gram import Layer, Rescaled, Solved
from worker.quantizer.finetune.rounding import Lattice
from worker.quantizer.graph.values import activation_limits, constant, float_attribute, name_of, node_name, users
from worker.quantizer.numerics.integer import IntegerGrid, along, snap_scale, storage_dtype
from worker.quantizer.plan.limits import limited_operand
from worker.quantizer.plan.parameters import fill_bias
from worker.quantizer.plan.types import BiasPlan, QuantizationPlan, WeightPlan

# An int32 bias may take a quarter of its range: the accumulator adds products on top of it.
_BIAS_LIMIT = 2**29
_OCTAVES = tuple(2.0**-k for k in range(-1, 8))
_WITHIN = tuple(2.0 ** (k / 5) for k in (-2, -1, 0, 1, 2))


@dataclass(frozen=True)
class Freedom:
    """What may move beside the integers' next neighbours.

    Attributes:
        far: integers may move further than to the next one up or down.
        bias: the bias follows.
        scale: weight scales follow where their kind allows it.
    """

    far: bool
    bias: bool
    scale: bool

    @classmethod
    def of(cls, spec: AdaRound | AdaQuant) -> Freedom:
        """What the options of an algorithm allow."""
        if isinstance(spec, AdaQuant):
            return cls(far=True, bias=spec.update_bias, scale=spec.update_scales)
        return cls(far=spec.unrestricted, bias=spec.update_bias, scale=spec.scale_refit)


@dataclass(frozen=True)
class Entry:
    """What the plan holds of a node.

    Attributes:
        integers: of the weight, in its shape.
        scale: of the weight.
        bias: float32, flat; None: the node has none that may move.
    """

    integers: np.ndarray
    scale: np.ndarray
    bias: np.ndarray | None


class GramLayer:
    """A node with an integer weight.

    Args:
        node: of the float graph.
        plan: filled.

    Raises:
        UnsupportedLayerError: it cannot be solved by second moments.
    """

    def __init__(self, node: ir.Node, plan: QuantizationPlan) -> None:
        value, array = node.inputs[1], constant(node.inputs[1])
        self.node = node
        self.weight: WeightPlan = plan.weights[name_of(value)] if value is not None else _no_weight(node)
        grid = self.weight.quantization
        if array is None or not isinstance(grid, IntegerGrid) or self.weight.integers is None:
            raise UnsupportedLayerError("its weight is not stored as integers")
        if self.weight.node != node_name(node):
            raise UnsupportedLayerError(f"its weight is rounded with node {self.weight.node}")
        self.grid = grid
        self.geometry: Geometry = geometry_of(node, array)
        self.matrix = self.geometry.matrix(array.astype(np.float32))
        groups, outputs, _ = self.geometry.shape
        self._channels = groups, outputs
        self._plan = plan
        self._bias: BiasPlan | None = plan.biases.get(node_name(node))
        self._bias_value = node.inputs[2] if len(node.inputs) > 2 and node.op_type != "MatMul" else None
        self.float_bias = self._flat(constant(self._bias_value))

    def _flat(self, array: np.ndarray | None) -> np.ndarray:
        """A bias as float32 [groups, outputs]."""
        groups, outputs = self._channels
        if array is None:
            if self._bias_value is not None:
                raise UnsupportedLayerError("its bias is not constant")
            return np.zeros(self._channels, np.float32)
        if array.size not in (1, groups * outputs) or float_attribute(self.node, "beta", 1.0) != 1.0:
            raise UnsupportedLayerError("its bias is not one value per channel")
        flat = np.broadcast_to(array.astype(np.float32).reshape(-1), (groups * outputs,))
        return flat.reshape(self._channels)

    def problem(self, freedom: Freedom) -> Layer:
        """The layer as the solver sees it."""
        shape = self.weight.integers.shape if self.weight.integers is not None else ()
        step, zero = (
            self.geometry.matrix(np.broadcast_to(along(part, self.grid, shape), shape)).astype(np.float32)
            for part in (self.grid.scale, self.grid.zero_point)
        )
        limits = self.grid.limits

        def lattice(step: np.ndarray) -> Lattice:
            low, high = limits[0] - zero, limits[1] - zero
            if not freedom.far:
                floor = np.floor(self.matrix / step)
                low, high = np.clip(floor, low, high), np.clip(floor + 1, low, high)
            return Lattice(step, low, high)

        assert self.weight.integers is not None  # noqa: S101 - __init__ looked
        return Layer(
            matrix=self.matrix,
            lattice=lattice(step),
            z=self.geometry.matrix(self.weight.integers).astype(np.float32) - zero,
            bias=self._present_bias(),
            round_bias=self._bias_rounding() if freedom.bias else None,
            limits=activation_range(self.node, self._channels),
            rescaled=self._rescaled(step, lattice) if freedom.scale else None,
        )

    def _present_bias(self) -> np.ndarray:
        bias = self._bias
        if bias is not None and bias.quantization is not None and bias.integers is not None:
            return bias.quantization.dequantize(bias.integers).reshape(self._channels)
        moved = self._plan.moved.get(bias.initializer) if bias is not None else None
        return self.float_bias if moved is None else self._flat(moved)

    def _bias_rounding(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """What rounds a bias to its grid; None where there is none that is the node's own."""
        bias, value = self._bias, self._bias_value
        if bias is None or value is None:
            return None
        grid = bias.quantization
        if grid is not None:
            return lambda values: grid.fake(values.reshape(-1)).reshape(values.shape)
        own = len(value.uses()) == 1 and constant(value) is not None and self.float_bias.size == constant_size(value)
        return (lambda values: values) if own else None

    def _rescaled(self, step: np.ndarray, lattice: Callable[[np.ndarray], Lattice]) -> Rescaled | None:
        """Scales to choose from: none where groups share scales that other groups would move too."""
        kind, groups, outputs = self.weight.spec.scale, *self._channels
        whole = self.grid.scale.size == 1
        if not whole and self.grid.block_size is None and self.grid.scale.size != groups * outputs:
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
        if bias is None or bias.quantization is None or bias.spec.dtype != "int32":
            return np.full((*self._channels, 1), 2.0**-20)
        scale = np.broadcast_to(bias.quantization.scale.astype(np.float64).reshape(-1), (self.float_bias.size,))
        least = np.abs(self.float_bias).reshape(-1) / (scale * _BIAS_LIMIT)
        bounded: np.ndarray = np.maximum(least, 2.0**-20).reshape(*self._channels, 1)
        return bounded

    def entry(self, solved: Solved) -> Entry:
        """The outcome in the forms of the plan."""
        shape = self.weight.integers.shape if self.weight.integers is not None else ()
        zero = self.geometry.matrix(np.broadcast_to(along(self.grid.zero_point, self.grid, shape), shape))
        integers = self.geometry.weight(solved.z + zero.astype(np.float32)).astype(storage_dtype(self.grid.dtype))
        scale = self._scale(self.geometry.weight(np.broadcast_to(solved.step, solved.z.shape)))
        return Entry(integers, scale, solved.bias.reshape(-1) if self._bias_rounding() is not None else None)

    def _scale(self, step: np.ndarray) -> np.ndarray:
        """The scale that is ``step`` [weight's shape] for every element."""
        grid = self.grid
        if grid.axis is None:
            return step.reshape(-1)[:1].reshape(grid.scale.shape)
        axis = grid.axis % step.ndim
        if grid.block_size is not None:
            return np.ascontiguousarray(np.take(step, range(0, step.shape[axis], grid.block_size), axis=axis))
        return np.ascontiguousarray(np.moveaxis(step, axis, 0).reshape(step.shape[axis], -1)[:, 0])

    def write(self, entry: Entry) -> None:
        """Put an outcome, or what was there before, into the plan."""
        graph, bias = self.node.graph, self._bias
        self.weight.integers = entry.integers
        moved = not np.array_equal(entry.scale, self.grid.scale)
        self.weight.quantization = replace(self.grid, scale=entry.scale) if moved else self.grid
        if bias is None:
            return
        if bias.quantization is None:
            if entry.bias is not None:
                value = constant(self._bias_value)
                self._plan.moved[bias.initializer] = entry.bias.reshape(value.shape if value is not None else -1)
            return
        values = bias.quantization.dequantize(bias.integers) if bias.integers is not None else None
        if bias.spec.dtype == "int32" and isinstance(graph, ir.Graph):
            fill_bias(graph, self.node, self._plan)  # its grid hangs on the weight's
        values = entry.bias if entry.bias is not None else values
        if values is not None and bias.quantization is not None:
            bias.integers = bias.quantization.quantize(values.astype(np.float64))

    def present(self) -> Entry:
        """What the plan holds now."""
        if self.weight.integers is None:
            raise TypeError(f"{self.node.name} has no integer weight")
        bias = self._present_bias().reshape(-1) if self._bias_rounding() is not None else None
        return Entry(self.weight.integers, self.grid.scale, bias)


def constant_size(value: ir.Value) -> int:
    """Elements of a constant."""
    array = constant(value)
    return 0 if array is None else array.size


def activation_range(node: ir.Node, channels: tuple[int, int]) -> tuple[np.ndarray, np.ndarray] | None:
    """Lowest and highest value that gets through what follows ``node``, float32 [groups, outputs, 1] each.

    None: what follows is no Relu, Clip, or limit per channel behind one, or others read the node's result too.
    """
    low, high = np.full((*channels, 1), -np.inf, np.float32), np.full((*channels, 1), np.inf, np.float32)
    found, value = False, node.outputs[0]
    while len(readers := users(value)) == 1 and not value.is_graph_output():
        reader = readers[0]
        if reader.op_type in ("Relu", "Clip") and reader.inputs[0] is value:
            least, largest = activation_limits(reader)
            low, high = np.maximum(low, np.float32(least)), np.minimum(high, np.float32(largest))
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


def _no_weight(node: ir.Node) -> WeightPlan:
    raise UnsupportedLayerError(f"{node.op_type} has no weight")
