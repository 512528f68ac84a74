"""The names of AMD Quark for ONNX, on this engine: ``quark.onnx`` in an import becomes ``quantmill.quark``.

    from quantmill.quark import ModelQuantizer
    from quantmill.quark.quantization.config import Config, get_default_config

    quantizer = ModelQuantizer(Config(global_quant_config=get_default_config("XINT8")))
    quantizer.quantize_model("float.onnx", "int8.onnx", reader)

Loads neither torch nor onnxruntime; the engine is loaded by the first model.
"""

from quantmill.quark.quantization.config.algorithm import (
    AdaQuantConfig,
    AdaRoundConfig,
    AlgoConfig,
    AutoMixprecisionConfig,
    BiasCorrectionConfig,
    CLEConfig,
    FastFinetuneConfig,
    GPTQConfig,
    QuarotConfig,
    SmoothQuantConfig,
)
from quantmill.quark.quantization.config.config import (
    Config,
    QConfig,
    QuantizationConfig,
)
from quantmill.quark.quantization.config.custom_config import (
    DEFAULT_ADAQUANT_PARAMS,
    DEFAULT_ADAROUND_PARAMS,
    get_default_config,
)
from quantmill.quark.quantization.config.spec import (
    BFloat16Spec,
    BFP16Spec,
    Float16Spec,
    Int8Spec,
    Int16Spec,
    Int32Spec,
    MX4Spec,
    MX6Spec,
    MX9Spec,
    MXFP4E2M1Spec,
    MXFP6E2M3Spec,
    MXFP6E3M2Spec,
    MXFP8E4M3Spec,
    MXFP8E5M2Spec,
    MXInt8Spec,
    QLayerConfig,
    QTensorConfig,
    UInt8Spec,
    UInt16Spec,
    UInt32Spec,
    XInt8Spec,
)
from quantmill.quark.quantizer import ModelQuantizer
from quantmill.quark.readers import (
    CalibrationDataReader,
    RandomDataReader,
)
from quantmill.quark.words import (
    CalibMethod,
    CalibrationMethod,
    ExtendedCalibrationMethod,
    ExtendedQuantFormat,
    ExtendedQuantType,
    Int16Method,
    LayerWiseMethod,
    PowerOfTwoMethod,
    QuantFormat,
    QuantGranularity,
    QuantType,
    ScaleType,
    VitisQuantFormat,
    VitisQuantType,
)
from service.contracts.errors import QuantmillError

__all__ = [
    "DEFAULT_ADAQUANT_PARAMS",
    "DEFAULT_ADAROUND_PARAMS",
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "BFP16Spec",
    "BFloat16Spec",
    "BiasCorrectionConfig",
    "CLEConfig",
    "CalibMethod",
    "CalibrationDataReader",
    "CalibrationMethod",
    "Config",
    "ExtendedCalibrationMethod",
    "ExtendedQuantFormat",
    "ExtendedQuantType",
    "FastFinetuneConfig",
    "Float16Spec",
    "GPTQConfig",
    "Int8Spec",
    "Int16Method",
    "Int16Spec",
    "Int32Spec",
    "LayerWiseMethod",
    "MX4Spec",
    "MX6Spec",
    "MX9Spec",
    "MXFP4E2M1Spec",
    "MXFP6E2M3Spec",
    "MXFP6E3M2Spec",
    "MXFP8E4M3Spec",
    "MXFP8E5M2Spec",
    "MXInt8Spec",
    "ModelQuantizer",
    "PowerOfTwoMethod",
    "QConfig",
    "QLayerConfig",
    "QTensorConfig",
    "QuantFormat",
    "QuantGranularity",
    "QuantType",
    "QuantizationConfig",
    "QuantmillError",
    "QuarotConfig",
    "RandomDataReader",
    "ScaleType",
    "SmoothQuantConfig",
    "UInt8Spec",
    "UInt16Spec",
    "UInt32Spec",
    "VitisQuantFormat",
    "VitisQuantType",
    "XInt8Spec",
    "get_default_config",
]
