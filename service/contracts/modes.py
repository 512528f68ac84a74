"""What each mode and format allows of the rest of a config."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from service.contracts.contradiction import Contradiction

if TYPE_CHECKING:
    from service.contracts.config import QuantizationConfig
    from service.contracts.specs import ActivationSpec, WeightSpec

_BYTES = ("int8", "uint8")
# The target whose rules concern nothing but static quantization, and which need not be asked for.
_DEFAULT_TARGET = "onnxruntime_cpu"


def mode_contradictions(config: QuantizationConfig) -> Iterator[Contradiction]:
    """One per setting that ``config.mode`` or ``config.format`` rules out."""
    if config.mode == "dynamic":
        yield from _dynamic(config)
    if config.mode != "static":
        yield from _not_static(config)
    if config.subgraphs == "weights" and config.mode not in ("static", "weights_only"):
        told = f"mode {config.mode} leaves sub-graphs in float; leave subgraphs out, or choose mode weights_only"
        yield Contradiction("/subgraphs", told)
    if config.format == "qoperator":
        if config.mode != "static":
            yield Contradiction("/format", "format qoperator needs mode static")
        dtypes = [(at, spec.dtype) for at, spec in _activations(config)]
        for at, dtype in (*dtypes, *((at, spec.dtype) for at, spec in _weights(config))):
            if dtype not in _BYTES:
                yield Contradiction(f"{at}/dtype", f"format qoperator needs 8-bit integers, not {dtype}")


def _dynamic(config: QuantizationConfig) -> Iterator[Contradiction]:
    for at, weight in _weights(config):
        if weight.dtype not in _BYTES:
            yield Contradiction(f"{at}/dtype", f"mode dynamic needs int8 or uint8 weights, not {weight.dtype}")
        if weight.granularity == "per_block":
            told = "mode dynamic needs one weight scale per tensor or per channel, not per block"
            yield Contradiction(f"{at}/granularity", told)


def _not_static(config: QuantizationConfig) -> Iterator[Contradiction]:
    mode = config.mode
    methods = ", ".join(algorithm.method for algorithm in config.algorithms)
    if methods:
        yield Contradiction("/algorithms", f"mode {mode} runs no algorithms; leave {methods} out (algorithms: [])")
    if config.tensor_ranges:
        yield Contradiction("/tensor_ranges", f"mode {mode} uses no calibrated ranges; leave tensor_ranges out")
    if config.target != _DEFAULT_TARGET:
        told = f"mode {mode} knows no rules of targets; leave {config.target} out (target: {_DEFAULT_TARGET})"
        yield Contradiction("/target", f"{told}, or choose mode static")
    for name in config.target_options:
        told = f"mode {mode} knows no rules of targets; leave {name} out"
        hint = " and set weight.reduce_range" if name == "x86_without_vnni" else ""
        yield Contradiction("/target_options", told + hint)


def _weights(config: QuantizationConfig) -> Iterator[tuple[str, WeightSpec]]:
    yield "/weight", config.weight
    for place, override in enumerate(config.overrides):
        if override.weight:
            yield f"/overrides/{place}/weight", override.weight


def _activations(config: QuantizationConfig) -> Iterator[tuple[str, ActivationSpec]]:
    yield "/activation", config.activation
    for place, override in enumerate(config.overrides):
        if override.activation:
            yield f"/overrides/{place}/activation", override.activation
        if override.input_activation:
            yield f"/overrides/{place}/input_activation", override.input_activation
