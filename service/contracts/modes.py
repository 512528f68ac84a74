"""What each mode and format allows of the rest of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.contracts.config import QuantizationConfig

_BYTES = ("int8", "uint8")


def mode_contradictions(config: QuantizationConfig) -> Iterator[str]:
    """One sentence per setting that ``config.mode`` or ``config.format`` rules out."""
    weights = [config.weight, *(o.weight for o in config.overrides if o.weight)]
    activations = [config.activation, *(o.activation for o in config.overrides if o.activation)]
    if config.mode == "dynamic":
        for weight in weights:
            if weight.dtype not in _BYTES:
                yield f"mode dynamic needs int8 or uint8 weights, not {weight.dtype}"
            if weight.granularity == "per_block":
                yield "mode dynamic needs one weight scale per tensor or per channel, not per block"
    if config.mode != "static":
        methods = ", ".join(algorithm.method for algorithm in config.algorithms)
        if methods:
            yield f"mode {config.mode} runs no algorithms; leave {methods} out (algorithms: [])"
        if config.tensor_ranges:
            yield f"mode {config.mode} uses no calibrated ranges; leave tensor_ranges out"
    if config.format == "qoperator":
        if config.mode != "static":
            yield "format qoperator needs mode static"
        for dtype in (*(spec.dtype for spec in activations), *(spec.dtype for spec in weights)):
            if dtype not in _BYTES:
                yield f"format qoperator needs 8-bit integers, not {dtype}"
