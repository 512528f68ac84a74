"""Recipes of our own, made for onnxruntime's kernels."""

from __future__ import annotations

from typing import Any

from service.contracts.presets.base import Preset


def _preset(name: str, description: str, **settings: Any) -> Preset:
    settings = {"algorithms": [{"method": "bias_correction"}], **settings}
    return Preset(name=name, description=description, settings=settings)


OWN_PRESETS = (
    _preset(
        "plain",
        "uint8 activations, int8 weights per channel, MinMax and nothing else: to build a recipe of your own on.",
        activation={"dtype": "uint8", "symmetric": False, "calibration": {"method": "minmax"}},
        weight={"granularity": "per_channel"},
        algorithms=[],
    ),
    _preset(
        "int8",
        "uint8 activations, int8 weights per channel, MinMax, bias correction: the default for CPUs.",
        activation={"dtype": "uint8", "symmetric": False, "calibration": {"method": "minmax"}},
        weight={"granularity": "per_channel"},
    ),
    _preset(
        "int8_percentile",
        "As int8, with outliers cut: Percentile 99.999 calibration.",
        activation={
            "dtype": "uint8",
            "symmetric": False,
            "calibration": {"method": "percentile", "percentile": 99.999},
        },
        weight={"granularity": "per_channel"},
    ),
    _preset(
        "int8_per_tensor",
        "uint8 activations, int8 weights per tensor, MinMax, bias correction: where per-channel is not supported.",
        activation={"dtype": "uint8", "symmetric": False, "calibration": {"method": "minmax"}},
        weight={"granularity": "per_tensor"},
    ),
    _preset(
        "int8_symmetric",
        "int8 symmetric activations, int8 weights per channel, MinMax, bias correction: for GPUs and TensorRT.",
        activation={"dtype": "int8", "symmetric": True, "calibration": {"method": "minmax"}},
        weight={"granularity": "per_channel"},
    ),
)
