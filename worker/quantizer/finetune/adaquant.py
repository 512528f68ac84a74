"""AdaQuant as a step."""

from __future__ import annotations

from service.contracts.algorithms import AdaQuant
from worker.quantizer.finetune.gradient_step import finetune_by_gradient
from worker.quantizer.finetune.gram_step import finetune_by_moments
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Workshop
from worker.quantizer.statistics.collect import Request


class AdaQuantStep:
    """Moves the weights of every layer through their rounding (Hubara et al. 2020)."""

    def __init__(self, spec: AdaQuant) -> None:
        self.spec = spec
        self.method = spec.method

    def requests(self, draft: Draft) -> list[Request]:
        """None: the layers are walked with their own inputs."""
        return []

    def apply(self, draft: Draft, workshop: Workshop) -> Change:
        """The draft with finetuned weights, biases and normalizations."""
        if self.spec.solver == "gram":
            return finetune_by_moments(draft, workshop, self.spec)
        return finetune_by_gradient(draft, workshop, self.spec)
