"""The gradient solver, seen from outside; needs no torch until it is asked to solve.

It reconstructs the float output y of a block, one layer or one residual block with the activation function behind it,
from the inputs x~ that the quantized network gives it: min E ||f(W~, x~) - y||^2, by Adam over minibatches.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from service.contracts.costs import gradients_effort, moments_effort, wanted_patches
from service.contracts.errors import NotDifferentiableError
from worker.quantizer.finetune.blocks import Block, state_of
from worker.quantizer.finetune.methods import Method
from worker.quantizer.finetune.moments.layer import IntegerLayer
from worker.quantizer.finetune.moments.problem import residual_add, sample_patches, solve
from worker.quantizer.finetune.moments.rounding import NUMPY, Arrays, torch_arrays
from worker.quantizer.finetune.results import BEYOND_SQUARES, NO_VALUES, BlockResult
from worker.quantizer.finetune.samples import SampleGatherer
from worker.quantizer.graph.values import name_of
from worker.quantizer.layerwise import Visit
from worker.quantizer.ops.linear import UnsupportedLayerError
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import Services


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
            EngineError: the device is not there.
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
# One of them is there if a driver is: NVIDIA's, that of its boards, ROCm's, and either under WSL.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")


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
            EngineError: the device is not there.
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
    """Patches that moments are taken from."""
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


def may_have_gpu() -> bool:
    """False if torch would surely find none, which is told without loading it.

    A driver makes device files; and devices may be hidden by a variable that both CUDA and ROCm heed.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    return any(Path(file).exists() for file in _DRIVERS)
