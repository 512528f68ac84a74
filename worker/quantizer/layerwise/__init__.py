"""Visiting a network layer by layer, float and quantized side by side, without running any of it twice."""

from worker.quantizer.layerwise.feed import Feed, Part
from worker.quantizer.layerwise.frontier import Frontier
from worker.quantizer.layerwise.store import StoreLimits
from worker.quantizer.layerwise.walk import Visit, Walk, is_tunable

__all__ = ["Feed", "Frontier", "Part", "StoreLimits", "Visit", "Walk", "is_tunable"]
