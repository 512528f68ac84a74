"""SmoothQuant: scale moves from the activations of linear layers into their weights, so that both fit their grids."""

from worker.quantizer.equalization.smooth_quant.step import SmoothQuantStep

__all__ = ["SmoothQuantStep"]
