"""What is returned instead of a quantized model that is too slow: fewer Q/DQ pairs, or the float model."""

from __future__ import annotations
