"""Cross-layer equalization: scale moves between neighbouring layers, channel by channel, until one grid fits all
channels of a weight.
"""

from worker.quantizer.equalization.cross_layer.step import CrossLayerEqualizationStep

__all__ = ["CrossLayerEqualizationStep"]
