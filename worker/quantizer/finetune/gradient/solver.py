"""The gradient solver, seen from outside; needs no torch until it is asked to solve.

It reconstructs the float output y of a unit, one layer or one residual block with the activation function behind it,
from the inputs x~ that the quantized network gives the unit: min E ||f(W~, x~) - y||^2, by Adam over minibatches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from worker.quantizer.finetune.reconstruction.layers import Site, unit_of
from worker.quantizer.finetune.reconstruction.method import Method
from worker.quantizer.finetune.reconstruction.outcome import BEYOND_SQUARES, NO_VALUES, Outcome
from worker.quantizer.finetune.reconstruction.samples import SampleGatherer
from worker.quantizer.finetune.reconstruction.unit import Samples, Unit, UnsupportedUnitError
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.run.services import Services


@dataclass(frozen=True)
class GradientSolver:
    """Solves one site after the other.

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

    def solve(self, site: Site, seed: int) -> Outcome | str:
        """What was found, or why there is nothing to find.

        Raises:
            EngineError: the device is not there.
        """
        unit = unit_of(site, self.parameters, output_grid=self.method.spec.output_qdq)
        if not any(map(self.method.moves, unit.parameters.values())):
            return "nothing in it moves"
        samples = self.gatherer.gather(site)
        if isinstance(samples, str):
            return samples
        if not samples.target.size:
            return NO_VALUES
        services = self.services
        try:
            found = solve(unit, samples, self.method, seed=seed, threads=services.threads, check=services.run.check)
        except UnsupportedUnitError as error:
            return f"{error} is not supported"
        return found if math.isfinite(found.error_before) else BEYOND_SQUARES


def solve(
    unit: Unit,
    samples: Samples,
    method: Method,
    *,
    seed: int,
    threads: int = 1,
    check: Callable[[], None] = lambda: None,
) -> Outcome:
    """Finetune ``unit`` on ``samples``.

    Args:
        unit: what to reconstruct.
        samples: at least one.
        method: what moves, and its options.
        seed: of all random choices.
        threads: CPU threads.
        check: called between steps; raises to stop.

    Returns:
        What moved; nothing if no step made the error smaller.

    Raises:
        EngineError: the device is not there.
        UnsupportedUnitError: an operator of the unit has no counterpart here.
    """
    from worker.quantizer.finetune.gradient.training import train  # torch takes a second to load, and few runs need it

    return train(unit, samples, method, seed, threads, check)
