"""What a tensor may be rounded to."""

from __future__ import annotations

from worker.quantizer.numerics.blocks import BlockGrid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.numerics.minifloat import FloatGrid

Grid = IntegerGrid | FloatGrid | BlockGrid
