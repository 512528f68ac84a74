"""INT8 for AMD's NPU after SmoothQuant, which finds something to do where activations have outliers."""

from common import arguments, run

from quantmill.quark import PowerOfTwoMethod, QuantFormat, QuantType
from quantmill.quark.quantization.config.config import Config, QuantizationConfig

quant_config = QuantizationConfig(
    quant_format=QuantFormat.QDQ,
    calibrate_method=PowerOfTwoMethod.MinMSE,
    activation_type=QuantType.QUInt8,
    weight_type=QuantType.QInt8,
    enable_npu_cnn=True,
    include_sq=True,
    extra_options={
        "ActivationSymmetric": True,
        "SmoothAlpha": 0.5,
    },
)


def main(given: list[str] | None = None) -> dict[str, float]:
    return run(Config(global_quant_config=quant_config), arguments(__doc__, given))


if __name__ == "__main__":
    main()
