"""Recipes of our own, made for onnxruntime's kernels."""

from __future__ import annotations

from typing import Any

from service.contracts.presets.base import Preset
from service.contracts.presets.quark import NPU_PREPARATION


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
    _preset(
        "a16w8_per_channel",
        "int16 symmetric activations, int8 weights per channel by least square error, bias correction.",
        activation={"dtype": "int16", "symmetric": True, "calibration": {"method": "minmax"}},
        weight={"granularity": "per_channel", "calibration": {"method": "mse"}},
    ),
    _preset(
        "npu_int8",
        "AMD NPU, CNNs and transformers alike: xint8 with outliers cut, Percentile 99.99 calibration.",
        target="amd_npu_cnn",
        activation={
            "dtype": "int8",
            "symmetric": True,
            "scale": "power_of_two",
            "calibration": {"method": "percentile", "percentile": 99.99},
        },
        weight={"granularity": "per_tensor", "scale": "power_of_two", "calibration": {"method": "mse"}},
        bias={"dtype": "int8"},
        preparation=NPU_PREPARATION,
        algorithms=[],
    ),
    _preset(
        "int8_dynamic",
        "int8 weights per channel, activations by their range at run time: needs no calibration, for transformers.",
        mode="dynamic",
        weight={"granularity": "per_channel"},
        algorithms=[],
    ),
    _preset(
        "int4_weights",
        "int4 weights in blocks of 32 along the inputs, everything else in float: the smallest file.",
        mode="weights_only",
        weight={"dtype": "int4", "granularity": "per_block", "block_size": 32, "calibration": {"method": "mse"}},
        algorithms=[],
    ),
    _preset(
        "float16_model",
        "The whole model in float16: half the size, for GPUs.",
        mode="float16",
        algorithms=[],
    ),
)
