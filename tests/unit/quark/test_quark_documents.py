"""Whole documents of Quark's: both APIs, the envelope, and what a user reads when something cannot be translated."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantmill.quark.preset_documents import DOCUMENTS, XINT8_TENSOR, qconfig, tensor
from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.quark import read_config, translate, translate_document
from service.quark.equalization import PARAMETERS
from service.quark.finetune import FINETUNE_SETTINGS
from service.quark.registry import FIELD_OPTIONS, FIELDS, OPTIONS
from service.quark.table import quark_page
from service.quark.values import CALIBRATE_METHODS, DATA_TYPES, FORMATS, QUANT_TYPES, SPECS
from tests.support.source import ROOT
from tests.unit.contracts.refusals import json_values, points_into
from tests.unit.quark.comparing import INT8, extra, notes, problems

NPU_CNN = {"enable_npu_cnn": True, "calibrate_method": "PowerOfTwoMethod.MinMSE"}
GROUPS = {**INT8, "quant_granularity": "QuantGranularity.Group"}
BFP, MX = {"activation_type": "QBFP"}, {"activation_type": "QMX"}
WHOLE = {"input_tensors": INT8, "weight": INT8}
GLOBAL = "/global_config/input_tensors"
MX_ATTRIBUTES = "/extra_options/MXAttributes"
OVERRIDES = "/extra_options/TensorQuantOverrides"


@pytest.mark.parametrize(
    ("spelled", "method", "scale"),
    [
        ("onnxruntime.quantization.calibrate.CalibrationMethod.Entropy", "entropy", "float32"),
        ("MinMax", "minmax", "float32"),
        ("LayerWiseMethod.LayerWisePercentile", "layerwise_percentile", "float32"),
        ("vai_q_onnx.PowerOfTwoMethod.MinMSE", "mse", "power_of_two"),
        ("PowerOfTwoMethod.NonOverflow", "non_overflow", "power_of_two"),
        ("Int16Method.MinMax", "minmax", "int16"),
    ],
)
def test_calibration_methods(spelled: str, method: str, scale: str) -> None:
    config = translate({"calibrate_method": spelled}).config
    assert config["activation"]["calibration"]["method"] == method
    assert config["activation"]["scale"] == config["weight"]["scale"] == scale
    assert config["weight"]["calibration"]["method"] == (method if scale == "power_of_two" else "minmax")
    parse_config(config)


def test_types_and_a_misspelling_of_quarks_examples_mean_what_they_say() -> None:
    kinds = {"ExtendedQuantType.QInt16": "int16", "VitisQuantType.QUInt16": "uint16", "QFloat16": "float16"}
    for spelled, dtype in kinds.items():
        assert translate({"activation_type": spelled}).config["activation"]["dtype"] == dtype
    for value in (True, False):
        spelled = translate({"weight_type": "QInt8", **extra(WeightsSymmetric=value)})
        assert spelled.config["weight"]["symmetric"] is value


def layers(input_tensors: Any = INT8, weight: Any = INT8, **changes: Any) -> dict[str, Any]:
    """A QConfig."""
    return {**qconfig(input_tensors, weight, {}), **changes}


@pytest.mark.parametrize(
    ("data", "pointer", "says"),
    [
        ({"calibrate_method": "MinMSSE"}, "/calibrate_method", "PowerOfTwoMethod.MinMSE"),
        ({"activation_type": "CalibMethod.QInt8"}, "/activation_type", "unknown activation_type"),
        ({"weight_type": "QInt32"}, "/weight_type", "int32 cannot be translated as the type of weights"),
        ({"quant_format": "VitisQuantFormat.FixNeuron"}, "/quant_format", "VitisQuantFormat.QDQ"),
        (extra(WeightSymetric=True), "/extra_options/WeightSymetric", "'WeightSymmetric'"),
        (extra(include_cle=True), "/extra_options/include_cle", "belongs next to extra_options"),
        ({"SmoothAlpha": 0.5}, "/SmoothAlpha", "belongs in extra_options"),
        ({"include_rotation": True}, "/include_rotation", "the algorithm rotation is not supported yet"),
        (extra(UseGPTQ=True), "/extra_options/UseGPTQ", "the algorithm gptq is not supported yet"),
        ({"extra_options": []}, "/extra_options", "must be an object"),
        (BFP, "/activation_type", "BFPAttributes"),
        ({**BFP, **extra(BFPAttributes={"axis": 0})}, "/extra_options/BFPAttributes/axis", "must be 1"),
        ({**MX, **extra(MXAttributes={"element_dtype": "fp5"})}, f"{MX_ATTRIBUTES}/element_dtype", "fp8_e5m2"),
        ({"enable_npu_cnn": True}, "/enable_npu_cnn", "power-of-two"),
        ({**NPU_CNN, "per_channel": True}, "/per_channel", "no per_channel"),
        ({**NPU_CNN, **extra(ActivationSymmetric=False)}, "/extra_options/ActivationSymmetric", "symmetric"),
        ({"enable_npu_cnn": True, "enable_npu_transformer": True}, "/enable_npu_transformer", "mutually exclusive"),
        (
            {"optimize_model": True, **extra(OptimizeModel=False)},
            "/extra_options/OptimizeModel",
            "a different value at",
        ),
        ({"input_nodes": ["a"]}, "/input_nodes", "both"),
        (
            {"op_types_to_quantize": ["Conv"], "nodes_to_quantize": ["n"]},
            "/nodes_to_quantize",
            "only one kind of selection",
        ),
        ({"nodes_to_exclude": [5]}, "/nodes_to_exclude/0", "must be a name"),
        ({"nodes_to_exclude": ["^(.*"]}, "/nodes_to_exclude/0", "not a regular expression"),
        ({"nodes_to_exclude": ["^abc"]}, "/nodes_to_exclude/0", "'.*'"),
        (extra(TensorQuantOverrides={"a/b": [{"quant_type": "x"}]}), f"{OVERRIDES}/a~1b/0/quant_type", "overrides"),
        (extra(FixShapes="input=[1]"), "/extra_options/FixShapes", "input:[1,3,224,224]"),
        ([], "", "must be an object"),
        ({"global_quant_config": {}, "x": 1}, "/x", "unknown key"),
        ({"global_quant_config": {"per_channel": 1}}, "/global_quant_config/per_channel", "a boolean"),
        ("XINT9", "", "did you mean 'xint8'?"),
        ({"preset": "XINT8", "weight_type": "QInt8"}, "/weight_type", "give the full config"),
        ({"global_config": {"weight": INT8}}, "/global_config", "input_tensors is missing"),
        ({"global_config": {"input_tensors": INT8}}, "/global_config", "weight is missing"),
        (layers({**INT8, "data_type": "Int9"}), f"{GLOBAL}/data_type", "known: Int8"),
        (layers({**INT8, "scale_type": "x"}), f"{GLOBAL}/scale_type", "ScaleType.Float32"),
        ({"global_config": {**WHOLE, "bias": tensor("Float16")}}, "/global_config/bias", "biases cannot be float16"),
        (layers(weight=GROUPS), "/global_config/weight/quant_granularity", "per_block"),
        (layers(algo_config=[{"name": "clee"}]), "/algo_config/0", "unknown algorithm"),
        (layers(exclude=["n", 7]), "/exclude/1", "must be a name"),
        (layers(**extra(Int8Bias=True)), "/extra_options/Int8Bias", "did you mean"),
        (layers(Percentil=99), "/Percentil", "did you mean 'Percentile'?"),
        # what only the contract knows is told of the key that it comes from
        ({"calibrate_method": "Percentile", **extra(Percentile=40.0)}, "/extra_options/Percentile", ""),
        (extra(CalibDataSize=0), "/extra_options/CalibDataSize", ""),
        (extra(ConvertOpsetVersion=7), "/extra_options/ConvertOpsetVersion", ""),
        (extra(TensorQuantOverrides={"t/u": [{"rmin": "a", "rmax": 1}]}), f"{OVERRIDES}/t~1u/0/rmin", ""),
    ],
)
def test_what_cannot_be_translated_is_named(data: Any, pointer: str, says: str) -> None:
    found = problems(data)
    assert pointer in found and says in found[pointer], found


def test_all_problems_are_told_at_once_and_point_into_the_document_as_it_was_sent() -> None:
    found = problems({"include_rotation": True, "nodes": [], **extra(CryptoMode=True, Percentile="99")})
    places = {"/include_rotation", "/nodes", "/extra_options/CryptoMode", "/extra_options/Percentile"}
    assert set(found) == places
    whole = {"format": "quark", "config": {}}
    for more, pointer in (
        ({"preset": "int8"}, "/preset"),
        ({"config": {"per_chanel": True}}, "/config/per_chanel"),
        ({"seed": -1}, "/seed"),
        ({"evaluation": {"gate": {"max_dropp": 1}}}, "/evaluation/gate/max_dropp"),
    ):
        with pytest.raises(InvalidConfigError) as caught:
            read_config({**whole, **more}, pointer="/c")
        assert [problem.pointer for problem in caught.value.errors] == [f"/c{pointer}"]
    with pytest.raises(InvalidConfigError) as caught:
        read_config({"format": "quark"}, pointer="/c")
    assert [problem.pointer for problem in caught.value.errors] == ["/c"]


def test_options_of_another_method_and_missing_equalization_are_noted() -> None:
    told = notes({"include_cle": False, **extra(Percentile=99.0, CalibWorkerNum=8)})
    assert "it applies to percentile, but the method is minmax" in told["/extra_options/Percentile"]
    assert "no effect here" in told["/extra_options/CalibWorkerNum"]
    assert "include_cle is not given" in notes({})[""]
    assert notes({"include_cle": False}) == {}
    assert notes(qconfig(INT8, INT8, {})) == {}


def test_exclusions() -> None:
    config = translate(
        {
            "nodes_to_exclude": ["/head/Conv", "^/layer1/.*", "^a.*|b.*"],
            "subgraphs_to_exclude": [[["a"], ["b", "c"]], [[["d"], ["e"]]]],
        }
    ).config
    assert config["exclude"] == [
        {"node": "/head/Conv"},
        {"regex": "(?:^/layer1/.*).*"},
        {"regex": ".*(?:^a.*|b.*).*"},
        {"from_nodes": ["a"], "to_nodes": ["b", "c"]},
        {"from_nodes": ["d"], "to_nodes": ["e"]},
    ]
    parse_config(config)


@given(
    pattern=st.sampled_from(["^a.*", "^/l1/.*/conv", "^a.*b", "^a.*|b.*", "^.*x$", "^a.*|^b.*c", "^(?:a|b).*"]),
    name=st.text(st.sampled_from("abcx/l1 conv"), max_size=9),
)
def test_a_pattern_selects_what_quark_selects(pattern: str, name: str) -> None:
    (selector,) = translate({"nodes_to_exclude": [pattern]}).config["exclude"]
    assert bool(re.fullmatch(selector["regex"], name)) == bool(re.search(pattern, name))


def test_layers_of_a_qconfig() -> None:
    int16 = tensor("Int16")
    wide = {"input_tensors": INT8, "weight": int16, "output_tensors": int16, "bias": tensor("Int32")}
    data = layers(
        specific_layer_config=[[wide, ["n", "^/l1/.*"]], [{"weight": tensor("BFP16")}, [[["a"], ["b"]]]]],
        layer_type_config=[[None, ["Softmax", "Add"]], [{"weight": int16, "input_tensors": int16}, ["Gemm"]]],
        exclude=["head"],
        algo_config=[{"name": "bias_correction"}],
    )
    assert translate({"global_config": {**WHOLE, "bias": tensor("Int16")}}).config["bias"] == {"dtype": "int16"}
    config = translate(data).config
    wider = {"dtype": "int16", "symmetric": True}
    assert config["overrides"] == [
        {"match": {"node": "n"}, "activation": wider, "weight": wider, "bias": {"dtype": "int32"}},
        {"match": {"regex": "(?:^/l1/.*).*"}, "activation": wider, "weight": wider, "bias": {"dtype": "int32"}},
        {
            "match": {"from_nodes": ["a"], "to_nodes": ["b"]},
            "weight": {"dtype": "bfp16", "scale": "float32", "calibration": {"method": "minmax"}},
        },
        {"match": {"op_type": "Gemm"}, "input_activation": wider, "weight": wider},
    ]
    assert config["exclude"] == [{"node": "head"}, {"op_type": "Softmax"}, {"op_type": "Add"}]
    assert config["algorithms"] == [{"method": "bias_correction", "mode": "full"}]
    parse_config(config)


def test_a_qconfig_of_spec_names_and_specs_win_over_its_options() -> None:
    short = translate({"global_config": {"activation": "XInt8Spec", "weight": "XInt8Spec"}}).config
    assert short == translate(qconfig(XINT8_TENSOR, XINT8_TENSOR, {})).config
    assert short["target"] == "amd_npu_cnn"
    found = translate(qconfig(INT8, INT8, {"ActivationSymmetric": False, "WeightSymmetric": True}))
    assert found.config["activation"]["symmetric"] is True
    assert [note.pointer for note in found.notes] == ["/extra_options/ActivationSymmetric"]
    assert "/extra_options/WeightSymmetric" in found.honoured


def test_the_envelope() -> None:
    data = {"format": "quark", "config": {"include_cle": False, "per_channel": True}, "seed": 5}
    gate = {"gate": {"max_drop": 1.0}}
    config = read_config({**data, "evaluation": gate})
    assert (config.seed, config.evaluation.gate.max_drop, config.weight.granularity) == (5, 1.0, "per_channel")
    assert config.format == "qdq"
    assert config.algorithms == ()
    ours = {"format": "qoperator", "seed": 5}
    assert translate_document(ours) is None
    assert read_config(ours) == parse_config(ours)


@pytest.mark.slow
def test_the_page_of_the_docs_is_current() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "service.quark"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    page = (ROOT / "docs" / "quark.md").read_text()
    assert made == quark_page() == page, "run: python -m service.quark > docs/quark.md"


words = st.sampled_from([*CALIBRATE_METHODS, *QUANT_TYPES, *FORMATS, *SPECS, *DATA_TYPES, "All", "same", "mae"])
values = st.one_of(st.booleans(), words, st.integers(0, 300), st.floats(0, 101), st.just([]), json_values)
finetunings = st.dictionaries(st.sampled_from([s.option for s in FINETUNE_SETTINGS]), values, max_size=4)
options = st.tuples(
    st.dictionaries(st.sampled_from(sorted(OPTIONS)), values, max_size=6),
    st.fixed_dictionaries({}, optional={"FastFinetune": finetunings}),
).map(lambda pair: {**pair[0], **pair[1]})
tensors = st.fixed_dictionaries(
    {"data_type": st.sampled_from(sorted(DATA_TYPES))},
    optional={"symmetric": st.booleans(), "scale_type": st.sampled_from(["ScaleType.PowerOf2", "Int16"])},
)
some_layers = st.fixed_dictionaries(
    {},
    optional={
        key: tensors | st.sampled_from(sorted(SPECS)) | json_values for key in ("input_tensors", "weight", "bias")
    },
)
names = st.lists(st.text(max_size=4) | json_values, max_size=3)
legacies = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys((*FIELDS, *FIELD_OPTIONS), values),
        "calibrate_method": st.sampled_from(sorted(CALIBRATE_METHODS)),
        "activation_type": st.sampled_from(sorted(QUANT_TYPES)),
        "weight_type": st.sampled_from(sorted(QUANT_TYPES)),
        "nodes_to_exclude": names,
        "extra_options": options | json_values,
    },
)
classes = st.one_of(
    st.fixed_dictionaries(
        {"name": st.sampled_from(names_of_class)},
        optional=dict.fromkeys((setting.field for setting in settings_of_class), values),
    )
    for names_of_class, settings_of_class in (
        (["adaround", "adaquant"], FINETUNE_SETTINGS),
        (["cle"], PARAMETERS["cross_layer_equalization"]),
        (["smooth_quant"], PARAMETERS["smooth_quant"]),
    )
)
qconfigs = st.fixed_dictionaries(
    {"global_config": some_layers},
    optional={
        "exclude": names,
        "layer_type_config": st.lists(st.tuples(st.none() | some_layers, names).map(list), max_size=2) | json_values,
        "specific_layer_config": st.lists(st.tuples(some_layers, names).map(list), max_size=2) | json_values,
        "algo_config": st.lists(classes | st.sampled_from(["bias_correction", "cle", "adaround"]), max_size=3)
        | json_values,
        "extra_options": options,
    },
)
changed = st.tuples(st.sampled_from(sorted(DOCUMENTS)), options).map(
    lambda pair: {"preset": pair[0], "extra_options": pair[1]}
)


@given(
    st.one_of(legacies, qconfigs, changed, json_values, st.dictionaries(st.text(max_size=5), json_values, max_size=3))
)
def test_any_document_is_translated_and_valid_or_refused_with_pointers_into_it(data: Any) -> None:
    data = json.loads(json.dumps(data))
    try:
        config = read_config({"format": "quark", "config": data})
    except InvalidConfigError as error:
        assert error.errors
        for problem in error.errors:
            assert problem.message
            assert points_into({"config": data}, problem.pointer), (data, problem)
    else:
        assert parse_config(json.loads(config.model_dump_json())) == config
