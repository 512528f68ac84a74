"""Vitis AI's arguments and its config file, key by key, as a config of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from quantmill.torch.nndct.recipe import make_recipe
from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidConfigError

NETWORK = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.ReLU6(), nn.Sequential(nn.Conv2d(4, 4, 3)), nn.Flatten(), nn.Linear(4, 2)
)
TARGET = "AMD_AIE2_Nx4_Overlay_cfg0"
DEFAULTS = {  # of the file that Vitis AI shows in its documents
    "convert_relu6_to_relu": False,
    "convert_silu_to_hswish": False,
    "include_cle": True,
    "keep_first_last_layer_accuracy": False,
    "keep_add_layer_accuracy": False,
    "include_bias_corr": True,
    "target_device": "DPU",
    "quantizable_data_type": ["input", "weights", "bias", "activation"],
    "overall_quantize_config": {
        **{"bit_width": 8, "method": "diffs", "round_mode": "std_round", "symmetry": "symmetric"},
        **{"per_channel": False, "signed": True, "narrow_range": False, "scale_type": "poweroftwo"},
        "calib_statistic_method": "modal",
    },
    "tensor_quantize_config": {"activation": {"bit_width": 8, "round_mode": "half_up"}},
}


def recipe(
    tmp_path: Path, document: dict[str, Any] | None = None, target: str | None = None, bitwidth: int | None = None
) -> tuple[QuantizationConfig, tuple[str, ...]]:
    path = None
    if document is not None:
        path = tmp_path / "quant_config.json"
        path.write_text(json.dumps(document))
    return make_recipe(NETWORK, target=target, bitwidth=bitwidth, quant_config_file=path)


def test_defaults_are_those_of_vitis_ai(tmp_path: Path) -> None:
    config, notes = recipe(tmp_path)
    for spec in (config.activation, config.weight):
        assert (spec.dtype, spec.symmetric, spec.scale) == ("int8", True, "power_of_two")
        assert (spec.granularity, spec.calibration.method) == ("per_tensor", "mse")
    assert (config.bias.dtype, config.target, notes) == ("int8", "amd_npu_cnn", ())
    assert config.target_options == {"sigmoid_to_hard_sigmoid": False}
    assert [algorithm.method for algorithm in config.algorithms] == ["cross_layer_equalization", "bias_correction"]


def test_the_file_of_vitis_ai_s_documents_says_what_holds_anyway(tmp_path: Path) -> None:
    config, notes = recipe(tmp_path, DEFAULTS, TARGET)
    assert config == recipe(tmp_path)[0]
    assert [note.split(":")[0] for note in notes] == [
        "round_mode std_round", "calib_statistic_method modal", "round_mode half_up",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"include_cle": False, "include_bias_corr": False}, {"algorithms": []}),
        ({"convert_relu6_to_relu": True}, {"preparation": {"clip6_to_relu": True, "split_to_slice": True}}),
        ({"onnx_opset_version": 21}, {"preparation": {"opset": 21}}),
        ({"change_concat_input_fix": False}, {"target_options": {"align_concat": False}}),
        ({"overall_quantize_config": {"method": "percentile", "percentage": 99.9}},
         {"activation": {"calibration": {"method": "percentile", "percentile": 99.9}}}),
        ({"tensor_quantize_config": {"activation": {"method": "entropy"}}},
         {"activation": {"calibration": {"method": "entropy"}}, "weight": {"calibration": {"method": "mse"}}}),
        ({"target_device": "CPU", "overall_quantize_config": {"scale_type": "float", "symmetry": "asymmetric"},
          "tensor_quantize_config": {"activation": {"signed": False}, "weights": {"symmetry": "symmetric",
                                                                               "per_channel": True, "bit_width": 4}}},
         {"target": "onnxruntime_cpu", "bias": {"dtype": "int32"},
          "activation": {"dtype": "uint8", "symmetric": False, "scale": "float32"},
          "weight": {"dtype": "int4", "symmetric": True, "scale": "float32", "granularity": "per_channel"}}),
        ({"target_device": "GPU", "overall_quantize_config": {"bit_width": 16}},
         {"target": "onnxruntime_gpu", "activation": {"dtype": "int16"}, "weight": {"dtype": "int16"}}),
        ({"quantizable_data_type": ["input", "weights", "activation"]},
         {"bias": {"dtype": "float32"}, "target_options": {"int8_bias": False}}),
        ({"layer_quantize_config": [{"layer_name": "Net::Net/Sequential[2]/Conv2d[0]/input.3",
                                     "tensor_quantize_config": {"weights": {"method": "maxmin"}}}]},
         {"overrides": [{"match": {"module": "2.0"}, "weight": {"calibration": {"method": "minmax"}}}]}),
        ({"layer_quantize_config": [{"layer_type": "torch.nn.Conv2d",
                                     "overall_quantize_config": {"datatype": "float32"}}]},
         {"exclude": [{"module": "0"}, {"module": "2.0"}]}),
    ],
)  # fmt: skip
def test_every_key_has_its_effect(tmp_path: Path, document: dict[str, Any], expected: dict[str, Any]) -> None:
    def holds(expected: Any, found: Any) -> bool:
        if isinstance(expected, dict):
            return all(holds(value, found[key]) for key, value in expected.items())
        if isinstance(expected, list):
            return len(expected) == len(found) and all(map(holds, expected, found))
        return bool(expected == found)

    found = recipe(tmp_path, document)[0].model_dump(mode="json")
    assert holds(expected, found), {key: found[key] for key in expected}


@pytest.mark.parametrize(
    ("document", "at", "told"),
    [
        ({"include_cel": True}, "/include_cel", "did you mean 'include_cle'?"),
        ({"convert_silu_to_hswish": True}, "/convert_silu_to_hswish", "nn.Hardswish"),
        ({"keep_add_layer_accuracy": True}, "/keep_add_layer_accuracy", "no effect"),
        ({"target_device": "FLEXML"}, "/target_device", "not offered"),
        ({"change_pool_input_fix": True}, "/change_pool_input_fix", "never the reverse"),
        ({"quantizable_data_type": ["weights"]}, "/quantizable_data_type", "together"),
        ({"overall_quantize_config": {"method": "magic"}}, "/overall_quantize_config/method", "diffs"),
        ({"overall_quantize_config": {"bit_with": 8}}, "/overall_quantize_config/bit_with", "'bit_width'"),
        ({"overall_quantize_config": {"bit_width": 5}}, "/overall_quantize_config/bit_width", "not 5"),
        ({"overall_quantize_config": {"scale_type": "float"}},
         "/overall_quantize_config/scale_type", "the DPU computes"),
        ({"tensor_quantize_config": {"weights": {"per_channel": True}}},
         "/tensor_quantize_config/weights/per_channel", "the DPU computes"),
        ({"tensor_quantize_config": {"input": {"method": "maxmin"}}}, "/tensor_quantize_config/input/method", "inputs"),
        ({"tensor_quantize_config": {"activation": {"narrow_range": True}}},
         "/tensor_quantize_config/activation/narrow_range", "whole range"),
        ({"layer_quantize_config": [{"layer_name": "3.0"}]}, "/layer_quantize_config/0/layer_name", "no module '3.0'"),
        ({"layer_quantize_config": [{"layer_type": "LSTM"}]}, "/layer_quantize_config/0/layer_type", "no module is a"),
    ],
)  # fmt: skip
def test_what_has_no_counterpart_names_its_key(tmp_path: Path, document: dict[str, Any], at: str, told: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        recipe(tmp_path, document)
    assert at in {problem.pointer for problem in caught.value.errors}
    assert told in caught.value.detail


def test_file_and_target_hold_together_and_must_not_contradict(tmp_path: Path) -> None:
    both, _ = recipe(tmp_path, {"include_cle": False}, TARGET)
    assert both.target == "amd_npu_cnn"
    assert [algorithm.method for algorithm in both.algorithms] == ["bias_correction"]
    assert recipe(tmp_path, target="onnxruntime_cpu", bitwidth=16)[0].activation.dtype == "int16"
    refused: list[tuple[str, dict[str, Any]]] = [
        (
            "target_device CPU contradicts the target amd_npu_cnn",
            {"document": {"target_device": "CPU"}, "target": TARGET},
        ),
        ("did you mean 'AMD_AIE2_Nx4_Overlay_cfg0'", {"target": "AMD_AIE2_Nx4_Overlay"}),
        ("/bitwidth: 16 bits: the DPU", {"bitwidth": 16}),
    ]
    for told, given in refused:
        with pytest.raises(InvalidConfigError, match=told):
            recipe(tmp_path, **given)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    for name, told in (("none.json", "there is no quant_config_file"), ("bad.json", "is not JSON")):
        with pytest.raises(InvalidConfigError, match=told):
            make_recipe(NETWORK, target=None, bitwidth=None, quant_config_file=tmp_path / name)
