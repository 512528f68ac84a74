"""Quark's algorithms as ours: every parameter in both spellings, their order, and what excludes what."""

from __future__ import annotations

from typing import Any

import pytest

from quantmill.quark.preset_documents import CLASSES, qconfig
from service.contracts.config import parse_config
from service.quark import translate
from service.quark.equalization import PARAMETERS
from service.quark.finetune import DEFAULT_PARAMS, FINETUNE_SETTINGS
from tests.support.each import each
from tests.unit.quark.comparing import INT8, algorithms, notes, problems

# DEFAULT_ADAROUND_PARAMS and DEFAULT_ADAQUANT_PARAMS of Quark's custom_config.py.
FAST = {
    "adaround": {
        "DataSize": 1000,
        "FixedSeed": 1705472343,
        "BatchSize": 2,
        "NumIterations": 1000,
        "LearningRate": 0.1,
        "OptimAlgorithm": "adaround",
        "OptimDevice": "cpu",
        "InferDevice": "cpu",
        "EarlyStop": True,
    },
}
FAST["adaquant"] = {**FAST["adaround"], "LearningRate": 0.00001, "OptimAlgorithm": "adaquant"}

CLE = "cross_layer_equalization"


def finetuned(parameters: Any, **options: Any) -> dict[str, Any]:
    """A QuantizationConfig with this FastFinetune."""
    return {"include_cle": False, "include_fast_ft": True, "extra_options": {"FastFinetune": parameters, **options}}


def fast(**parameters: Any) -> dict[str, Any]:
    return finetuned(parameters)


def classes(*entries: Any, **options: Any) -> dict[str, Any]:
    """A QConfig with this algo_config."""
    return {**qconfig(INT8, INT8, options), "algo_config": list(entries)}


# key of FastFinetune, value, our key, our value; by AdaRound unless the key concerns AdaQuant only.
OF_DESCENT = [
    ("BatchSize", 16, "batch_size", 16), ("NumIterations", 50, "num_iterations", 50),
    ("LearningRate", 0.01, "learning_rate", 0.01),
    ("LRAdjust", [2.0, 0.2], "lr_adjust", {"threshold": 2.0, "learning_rate": 0.2}),
    ("DropRatio", 0.5, "drop_ratio", 0.5), ("RegParam", 0.1, "reg_param", 0.1),
    ("BetaRange", [10, 2], "beta_range", [10, 2]), ("WarmStart", 0.1, "warm_start", 0.1),
]  # fmt: skip
HONOURED = [
    *OF_DESCENT, ("OptimDevice", "cuda:1", "optim_device", "cuda:1"),
    ("InferDevice", "HIP:0", "infer_device", "rocm:0"), ("FixedSeed", 42, "fixed_seed", 42),
    ("DataSize", 64, "data_size", 64), ("DataSize", 10**9, "data_size", None),
    ("EarlyStop", True, "early_stop", True), ("LRAdjust", [], "lr_adjust", None),
    ("TargetOpType", ["Conv", "Gemm"], "target_op_type", ["Conv", "Gemm"]),
    ("SelectiveUpdate", True, "selective_update", True), ("UpdateBias", False, "update_bias", False),
    ("OutputQDQ", True, "output_qdq", True), ("MemOptLevel", 2, "mem_opt_level", 2),
    ("OutputIndex", 1, "output_index", 1),
]  # fmt: skip
BY_OPTION = {setting.option: setting for setting in FINETUNE_SETTINGS}


@each(("key", "value", "ours", "expected"), HONOURED)
def test_parameters_of_finetuning_arrive(key: str, value: Any, ours: str, expected: Any) -> None:
    setting = BY_OPTION[key]
    method = setting.method or "adaround"
    for data, pointer in (
        (fast(OptimAlgorithm=method, **{key: value}), f"/extra_options/FastFinetune/{key}"),
        (classes({"name": method, setting.field: value}), f"/algo_config/0/{setting.field}"),
    ):
        (found,) = algorithms(data)
        assert found["method"] == method
        assert found[ours] == expected
        assert pointer in translate(data).honoured


OTHER_VALUES: dict[str, Any] = {"a boolean": True, "an integer": 3, "a string": "x"}


@each("setting", [s for s in FINETUNE_SETTINGS if s.verdict != "honoured"])
def test_what_is_not_honoured_is_noted_or_refused_with_its_reason(setting: Any) -> None:
    value = OTHER_VALUES[setting.kind]
    at, other = f"/extra_options/FastFinetune/{setting.option}", f"/algo_config/0/{setting.field}"
    asked = fast(**{setting.option: value}), classes({"name": "adaround", setting.field: value})
    told = [problems(data) if setting.verdict == "refused" else notes(data) for data in asked]
    assert setting.why in told[0][at] and setting.option in told[0][at]
    assert setting.why in told[1][other] and setting.field in told[1][other]
    quiet = fast(**{setting.option: setting.default})
    assert at in translate(quiet).honoured and at not in notes(quiet)


@each("setting", FINETUNE_SETTINGS)
def test_a_wrong_type_is_refused_at_its_own_place(setting: Any) -> None:
    wrong: Any = 5 if setting.kind in ("a string", "a list", "a boolean", "anything") else "5"
    if setting.method == "adaquant":
        wrong = "x"
    method = setting.method or "adaround"
    found = problems(fast(OptimAlgorithm=method, **{setting.option: wrong}))
    assert set(found) == {f"/extra_options/FastFinetune/{setting.option}"}


@pytest.mark.parametrize(
    ("parameters", "pointer", "says"),
    [
        ({"OptimDevice": "tpu"}, "OptimDevice", "must be cpu, cuda:0, hip:0 or similar"),
        ({"OptimAlgorithm": "adamax"}, "OptimAlgorithm", "must be adaround or adaquant, not 'adamax'"),
        ({"num_iterations": 5}, "num_iterations", "did you mean 'NumIterations'?"),
        ({"TargetOpType": ["Conv", "Add"]}, "TargetOpType/1", "'Add' is not finetuned"),
        ({"TargetOpType": []}, "TargetOpType", "omit include_fast_ft"),
        ({"LRAdjust": [1.0]}, "LRAdjust", "[threshold, learning rate]"),
        ({"BetaRange": [1]}, "BetaRange", "[first, last]"),
        ({"MemOptLevel": 3}, "MemOptLevel", ""),
        ({"DropRatio": 1.5}, "DropRatio", "must be at most 1"),
        ({"NumIterations": 0}, "NumIterations", "must be at least 1"),
    ],
)
def test_bad_values_of_finetuning(parameters: dict[str, Any], pointer: str, says: str) -> None:
    found = problems(fast(**parameters))
    assert says in found[f"/extra_options/FastFinetune/{pointer}"]


def test_what_is_not_taken_as_it_is_is_noted() -> None:
    for parameters, key, says, device in (
        ({"OptimDevice": "cuda:2,3"}, "OptimDevice", "only the first of the devices", "cuda:2"),
        ({"OptimAlgorithm": "adaquant", "RegParam": 0.5}, "RegParam", "it applies to adaround only", "auto"),
        ({"UpdateBias": True}, "UpdateBias", "it applies to adaquant only", "auto"),
    ):
        data = fast(**parameters)
        assert says in notes(data)[f"/extra_options/FastFinetune/{key}"]
        assert algorithms(data)[0]["optim_device"] == device


def test_what_is_not_given_is_as_in_quark() -> None:
    (rounding,) = algorithms(fast())
    assert (rounding["method"], rounding["solver"]) == ("adaround", "moments")
    common = {"fixed_seed": 1705472343, "batch_size": 1, "num_iterations": 1000, "early_stop": False, "data_size": None}
    assert {key: rounding[key] for key in common} == common
    paper = {"learning_rate": 0.1, "reg_param": 0.01, "beta_range": [20.0, 2.0], "warm_start": 0.2}
    assert {key: rounding[key] for key in paper} == paper
    (adaquant,) = algorithms(fast(OptimAlgorithm="adaquant"))
    assert {key: adaquant[key] for key in common} == common
    assert (adaquant["learning_rate"], adaquant["update_bias"]) == (1e-5, True)
    # the class has other defaults than the dict
    (of_class,) = algorithms(classes({"name": "adaquant"}))
    assert {key: of_class[key] for key in common} == {**common, "num_iterations": 3000}
    assert (of_class["learning_rate"], of_class["update_bias"]) == (1e-5, False)
    # the solver is told
    for data, pointer in ((fast(), "/include_fast_ft"), (classes("adaround"), "/algo_config/0")):
        assert "with solver gradient it is Quark's descent" in notes(data)[pointer]
        assert "accept: if_better" in notes(data)[pointer]


@each(("key", "value"), [row[:2] for row in OF_DESCENT])
def test_numbers_of_ones_own_choose_the_descent_that_they_are_for(key: str, value: Any) -> None:
    data = fast(**{key: value})
    assert algorithms(data)[0]["solver"] == "gradient"
    told = notes(data)
    assert "AdaRound uses gradient descent" in told[f"/extra_options/FastFinetune/{key}"]
    assert "coordinate descent" not in told["/include_fast_ft"]


def test_numbers_that_quark_has_by_default_choose_nothing_and_say_so() -> None:
    """The texts of Quark's documentation write the defaults out."""
    of_class = {"name": "adaround", "batch_size": 1, "num_iterations": 1000, "learning_rate": 0.1}
    for data, at in (
        (fast(BatchSize=1, NumIterations=1000, LearningRate=0.1), "/extra_options/FastFinetune/NumIterations"),
        (classes(of_class), "/algo_config/0/num_iterations"),
        (fast(**FAST["adaround"]), "/extra_options/FastFinetune/BatchSize"),
    ):
        (found,) = algorithms(data)
        assert found["solver"] == "moments"
        assert "has no effect with solver moments" in notes(data)[at]


@each("method", ["adaround", "adaquant"])
def test_the_parameters_of_the_presets_go_by_their_names(method: str) -> None:
    name = f"DEFAULT_{method.upper()}_PARAMS"
    assert DEFAULT_PARAMS[name] == FAST[method]
    for spelled in (name, f"quark.onnx.quantization.config.custom_config.{name}"):
        assert algorithms(finetuned(spelled)) == algorithms(fast(**FAST[method]))
    assert "DEFAULT_ADAROUND_PARAMS" in problems(finetuned("DEFAULT_PARAMS"))["/extra_options/FastFinetune"]


def test_without_its_switch_a_parameter_has_no_effect() -> None:
    switches = {"FastFinetune": "include_fast_ft", "CLESteps": "include_cle", "SmoothAlpha": "include_sq"}
    options = {"FastFinetune": FAST["adaround"], "CLESteps": 5, "SmoothAlpha": 0.1}
    data = {"include_cle": False, "extra_options": options}
    assert algorithms(data) == []
    told = {pointer.removeprefix("/extra_options/"): message for pointer, message in notes(data).items()}
    assert {key: message.split(" without ")[1] for key, message in told.items()} == switches


def test_algorithms_come_in_the_order_in_which_they_have_to_run() -> None:
    wanted = [CLE, "smooth_quant", "bias_correction", "adaquant"]
    data = {**finetuned(FAST["adaquant"], BiasCorrection=True), "include_sq": True, "include_cle": True}
    assert [entry["method"] for entry in algorithms(data)] == wanted
    entries = ["bias_correction", CLASSES["adaquant"], {"name": "smooth_quant"}, {"name": "cle"}]
    assert [entry["method"] for entry in algorithms(classes(*entries))] == wanted


def test_equalization_keeps_quarks_defaults_and_may_replace_clips() -> None:
    for data in ({"include_cle": True}, classes({"name": "cle"}), classes("cle")):
        (found,) = algorithms(data)
        assert (found["steps"], found["scale_use_threshold"], found["weight_threshold"]) == (1, True, 0.5)
        assert found["scale_append_bias"] is True
        assert any("CLESteps -1" in told or "-1 runs until" in told for told in notes(data).values())
    (smooth,) = algorithms({"include_cle": False, "include_sq": True})
    assert smooth["alpha"] == 0.5
    assert algorithms(classes({"name": "cle", "cle_balance_method": "max"})) == algorithms(classes("cle"))
    # replacing clips belongs to equalization
    options = {"extra_options": {"ReplaceClip6Relu": True}}
    alone = {"include_cle": False, **options}
    assert "preparation" not in translate(alone).config
    assert "without include_cle" in notes(alone)["/extra_options/ReplaceClip6Relu"]
    for both in ({"include_cle": True, **options}, classes("cle", ReplaceClip6Relu=True)):
        assert translate(both).config["preparation"]["clip6_to_relu"] is True


VALUES = {"an integer": 9, "a number": 0.25, "a boolean": False}
SHARED = [s for settings in PARAMETERS.values() for s in settings if s.option != "CLEBalanceMethod"]


@each(("option", "field", "value"), [(s.option, s.field, VALUES[s.kind]) for s in SHARED])
def test_fields_of_classes_and_extra_options_say_the_same(option: str, field: str, value: Any) -> None:
    name = "smooth_quant" if option == "SmoothAlpha" else "cle"
    by_field, by_option = classes({"name": name, field: value}), classes(name, **{option: value})
    assert algorithms(by_field) == algorithms(by_option) != algorithms(classes(name))
    assert f"/algo_config/0/{field}" in translate(by_field).honoured
    # given twice, the extra option wins, as in Quark
    assert algorithms(classes({"name": name, field: value}, **{option: value})) == algorithms(by_option)


BFLOAT = {"activation_type": "ExtendedQuantType.QBFloat16", "weight_type": "ExtendedQuantType.QBFloat16"}
FINETUNING, QUANT = "/extra_options/FastFinetune", {"OptimAlgorithm": "adaquant"}
WEIGHTS = {"ActivationSymmetric": True, "WeightsOnly": True}
NPU_CNN = {"calibrate_method": "PowerOfTwoMethod.MinMSE", "enable_npu_cnn": True}


@pytest.mark.parametrize(
    ("data", "pointer", "says"),
    [
        (classes("adaquant", "bias_correction", "adaround"), "/algo_config/2", "both choose"),
        (
            classes("cle", {"name": "cle"}),
            "/algo_config/1",
            "cle is given twice; the first is at /config/algo_config/0",
        ),
        (classes({"name": "adaround", "cle_steps": 3}), "/algo_config/0/cle_steps", "unknown key"),
        (classes("adaround", FastFinetune=QUANT), f"{FINETUNING}/OptimAlgorithm", "algo_config/0 asks for adaround"),
        ({"use_dynamic_quant": True, "include_cle": True}, "", "remove cross_layer_equalization"),
        ({**fast(OptimAlgorithm="adaround"), **BFLOAT}, "/include_fast_ft", "adaround rounds weights to integers"),
        (classes({"name": "cle", "cle_balance_method": "mean"}), "/algo_config/0/cle_balance_method", "must be max"),
        ({"use_dynamic_quant": True, "enable_npu_transformer": True}, "/enable_npu_transformer", "no target rules"),
        ({**NPU_CNN, "extra_options": WEIGHTS}, "/enable_npu_cnn", "mode weights_only has no target rules"),
    ],
)
def test_what_excludes_each_other(data: Any, pointer: str, says: str) -> None:
    found = problems(data)
    assert pointer in found and says in found[pointer], found


def test_a_preference_wins_over_parameters_of_finetuning() -> None:
    parameters = {"OptimAlgorithm": "adaquant", "EarlyStop": True, "UpdateBias": False, "MemOptLevel": 1}

    def found(preference: str) -> dict[str, Any]:
        return algorithms(finetuned(parameters, QuantizationPreference=preference))[0]

    (plain,) = algorithms(fast(**parameters))
    assert found("accuracy") == {**plain, "early_stop": False, "update_bias": True, "output_qdq": True}
    assert found("speed") == {**plain, "mem_opt_level": 0}
    assert found("resource_efficiency") == {**plain, "mem_opt_level": 2}
    idle = {"include_cle": False, "extra_options": {"QuantizationPreference": "accuracy"}}
    assert "without include_fast_ft" in notes(idle)["/extra_options/QuantizationPreference"]
    wrong = problems({"include_cle": False, "extra_options": {"QuantizationPreference": "beauty"}})
    assert "must be accuracy, speed, resource_efficiency" in wrong["/extra_options/QuantizationPreference"]


def test_a_preset_may_be_changed_key_by_key() -> None:
    options = {"FastFinetune": {"NumIterations": 50, "OptimDevice": "cuda:0"}}
    (plain,) = algorithms("XINT8_ADAROUND")
    (found,) = algorithms({"preset": "XINT8_ADAROUND", "extra_options": options})
    assert found == {**plain, "num_iterations": 50, "optim_device": "cuda:0", "solver": "gradient"}
    assert algorithms({"preset": "XINT8_ADAROUND", "include_fast_ft": False}) == []
    more = algorithms({"preset": "XINT8_ADAROUND", "include_cle": True, "extra_options": {"CLESteps": -1}})
    assert [entry["method"] for entry in more] == [CLE, "adaround"]
    assert (more[0]["steps"], more[1]) == (-1, plain)
    whole = {"preset": "XINT8", "include_fast_ft": True, "extra_options": {"FastFinetune": FAST["adaround"]}}
    assert algorithms(whole) == [plain]
    changed = translate({"preset": "XINT8", "nodes_to_exclude": ["n"], "extra_options": {"CalibDataSize": 7}})
    plain_xint8 = parse_config({"preset": "xint8", "exclude": [{"node": "n"}], "calibration_samples": 7})
    assert parse_config(changed.config) == plain_xint8
    other = {"preset": "XINT8_ADAROUND", "extra_options": {"FastFinetune": FAST["adaquant"]}}
    assert algorithms(other) == algorithms("XINT8_ADAQUANT")


def test_all_that_quark_writes_of_a_class_is_read_and_extra_options_win_over_it() -> None:
    """``AdaRoundConfig().to_dict()``: every field, whether given or not."""
    (found,) = algorithms(classes(CLASSES["adaround"], FastFinetune={"NumIterations": 77}))
    assert (found["num_iterations"], found["learning_rate"]) == (77, 0.1)
    whole = {setting.field: setting.default for setting in FINETUNE_SETTINGS}
    whole |= {"num_iterations": 1000, "learning_rate": 0.1, "update_bias": False, "name": "adaround"}
    (short,) = algorithms(classes("adaround"))
    (found,) = algorithms(classes(whole))
    told = {"optim_device": "cpu", "infer_device": "cpu", "mem_opt_level": 1}
    assert found == {**short, **told}
