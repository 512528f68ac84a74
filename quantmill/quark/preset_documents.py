"""The presets of AMD Quark 0.13 as the configs that they are in Quark (custom_config.py), as JSON.

``DIFFERENCES`` names, preset by preset, the keys that are left out because our preset deliberately differs in them.
"""

from __future__ import annotations

import copy
from typing import Any

from quantmill.quark import words
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import missing_preset
from service.quark.finetune import DEFAULT_PARAMS
from service.quark.values import BFP_DEFAULTS, MICRO_DEFAULTS, MX_DEFAULTS

FNI = {"ForceQuantizeNoInputCheck": True}
AS = {"ActivationSymmetric": True}
ALIGN = {"AlignSlice": False, "FoldRelu": True, "AlignConcat": True}
X = "ExtendedQuantFormat.QDQ"
PCT, MM, MSE = "CalibrationMethod.Percentile", "CalibrationMethod.MinMax", "PowerOfTwoMethod.MinMSE"
VINT8 = {
    "UseRandomData": True,
    "ConvertBNToConv": True,
    "ConvertSigmoidToHardSigmoid": False,
    "ConvertClipToRelu": True,
    "ConvertSplitToSlice": True,
    "SplitLargeKernelPool": False,
    "ReplaceClip6Relu": True,
    "ConvertReduceMeanToGlobalAvgPool": False,
    "RemoveQDQConvClip": False,
    "RemoveQDQConvPRelu": False,
    "RemoveQDQConvRelu": False,
    "RemoveQDQConvLeakyRelu": False,
    "Int32Bias": False,
    "DedicatedQDQPair": True,
    "QuantizeAllOpTypes": True,
}


def legacy(act: str, weight: str, method: str = MM, fmt: str = "QuantFormat.QDQ", /, **fields: Any) -> dict[str, Any]:
    """A QuantizationConfig; types by their members."""

    def word(member: str) -> str:
        return f"{'QuantType' if member in ('QInt8', 'QUInt8') else 'ExtendedQuantType'}.{member}"

    return {
        "calibrate_method": method,
        "quant_format": fmt,
        "activation_type": word(act),
        "weight_type": word(weight),
        **fields,
    }


def bfp(bit_width: int, act: str = "QBFP", weight: str = "QBFP") -> dict[str, Any]:
    """Micro floating point of this width."""
    return legacy(act, weight, MM, X, extra_options={"BFPAttributes": {**MICRO_DEFAULTS, "bit_width": bit_width}})


def mx(element: str) -> dict[str, Any]:
    """A block format with this element type."""
    return legacy("QMX", "QMX", MM, X, extra_options={"MXAttributes": {**MX_DEFAULTS, "element_dtype": element}})


def tensor(data_type: str, scale: str = "Float32", method: str = "Percentile") -> dict[str, Any]:
    """A QTensorConfig as Quark's to_dict writes it."""
    return {
        "symmetric": True,
        "scale_type": f"ScaleType.{scale}",
        "calibration_method": f"CalibMethod.{method}",
        "quant_granularity": "QuantGranularity.Tensor",
        "data_type": data_type,
    }


def qconfig(act: dict[str, Any], weight: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A QConfig."""
    return {
        "global_config": {"input_tensors": act, "weight": weight},
        "specific_layer_config": [],
        "layer_type_config": [],
        "exclude": [],
        "algo_config": [],
        "use_external_data_format": False,
        "extra_options": options,
    }


# Every name that Quark gives a preset: get_default_config, one object beside it, and those of QConfig.
NAMES = """
UINT8_DYNAMIC_QUANT XINT8 XINT8_ADAROUND XINT8_ADAQUANT VINT8 S8S8_AAWS S8S8_AAWS_ADAROUND S8S8_AAWS_ADAQUANT
U8S8_AAWS U8S8_AAWS_ADAROUND U8S8_AAWS_ADAQUANT U8U8_AAWA S16S8_ASWS S16S8_ASWS_ADAROUND S16S8_ASWS_ADAQUANT A8W8
A8W8_ADAROUND A8W8_ADAQUANT A16W8 A16W8_ADAROUND A16W8_ADAQUANT U16S8_AAWS U16S8_AAWS_ADAROUND U16S8_AAWS_ADAQUANT
FP16 FP16_ADAQUANT BF16 BF16_ADAQUANT BFP16 BFP16_ADAQUANT MX4 MX4_ADAQUANT MX6 MX6_ADAQUANT MX9 MX9_ADAQUANT
MXFP8E5M2 MXFP8E5M2_ADAQUANT MXFP8E4M3 MXFP8E4M3_ADAQUANT MXFP6E3M2 MXFP6E3M2_ADAQUANT MXFP6E2M3 MXFP6E2M3_ADAQUANT
MXFP4E2M1 MXFP4E2M1_ADAQUANT MXINT8 MXINT8_ADAQUANT S16S16_MIXED_S8S8 BF16_MIXED_BFP16 BF16_MIXED_BFP16_ADAQUANT
BF16_MIXED_MXINT8 BF16_MIXED_MXINT8_ADAQUANT BF16_BFP16 BF16_MXINT8 MX9_INT8 INT8_CNN_DEFAULT INT16_CNN_DEFAULT
INT8_TRANSFORMER_DEFAULT INT16_TRANSFORMER_DEFAULT INT8_CNN_ACCURATE INT16_CNN_ACCURATE INT8_TRANSFORMER_ACCURATE
INT16_TRANSFORMER_ACCURATE MATMUL_NBITS XINT8_WEIGHTSONLY_ADAROUND XINT8_QCONFIG XINT8_ADAROUND_QCONFIG
XINT8_ADAQUANT_QCONFIG VINT8_QCONFIG A8W8_QCONFIG A8W8_ADAROUND_QCONFIG A8W8_ADAQUANT_QCONFIG A16W8_QCONFIG
A16W8_ADAROUND_QCONFIG A16W8_ADAQUANT_QCONFIG BF16_QCONFIG BFP16_QCONFIG
""".split()  # noqa: SIM905 - a list would take as many lines as names
XINT8_TENSOR = tensor("Int8", "PowerOf2", "MinMSE")
DOCUMENTS: dict[str, dict[str, Any]] = {
    "UINT8_DYNAMIC_QUANT": {"weight_type": "QuantType.QUInt8", "use_dynamic_quant": True},
    "XINT8": legacy("QUInt8", "QInt8", MSE, enable_npu_cnn=True, extra_options={**AS, **FNI}),
    "VINT8": legacy("QInt8", "QInt8", MSE, optimize_model=False, extra_options={**AS, **VINT8}),
    "S8S8_AAWS": legacy("QInt8", "QInt8", PCT, extra_options={"Percentile": 99.9999, **FNI}),
    "U8S8_AAWS": legacy("QUInt8", "QInt8", PCT, extra_options=FNI),
    "U8U8_AAWA": legacy(
        "QUInt8", "QUInt8", PCT, extra_options={"ActivationSymmetric": False, "WeightSymmetric": False, **FNI}
    ),
    "S16S8_ASWS": legacy("QInt16", "QInt8", PCT, X, extra_options={**AS, **FNI}),
    "U16S8_AAWS": legacy("QUInt16", "QInt8", PCT, X, extra_options=FNI),
    "A8W8": legacy("QInt8", "QInt8", MM, X, extra_options={**AS, **FNI, **ALIGN}),
    "A16W8": legacy("QInt16", "QInt8", MM, X, extra_options={**AS, **FNI, **ALIGN, "AlignEltwiseQuantType": True}),
    "FP16": legacy("QFloat16", "QFloat16", MM, X, extra_options=FNI),
    "BF16": legacy("QBFloat16", "QBFloat16", MM, X, extra_options={"QuantizeAllOpTypes": True, **FNI}),
    "BFP16": legacy("QBFP", "QBFP", MM, X, extra_options={"BFPAttributes": BFP_DEFAULTS}),
    "MX4": bfp(11),
    "MX6": bfp(13),
    "MX9": bfp(16),
    "MXFP8E5M2": mx("fp8_e5m2"),
    "MXFP8E4M3": mx("fp8_e4m3"),
    "MXFP6E3M2": mx("fp6_e3m2"),
    "MXFP6E2M3": mx("fp6_e2m3"),
    "MXFP4E2M1": mx("fp4_e2m1"),
    "MXINT8": mx("int8"),
    "BF16_BFP16": legacy("QBFloat16", "QBFP", MM, X, extra_options={"BFPAttributes": BFP_DEFAULTS}),
    "BF16_MXINT8": legacy("QBFloat16", "QMX", MM, X, extra_options={"MXAttributes": MX_DEFAULTS}),
    "MX9_INT8": bfp(16, weight="QInt8"),
    "INT8_CNN_DEFAULT": legacy("QUInt8", "QInt8", extra_options=FNI),
    "INT16_CNN_DEFAULT": legacy("QUInt16", "QInt16", MM, X, extra_options=FNI),
    "INT8_TRANSFORMER_DEFAULT": legacy(
        "QUInt8", "QInt8", enable_npu_transformer=True, extra_options={"CalibMovingAverage": True}
    ),
    "INT16_TRANSFORMER_DEFAULT": legacy(
        "QUInt16", "QInt16", MM, X, enable_npu_transformer=True, extra_options={"CalibMovingAverage": True}
    ),
    "MATMUL_NBITS": {
        "extra_options": {
            "UseMatMulNBits": True,
            "MatMulNBitsParams": {"GroupSize": 128, "Symmetric": True, "Bits": 4, "AccuracyLevel": 1},
        }
    },
    "XINT8_QCONFIG": qconfig(XINT8_TENSOR, XINT8_TENSOR, FNI),
    "VINT8_QCONFIG": qconfig(XINT8_TENSOR, XINT8_TENSOR, {"OptimizeModel": False, "EnableNPUCnn": False, **VINT8}),
    "A8W8_QCONFIG": qconfig(tensor("Int8"), tensor("Int8"), {**FNI, **ALIGN}),
    "A16W8_QCONFIG": qconfig(tensor("Int16"), tensor("Int8"), {**FNI, **ALIGN, "AlignEltwiseQuantType": True}),
    "BF16_QCONFIG": qconfig(
        tensor("BFloat16", method="MinMax"), tensor("BFloat16", method="MinMax"), {"ForceQuantizeNoInputCheck": True}
    ),
    "BFP16_QCONFIG": qconfig(tensor("BFP16", method="MinMax"), tensor("BFP16", method="MinMax"), {}),
}
CLASSES = {
    "adaround": {"name": "adaround", "learning_rate": 0.1, "num_iterations": 1000},
    "adaquant": {"name": "adaquant", "learning_rate": 0.00001, "num_iterations": 3000},
}


def finetuned(document: dict[str, Any], algorithm: str) -> dict[str, Any]:
    """A preset with AdaRound or AdaQuant on top, as Quark has it in either API."""
    if "global_config" in document:
        return {**document, "algo_config": [CLASSES[algorithm]]}
    options = {
        **document.get("extra_options", {}),
        "FastFinetune": DEFAULT_PARAMS[f"DEFAULT_{algorithm.upper()}_PARAMS"],
    }
    return {**document, "include_fast_ft": True, "extra_options": options}


def accurate(act: str, weight: str, fmt: str = "QuantFormat.QDQ", /, **fields: Any) -> dict[str, Any]:
    """A preset with Percentile 99.9999 and AdaRound."""
    options = {"Percentile": 99.9999, **({} if fields else FNI)}
    return finetuned(legacy(act, weight, PCT, fmt, **fields, extra_options=options), "adaround")


# In Quark these lower every layer; what a target is in Quark is a spec here where the type alone does not tell it.
_MIXED: dict[str, tuple[dict[str, Any], str]] = {
    "S16S16_MIXED_S8S8": (
        legacy("QInt16", "QInt16", PCT, X, extra_options={"Percentile": 99.9999, "ActivationSymmetric": False}),
        "Int8Spec",
    ),
    "BF16_MIXED_BFP16": (legacy("QBFloat16", "QBFloat16", MM, X), "BFP16Spec"),
    "BF16_MIXED_MXINT8": (legacy("QBFloat16", "QBFloat16", MM, X), "MXInt8Spec"),
}


def _mixed(document: dict[str, Any], target: str) -> dict[str, Any]:
    targets = {"ActTargetQuantType": target, "WeightTargetQuantType": target}
    options = {**document.get("extra_options", {}), "AutoMixprecision": targets}
    return {**document, "include_auto_mp": True, "extra_options": options}


DOCUMENTS |= {name: _mixed(document, target) for name, (document, target) in _MIXED.items()}
DOCUMENTS |= {f"{name}_ADAQUANT": finetuned(DOCUMENTS[name], "adaquant") for name in _MIXED if name.startswith("BF16")}
DOCUMENTS |= {
    "INT8_CNN_ACCURATE": accurate("QUInt8", "QInt8"),
    "INT16_CNN_ACCURATE": accurate("QUInt16", "QInt16", X),
    "INT8_TRANSFORMER_ACCURATE": accurate("QUInt8", "QInt8", enable_npu_transformer=True),
    "INT16_TRANSFORMER_ACCURATE": accurate("QUInt16", "QInt16", X, enable_npu_transformer=True),
}
# Name of a preset with a finetuning -> (name of the preset below it, algorithm).
FINETUNED = {
    name: (name.replace(f"_{algorithm.upper()}", ""), algorithm)
    for name in NAMES
    for algorithm in ("adaround", "adaquant")
    if algorithm.upper() in name and "MIXED" not in name and "WEIGHTSONLY" not in name
}
DOCUMENTS |= {name: finetuned(DOCUMENTS[below], algorithm) for name, (below, algorithm) in FINETUNED.items()}
_VINT8_DIFFERS = (
    "ConvertClipToRelu",
    "RemoveQDQConvClip",
    "RemoveQDQConvPRelu",
    "RemoveQDQConvRelu",
    "RemoveQDQConvLeakyRelu",
    "DedicatedQDQPair",
)
DIFFERENCES: dict[str, tuple[str, ...]] = {
    "VINT8": _VINT8_DIFFERS,
    "VINT8_QCONFIG": _VINT8_DIFFERS,
    "A8W8": ("AlignConcat",),
    "A16W8": ("AlignConcat", "AlignEltwiseQuantType"),
    "A16W8_QCONFIG": ("AlignConcat", "AlignEltwiseQuantType"),
}
DIFFERENCES |= {name: DIFFERENCES[below] for name, (below, _) in FINETUNED.items() if below in DIFFERENCES}


def translatable(name: str) -> dict[str, Any]:
    """The document of a preset without the keys in which ours differs."""
    document = DOCUMENTS[name]
    options = {
        key: value for key, value in document.get("extra_options", {}).items() if key not in DIFFERENCES.get(name, ())
    }
    return {**document, "extra_options": options}


# What the objects of a preset are made of: its document, with members of enumerations in place of their words.


def preset_fields(name: str, *, suffix: str = "") -> dict[str, Any]:
    """The fields of the preset ``name`` of the API that marks its documents with ``suffix``; new objects each time.

    Raises:
        InvalidConfigError: there is none.
    """
    if name + suffix not in DOCUMENTS:
        raise InvalidConfigError(missing_preset(name), hint="docs/quark.md lists the presets.")
    return {key: _object(value) for key, value in copy.deepcopy(translatable(name + suffix)).items()}


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _object(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_object(item) for item in value]
    kind, _, member = value.partition(".") if isinstance(value, str) else ("", "", "")
    return getattr(words, kind)[member] if member and hasattr(words, kind) else value
