"""Quark's automatic mixed precision as ours: the older dict, the class, goals, and functions that only Python has."""

from __future__ import annotations

from typing import Any

import pytest

from quantmill.quark.preset_documents import qconfig, tensor
from service.contracts.config import parse_config
from service.quark import read_config, translate
from tests.support.each import each
from tests.unit.quark.comparing import INT8, notes, problems

INT16 = tensor("Int16", method="MinMax")
MIXING = "/extra_options/AutoMixprecision"
TARGETS = {"ActTargetQuantType": "QuantType.QInt8", "WeightTargetQuantType": "QuantType.QInt8"}

L2 = {**TARGETS, "L2Target": 1}


def legacy(mixing: Any, **fields: Any) -> dict[str, Any]:
    options = {"ActivationSymmetric": False, "Int32Bias": False, "AutoMixprecision": mixing}
    return {
        "calibrate_method": "quark.onnx.CalibrationMethod.Percentile",
        "quant_format": "VitisQuantFormat.QDQ",
        "activation_type": "VitisQuantType.QInt16",
        "weight_type": "QuantType.QInt8",
        "include_cle": False,
        "include_auto_mp": True,
        "extra_options": options,
        **fields,
    }


def classes(**fields: Any) -> dict[str, Any]:
    target = {"input_tensors": INT8, "weight": INT8}
    entry = {"name": "auto_mixprecision", "target_layer_config": target, "metric_threshold": 0.25, **fields}
    return {**qconfig(INT16, INT8, {}), "algo_config": [entry]}


def mixing(data: Any) -> Any:
    (found,) = parse_config(translate(data).config).algorithms
    return found


def test_levels_are_the_types_of_the_config_and_the_target_types() -> None:
    data = legacy({**TARGETS, "OutputIndex": 1, "Top1AccTarget": 0.1})
    found = mixing(data)
    assert (found.high.activation.dtype, found.high.weight.dtype) == ("int16", "int8")
    assert (found.low.activation.dtype, found.low.weight.dtype) == ("int8", "int8")
    assert found.low.activation.calibration == found.high.activation.calibration
    assert found.low.activation.calibration.percentile == 99.999
    assert not found.low.activation.symmetric
    assert (found.optimize, found.output_index) == ("speed", 1)
    assert {f"{MIXING}/{key}" for key in (*TARGETS, "OutputIndex", "Top1AccTarget")} <= set(translate(data).honoured)


def test_one_target_type_leaves_the_other_as_it_is_and_both_may_be_of_another_family() -> None:
    data = legacy({"ActTargetQuantType": "QuantType.QUInt8", "L2Target": 0.5}, weight_type="ExtendedQuantType.QInt16")
    found = mixing(data)
    assert (found.low.activation.dtype, found.low.weight.dtype) == ("uint8", "int16")
    found = mixing(legacy({"ActTargetQuantType": "QBFloat16", "WeightTargetQuantType": "QBFloat16", "L2Target": 1}))
    assert (found.low.activation.dtype, found.low.weight.dtype) == ("bfloat16", "bfloat16")


def test_targets_become_goals_and_a_share_of_top1_becomes_points() -> None:
    for key, value, goal, says in (
        ("Top1AccTarget", 0.02, {"kind": "drop", "metric": "top1", "max_drop": 2.0}, "2 points"),
        ("L2Target", 0.3, {"kind": "distance", "metric": "l2", "limit": 0.3}, "relative here"),
    ):
        data = legacy({**TARGETS, key: value})
        assert mixing(data).goal.model_dump() == goal
        assert says in notes(data)[f"{MIXING}/{key}"]


def test_a_function_becomes_a_metric_of_its_own_after_the_declared_ones() -> None:
    data = legacy({**TARGETS, "OutputIndex": 1, "Top1AccTarget": 0.1, "EvaluateFunction": "top1_acc"})
    assert mixing(data).goal.model_dump() == {"kind": "drop", "metric": "top1_acc", "max_drop": 0.1}
    (metric,) = parse_config(translate(data).config).evaluation.metrics
    assert (metric.kind, metric.name, metric.output, metric.facts.better) == ("function", "top1_acc", 1, "higher")
    # a distance function gets both outputs, and less is better
    (metric,) = parse_config(translate(classes(metric_distance_fn="d")).config).evaluation.metrics
    assert (metric.facts.against_float, metric.facts.ideal, metric.facts.better) == (True, 0.0, "lower")
    # metrics beside Quark's config come first
    quark = legacy({**TARGETS, "Top1AccTarget": 0.1, "EvaluateFunction": "mine"})
    config = read_config({"format": "quark", "config": quark, "evaluation": {"metrics": [{"kind": "sqnr"}]}})
    assert [metric.name for metric in config.evaluation.metrics] == ["sqnr", "mine"]
    assert config.evaluation.gate.metric == "sqnr"


@each(
    ("fields", "goal"),
    [
        ({}, {"kind": "distance", "metric": "l2", "limit": 0.25}),
        ({"metric_default": "kl"}, {"kind": "distance", "metric": "kl", "limit": 0.25}),
        ({"metric_default": "cosine"}, {"kind": "distance", "metric": "cosine", "limit": 0.75}),
        ({"metric_default": "sqnr", "metric_threshold": -20}, {"kind": "distance", "metric": "sqnr", "limit": 20.0}),
        ({"metric_default": "psnr", "metric_threshold": -9.5}, {"kind": "distance", "metric": "psnr", "limit": 9.5}),
        ({"metric_evaluate_fn": "f"}, {"kind": "drop", "metric": "f", "max_drop": 0.25}),
        ({"metric_distance_fn": "d"}, {"kind": "drop", "metric": "d", "max_drop": 0.25}),
    ],
)
def test_goals_of_the_class(fields: dict[str, Any], goal: dict[str, Any]) -> None:
    assert mixing(classes(**fields)).goal.model_dump() == goal


def test_quality_begins_with_the_types_of_the_config() -> None:
    fields = {"include_layers": ["fc", "^conv.*"], "exclude_layers": ["last"], "data_size": 32}
    quality = mixing(classes(metric_optimize_object="quality", **fields))
    assert quality.optimize == "quality"
    assert (quality.high.activation.dtype, quality.low.activation.dtype) == ("int8", "int16")
    included = [selector.model_dump(exclude_defaults=True) for selector in quality.include]
    assert included == [{"node": "fc"}, {"regex": "(?:^conv.*).*"}]
    assert [selector.node for selector in quality.exclude] == ["last"]
    assert quality.sensitivity_samples == 32
    assert [selector.op_type for selector in mixing(classes(target_op_type=["Conv"])).include] == ["Conv"]
    assert mixing(classes(target_op_type=["Conv", "ConvTranspose", "Gemm", "MatMul"])).include == ()


def test_a_preset_takes_another_goal() -> None:
    options = {"AutoMixprecision": {"Top1AccTarget": 0.02, "EvaluateFunction": "top1_acc"}}
    found = mixing({"preset": "S16S16_MIXED_S8S8", "extra_options": options})
    plain = mixing("S16S16_MIXED_S8S8")
    assert found.goal.metric == "top1_acc"
    assert (found.high, found.low) == (plain.high, plain.low)


def test_without_a_goal_layers_are_lowered_as_in_the_presets_and_without_the_switch_none() -> None:
    for data, at in (
        (legacy(TARGETS), "/include_auto_mp"),
        (classes(metric_threshold=None), "/algo_config/0"),
        (classes(metric_threshold=0), "/algo_config/0/metric_threshold"),
    ):
        assert mixing(data).goal == mixing("S16S16_MIXED_S8S8").goal
        assert "Quark sets no threshold" in notes(data)[at]
    # without its switch it has no effect
    data = legacy({**TARGETS, "Top1AccTarget": 0.1}, include_auto_mp=False)
    assert parse_config(translate(data).config).algorithms == ()
    assert "without include_auto_mp" in notes(data)[MIXING]


@pytest.mark.parametrize(
    ("data", "pointer", "says"),
    [
        (legacy({}), "/include_auto_mp", "requires the other types"),
        (legacy({**TARGETS, "EvaluateFunction": "f"}), f"{MIXING}/EvaluateFunction", "the acceptable loss"),
        (legacy({**L2, "Top1AccTarget": 1}), "/include_auto_mp", "one goal"),
        (legacy({"ActTargetQuantType": "QInt7", "L2Target": 1}), f"{MIXING}/ActTargetQuantType", "unknown type"),
        (legacy({**L2, "DualQuantNodes": True}), f"{MIXING}/DualQuantNodes", "the same representation"),
        (legacy({**TARGETS, "Top1AccTarget": 1, "EvaluateFunction": "<l>"}), f"{MIXING}/EvaluateFunction", "name of a"),
        (legacy({"ActTargetQuantType": "QInt16", "L2Target": 1}), "/include_auto_mp", "high and low are the same"),
        (
            classes(metric_evaluate_fn="f", metric_threshold=None),
            "/algo_config/0/metric_evaluate_fn",
            "the acceptable loss",
        ),
        (classes(metric_default="mse"), "/algo_config/0/metric_default", "sqnr, psnr, cosine, l2, kl"),
        (classes(target_layer_config=[]), "/algo_config/0/target_layer_config", "a single layer config"),
        (classes(subgraph_json="x.json"), "/algo_config/0/subgraph_json", "cannot be translated"),
        (classes(metric_threshhold=1), "/algo_config/0/metric_threshhold", "did you mean 'metric_threshold'?"),
    ],
)
def test_what_is_refused(data: Any, pointer: str, says: str) -> None:
    found = problems(data)
    assert pointer in found and says in found[pointer], found
