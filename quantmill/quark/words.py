"""The enumerations of AMD Quark for ONNX. Those of onnxruntime by the same names serve as well."""

from __future__ import annotations

from enum import Enum

# Integer types of onnxruntime's quantizer.
QuantType = Enum("QuantType", ["QInt8", "QUInt8", "QFLOAT8E4M3FN", "QInt16", "QUInt16", "QInt4", "QUInt4"], start=0)
# All types that Quark knows; ``VitisQuantType`` is an older name.
ExtendedQuantType = Enum(
    "ExtendedQuantType",
    [
        "QInt8",
        "QUInt8",
        "QInt16",
        "QUInt16",
        "QInt4",
        "QUInt4",
        "QInt32",
        "QUInt32",
        "QFloat16",
        "QBFloat16",
        "QBFP",
        "QMX",
    ],
    start=1,
)
# Q/DQ pairs, or QLinear operators.
QuantFormat = Enum("QuantFormat", ["QOperator", "QDQ"], start=0)
# The same for all types; ``VitisQuantFormat`` is an older name. Standard operators are written in any case.
ExtendedQuantFormat = Enum("ExtendedQuantFormat", ["QOperator", "QDQ"], start=0)
# How ranges of activations are found, with float scales.
CalibrationMethod = Enum("CalibrationMethod", ["MinMax", "Entropy", "Percentile", "Distribution"], start=0)
# A percentile chosen tensor by tensor.
LayerWiseMethod = Enum("LayerWiseMethod", ["LayerWisePercentile"], start=0)
# How ranges are found, with scales 2^n.
PowerOfTwoMethod = Enum("PowerOfTwoMethod", ["NonOverflow", "MinMSE"], start=0)
# How ranges are found, with scales M / 2^N.
Int16Method = Enum("Int16Method", ["MinMax"], start=0)
# How the scales of weights are found: ``WeightCalibrateMethod``.
ExtendedCalibrationMethod = Enum("ExtendedCalibrationMethod", ["MinMSE"], start=0)
# ``calibration_method`` of a QTensorConfig.
CalibMethod = Enum(
    "CalibMethod", ["MinMax", "MinMSE", "Percentile", "Entropy", "LayerwisePercentile", "Distribution"], start=0
)
# ``scale_type`` of a QTensorConfig.
ScaleType = Enum("ScaleType", ["Float32", "PowerOf2", "Int16"], start=0)
# ``quant_granularity`` of a QTensorConfig.
QuantGranularity = Enum("QuantGranularity", ["Tensor", "Channel", "Group"], start=0)

VitisQuantType = ExtendedQuantType
VitisQuantFormat = ExtendedQuantFormat
