"""Presets of AMD Quark, and those that cannot be offered."""

from __future__ import annotations

from typing import Any

from service.contracts.presets.base import Preset, finetuned, finetuning_notes, legacy_parameters
from service.contracts.specs import is_integer

MINMAX: dict[str, Any] = {"method": "minmax"}
MSE: dict[str, Any] = {"method": "mse"}
MOVING_AVERAGE: dict[str, Any] = {"method": "minmax", "moving_average": 0.01}
# What Quark does to the graph for its NPUs; on other targets we leave the graph alone unless it is asked for.
NPU_PREPARATION: dict[str, Any] = {
    "batch_norm_to_conv": True,
    "reduce_mean_to_global_average_pool": True,
    "split_large_pooling": True,
    "split_to_slice": True,
}

_CLE = (
    "Quark's QuantizationConfig runs cross-layer equalization unless include_cle is false; this preset does not, "
    "as Quark's QConfig does not."
)
_COVERAGE = (
    "ForceQuantizeNoInputCheck and QuantizeAllOpTypes: which nodes are quantized is decided by the target; the report "
    "names every node left in float with the reason."
)
_ALIGNED = "AlignConcat: the inputs of a Concat keep scales of their own; only NPU targets need them to be equal."
_ELEMENTWISE = "AlignEltwiseQuantType: constant operands of elementwise nodes stay in float, where they lose nothing."
_USUAL = (_CLE, _COVERAGE)
_BIAS = "Biases stay float32; Quark rounds them to the type of the weights."
_INT8_ON_NPU = "The NPU takes int8 around 0, which is the grid of symmetric uint8 around 128 under other names."


def percentile(share: float) -> dict[str, Any]:
    """Percentile calibration that keeps ``share`` percent of the values."""
    return {"method": "percentile", "percentile": share}


def _types(
    types: str, symmetric: str = "", calibration: dict[str, Any] = MINMAX, *, scale: str = "float32", bias: str = ""
) -> dict[str, Any]:
    """The settings of activations, weights and biases; weights have one scale per tensor.

    Args:
        types: of activations and weights, such as "int8/int8".
        symmetric: "aw", or "a" or "w" where the other side is asymmetric.
        calibration: of activations; of weights only least square error, which are given MinMax otherwise.
        scale: of both.
        bias: its type; default: int32 beside integers, else float32.
    """
    activation, weight = types.split("/")
    of_weights = calibration if calibration is MSE else MINMAX
    integers = is_integer(activation) and is_integer(weight)

    def tensor(dtype: str, side: str, found_by: dict[str, Any]) -> dict[str, Any]:
        if not is_integer(dtype):
            return {"dtype": dtype}
        return {"dtype": dtype, "symmetric": side in symmetric, "scale": scale, "calibration": found_by}

    return {
        "activation": tensor(activation, "a", calibration),
        "weight": {**tensor(weight, "w", of_weights), "granularity": "per_tensor"},
        "bias": {"dtype": bias or ("int32" if integers else "float32")},
        "algorithms": [],
    }


def _preset(
    name: str,
    description: str,
    *notes: str,
    quark: tuple[str, ...] = (),
    aliases: tuple[str, ...] = (),
    **settings: Any,
) -> Preset:
    return Preset(
        name=name,
        description=description,
        settings=settings,
        aliases=aliases,
        quark_names=quark or (name.upper(),),
        notes=notes,
    )


def _rounded(name: str, dtype: str, what: str, quark: tuple[str, ...] = ()) -> Preset:
    """A preset that rounds activations and weights to one float or block type."""
    return _preset(
        name, f"Activations and weights as {what}.", *_USUAL, _BIAS, quark=quark, **_types(f"{dtype}/{dtype}")
    )


_POWER_OF_TWO: dict[str, Any] = {"calibration": MSE, "scale": "power_of_two", "bias": "int8"}
_NPU_CNN: dict[str, Any] = {"target": "amd_npu_cnn", "preparation": NPU_PREPARATION}
_TRANSFORMER: dict[str, Any] = {"target": "amd_npu_transformer", "preparation": NPU_PREPARATION}

_INTEGER_PRESETS = (
    _preset(
        "xint8",
        "AMD NPU, CNNs: symmetric int8 activations, weights and biases, power-of-two scales, least square error.",
        *_USUAL,
        _INT8_ON_NPU,
        quark=("XINT8", "XINT8_CONFIG"),
        **_types("uint8/int8", "aw", **_POWER_OF_TWO),
        **_NPU_CNN,
    ),
    _preset(
        "xint8_qconfig",
        "As xint8, with int8 in the config too: that of xint8 has Quark's uint8, which the target turns into int8.",
        _COVERAGE,
        quark=("XINT8_QCONFIG",),
        **_types("int8/int8", "aw", **_POWER_OF_TWO),
        **_NPU_CNN,
    ),
    _preset(
        "vint8",
        "Symmetric int8 activations, weights and biases, power-of-two scales, least square error, without NPU rules.",
        *_USUAL,
        "ConvertClipToRelu: every Clip keeps its upper limit, which Quark drops.",
        "ReplaceClip6Relu: it belongs to cross-layer equalization, without which it does nothing.",
        "RemoveQDQConvClip, RemoveQDQConvRelu, RemoveQDQConvLeakyRelu, RemoveQDQConvPRelu: an activation function "
        "that is fused with the layer before it gets no Q/DQ pair in between.",
        "DedicatedQDQPair: one Q/DQ pair per tensor, shared by all readers; the numbers are the same.",
        quark=("VINT8", "VINT8_CONFIG", "VINT8_QCONFIG"),
        **_types("int8/int8", "aw", **_POWER_OF_TWO),
        preparation={"fold_batch_norm": False, "batch_norm_to_conv": True, "split_to_slice": True},
        random_calibration={},
    ),
    _preset(
        "s8s8_aaws",
        "Asymmetric int8 activations, int8 weights, Percentile 99.9999.",
        *_USUAL,
        **_types("int8/int8", "w", percentile(99.9999)),
    ),
    _preset(
        "u8s8_aaws",
        "uint8 activations, int8 weights, Percentile 99.999.",
        *_USUAL,
        **_types("uint8/int8", "w", percentile(99.999)),
    ),
    _preset(
        "u8u8_aawa",
        "uint8 activations, asymmetric uint8 weights, Percentile 99.999.",
        *_USUAL,
        **_types("uint8/uint8", "", percentile(99.999)),
    ),
    _preset(
        "s16s8_asws",
        "Symmetric int16 activations, int8 weights, Percentile 99.999.",
        *_USUAL,
        **_types("int16/int8", "aw", percentile(99.999)),
    ),
    _preset(
        "u16s8_aaws",
        "uint16 activations, int8 weights, Percentile 99.999.",
        *_USUAL,
        **_types("uint16/int8", "w", percentile(99.999)),
    ),
    _preset(
        "a8w8",
        "Symmetric int8 activations, int8 weights, MinMax.",
        *_USUAL,
        _ALIGNED,
        quark=("A8W8", "A8W8_CONFIG"),
        **_types("int8/int8", "aw"),
    ),
    _preset(
        "a8w8_qconfig",
        "Symmetric int8 activations, int8 weights, Percentile 99.999.",
        _COVERAGE,
        quark=("A8W8_QCONFIG",),
        **_types("int8/int8", "aw", percentile(99.999)),
    ),
    _preset(
        "a16w8",
        "Symmetric int16 activations, int8 weights, MinMax.",
        *_USUAL,
        _ALIGNED,
        _ELEMENTWISE,
        quark=("A16W8", "A16W8_CONFIG"),
        **_types("int16/int8", "aw"),
    ),
    _preset(
        "a16w8_qconfig",
        "Symmetric int16 activations, int8 weights, Percentile 99.999.",
        _COVERAGE,
        _ALIGNED,
        _ELEMENTWISE,
        quark=("A16W8_QCONFIG",),
        **_types("int16/int8", "aw", percentile(99.999)),
    ),
    _preset("int8_cnn_default", "uint8 activations, int8 weights, MinMax.", *_USUAL, **_types("uint8/int8", "w")),
    _preset("int16_cnn_default", "uint16 activations, int16 weights, MinMax.", *_USUAL, **_types("uint16/int16", "w")),
    _preset(
        "int8_transformer_default",
        "AMD NPU, transformers: uint8 activations, int8 weights, moving average of the extremes.",
        _CLE,
        **_types("uint8/int8", "w", MOVING_AVERAGE),
        **_TRANSFORMER,
    ),
    _preset(
        "int16_transformer_default",
        "AMD NPU, transformers: uint16 activations, int16 weights, moving average of the extremes.",
        _CLE,
        **_types("uint16/int16", "w", MOVING_AVERAGE),
        **_TRANSFORMER,
    ),
    _preset(
        "uint8_dynamic_quant",
        "Asymmetric uint8 weights, uint8 activations with dynamic ranges.",
        _CLE,
        aliases=("uint8_dynamic",),
        **_types("uint8/uint8", "", bias="float32"),
        mode="dynamic",
    ),
)


def _accurate(name: str, description: str, types: str, *notes: str, **more: Any) -> Preset:
    """A preset for those who want accuracy and no questions: Percentile 99.9999, then AdaRound."""
    settings = {**_types(types, "w", percentile(99.9999)), **more, "algorithms": [legacy_parameters("adaround")]}
    described = f"{description}, Percentile 99.9999, then AdaRound."
    return _preset(name, described, *(_CLE, *notes, *finetuning_notes("adaround")), **settings)


_ACCURATE_PRESETS = (
    _accurate("int8_cnn_accurate", "uint8 activations, int8 weights", "uint8/int8", _COVERAGE),
    _accurate("int16_cnn_accurate", "uint16 activations, int16 weights", "uint16/int16", _COVERAGE),
    _accurate(
        "int8_transformer_accurate",
        "AMD NPU, transformers: uint8 activations, int8 weights",
        "uint8/int8",
        **_TRANSFORMER,
    ),
    _accurate(
        "int16_transformer_accurate",
        "AMD NPU, transformers: uint16 activations, int16 weights",
        "uint16/int16",
        **_TRANSFORMER,
    ),
)

_BLOCKED = "16-bit block floating point: 8 values share an exponent"
_MICRO = "16 values share an exponent, pairs of them a shift"
_SCALED = "32 values share a power-of-two scale"

# Quark's MatMulNBitsParams of MATMUL_NBITS: GroupSize 128, AccuracyLevel 1.
_BY_BLOCKS = _types("uint8/int4", "w", bias="float32")
_BY_BLOCKS["weight"] |= {"granularity": "per_block", "block_size": 128, "kernel": "matmul_nbits", "accuracy_level": 1}

_ROUNDED_PRESETS = (
    _rounded("fp16", "float16", "float16"),
    _rounded("bf16", "bfloat16", "bfloat16", ("BF16", "BF16_CONFIG", "BF16_QCONFIG")),
    _rounded("bfp16", "bfp16", _BLOCKED, ("BFP16", "BFP16_CONFIG", "BFP16_QCONFIG")),
    _rounded("mx4", "mx4", f"MX4: {_MICRO}"),
    _rounded("mx6", "mx6", f"MX6: {_MICRO}"),
    _rounded("mx9", "mx9", f"MX9: {_MICRO}"),
    _rounded("mxfp8_e5m2", "mxfp8_e5m2", f"float8 e5m2 in blocks: {_SCALED}", ("MXFP8E5M2",)),
    _rounded("mxfp8_e4m3", "mxfp8_e4m3", f"float8 e4m3 in blocks: {_SCALED}", ("MXFP8E4M3",)),
    _rounded("mxfp6_e3m2", "mxfp6_e3m2", f"float6 e3m2 in blocks: {_SCALED}", ("MXFP6E3M2",)),
    _rounded("mxfp6_e2m3", "mxfp6_e2m3", f"float6 e2m3 in blocks: {_SCALED}", ("MXFP6E2M3",)),
    _rounded("mxfp4_e2m1", "mxfp4_e2m1", f"float4 e2m1 in blocks: {_SCALED}", ("MXFP4E2M1",)),
    _rounded("mxint8", "mxint8", f"int8 in blocks: {_SCALED}"),
    _preset("bf16_bfp16", "bfloat16 activations, bfp16 weights.", _CLE, _BIAS, **_types("bfloat16/bfp16")),
    _preset("bf16_mxint8", "bfloat16 activations, mxint8 weights.", _CLE, _BIAS, **_types("bfloat16/mxint8")),
    _preset("mx9_int8", "mx9 activations, int8 weights.", _CLE, _BIAS, **_types("mx9/int8", "aw")),
    _preset(
        "matmul_nbits",
        "Weights of MatMul alone: symmetric int4, 128 inputs of a column share a scale.",
        _CLE,
        **_BY_BLOCKS,
        mode="weights_only",
        include=[{"op_type": "MatMul"}],
    ),
)


_CALIBRATED = {preset.name: preset for preset in (*_INTEGER_PRESETS, *_ACCURATE_PRESETS, *_ROUNDED_PRESETS)}
# Presets that Quark has with AdaRound and with AdaQuant; of float and block types there are some with AdaQuant alone.
_FINETUNED_INTEGERS = (
    "xint8", "s8s8_aaws", "u8s8_aaws", "s16s8_asws", "u16s8_aaws", "a8w8", "a16w8", "xint8_qconfig", "a8w8_qconfig",
    "a16w8_qconfig",
)  # fmt: skip
_FINETUNED_ROUNDED = (
    "fp16", "bf16", "bfp16", "mx4", "mx6", "mx9", "mxfp8_e5m2", "mxfp8_e4m3", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4_e2m1",
    "mxint8",
)  # fmt: skip

QUARK_PRESETS = (
    *_CALIBRATED.values(),
    *(finetuned(_CALIBRATED[name], "adaround") for name in _FINETUNED_INTEGERS),
    *(finetuned(_CALIBRATED[name], "adaquant") for name in (*_FINETUNED_INTEGERS, *_FINETUNED_ROUNDED)),
)


# Lower-case name in Quark -> why it is not offered.
PENDING_PRESETS: dict[str, str] = {
    "xint8_weightsonly_adaround": "Quark defines it under no name that its tools take; config {mode: weights_only, "
    "algorithms: [{method: adaround}]} is that recipe",
}
