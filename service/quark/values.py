"""Values of Quark's enumerations and specs, and their Quantmill equivalents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.option import B, D, Option, done, honoured, no_effect, refuse, refused, switched, unknown

T = TypeVar("T")
# quant_type -> our dtype; bfp and mx are families, told apart by BFPAttributes and MXAttributes.
QUANT_TYPES = {
    "QInt8": "int8",
    "QUInt8": "uint8",
    "QInt16": "int16",
    "QUInt16": "uint16",
    "QInt32": "int32",
    "QUInt32": "uint32",
    "QFloat16": "float16",
    "QBFloat16": "bfloat16",
    "QBFP": "bfp",
    "QMX": "mx",
    "QInt4": "int4",
    "QUInt4": "uint4",
    "QFLOAT8E4M3FN": "float8_e4m3fn",
}
QUANT_TYPE_CLASSES = ("QuantType", "ExtendedQuantType", "VitisQuantType")
# calibrate_method of QuantizationConfig -> (our method, our scale)
CALIBRATE_METHODS = {
    "CalibrationMethod.MinMax": ("minmax", "float32"),
    "CalibrationMethod.Percentile": ("percentile", "float32"),
    "CalibrationMethod.Entropy": ("entropy", "float32"),
    "CalibrationMethod.Distribution": ("distribution", "float32"),
    "LayerWiseMethod.LayerWisePercentile": ("layerwise_percentile", "float32"),
    "PowerOfTwoMethod.NonOverflow": ("non_overflow", "power_of_two"),
    "PowerOfTwoMethod.MinMSE": ("mse", "power_of_two"),
    "Int16Method.MinMax": ("minmax", "int16"),
}
WEIGHT_METHODS = {
    "CalibrationMethod.MinMax": "minmax",
    "ExtendedCalibrationMethod.MinMSE": "mse",
    "CalibMethod.MinMax": "minmax",
    "CalibMethod.MinMSE": "mse",
}
# calibration_method of QTensorConfig -> our method
CALIB_METHODS = {
    "CalibMethod.MinMax": "minmax",
    "CalibMethod.MinMSE": "mse",
    "CalibMethod.Percentile": "percentile",
    "CalibMethod.Entropy": "entropy",
    "CalibMethod.LayerwisePercentile": "layerwise_percentile",
    "CalibMethod.Distribution": "distribution",
}
SCALE_TYPES = {"ScaleType.Float32": "float32", "ScaleType.PowerOf2": "power_of_two", "ScaleType.Int16": "int16"}
GRANULARITIES = {
    "QuantGranularity.Tensor": "per_tensor",
    "QuantGranularity.Channel": "per_channel",
    "QuantGranularity.Group": "group",
}
# quant_format -> (our format, extended?)
FORMATS = {
    "QuantFormat.QDQ": ("qdq", False),
    "QuantFormat.QOperator": ("qoperator", False),
    "ExtendedQuantFormat.QDQ": ("qdq", True),
    "ExtendedQuantFormat.QOperator": ("qoperator", True),
    "VitisQuantFormat.QDQ": ("qdq", True),
    "VitisQuantFormat.QOperator": ("qoperator", True),
}
# data_type of QTensorConfig -> our dtype
DATA_TYPES = {
    "Int8": "int8",
    "UInt8": "uint8",
    "Int16": "int16",
    "UInt16": "uint16",
    "Int32": "int32",
    "UInt32": "uint32",
    "Float16": "float16",
    "BFloat16": "bfloat16",
    "BFP16": "bfp16",
    "MX4": "mx4",
    "MX6": "mx6",
    "MX9": "mx9",
    "MXFP4E2M1": "mxfp4_e2m1",
    "MXFP6E3M2": "mxfp6_e3m2",
    "MXFP6E2M3": "mxfp6_e2m3",
    "MXFP8E5M2": "mxfp8_e5m2",
    "MXFP8E4M3": "mxfp8_e4m3",
    "MXInt8": "mxint8",
}


@dataclass(frozen=True)
class Spec:
    """Defaults of a spec class: what a QTensorConfig of this data type says when it says no more."""

    data_type: str
    symmetric: bool
    scale_type: str
    method: str


def _spec(data_type: str) -> Spec:
    integer = data_type in ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32")
    method = "CalibMethod.Percentile" if integer else "CalibMethod.MinMax"
    return Spec(data_type, not data_type.startswith("U"), "ScaleType.Float32", method)


SPECS = {
    **{f"{data_type}Spec": _spec(data_type) for data_type in DATA_TYPES},
    "XInt8Spec": Spec("Int8", True, "ScaleType.PowerOf2", "CalibMethod.MinMSE"),
}
# Everything a calibration method needs to know, as Quark has it when nothing else is said.
CALIBRATIONS: dict[str, dict[str, Any]] = {
    "minmax": {"method": "minmax"},
    "percentile": {"method": "percentile", "percentile": 99.999},
    "layerwise_percentile": {
        "method": "layerwise_percentile",
        "candidates": [99.99, 99.999, 99.99999],
        "metric": "mae",
    },
    "entropy": {"method": "entropy", "bins": 128, "quantized_bins": 128},
    "distribution": {"method": "distribution", "bins": 2048},
    "mse": {"method": "mse"},
    "non_overflow": {"method": "non_overflow"},
}


def lookup(text: Any, table: dict[str, T]) -> T | None:
    """The entry of ``table`` that ``text`` names: ``Class.Member``, ``Member`` or ``module.Class.Member``.

    A bare member is that of the first class in the table that has it.
    """
    if not isinstance(text, str):
        return None
    words = text.split(".")
    for depth in (2, 1):
        wanted = ".".join(words[-depth:]).casefold()
        found = [key for key in table if key.casefold() == wanted]
        if found:
            return table[found[0]]
    if len(words) == 1:
        found = [key for key in table if key.rpartition(".")[2].casefold() == words[0].casefold()]
        if found:
            return table[found[0]]
    return None


def quant_type(text: Any) -> str | None:
    """Our dtype (or bfp, mx) for a quant_type such as ``ExtendedQuantType.QInt16``; None if there is none."""
    if not isinstance(text, str):
        return None
    *classes, member = text.split(".")
    if classes and classes[-1] not in QUANT_TYPE_CLASSES:
        return None
    return next((dtype for name, dtype in QUANT_TYPES.items() if name.casefold() == member.casefold()), None)


def looked_up(draft: QuarkDraft, name: str, text: Any, table: dict[str, T], at: str) -> T | None:
    """As ``lookup``; what names nothing is a problem of the key at ``at``, which is called ``name``."""
    found = lookup(text, table)
    if found is None:
        draft.problem(at, f"unknown {name} {text!r}; known: {known(table)}", BAD_VALUE)
    return found


def known(table: dict[str, Any]) -> str:
    """The words of a table, for messages."""
    return ", ".join(table)


# Quark's options of numbers: biases, scales, float and block types.

BFP_DEFAULTS: dict[str, Any] = {
    "bfp_method": "to_bfp",
    "axis": 1,
    "bit_width": 16,
    "block_size": 8,
    "rounding_mode": 2,
}
MICRO_DEFAULTS: dict[str, Any] = {
    "bfp_method": "to_bfp_prime",
    "axis": 1,
    "bit_width": 13,
    "block_size": 16,
    "sub_block_size": 2,
    "sub_block_shift_bits": 1,
    "rounding_mode": 2,
}
MX_DEFAULTS: dict[str, Any] = {"element_dtype": "int8", "axis": 1, "block_size": 32, "rounding_mode": 2}
_BFP_FORMATS = {16: "bfp16"}
_MICRO_FORMATS = {11: "mx4", 13: "mx6", 16: "mx9"}
_MX_FORMATS = {
    "fp8_e5m2": "mxfp8_e5m2",
    "fp8_e4m3": "mxfp8_e4m3",
    "fp6_e3m2": "mxfp6_e3m2",
    "fp6_e2m3": "mxfp6_e2m3",
    "fp4_e2m1": "mxfp4_e2m1",
    "int8": "mxint8",
}
_FAMILIES = {
    "bfp": ("bfp", *_BFP_FORMATS.values(), *_MICRO_FORMATS.values()),
    "mx": ("mx", *_MX_FORMATS.values()),
}
_SCALED = "float16 and bfloat16 tensors are rounded directly, without a scale"
_WIDENED = "float16 models are computed in float32, and scales are float32"


def _power_of_two(draft: QuarkDraft, given: Given) -> None:
    if not given.value:
        for side in ("activation", "weight"):
            if draft.get(f"{side}/scale") == "power_of_two":
                draft.set(f"{side}/scale", "float32", given.pointer)
            if draft.get(f"{side}/calibration/method") == "non_overflow":
                draft.set(f"{side}/calibration", {"method": "minmax"}, given.pointer)
    draft.honour(given.pointer)


def _block_attributes(draft: QuarkDraft, given: Given, defaults: dict[str, Any]) -> bool:
    """True if the attributes are those of a format that there is: all but the deciding key at their defaults."""
    good = True
    for key, value in given.value.items():
        at = below(given.pointer, key)
        if key not in defaults:
            unknown(draft, key, at, defaults)
            good = False
        elif key not in ("bit_width", "element_dtype") and (value != defaults[key] or isinstance(value, bool)):
            draft.problem(at, f"{key} {value!r} cannot be translated: it must be {defaults[key]!r}")
            good = False
    return good


def _bfp(draft: QuarkDraft, given: Given) -> None:
    micro = given.value.get("bfp_method", "to_bfp") == "to_bfp_prime"
    defaults, formats = (MICRO_DEFAULTS, _MICRO_FORMATS) if micro else (BFP_DEFAULTS, _BFP_FORMATS)
    if _block_attributes(draft, given, defaults):
        _resolve(draft, given, "bfp", formats, "bit_width", given.value.get("bit_width", defaults["bit_width"]))


def _mx(draft: QuarkDraft, given: Given) -> None:
    if _block_attributes(draft, given, MX_DEFAULTS):
        _resolve(draft, given, "mx", _MX_FORMATS, "element_dtype", given.value.get("element_dtype", "int8"))


def _resolve(draft: QuarkDraft, given: Given, family: str, formats: dict[Any, str], key: str, value: Any) -> None:
    """Give the tensors of ``family`` the type that ``key`` of the attributes tells."""
    dtype = formats.get(value) if isinstance(value, int | str) else None
    if dtype is None:
        words = ", ".join(map(str, formats))
        draft.problem(below(given.pointer, key), f"{key} {value!r} cannot be translated; supported: {words}")
        return
    concerned = [side for side in ("activation", "weight") if draft.get(f"{side}/dtype") in _FAMILIES[family]]
    for side in concerned:
        if draft.get(f"{side}/dtype") not in (family, dtype):
            found = draft.get(f"{side}/dtype")
            draft.problem(given.pointer, f"{given.name} specifies {dtype}, but the {side} type is {found}", BAD_VALUE)
            return
        draft.set(f"{side}/dtype", dtype, given.pointer)
    if concerned:
        draft.honour(given.pointer)
    else:
        draft.note(given.pointer, f"{given.name} has no effect: no tensor is of type Q{family.upper()}")


def _follows(draft: QuarkDraft, given: Given) -> None:
    if given.value:
        draft.honour(given.pointer)
    else:
        refuse(draft, given, "the scale of an int32 bias is always the input scale times the weight scale")


_INT16 = switched({"activation/scale": "int16", "weight/scale": "int16"})
NUMERIC_OPTIONS: tuple[Option, ...] = (
    honoured(
        "Int16Scale",
        B,
        False,
        "activation.scale, weight.scale",
        _INT16,
    ),
    honoured("UsePowerOf2Scale", B, True, "activation.scale, weight.scale", _power_of_two),
    honoured("BFPAttributes", D, None, "activation.dtype, weight.dtype", _bfp, "attributes of BFP16, MX4, MX6 and MX9"),
    honoured("MXAttributes", D, None, "activation.dtype, weight.dtype", _mx, "axis 1, block_size 32, rounding_mode 2"),
    honoured("QuantizeBias", B, True, "bias.dtype", done, "with float and block types, biases stay float32"),
    honoured("Int32Bias", B, None, "bias.dtype", done, "false: int8, or int16 with 16-bit weights"),
    honoured("Int16Bias", B, False, "bias.dtype", done, "with its own scale; Quark clips the int32 values"),
    Option("AdjustBiasScale", B, True, "honoured", "", "true only: scales of int32 biases always fit", _follows),
    no_effect(
        "AdjustWeightScaleForInt32Bias", B, False, "the scale of a weight is increased if its bias would overflow"
    ),
    no_effect("UseUnsignedReLU", B, False, "Quark reads it but does not use it"),
    no_effect("QuantizeFP16", B, None, _WIDENED),
    no_effect("UseFP32Scale", B, None, _WIDENED),
    refused("ActivationScaled", B, False, _SCALED),
    refused("WeightScaled", B, False, _SCALED),
    refused("BF16WithClip", B, False, "values outside bfloat16's range are not clipped by a separate node"),
    no_effect("BF16QDQToCast", B, False, "bfloat16 is always rounded by standard operators, never by custom ones"),
    refused("EnableVaimlBF16", B, False, "there is no target for the VAIML compiler"),
    refused("RefineBlockAxis", B, True, "blocks are always along the axis that a layer sums over"),
)
