"""Visiting a network layer by layer, float and quantized side by side, without running any of it twice."""

from worker.quantizer.walk.feed import Feed, Part
from worker.quantizer.walk.frontier import Frontier
from worker.quantizer.walk.store import Limits
from worker.quantizer.walk.walk import Visit, Walk, is_tunable

__all__ = ["Feed", "Frontier", "Limits", "Part", "Visit", "Walk", "is_tunable"]
