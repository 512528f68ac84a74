"""int16 activations, and int8 ones wherever top-1 on the calibration pictures loses at most 1 % by it."""

from typing import Any

import torch
from common import Pictures, arguments, run

import quantmill.quark
from quantmill.quark import QuantType
from quantmill.quark.quantization.config.config import Config, QuantizationConfig


def config_for(labels: Any) -> Config:
    """The config, whose goal is measured on pictures with these labels."""

    def top1_acc(outputs: torch.Tensor) -> float:
        _, preds = torch.max(outputs, 1)
        assert len(preds) == len(labels)
        return float((preds == torch.from_numpy(labels)).float().mean())

    quant_config = QuantizationConfig(
        calibrate_method=quantmill.quark.CalibrationMethod.Percentile,
        quant_format=quantmill.quark.VitisQuantFormat.QDQ,
        activation_type=quantmill.quark.VitisQuantType.QInt16,
        weight_type=QuantType.QInt8,
        include_auto_mp=True,
        extra_options={
            "ActivationSymmetric": False,
            "WeightsSymmetric": True,
            "Int32Bias": False,
            "AutoMixprecision": {
                "ActTargetQuantType": QuantType.QInt8,
                "WeightTargetQuantType": QuantType.QInt8,
                "OutputIndex": 0,
                "Top1AccTarget": 0.01,
                "EvaluateFunction": top1_acc,
            },
        },
    )
    return Config(global_quant_config=quant_config)


def main(given: list[str] | None = None) -> dict[str, float]:
    options = arguments(__doc__, given)
    labels = Pictures(options.data / "calibration.npz", options.calibration_samples).labels
    return run(config_for(labels), options)


if __name__ == "__main__":
    main()
