"""How tensors are represented: QTensorConfig, its named forms, and QLayerConfig."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from quantmill.quark.documents import Documented, Functions, plain
from quantmill.quark.words import CalibMethod, QuantGranularity, ScaleType


@dataclass(eq=False)
class QTensorConfig(Documented):
    """How a tensor is represented; ``data_type`` by name: Int8, UInt8, Int16, BFloat16 ..."""

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.MinMax
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: Any = "Int8"

    def document(self, functions: Functions) -> dict[str, Any]:
        """All five fields."""
        word = self.data_type if isinstance(self.data_type, str) else getattr(self.data_type, "__name__", None)
        return {
            "symmetric": self.symmetric,
            "scale_type": plain(self.scale_type, functions),
            "calibration_method": plain(self.calibration_method, functions),
            "quant_granularity": plain(self.quant_granularity, functions),
            "data_type": word,
        }


class _Spec(QTensorConfig):
    """A QTensorConfig of one data type, with Quark's defaults for it."""

    DATA_TYPE: ClassVar[str] = "Int8"
    SYMMETRIC: ClassVar[bool] = True
    SCALE: ClassVar[ScaleType] = ScaleType.Float32
    METHOD: ClassVar[CalibMethod] = CalibMethod.MinMax

    def __init__(
        self,
        symmetric: bool | None = None,
        scale_type: ScaleType | None = None,
        calibration_method: CalibMethod | None = None,
        quant_granularity: QuantGranularity = QuantGranularity.Tensor,
    ) -> None:
        super().__init__(
            self.SYMMETRIC if symmetric is None else symmetric,
            self.SCALE if scale_type is None else scale_type,
            self.METHOD if calibration_method is None else calibration_method,
            quant_granularity,
            self.DATA_TYPE,
        )


class Int8Spec(_Spec):
    """int8, symmetric, Percentile."""

    METHOD = CalibMethod.Percentile


class Int16Spec(Int8Spec):
    """int16, symmetric, Percentile."""

    DATA_TYPE = "Int16"


class Int32Spec(Int8Spec):
    """int32, symmetric: for biases."""

    DATA_TYPE = "Int32"


class UInt8Spec(_Spec):
    """uint8, asymmetric, Percentile."""

    DATA_TYPE, SYMMETRIC, METHOD = "UInt8", False, CalibMethod.Percentile


class UInt16Spec(UInt8Spec):
    """uint16, asymmetric, Percentile."""

    DATA_TYPE = "UInt16"


class UInt32Spec(UInt8Spec):
    """uint32, asymmetric."""

    DATA_TYPE = "UInt32"


class XInt8Spec(_Spec):
    """int8, symmetric, scale 2^n, MinMSE: AMD's NPU for CNNs."""

    SCALE, METHOD = ScaleType.PowerOf2, CalibMethod.MinMSE


class Float16Spec(_Spec):
    """float16."""

    DATA_TYPE = "Float16"


class BFloat16Spec(_Spec):
    """bfloat16."""

    DATA_TYPE = "BFloat16"


class BFP16Spec(_Spec):
    """16-bit block floating point."""

    DATA_TYPE = "BFP16"


class MX4Spec(_Spec):
    """MX4."""

    DATA_TYPE = "MX4"


class MX6Spec(_Spec):
    """MX6."""

    DATA_TYPE = "MX6"


class MX9Spec(_Spec):
    """MX9."""

    DATA_TYPE = "MX9"


class MXFP4E2M1Spec(_Spec):
    """float4 e2m1 in blocks."""

    DATA_TYPE = "MXFP4E2M1"


class MXFP6E3M2Spec(_Spec):
    """float6 e3m2 in blocks."""

    DATA_TYPE = "MXFP6E3M2"


class MXFP6E2M3Spec(_Spec):
    """float6 e2m3 in blocks."""

    DATA_TYPE = "MXFP6E2M3"


class MXFP8E5M2Spec(_Spec):
    """float8 e5m2 in blocks."""

    DATA_TYPE = "MXFP8E5M2"


class MXFP8E4M3Spec(_Spec):
    """float8 e4m3 in blocks."""

    DATA_TYPE = "MXFP8E4M3"


class MXInt8Spec(_Spec):
    """int8 in blocks."""

    DATA_TYPE = "MXInt8"


@dataclass(eq=False)
class QLayerConfig(Documented):
    """How the tensors of a layer are represented; ``activation`` is an older name of ``input_tensors``."""

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def document(self, functions: Functions) -> dict[str, Any]:
        """The fields that are given."""
        return {key: plain(value, functions) for key, value in vars(self).items() if value is not None}


__all__ = [
    "BFP16Spec",
    "BFloat16Spec",
    "CalibMethod",
    "Float16Spec",
    "Int8Spec",
    "Int16Spec",
    "Int32Spec",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8Spec",
    "QLayerConfig",
    "QTensorConfig",
    "QuantGranularity",
    "ScaleType",
    "UInt8Spec",
    "UInt16Spec",
    "UInt32Spec",
    "XInt8Spec",
]
