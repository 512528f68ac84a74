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

    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **defaults: Any) -> None:
        cls._defaults = {**cls._defaults, **defaults}

    def __init__(
        self,
        symmetric: bool | None = None,
        scale_type: ScaleType | None = None,
        calibration_method: CalibMethod | None = None,
        quant_granularity: QuantGranularity = QuantGranularity.Tensor,
    ) -> None:
        given = {"symmetric": symmetric, "scale_type": scale_type, "calibration_method": calibration_method}
        told = {name: value for name, value in given.items() if value is not None}
        super().__init__(**{**self._defaults, **told}, quant_granularity=quant_granularity)


class Int8Spec(_Spec, data_type="Int8", calibration_method=CalibMethod.Percentile):
    """int8, symmetric, Percentile."""


class Int16Spec(Int8Spec, data_type="Int16"):
    """int16, symmetric, Percentile."""


class Int32Spec(Int8Spec, data_type="Int32"):
    """int32, symmetric: for biases."""


class UInt8Spec(_Spec, data_type="UInt8", symmetric=False, calibration_method=CalibMethod.Percentile):
    """uint8, asymmetric, Percentile."""


class UInt16Spec(UInt8Spec, data_type="UInt16"):
    """uint16, asymmetric, Percentile."""


class UInt32Spec(UInt8Spec, data_type="UInt32"):
    """uint32, asymmetric."""


class XInt8Spec(_Spec, data_type="Int8", scale_type=ScaleType.PowerOf2, calibration_method=CalibMethod.MinMSE):
    """int8, symmetric, scale 2^n, MinMSE: AMD's NPU for CNNs."""


class Float16Spec(_Spec, data_type="Float16"):
    """float16."""


class BFloat16Spec(_Spec, data_type="BFloat16"):
    """bfloat16."""


class BFP16Spec(_Spec, data_type="BFP16"):
    """16-bit block floating point."""


class MX4Spec(_Spec, data_type="MX4"):
    """MX4."""


class MX6Spec(_Spec, data_type="MX6"):
    """MX6."""


class MX9Spec(_Spec, data_type="MX9"):
    """MX9."""


class MXFP4E2M1Spec(_Spec, data_type="MXFP4E2M1"):
    """float4 e2m1 in blocks."""


class MXFP6E3M2Spec(_Spec, data_type="MXFP6E3M2"):
    """float6 e3m2 in blocks."""


class MXFP6E2M3Spec(_Spec, data_type="MXFP6E2M3"):
    """float6 e2m3 in blocks."""


class MXFP8E5M2Spec(_Spec, data_type="MXFP8E5M2"):
    """float8 e5m2 in blocks."""


class MXFP8E4M3Spec(_Spec, data_type="MXFP8E4M3"):
    """float8 e4m3 in blocks."""


class MXInt8Spec(_Spec, data_type="MXInt8"):
    """int8 in blocks."""


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
