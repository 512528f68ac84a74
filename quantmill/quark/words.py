"""The enumerations of AMD Quark for ONNX. Those of onnxruntime by the same names serve as well."""

from __future__ import annotations

from enum import Enum


class QuantType(Enum):
    """Integer types of onnxruntime's quantizer."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6


class ExtendedQuantType(Enum):
    """All types that Quark knows; ``VitisQuantType`` is an older name."""

    QInt8 = 1
    QUInt8 = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6
    QInt32 = 7
    QUInt32 = 8
    QFloat16 = 9
    QBFloat16 = 10
    QBFP = 11
    QMX = 12


class QuantFormat(Enum):
    """Q/DQ pairs, or QLinear operators."""

    QOperator = 0
    QDQ = 1


class ExtendedQuantFormat(Enum):
    """The same for all types; ``VitisQuantFormat`` is an older name. Standard operators are written in any case."""

    QOperator = 0
    QDQ = 1


class CalibrationMethod(Enum):
    """How ranges of activations are found, with float scales."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class LayerWiseMethod(Enum):
    """A percentile chosen tensor by tensor."""

    LayerWisePercentile = 0


class PowerOfTwoMethod(Enum):
    """How ranges are found, with scales 2^n."""

    NonOverflow = 0
    MinMSE = 1


class Int16Method(Enum):
    """How ranges are found, with scales M / 2^N."""

    MinMax = 0


class ExtendedCalibrationMethod(Enum):
    """How the scales of weights are found: ``WeightCalibrateMethod``."""

    MinMSE = 0


class CalibMethod(Enum):
    """``calibration_method`` of a QTensorConfig."""

    MinMax = 0
    MinMSE = 1
    Percentile = 2
    Entropy = 3
    LayerwisePercentile = 4
    Distribution = 5


class ScaleType(Enum):
    """``scale_type`` of a QTensorConfig."""

    Float32 = 0
    PowerOf2 = 1
    Int16 = 2


class QuantGranularity(Enum):
    """``quant_granularity`` of a QTensorConfig."""

    Tensor = 0
    Channel = 1
    Group = 2


VitisQuantType = ExtendedQuantType
VitisQuantFormat = ExtendedQuantFormat
