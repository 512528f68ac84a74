"""Visiting a network layer by layer, float and quantized side by side, without running any of it twice."""

from worker.quantizer.layerwise.frontier import Feed, Frontier, Part, StoreLimits
from worker.quantizer.layerwise.walk import Visit, Walk, is_tunable

__all__ = ["Feed", "Frontier", "Part", "StoreLimits", "Visit", "Walk", "is_tunable"]
