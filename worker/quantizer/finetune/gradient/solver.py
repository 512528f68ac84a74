"""The gradient solver, seen from outside; needs no torch until it is asked to solve.

It reconstructs the float output y of a block, one layer or one residual block with the activation function behind it,
from the inputs x~ that the quantized network gives it: min E ||f(W~, x~) - y||^2, by Adam over minibatches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.contracts.errors import NotDifferentiableError
from worker.quantizer.finetune.blocks import Block, state_of
from worker.quantizer.finetune.methods import Method
from worker.quantizer.finetune.results import BEYOND_SQUARES, NO_VALUES, BlockResult
from worker.quantizer.finetune.samples import SampleGatherer
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.run.services import Services


@dataclass(frozen=True)
class GradientSolver:
    """Solves one block after the other.

    Attributes:
        parameters: that the walk runs with.
        method: what moves, and how.
        services: threads, cancellation.
        gatherer: of the walk.
    """

    parameters: Parameters
    method: Method
    services: Services
    gatherer: SampleGatherer

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
