"""Every key of Quark's by itself: honoured, noted or refused, with its own pointer."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.quark import Translation, read_config, translate
from service.quark.option import Option
from service.quark.registry import FIELD_ALIASES, FIELD_OPTIONS, FIELDS, OPTIONS
from tests.support.each import each
from tests.unit.quark.comparing import extra, notes, problems

BASE = {"include_cle": False}
# Configs in which an option has something to act on.
PERCENTILE = {"calibrate_method": "CalibrationMethod.Percentile"}
LAYERWISE = {"calibrate_method": "LayerWiseMethod.LayerWisePercentile"}
ENTROPY = {"calibrate_method": "CalibrationMethod.Entropy"}
MIN_MSE = {"calibrate_method": "PowerOfTwoMethod.MinMSE"}
NPU = {**MIN_MSE, "enable_npu_cnn": True}
TRANSFORMER = {"enable_npu_transformer": True}
EXTENDED = {"quant_format": "ExtendedQuantFormat.QDQ"}
EQUALIZED = {"include_cle": True}
SMOOTH = {"include_sq": True}
FINETUNED = {"include_fast_ft": True}
CLE = "algorithms.cross_layer_equalization"
AVERAGE = extra(CalibMovingAverage=True)
RANDOM = extra(UseRandomData=True)
NBITS = extra(UseMatMulNBits=True)
FROM_0_TO_9 = {"minimum": 0, "maximum": 9}
MIXED = {"include_auto_mp": True}
MIXING = "algorithms.mixed_precision"
BLOCKS = {"activation_type": "ExtendedQuantType.QBFP", "weight_type": "ExtendedQuantType.QBFP"}
MICRO = {"activation_type": "ExtendedQuantType.QMX", "weight_type": "ExtendedQuantType.QMX"}


def document(context: dict[str, Any], **options: Any) -> dict[str, Any]:
    extra = {**context.get("extra_options", {}), **options}
    return {**BASE, **context, "extra_options": extra}


def at(config: Any, path: str) -> Any:
    """What stands at ``path``; an algorithm is found by its method."""
    for part in path.split("."):
        if isinstance(config, list):
            config = next((entry for entry in config if isinstance(entry, dict) and entry.get("method") == part), None)
        else:
            config = config.get(part) if isinstance(config, dict) else None
    return config


HONOURED: list[tuple[dict[str, Any], str, Any, str, Any]] = [
    ({}, "ActivationSymmetric", True, "activation.symmetric", True),
    ({}, "EnableSubgraph", True, "subgraphs", "weights"), ({}, "WeightSymmetric", False, "weight.symmetric", False),
    ({}, "CalibTensorRangeSymmetric", True, "activation.symmetric", True),
    ({}, "CalibMovingAverage", True, "activation.calibration.moving_average", 0.01),
    (AVERAGE, "CalibMovingAverageConstant", 0.2, "activation.calibration.moving_average", 0.2),
    (PERCENTILE, "Percentile", 99.9, "activation.calibration.percentile", 99.9),
    (LAYERWISE, "LWPMetric", "mse", "activation.calibration.metric", "mse"),
    (LAYERWISE, "PercentileCandidates", [99.0, 99.9], "activation.calibration.candidates", [99.0, 99.9]),
    (ENTROPY, "NumBins", 512, "activation.calibration.bins", 512),
    (ENTROPY, "NumQuantizedBins", 64, "activation.calibration.quantized_bins", 64),
    ({}, "WeightCalibrateMethod", "ExtendedCalibrationMethod.MinMSE", "weight.calibration.method", "mse"),
    ({}, "CalibDataSize", 100, "calibration_samples", 100), ({}, "UseRandomData", True, "random_calibration", {}),
    (RANDOM, "RandomDataReaderInputShape", {"x": [1, 3]}, "random_calibration.shapes", {"x": [1, 3]}),
    (RANDOM, "RandomDataReaderInputDataRange", {"x": [0, 9]}, "random_calibration.ranges.x", FROM_0_TO_9),
    (MIXED, "AutoMixprecision", {"ActTargetQuantType": "QUInt8", "L2Target": 0.5}, f"{MIXING}.goal.limit", 0.5),
    ({}, "Int16Scale", True, "weight.scale", "int16"),
    (MIN_MSE, "UsePowerOf2Scale", False, "activation.scale", "float32"),
    (BLOCKS, "BFPAttributes", {"bfp_method": "to_bfp", "bit_width": 16}, "weight.dtype", "bfp16"),
    (BLOCKS, "BFPAttributes", {"bfp_method": "to_bfp_prime", "bit_width": 11}, "activation.dtype", "mx4"),
    (BLOCKS, "BFPAttributes", {"bfp_method": "to_bfp_prime", "bit_width": 16}, "activation.dtype", "mx9"),
    (MICRO, "MXAttributes", {"element_dtype": "fp6_e2m3", "block_size": 32}, "weight.dtype", "mxfp6_e2m3"),
    ({}, "QuantizeBias", False, "bias.dtype", "float32"), ({}, "Int32Bias", False, "bias.dtype", "int8"),
    (NPU, "Int32Bias", True, "bias.dtype", "int32"), (NPU, "Int32Bias", True, "target_options.int8_bias", False),
    ({"weight_type": "QInt16", "activation_type": "QInt16"}, "Int32Bias", False, "bias.dtype", "int16"),
    ({}, "Int16Bias", True, "bias.dtype", "int16"),
    ({}, "OptimizeModel", False, "preparation.fold_batch_norm", False),
    ({}, "SkipPreprocess", True, "preparation.fuse_gelu", False),
    ({}, "ConvertNCHWToNHWC", True, "preparation.nhwc_input", True),
    ({}, "ConvertOpsetVersion", 20, "preparation.opset", 20),
    ({}, "ConvertBNToConv", True, "preparation.batch_norm_to_conv", True),
    (NPU, "ConvertBNToConv", False, "preparation.batch_norm_to_conv", False),
    ({}, "ConvertReduceMeanToGlobalAvgPool", True, "preparation.reduce_mean_to_global_average_pool", True),
    ({}, "SplitLargeKernelPool", True, "preparation.split_large_pooling", True),
    ({}, "ConvertSplitToSlice", True, "preparation.split_to_slice", True),
    ({}, "FuseInstanceNorm", False, "preparation.fuse_instance_norm", False),
    ({}, "FuseL2Norm", False, "preparation.fuse_l2_norm", False),
    ({}, "FuseGelu", False, "preparation.fuse_gelu", False),
    ({}, "FuseLayerNorm", False, "preparation.fuse_layer_norm", False),
    ({}, "FoldBatchNorm", False, "preparation.fold_batch_norm", False),
    (EQUALIZED, "ReplaceClip6Relu", True, "preparation.clip6_to_relu", True),
    ({}, "CopySharedInit", [], "preparation.unshare_initializers", True),
    ({}, "FixShapes", "in:[1,3,2]; a/b : [ 1 ]", "preparation.fixed_shapes", {"in": [1, 3, 2], "a/b": [1]}),
    ({}, "OpTypesToQuantize", ["Conv", "Gemm"], "include", [{"op_type": "Conv"}, {"op_type": "Gemm"}]),
    ({}, "NodesToQuantize", ["n"], "include", [{"node": "n"}]),
    (extra(OutputNodes=["z"]), "InputNodes", ["a"], "include", [{"from_nodes": ["a"], "to_nodes": ["z"]}]),
    ({}, "WeightsOnly", True, "mode", "weights_only"),
    (TRANSFORMER, "MatMulConstBOnly", False, "target_options.matmul_constant_b_only", False),
    ({}, "TensorQuantOverrides", {"t": [{"rmin": 0, "rmax": 9}]}, "tensor_ranges", {"t": FROM_0_TO_9}),
    (MIN_MSE, "EnableNPUCnn", True, "target", "amd_npu_cnn"),
    (NPU, "SimulateDPU", False, "target_options.dpu_average_pool", False),
    (NPU, "NPULimitationCheck", False, "target_options.shift_cut", False),
    (NPU, "ConvertSigmoidToHardSigmoid", False, "target_options.sigmoid_to_hard_sigmoid", False),
    (NPU, "AdjustHardSigmoid", False, "target_options.hard_sigmoid_positions", False),
    (NPU, "AlignConcat", False, "target_options.align_concat", False),
    ({}, "BiasCorrection", True, "algorithms.bias_correction.mode", "full"),
    (EQUALIZED, "CLESteps", -1, f"{CLE}.steps", -1),
    (EQUALIZED, "CLEScaleAppendBias", False, f"{CLE}.scale_append_bias", False),
    (EQUALIZED, "CLEWeightThreshold", 0.25, f"{CLE}.weight_threshold", 0.25),
    (EQUALIZED, "CLEScaleUseThreshold", False, f"{CLE}.scale_use_threshold", False),
    (EQUALIZED, "CLETotalLayerDiffThreshold", 1e-6, f"{CLE}.total_layer_diff_threshold", 1e-6),
    (SMOOTH, "SmoothAlpha", 0.75, "algorithms.smooth_quant.alpha", 0.75),
    (FINETUNED, "FastFinetune", {"NumIterations": 7}, "algorithms.adaround.num_iterations", 7),
    (FINETUNED, "QuantizationPreference", "speed", "algorithms.adaround.early_stop", True),
    (FINETUNED, "QuantizationPreference", "resource_efficiency", "algorithms.adaround.mem_opt_level", 2),
    (FINETUNED, "FastFinetune", {"OptimAlgorithm": "AdaQuant"}, "algorithms.adaquant.num_iterations", 1000),
    ({}, "UseMatMulNBits", True, "weight.kernel", "matmul_nbits"),
    (NBITS, "MatMulNBitsParams", {"GroupSize": 64}, "weight.block_size", 64),
    (NBITS, "MatMulNBitsParams", {"Symmetric": False}, "weight.dtype", "uint4"),
]  # fmt: skip


@each(("context", "name", "value", "path", "ours"), HONOURED)
def test_honoured(context: dict[str, Any], name: str, value: Any, path: str, ours: Any) -> None:
    incomplete = context in (BLOCKS, MICRO) or name in ("InputNodes", "AutoMixprecision")
    without = None if incomplete else translate(document(context))
    translation = translate(document(context, **{name: value}))
    assert at(translation.config, path) == ours
    assert without is None or at(without.config, path) != ours
    assert f"/extra_options/{name}" in translation.honoured
    parse_config(translation.config)


@each(
    ("params", "weight", "algorithms"),
    [
        ({}, {"dtype": "int4", "symmetric": True, "block_size": 128, "accuracy_level": 0}, []),
        ({"Algorithm": "RTN", "AccuracyLevel": 4}, {"dtype": "int4", "accuracy_level": 4}, []),
        ({"Bits": 8, "Symmetric": False}, {"dtype": "uint8", "symmetric": False}, []),
        ({"Bits": 8, "GroupSize": 32}, {"dtype": "int8", "block_size": 32}, []),
        ({"Algorithm": "HQQ"}, {"calibration": {"method": "mse"}}, []),
        ({"Algorithm": "GPTQ"}, {"calibration": {"method": "minmax"}}, [{"method": "adaround", "solver": "moments"}]),
    ],
)
def test_weights_of_few_bits_become_what_was_asked_for(
    params: dict[str, Any], weight: dict[str, Any], algorithms: list[Any]
) -> None:
    config = translate(extra(UseMatMulNBits=True, MatMulNBitsParams=params)).config
    found = parse_config(config)
    told = found.weight.model_dump(mode="json")
    assert (found.mode, told["kernel"], told["granularity"]) == ("weights_only", "matmul_nbits", "per_block")
    assert {key: config["weight"][key] for key in weight} == weight
    assert config["algorithms"] == algorithms


WRONG_BITS = [("Bits", 3), ("Bits", True), ("GroupSize", 24), ("GroupSize", 8), ("AccuracyLevel", 5)]


@each(("key", "value"), [*WRONG_BITS, ("Symmetric", 1), ("Algorithm", "AWQ"), ("Algorithm", None)])
def test_weights_of_few_bits_that_cannot_be_translated_name_their_key(key: str, value: Any) -> None:
    ((pointer, message),) = problems(extra(UseMatMulNBits=True, MatMulNBitsParams={key: value})).items()
    assert pointer == f"/extra_options/MatMulNBitsParams/{key}"
    assert key in message


def test_every_option_is_seen_to_do_what_it_is_said_to() -> None:
    """The table above covers all options that are honoured by setting something."""
    seen = {row[1] for row in HONOURED}
    settled_elsewhere = {
        "Scenario", "MinMSEModePof2Scale", "MinMSEModeFloatScale", "AdjustBiasScale", "OutputNodes", "CLEBalanceMethod",
    }  # fmt: skip
    rules = {n for n, o in OPTIONS.items() if o.ours.startswith("target_options.")}
    missing = {n for n, o in OPTIONS.items() if o.verdict == "honoured"} - seen - settled_elsewhere - rules
    assert not missing


# of every kind, values of it, the last one of another
VALUES: dict[str, tuple[Any, ...]] = {
    "a boolean": (True, False, 1), "an integer": (1, 64, 1000, "5"), "a number": (0.5, 99.0, "99"),
    "a string": ("x", "All", "same", "mae", 5), "a list": ([], ["x"], "Conv"), "an object": ({}, {"x": 1}, ["x"]),
    "anything": ("x", 1, [1], None),
}  # fmt: skip
CONTEXTS = (
    {}, PERCENTILE, LAYERWISE, ENTROPY, MIN_MSE, NPU, TRANSFORMER, EXTENDED, BLOCKS, {"use_dynamic_quant": True},
    EQUALIZED, SMOOTH, FINETUNED, "XINT8", "A16W8", "XINT8_ADAROUND",
)  # fmt: skip


def outcome(data: Any, root: str = "") -> tuple[Translation | None, set[str]]:
    """The translation, if there is one, and every pointer that was accounted for."""
    try:
        found = translate(data, root)
    except InvalidConfigError as error:
        assert error.code == "invalid-config"
        assert error.hint
        return None, {problem.pointer for problem in error.errors}
    return found, {*found.honoured, *(note.pointer for note in found.notes)}


def in_context(context: Any, name: str, value: Any) -> dict[str, Any]:
    if isinstance(context, str):
        return {"preset": context, "extra_options": {name: value}}
    return document({k: v for k, v in context.items() if k != "extra_options"}, **{name: value})


@pytest.mark.slow
@each("name", sorted(OPTIONS))
def test_each_option_alone_is_accounted_for_at_its_own_place(name: str) -> None:
    pointer = f"/config/extra_options/{name}"
    for context, value in itertools.product(CONTEXTS, (*VALUES[OPTIONS[name].kind][:-1], OPTIONS[name].default)):
        found, told = outcome(in_context(context, name, value), "/config")
        if found is not None:
            assert any(where == pointer for where in told), (context, name, value)
            assert name not in str(found.config), "none of Quark's words is left in ours"
        elif context not in (BLOCKS,):  # which is not complete without its attributes
            asked = (context, name, value, told)
            assert any(where == pointer or where.startswith(pointer + "/") for where in told), asked


@each("option", OPTIONS.values())
def test_a_wrong_type_is_refused_at_its_own_place_and_the_default_changes_nothing(option: Option) -> None:
    if option.kind != "anything":
        assert outcome(document({}, **{option.name: VALUES[option.kind][-1]})) == (
            None,
            {f"/extra_options/{option.name}"},
        )
    plain, _ = outcome(document({}))
    found, told = outcome(document({}, **{option.name: option.default}))
    assert found is not None
    assert plain is not None
    ours = {**found.config}
    if option.name != "CalibTensorRangeSymmetric":
        preparation = ours.pop("preparation", {})
        defaults = parse_config({}).preparation.model_dump(mode="json")
        assert {**defaults, **preparation} == defaults
        assert ours == plain.config
    assert f"/extra_options/{option.name}" in told


@each("name", [*FIELDS, *FIELD_OPTIONS, *FIELD_ALIASES])
def test_each_field_alone_is_accounted_for_at_its_own_place(name: str) -> None:
    option = FIELDS.get(FIELD_ALIASES.get(name, name)) or OPTIONS[FIELD_OPTIONS[name]]
    for value in (*VALUES[option.kind][:-1], option.default):
        found, told = outcome({**({} if name == "include_cle" else BASE), name: value})
        assert any(re.fullmatch(rf"/{name}(/\d+)?", where) for where in told), (name, value, told)
    found, told = outcome({**BASE, name: VALUES[option.kind][-1]})
    assert found is None
    assert told == {f"/{name}"}


def test_random_data_is_asked_for_by_its_switch_alone() -> None:
    options = {"RandomDataReaderInputShape": {"x": [1, 3]}, "RandomDataReaderInputDataRange": {"x": [0, 255]}}
    found = read_config({"format": "quark", "config": extra(**options, UseRandomData=True)})
    assert found.random_calibration is not None
    assert found.random_calibration.shapes == {"x": (1, 3)}
    assert found.random_calibration.ranges["x"].model_dump() == {"minimum": 0.0, "maximum": 255.0}
    assert "random_calibration" not in translate(extra(**options)).config
    assert "without UseRandomData" in notes(extra(**options))["/extra_options/RandomDataReaderInputShape"]
    wrong = problems(extra(UseRandomData=True, RandomDataReaderInputDataRange={"x": [0]}))
    assert set(wrong) == {"/extra_options/RandomDataReaderInputDataRange/x"}
