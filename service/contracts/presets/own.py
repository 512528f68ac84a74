"""Presets of ours, and those with a search over precisions."""

from __future__ import annotations

from typing import Any

from service.contracts.presets.base import Preset, finetuning_notes, legacy_parameters
from service.contracts.presets.quark import NPU_PREPARATION

_CORRECTED = ({"method": "bias_correction"},)
_EQUALIZED = ({"method": "cross_layer_equalization"}, {"method": "bias_correction", "mode": "full"})
_ROUNDED = ({"method": "adaround"},)
# Equalized and corrected; where that leaves a loss, rounded by reconstruction too, with and without equalization.
_LADDER = (
    {"method": "cross_layer_equalization", "accept": "reconsidered"},
    {"method": "bias_correction", "mode": "full"},
    {"method": "adaround", "scale_refit": True, "when": "loss"},
)
# What a network loses at once says little of what is left behind AdaRound.
_EQUALIZED_AT_END = {"method": "cross_layer_equalization", "accept": "if_better_at_end"}
_SELECTED = {"method": "selective_precision"}
# Nor what corrections cure at less cost.
_SELECTED_AT_END = {**_SELECTED, "accept": "if_better_at_end"}
# In 4 bits a network may be so far off at first that its outputs are no measure of what AdaRound makes of a raise. More
# bytes than this gain less behind AdaRound than errors of single weights promise.
_RAISED = {**_SELECTED, "accept": "always", "max_weight_growth": 0.1}
# Where all else leaves a large loss. Networks of large matrices, as language models are, would take minutes.
_ROUNDED_ON_LOSS = {"method": "adaround", "scale_refit": True, "when": "large_loss", "max_solver_seconds": 60.0}
_SMOOTHED_ON_LOSS = (
    {"method": "smooth_quant", "when": "loss"},
    {**_SELECTED_AT_END, "when": "loss"},
    *_CORRECTED,
)
_WORDS = {
    "cross_layer_equalization": "cross-layer equalization",
    "smooth_quant": "SmoothQuant",
    "bias_correction": "bias correction",
    "adaround": "AdaRound",
    "adaquant": "AdaQuant",
    "selective_precision": "selective precision",
}

_WHEN = {"always": "", "loss": " where accuracy is lost", "large_loss": " where much accuracy is lost"}

_UINT8: dict[str, Any] = {"dtype": "uint8", "symmetric": False, "calibration": {"method": "minmax"}}
# Of the four that auto tries by default, these two win with 256 levels.
_TRIED: dict[str, Any] = {
    **_UINT8,
    "calibration": {"method": "auto", "candidates": [{"method": "minmax"}, {"method": "mse"}]},
}
_PER_CHANNEL: dict[str, Any] = {"granularity": "per_channel"}
_FOUR_BITS = "uint4 weights in blocks of 32 along the inputs, embeddings int8 per row, everything else in float"
_BLOCKS: dict[str, Any] = {
    "dtype": "uint4",
    "symmetric": False,
    "granularity": "per_block",
    "block_size": 32,
    "scale": "float16",
    "calibration": {"method": "mse"},
}
# A grid around zero wastes some of few levels on the shorter side of a channel; a zero point costs it half a byte.
_FOUR_BITS_PER_CHANNEL: dict[str, Any] = {
    "dtype": "uint4",
    "symmetric": False,
    "granularity": "per_channel",
    "calibration": {"method": "mse"},
}
_ROWS: dict[str, Any] = {
    "dtype": "int8",
    "symmetric": True,
    "granularity": "per_channel",
    "scale": "float16",
    "calibration": {"method": "minmax"},
}
_NPU: dict[str, Any] = {
    "target": "amd_npu_cnn",
    "activation": {
        "dtype": "int8",
        "symmetric": True,
        "scale": "power_of_two",
        "calibration": {"method": "auto"},
    },
    "weight": {"granularity": "per_tensor", "scale": "power_of_two", "calibration": {"method": "mse"}},
    "bias": {"dtype": "int8"},
    "preparation": NPU_PREPARATION,
}


def _preset(
    name: str, types: str, purpose: str, algorithms: tuple[dict[str, Any], ...] = (), **settings: Any
) -> Preset:
    """A preset that says what it does: ``types`` and calibration, then its algorithms, and whom it is for."""
    steps = "".join(f", {_WORDS[step['method']]}{_WHEN[step.get('when', 'always')]}" for step in algorithms)
    return Preset(
        name=name,
        description=f"{types}{steps}: {purpose}.",
        settings={**settings, "algorithms": list(algorithms)},
    )


OWN_PRESETS = (
    _preset(
        "plain",
        "uint8 activations, int8 weights per channel, MinMax and nothing else",
        "to build a recipe of your own on",
        activation=_UINT8,
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int8",
        "uint8 activations, int8 weights per channel, MinMax or least square error",
        "the default for CPUs",
        _SMOOTHED_ON_LOSS,
        activation=_TRIED,
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int8_percentile",
        "As int8, Percentile 99.999",
        "with outliers cut",
        _CORRECTED,
        activation={**_UINT8, "calibration": {"method": "percentile", "percentile": 99.999}},
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int8_per_tensor",
        "uint8 activations, int8 weights per tensor, MinMax",
        "where per-channel is not supported",
        _EQUALIZED,
        activation=_UINT8,
        weight={"granularity": "per_tensor"},
    ),
    _preset(
        "int8_symmetric",
        "int8 symmetric activations, int8 weights per channel, MinMax",
        "for GPUs and TensorRT",
        _CORRECTED,
        activation={"dtype": "int8", "symmetric": True, "calibration": {"method": "minmax"}},
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int8_accurate",
        "uint8 activations, int8 weights per channel, MinMax or least square error",
        "as fast as int8 on CPUs, for seconds more of quantizing",
        (_SELECTED_AT_END, *_ROUNDED),
        activation=_TRIED,
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int8_transformer",
        "uint8 activations, int8 weights per channel, MinMax or least square error",
        "for transformers on CPUs",
        ({"method": "smooth_quant"}, _SELECTED_AT_END, *_CORRECTED),
        activation=_TRIED,
        weight=_PER_CHANNEL,
    ),
    _preset(
        "a16w8_per_channel",
        "int16 symmetric activations, int8 weights per channel by least square error",
        "where 8-bit activations lose too much",
        _CORRECTED,
        activation={"dtype": "int16", "symmetric": True, "calibration": {"method": "minmax"}},
        weight={"granularity": "per_channel", "calibration": {"method": "mse"}},
    ),
    _preset(
        "w4a8",
        "uint8 activations, MinMax or least square error, uint4 weights per channel by least square error",
        "half the file of int8, a tenth more where that pays",
        (_EQUALIZED_AT_END, _RAISED, {"method": "adaround", "scale_refit": True}),
        activation=_TRIED,
        weight=_FOUR_BITS_PER_CHANNEL,
    ),
    _preset(
        "npu_int8",
        "AMD NPU: int8, power-of-two scales, one per tensor, calibration chosen by trial",
        "for CNNs and transformers",
        _LADDER,
        **_NPU,
    ),
    _preset(
        "npu_int8_accurate",
        "AMD NPU: types and rules of npu_int8",
        "with integers and weight scales chosen layer by layer, and equalization where they come out better behind it",
        (_EQUALIZED_AT_END, {"method": "adaround", "scale_refit": True}),
        **_NPU,
    ),
    _preset(
        "int8_dynamic",
        "int8 weights per channel, activations by their range at run time",
        "needs no calibration, for transformers",
        ({"method": "smooth_quant", "insert_mul": False},),
        mode="dynamic",
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int8_weights",
        "int8 weights per channel and embeddings per row, everything else in float",
        "a quarter of the size at next to no loss, better with data but possible without",
        (_SELECTED, {"method": "bias_correction", "when": "loss"}, _ROUNDED_ON_LOSS),
        mode="weights_only",
        weight=_PER_CHANNEL,
    ),
    _preset(
        "int4_weights",
        _FOUR_BITS,
        "the smallest file that can be made without data",
        mode="weights_only",
        weight=_BLOCKS,
        embedding=_ROWS,
    ),
    _preset(
        "int4_weights_accurate",
        _FOUR_BITS,
        "the same size, and less than half of the loss where there is data",
        _ROUNDED,
        mode="weights_only",
        weight=_BLOCKS,
        embedding=_ROWS,
    ),
    _preset("float16_model", "The whole model in float16", "half the size, for GPUs", mode="float16"),
)


MIXED_GOAL: dict[str, Any] = {"kind": "distance", "metric": "sqnr", "limit": 25.0}
MIXED_GOAL_NOTE = (
    "Quark sets no threshold and lowers every layer; here the least sensitive layers are lowered "
    "while the output keeps an SQNR of 25 dB. Set another goal, such as a drop of top-1, in "
    "algorithms."
)
_PERCENTILE: dict[str, Any] = {"method": "percentile", "percentile": 99.9999}


def _level(activation: dict[str, Any], weight: dict[str, Any]) -> dict[str, Any]:
    return {"activation": activation, "weight": {"granularity": "per_tensor", **weight}}


def _mixed(name: str, description: str, high: dict[str, Any], low: dict[str, Any], bias: str) -> Preset:
    mixing = {"method": "mixed_precision", "high": high, "low": low, "goal": MIXED_GOAL}
    settings = {**high, "bias": {"dtype": bias}, "algorithms": [mixing]}
    return Preset(
        name=name, description=description, settings=settings, quark_names=(name.upper(),), notes=(MIXED_GOAL_NOTE,)
    )


def _finetuned(base: Preset) -> Preset:
    settings = {**base.settings, "algorithms": [*base.settings["algorithms"], legacy_parameters("adaquant")]}
    name = f"{base.name}_adaquant"
    return Preset(
        name=name,
        description=f"As {base.name}, then AdaQuant.",
        settings=settings,
        quark_names=(name.upper(),),
        notes=(*base.notes, *finetuning_notes("adaquant")),
    )


_BF16 = _level({"dtype": "bfloat16"}, {"dtype": "bfloat16"})
_BF16_MIXED = (
    _mixed(
        "bf16_mixed_bfp16",
        "bfloat16, and 16-bit block floating point where the output allows it.",
        _BF16,
        _level({"dtype": "bfp16"}, {"dtype": "bfp16"}),
        "float32",
    ),
    _mixed(
        "bf16_mixed_mxint8",
        "bfloat16, and int8 in blocks with a shared power-of-two scale where the output allows it.",
        _BF16,
        _level({"dtype": "mxint8"}, {"dtype": "mxint8"}),
        "float32",
    ),
)
MIXED_PRESETS = (
    _mixed(
        "s16s16_mixed_s8s8",
        "int16 activations and weights, and int8 ones where the output allows it; Percentile 99.9999.",
        _level({"dtype": "int16", "symmetric": False, "calibration": _PERCENTILE}, {"dtype": "int16"}),
        _level({"dtype": "int8", "symmetric": False, "calibration": _PERCENTILE}, {"dtype": "int8"}),
        "int32",
    ),
    *_BF16_MIXED,
    *(_finetuned(preset) for preset in _BF16_MIXED),
)
