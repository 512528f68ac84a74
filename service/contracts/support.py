"""What the contract can say but the engine does not do yet: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from service.contracts.config import QuantizationConfig

_CALIBRATIONS = ("minmax", "percentile")
_TARGETS = ("onnxruntime_cpu",)


def unsupported(config: QuantizationConfig) -> tuple[str, ...]:
    """One sentence per setting of ``config`` that the engine cannot honour, with its place."""
    return tuple(f"{what} is not supported yet ({where})" for where, what in _found(config))


def _found(config: QuantizationConfig) -> Iterator[tuple[str, str]]:
    if config.target not in _TARGETS:
        yield "/target", f"target {config.target}"
    if config.mode != "static":
        yield "/mode", f"mode {config.mode}"
    if config.format != "qdq":
        yield "/format", f"format {config.format}"
    if config.overrides:
        yield "/overrides", "overrides"
    if config.tensor_ranges:
        yield "/tensor_ranges", "tensor_ranges"
    activation, weight = config.activation, config.weight
    if activation.dtype not in ("uint8", "int8"):
        yield "/activation/dtype", f"activation dtype {activation.dtype}"
    if weight.dtype != "int8":
        yield "/weight/dtype", f"weight dtype {weight.dtype}"
    if config.bias.dtype != "int32":
        yield "/bias/dtype", f"bias dtype {config.bias.dtype}"
    if activation.scale != "float32":
        yield "/activation/scale", f"scale {activation.scale}"
    if weight.scale != "float32":
        yield "/weight/scale", f"scale {weight.scale}"
    if activation.reduce_range:
        yield "/activation/reduce_range", "reduce_range"
    if weight.reduce_range:
        yield "/weight/reduce_range", "reduce_range"
    if not weight.symmetric:
        yield "/weight/symmetric", "asymmetric weights"
    if weight.granularity == "per_block":
        yield "/weight/granularity", "granularity per_block"
    if activation.calibration.method not in _CALIBRATIONS:
        yield "/activation/calibration/method", f"calibration {activation.calibration.method}"
    if weight.calibration.method != "minmax":
        yield "/weight/calibration/method", f"weight calibration {weight.calibration.method}"
    if getattr(activation.calibration, "moving_average", None) is not None:
        yield "/activation/calibration/moving_average", "moving_average"
    for name, value in config.preparation:
        if value != type(config.preparation).model_fields[name].get_default(call_default_factory=True):
            yield f"/preparation/{name}", f"preparation {name}"
    for word, selectors in (("include", config.include), ("exclude", config.exclude)):
        for k, selector in enumerate(selectors):
            kind = next(iter(type(selector).model_fields))
            if kind not in ("node", "op_type"):
                yield f"/{word}/{k}/{kind}", f"a selector by {kind}"
