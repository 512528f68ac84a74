"""What the contract can say but the engine does not do yet: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from service.contracts.dtypes import is_integer

if TYPE_CHECKING:
    from service.contracts.config import QuantizationConfig

_CALIBRATIONS = ("minmax", "percentile")


def unsupported(config: QuantizationConfig) -> tuple[str, ...]:
    """One sentence per setting of ``config`` that the engine cannot honour, with its place."""
    return tuple(f"{what} is not supported yet ({where})" for where, what in _found(config))


def _found(config: QuantizationConfig) -> Iterator[tuple[str, str]]:
    if config.tensor_ranges:
        yield "/tensor_ranges", "tensor_ranges"
    activation, weight = config.activation, config.weight
    if not is_integer(activation.dtype):
        yield "/activation/dtype", f"activation dtype {activation.dtype}"
    if not is_integer(weight.dtype):
        yield "/weight/dtype", f"weight dtype {weight.dtype}"
    if activation.calibration.method not in _CALIBRATIONS:
        yield "/activation/calibration/method", f"calibration {activation.calibration.method}"
    if weight.calibration.method != "minmax":
        yield "/weight/calibration/method", f"weight calibration {weight.calibration.method}"
    if getattr(activation.calibration, "moving_average", None) is not None:
        yield "/activation/calibration/moving_average", "moving_average"
