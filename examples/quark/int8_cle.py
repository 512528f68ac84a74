"""INT8 for AMD's NPU after cross-layer equalization."""

from common import arguments, run

import quantmill.quark
from quantmill.quark import QuantFormat, QuantType
from quantmill.quark.quantization.config.config import Config, QuantizationConfig

quant_config = QuantizationConfig(
    quant_format=QuantFormat.QDQ,
    calibrate_method=quantmill.quark.PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_npu_cnn=True,
    include_cle=True,
    extra_options={
        "ActivationSymmetric": True,
        "ReplaceClip6Relu": True,
        "CLESteps": 1,
        "CLEScaleAppendBias": True,
    },
)


def main(given: list[str] | None = None) -> dict[str, float]:
    return run(Config(global_quant_config=quant_config), arguments(__doc__, given))


if __name__ == "__main__":
    main()
