"""The words of Quark's enumerations and specs, and ours for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

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


def known(table: dict[str, Any]) -> str:
    """The words of a table, for messages."""
    return ", ".join(table)
