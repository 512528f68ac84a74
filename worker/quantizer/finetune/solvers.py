"""Both solvers, seen from outside: by gradients, without torch until it solves, and from second moments of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from service.contracts.costs import gradients_effort, moments_effort, wanted_patches
from service.contracts.errors import NotDifferentiableError
from worker.quantizer.finetune.blocks import BEYOND_SQUARES, NO_VALUES, Block, BlockResult, state_of
from worker.quantizer.finetune.methods import Freedom, Method
from worker.quantizer.finetune.moments.problem import (
    LayerProblem,
    LayerSolution,
    Rescaled,
    residual_add,
    sample_patches,
    solve,
)
from worker.quantizer.finetune.moments.rounding import NUMPY, Arrays, Lattice, torch_arrays
from worker.quantizer.finetune.samples import SampleGatherer
from worker.quantizer.graph.values import activation_limits, constant, float_attribute, name_of, node_name, users
from worker.quantizer.layerwise import Visit
from worker.quantizer.numerics.integer import IntegerGrid, PerBlock, memory_type, snap_scale
from worker.quantizer.ops.linear import LinearNode, UnsupportedLayerError, product_view
from worker.quantizer.ops.table import operator
from worker.quantizer.plan.grids import limited_operand
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.providers import may_have_gpu

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


# The gradient solver, seen from outside; needs no torch until it is asked to solve.
#
# It reconstructs the float output y of a block, one layer or one residual block with the activation function behind it,
# from the inputs x~ that the quantized network gives it: min E ||f(W~, x~) - y||^2, by Adam over minibatches.


@dataclass(frozen=True)
class GradientSolver:
    """Solves one block after the other."""

    parameters: Parameters  # that the walk runs with
    method: Method  # what moves, and how
    services: Services  # threads, cancellation
    gatherer: SampleGatherer  # of the walk

    def solve(self, block: Block, seed: int) -> BlockResult | str:
        """What was found, or why there is nothing to find.

        Raises:
            EngineError: the device is not available.
        """
        state = state_of(block, self.parameters, output_grid=self.method.spec.output_qdq)
        if not any(map(self.method.moves, state.parameters.values())):
            return "nothing in it moves"
        samples = self.gatherer.gather(block)
        if isinstance(samples, str):
            return samples
        if not samples.target.size:
            return NO_VALUES
        from worker.quantizer.finetune.gradient.training import train  # torch takes a second to load

        threads, check = self.services.threads, self.services.run.check
        try:
            found = train(state, samples, self.method, seed=seed, threads=threads, check=check)
        except NotDifferentiableError as error:
            return str(error)
        return found if math.isfinite(found.error_before) else BEYOND_SQUARES


# The moments solver, seen from outside: one layer after the other, from the second moments of its inputs.

# Bytes of one matrix of second moments beyond which a layer is left to the gradient solver.
_MOST_BYTES = 2**30


@dataclass(frozen=True)
class MomentsSolver:
    """Solves one layer after the other."""

    parameters: Parameters  # that the walk runs with
    method: Method  # what may move, and its options
    run: Run  # asked whether to stop

    def refusal(self, block: Block) -> str | None:
        """Why the weight of a layer cannot be chosen as a matrix of integers; None if it can."""
        try:
            IntegerLayer(block.nodes[0], self.parameters)
        except UnsupportedLayerError as error:
            return str(error)
        return None

    def fits(self, visit: Visit) -> bool:
        """True if the second moments of the layer fit into memory."""
        return moments_fit(IntegerLayer(visit.node, self.parameters).linear.matrix_shape)

    def is_cheaper(self, visit: Visit) -> bool:
        """True if the layer is solved in less time than by gradients, and within memory."""
        spec, part = self.method.spec, visit.parts[0]
        layer = IntegerLayer(visit.node, self.parameters)
        shape, wanted = layer.linear.matrix_shape, _wanted(layer)
        steps, batch_size = spec.num_iterations, min(spec.batch_size, visit.samples)
        if moments_are_cheaper(shape, wanted, 1.0, steps, batch_size):
            return True  # whatever is in the samples, which need not be looked at then
        one = layer.linear.positions(visit.x(part)) / part.valid
        return moments_are_cheaper(shape, min(wanted, round(one * visit.samples)), one, steps, batch_size)

    def effort(self, block: Block) -> float:
        """Multiplications that a layer takes, about."""
        layer = IntegerLayer(block.nodes[0], self.parameters)
        return moments_effort(layer.linear.matrix_shape, _wanted(layer))

    def solve(self, visit: Visit, seed: int) -> BlockResult | str:
        """What was found, or why there is nothing to find.

        Raises:
            EngineError: the device is not available.
        """
        layer, spec = IntegerLayer(visit.node, self.parameters), self.method.spec
        added = residual_add(visit.node)
        if added is not None and not visit.waits(name_of(added.other)):
            added = None
        patches = sample_patches(
            visit,
            layer.linear,
            layer.matrix,
            layer.float_bias,
            wanted=_wanted(layer),
            seed=seed,
            quantized_share=spec.drop_ratio,
            beside=None if added is None else name_of(added.other),
        )
        if not patches.y.size:
            return NO_VALUES
        arrays = arrays_on(spec.optim_device)
        result = visit.node.outputs[0] if added is None else added.result
        try:
            solution = solve(layer.problem(self.method.freedom, result), patches, self.run.check, arrays)
        except arrays.singular:
            return BEYOND_SQUARES
        return layer.outcome(solution) if math.isfinite(solution.before) else BEYOND_SQUARES


def moments_are_cheaper(
    shape: tuple[int, int, int], patches: int, positions_per_sample: float, steps: int, batch_size: int
) -> bool:
    """True if a layer is solved from second moments in less time than by gradients, and within memory.

    ``shape`` is groups, outputs and inputs per group; ``steps`` and ``batch_size`` are those of the gradient solver.
    """
    return moments_fit(shape) and moments_effort(shape, patches) <= gradients_effort(
        shape, positions_per_sample, steps, batch_size
    )


def moments_fit(shape: tuple[int, int, int]) -> bool:
    """True if the second moments of a layer of so many groups, outputs and inputs per group fit into memory."""
    groups, _, inputs = shape
    return groups * inputs * inputs * 4 <= _MOST_BYTES


def _wanted(layer: IntegerLayer) -> int:
    return wanted_patches(layer.linear.matrix_shape)


def arrays_on(wanted: str) -> Arrays:
    """The arrays of a device.

    Args:
        wanted: auto (a GPU if there is one), cpu, cuda, cuda:N, rocm or rocm:N.

    Raises:
        EngineError: it is not there.
    """
    if wanted == "cpu" or (wanted == "auto" and not may_have_gpu()):
        return NUMPY
    from worker.quantizer.autodiff.program import choose_device  # loads torch

    device = choose_device(wanted)
    return NUMPY if device.type == "cpu" else torch_arrays(device)
