"""Quantization-aware training as the last step of a quantization."""

from __future__ import annotations

from service.contracts.algorithms.training import QuantizationAwareTraining
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Step, StepResult, Toolkit


class TrainingStep(Step[QuantizationAwareTraining]):
    """Trains the quantized network as a whole, from where the steps before it have brought it."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        """The draft with the parameters and scales of the best epoch.

        Raises:
            NotDifferentiableError: an operator has no derivative here.
            InvalidConfigError: losses, augmentations or batch_norm do not fit the model or the data.
            EngineError: the device is not available.
            ResourceLimitError: the samples fit neither into memory nor on disk.
            CanceledError: the run was canceled.
        """
        from worker.quantizer.training.trainer import train  # with torch, which takes a second

        return train(self.spec, draft, toolkit)
