"""Bias correction: every output channel gets back the mean that quantization took from it."""

from worker.quantizer.equalization.bias_correction.step import BiasCorrectionStep

__all__ = ["BiasCorrectionStep"]
