"""A config drawn at random."""

from __future__ import annotations

import random
from typing import Any

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError

PRESETS = ("plain", "plain", "plain", "int8", "int8_per_tensor", "int8_symmetric", "xint8", "npu_int8", "w4a8")
OF_WEIGHTS = ("int8_dynamic", "int8_weights", "int4_weights", "float16_model")
TARGETS = ("onnxruntime_cpu", "onnxruntime_gpu", "tensorrt", "qnn", "openvino", "amd_npu_cnn", "amd_npu_transformer")
ALGORITHMS: list[dict[str, Any]] = [
    {"method": "cross_layer_equalization"},
    {"method": "bias_correction"},
    {"method": "smooth_quant"},
    {"method": "adaround", "num_iterations": 20},
]


def draw(seed: int, operators: list[str]) -> QuantizationConfig:
    """One that the contract takes, for a model of these operators."""
    chance = random.Random(seed)
    while True:
        try:
            return parse_config(_drawn(chance, operators))
        except InvalidConfigError:
            continue


def _drawn(chance: random.Random, operators: list[str]) -> dict[str, Any]:
    if chance.random() < 0.2:
        return {"preset": chance.choice(OF_WEIGHTS)}
    found: dict[str, Any] = {"preset": chance.choice(PRESETS)}
    if chance.random() < 0.35:
        found["target"] = chance.choice(TARGETS)
    if chance.random() < 0.3:
        found["activation"] = {"dtype": chance.choice(["int8", "uint16", "int16", "uint8"])}
    if chance.random() < 0.3:
        granularity = chance.choice(["per_tensor", "per_channel"])
        found["weight"] = {"dtype": chance.choice(["int8", "uint8", "int16", "int4"]), "granularity": granularity}
    if chance.random() < 0.2:
        found["bias"] = {"dtype": chance.choice(["float32", "int32", "int16", "float16"])}
    if chance.random() < 0.1:
        found["float_dtype"] = "float16"
    if chance.random() < 0.1:
        found["format"] = "qoperator"
    if chance.random() < 0.1:
        found["exclude"] = [{"op_type": chance.choice(operators)}]
    if found["preset"] == "plain" and chance.random() < 0.5:
        found["algorithms"] = chance.sample(ALGORITHMS, chance.choice([1, 2]))
    return found
