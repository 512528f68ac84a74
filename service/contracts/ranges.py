"""Calibrated ranges of an earlier report, taken over into a config."""

from __future__ import annotations

from collections.abc import Mapping

from service.contracts.calibration import TensorRange
from service.contracts.config import QuantizationConfig, parse_config


def with_ranges(
    config: QuantizationConfig, ranges: Mapping[str, TensorRange], *, pointer: str = ""
) -> QuantizationConfig:
    """``config`` with these ``tensor_ranges``; those that it has itself stay.

    Args:
        config: resolved.
        ranges: ``tensor_ranges`` of a report.
        pointer: JSON pointer of the config within the request's body.

    Raises:
        InvalidConfigError: the config's mode takes no ranges.
    """
    taken = {**ranges, **config.tensor_ranges}
    document = {name: found.model_dump(mode="json") for name, found in taken.items()}
    return parse_config({**config.model_dump(mode="json"), "tensor_ranges": document}, pointer=pointer)
