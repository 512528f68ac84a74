"""The quantization config: presets, resolution, words and pointers of every refusal, and merge patches of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.algorithms import algorithm_contradictions, in_order
from service.contracts.algorithms.union import ALGORITHMS
from service.contracts.config import QuantizationConfig, advised_config, parse_config, patch_between, patched
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import DEFAULT_PRESET, PRESETS
from service.contracts.presets.own import OWN_PRESETS
from tests.support.each import each
from tests.unit.contracts.refusals import contains, json_values, points_into, problems


def some(**optional: Any) -> Any:
    """Objects with some of these keys."""
    return st.fixed_dictionaries({}, optional=optional)


def tagged(tag: str, value: str, **optional: Any) -> Any:
    return st.fixed_dictionaries({tag: st.just(value)}, optional=optional)


names = st.text(min_size=1, max_size=8)
selectors = st.lists(
    st.one_of(names.map(lambda n: {"node": n}), names.map(lambda n: {"op_type": n})), max_size=3, unique_by=str
)
calibrations = st.just({"method": "minmax"}) | tagged(
    "method", "percentile", percentile=st.floats(50.0, 100.0, exclude_min=True)
)
gates = some(
    metric=st.sampled_from(["top1", "top5", "top1_agreement"]),
    max_drop=st.floats(0, 100) | st.none(),
    min_sqnr_db=st.floats(-50, 90),
    max_size_bytes=st.integers(1, 10**12),
)
losses = st.one_of(
    tagged("kind", "cross_entropy", smoothing=st.floats(0, 0.5)),
    st.fixed_dictionaries({"kind": st.just("mse"), "targets": names}, optional={"output": names}),
    tagged("kind", "distillation", tensors=st.lists(names, max_size=3)),
    st.fixed_dictionaries({"kind": st.just("onnx"), "graph": st.just({"model_id": "mdl_1"})}),
)
flip, noise = {"kind": "flip"}, {"kind": "noise", "input": "x"}
trainings = tagged(
    "method",
    "qat",
    losses=st.lists(losses, min_size=1, max_size=8),
    optimizer=some(kind=st.sampled_from(["adam", "adamw", "sgd"])),
    schedule=some(kind=st.sampled_from(["constant", "step", "cosine"])),
    epochs=st.integers(1, 10_000) | st.none(),
    seconds=st.floats(0.1, 1e6) | st.none(),
    augmentations=st.lists(st.sampled_from([flip, noise]), max_size=2, unique_by=str),
    batch_norm=st.sampled_from(["folded", "unfolded"]),
)
configs = some(
    preset=st.sampled_from(sorted(preset.name for preset in OWN_PRESETS)),
    activation=some(dtype=st.sampled_from(["uint8", "int8"]), symmetric=st.booleans(), calibration=calibrations),
    weight=some(granularity=st.sampled_from(["per_tensor", "per_channel"])),
    include=selectors,
    evaluation=some(gate=gates, layer_samples=st.integers(1, 1024)),
    calibration_samples=st.integers(1, 10**6) | st.none(),
    seed=st.integers(0, 2**32 - 1),
)


@given(configs | trainings.map(lambda training: {"algorithms": [training]}))
def test_resolving_a_resolved_config_changes_nothing(given_config: dict[str, Any]) -> None:
    once = parse_config(given_config)
    stored = json.loads(once.model_dump_json())
    assert parse_config(stored) == once
    assert json.loads(parse_config(stored).model_dump_json()) == stored
    for training, resolved in zip(given_config.get("algorithms", ()), stored["algorithms"], strict=False):
        assert set(training) <= set(resolved)


@given(configs)
def test_what_is_given_wins_over_the_preset(given_config: dict[str, Any]) -> None:
    resolved = parse_config(given_config).model_dump()
    defaults = parse_config({"preset": given_config.get("preset", DEFAULT_PRESET)}).model_dump()
    for section in ("activation", "weight"):
        for key, value in given_config.get(section, {}).items():
            if key == "calibration":
                assert resolved[section][key]["method"] == value["method"]
            else:
                assert resolved[section][key] == value
        for key in set(defaults[section]) - set(given_config.get(section, {})):
            assert resolved[section][key] == defaults[section][key]


@each("name", sorted(PRESETS))
def test_presets_resolve_and_say_whom_they_are_for(name: str) -> None:
    config = parse_config({"preset": name})
    assert config.preset == name
    assert PRESETS[name].description
    assert contains(json.loads(config.model_dump_json()), PRESETS[name].settings)
    assert parse_config({}) == parse_config({"preset": DEFAULT_PRESET})


def test_another_calibration_method_replaces_the_presets_whole() -> None:
    for calibration in ({"method": "minmax"}, {"method": "percentile", "percentile": 99.999}):
        config = parse_config({"preset": "int8_percentile", **calibrated(method=calibration["method"])})
        assert contains(config.activation.calibration.model_dump(), calibration)


CALIBRATION = "/activation/calibration"


def calibrated(**settings: Any) -> dict[str, Any]:
    return {"activation": {"calibration": settings}}


def gate(**clauses: Any) -> dict[str, Any]:
    return {"evaluation": {"gate": clauses}}


def methods(*names_of: Any) -> dict[str, Any]:
    return {"algorithms": [{"method": name} for name in names_of]}


@pytest.mark.parametrize(
    ("config", "pointer", "says"),
    [
        ({"presett": "int8"}, "/presett", "unknown key 'presett'; did you mean 'preset'?"),
        ({"gate": {}}, "/gate", "unknown key 'gate'; did you mean 'evaluation.gate'?"),
        ({"calibration": {}}, "/calibration", "did you mean 'activation.calibration' or "),
        ({"max_drop": 1}, "/max_drop", "unknown key 'max_drop'; did you mean 'evaluation.gate.max_drop'?"),
        ({"zzz": 1}, "/zzz", "unknown key 'zzz'; valid keys: activation, "),
        (calibrated(method="minmax", percentile=99), f"{CALIBRATION}/percentile", "'percentile'; valid keys: method"),
        (calibrated(method="kl"), f"{CALIBRATION}/method", "unknown method 'kl'; known: minmax, percentile, "),
        ({"a/b~c": 1}, "/a~1b~0c", "unknown key 'a/b~c'"),
        ({"preset": "int9"}, "/preset", "unknown preset 'int9'; did you mean 'int8'?"),
        ({"activation": {"dtype": "int2"}}, "/activation/dtype", "'uint8', 'int8'"),
        ({"seed": -1}, "/seed", "must be at least 0"),
        ({"calibration_samples": 0}, "/calibration_samples", "must be at least 1"),
        (gate(max_drop=101), "/evaluation/gate/max_drop", "must be at most 100"),
        (gate(min_sqnr_db=float("nan")), "/evaluation/gate/min_sqnr_db", "finite"),
        (calibrated(method="percentile", percentile=50), f"{CALIBRATION}/percentile", "greater than 50"),
        ({"include": [{"node": "a"}], "exclude": [{"node": "b"}, {"node": "a"}]}, "/exclude/1", "{'node': 'a'} is in"),
        (methods("bias_correctoin"), "/algorithms/0/method", "did you mean 'bias_correction'?"),
        ({"algorithms": [7]}, "/algorithms/0", "must be an object"),
        ({"schema_version": 2}, "/schema_version", "1"),
        (None, "", "must be an object"),
        ({"format": "quark", "config": {}}, "/format", ""),
        ({"weight": {"dtype": "int2", "reduce_range": True}}, "/weight", "leaves int2 no values but 0"),
    ],
)
def test_refusals_point_at_the_field_and_name_the_way_out(config: Any, pointer: str, says: str) -> None:
    found = problems(config)
    assert any(where == f"/config{pointer}" and says in message for where, message in found), found


CLE, SMOOTH, CORRECT = "cross_layer_equalization", "smooth_quant", "bias_correction"


@pytest.mark.parametrize(
    ("chosen", "place", "says"),
    [
        ([CORRECT, "adaquant", "adaround"], 2, "adaround and adaquant both choose integers"),
        ([CORRECT, CLE], 1, f"discard the biases that {CORRECT} has corrected; the right order is {CLE}, {CORRECT}"),
        (["adaround", CLE], 1, f"discard the integers that adaround has chosen; the right order is {CLE}, adaround"),
        ([CLE, "adaquant", CORRECT, SMOOTH], 3, f"the right order is {CLE}, {SMOOTH}, {CORRECT}, adaquant"),
        (["adaround", "adaround"], 1, "adaround occurs twice"),
        (["adaround", "autopilot"], 1, "autopilot would discard the integers that adaround has chosen"),
        (["autopilot", "bias_correction", "adaquant", CLE], 3, "discard the recipe that autopilot has chosen"),
        (["qat", CLE], 1, f"{CLE} would discard the weights and scales that qat has trained"),
        (["qat", "autopilot"], 1, "the right order is autopilot, qat"),
        ([CLE, "qat", "adaround"], 2, f"the right order is {CLE}, adaround, qat"),
    ],
)
def test_algorithms_that_undo_each_other_are_refused(chosen: list[str], place: int, says: str) -> None:
    ((pointer, message),) = problems(methods(*chosen))
    assert pointer == f"/config/algorithms/{place}"
    assert says in message


@given(st.permutations([CLE, SMOOTH, CORRECT, "adaround", "qat"]))
def test_in_order_nothing_is_undone(chosen: list[str]) -> None:
    assert list(algorithm_contradictions(in_order(chosen), ["int8"])) == []
    assert sorted(in_order(chosen)) == sorted(chosen)


def test_the_right_order_is_accepted_and_one_finetuning_too() -> None:
    assert list(algorithm_contradictions(["mixed_precision", CORRECT, "adaround", "qat"], ["int8"])) == []
    trained = (["autopilot", "qat"], [CLE, "adaquant", "qat"], ["qat", "sensitivity"])
    for chosen in ([CLE, SMOOTH, CORRECT, "adaround"], [SMOOTH, CLE], ["adaquant", CORRECT], *trained):
        config = parse_config(methods(*chosen))
        assert [algorithm.method for algorithm in config.algorithms] == chosen
    assert sorted(in_order(list(ALGORITHMS))) == sorted(ALGORITHMS)
    for method, algorithm in ALGORITHMS.items():
        named = {*algorithm.excludes, algorithm.without_integers} - {None}
        assert named <= set(ALGORITHMS) - {method}
        assert algorithm.choice is None or method in algorithm.choice


def test_adaround_needs_integers_and_a_reduced_range_a_bit_to_spare() -> None:
    weights = {"weight": {"dtype": "bfloat16"}}
    ((pointer, message),) = problems({**weights, **methods("adaround")})
    assert pointer == "/config/algorithms/0"
    assert "they are bfloat16; adaquant can do it" in message
    parse_config({**weights, **methods("adaquant")})
    some_integers = {"overrides": [{"match": {"node": "n"}, "weight": {"dtype": "int8"}}]}
    parse_config({**weights, **methods("adaround"), **some_integers})
    parse_config({"weight": {"dtype": "int4", "reduce_range": True}})


@pytest.mark.parametrize("mode", ["dynamic", "weights_only", "float16"])
@pytest.mark.parametrize(
    ("settings", "pointer", "says"),
    [
        ({"target": "qnn"}, "/target", "has no target rules; remove qnn (target: onnxruntime_cpu)"),
        ({"preset": "npu_int8"}, "/target", "remove amd_npu_cnn"),
        ({"target_options": {"x86_without_vnni": True}}, "/target_options", "set weight.reduce_range"),
        ({"target_options": {"float_heads": False}}, "/target_options", "remove float_heads"),
        (methods(CLE), "/algorithms", "remove cross_layer_equalization"),
        ({"tensor_ranges": {"x": {"minimum": 0, "maximum": 1}}}, "/tensor_ranges", "no calibrated ranges"),
        ({"format": "qoperator"}, "/format", "needs mode static"),
    ],
)
def test_what_a_mode_would_not_heed_is_refused(mode: str, settings: dict[str, Any], pointer: str, says: str) -> None:
    found = problems({"mode": mode, **settings})
    assert found[0][0] == f"/config{pointer}"
    assert says in found[0][1]
    parse_config({"mode": mode})


def test_each_mode_runs_the_algorithms_that_have_something_to_do_in_it() -> None:
    for mode, own in (("dynamic", "smooth_quant"), ("weights_only", "awq")):
        assert parse_config({"mode": mode, **methods(own, "bias_correction", "adaround")}).algorithms
        ((_, message),) = problems({"mode": mode, **methods("outlier_channels")})
        training = "qat, " if mode == "weights_only" else ""
        known = f"{own}, bias_correction, adaround, adaquant, {training}selective_precision"
        assert f"mode {mode} runs no algorithms but {known}; remove outlier_channels" in message
    ((_, message),) = problems(methods("awq"))
    assert "mode static runs no algorithms but " in message and "remove awq" in message
    ((_, message),) = problems({"mode": "float16", **methods("adaround")})
    assert "runs no algorithms; remove adaround (algorithms: [])" in message


def test_overrides_and_each_of_several_problems_are_judged_at_their_own_place() -> None:
    wide = {"match": {"node": "n"}, "weight": {"dtype": "int16"}}
    for other in ({"mode": "dynamic"}, {"format": "qoperator"}):
        assert problems({**other, "overrides": [wide]})[0][0] == "/config/overrides/0/weight/dtype"
    # all problems are told at once
    found = problems({"seed": -1, "presett": 1, "weight": {"granularity": "per_row"}}, pointer="")
    assert {where for where, _ in found} == {"/seed", "/presett", "/weight/granularity"}


fields = sorted(QuantizationConfig.model_fields)


@given(st.dictionaries(st.sampled_from(fields) | st.text(max_size=6), json_values, max_size=4))
def test_any_document_is_resolved_or_refused_with_pointers_into_it(document: dict[str, Any]) -> None:
    try:
        config = parse_config(document)
    except InvalidConfigError as error:
        assert error.errors
        for problem in error.errors:
            assert problem.message
            assert points_into(document, problem.pointer), (document, problem)
    else:
        assert parse_config(config.model_dump()) == config


def test_four_bits_are_calibrated_by_least_square_error_unless_somebody_chooses_for_them_or_for_all() -> None:
    narrow, wide, chosen = {"dtype": "uint4"}, {"dtype": "uint8"}, {"calibration": {"method": "minmax"}}
    for settings, method in (
        ({"activation": narrow}, "mse"),
        ({"activation": wide}, "auto"),
        ({"preset": "int8_percentile", "activation": narrow}, "mse"),
        ({"activation": {**narrow, **chosen}}, "minmax"),
    ):
        assert parse_config(settings).activation.calibration.method == method
    override = {"match": {"node": "a"}, "activation": {"dtype": "int4"}, "input_activation": {"dtype": "uint8"}}
    (free,) = parse_config({"overrides": [override]}).overrides
    assert free.activation is not None and free.input_activation is not None
    assert free.activation.calibration.method == "mse"
    assert free.input_activation.calibration.method == "auto"
    (held,) = parse_config({**calibrated(method="percentile"), "overrides": [override]}).overrides
    assert held.activation is not None
    assert held.activation.calibration.method == "percentile"


# --- merge patches: RFC 7396's own examples, and patches of configs ---

# Appendix A of RFC 7396: original, patch, result.
EXAMPLES: list[tuple[Any, Any, Any]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}), ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}), ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}), ({"a": "b"}, ["c"], ["c"]), ({"a": "foo"}, None, None),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}), ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]  # fmt: skip
leaves = st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)
documents = st.recursive(leaves, lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3), max_leaves=8)
objects = st.dictionaries(st.sampled_from("abc"), documents, max_size=3)


@each(("original", "patch", "result"), EXAMPLES)
def test_the_examples_of_the_rfc(original: Any, patch: Any, result: Any) -> None:
    assert patched(original, patch) == result


@given(objects, objects)
def test_a_patch_between_two_documents_makes_one_of_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    patch = patch_between(before, after)
    assert patched(before, patch) == after
    assert (patch == {}) == (before == after)


def test_a_config_takes_a_patch_and_is_whole_again() -> None:
    config = parse_config({"preset": "xint8"})
    advised = advised_config(config, {"algorithms": [{"method": "cross_layer_equalization"}]})
    assert [algorithm.method for algorithm in advised.algorithms] == ["cross_layer_equalization"]
    assert advised.model_copy(update={"algorithms": ()}) == config.model_copy(update={"algorithms": ()})
    before, after = {"calibration": {"method": "minmax", "moving_average": None}}, {"calibration": {"method": "mse"}}
    assert patched(before, patch_between(before, after)) == after, "null is no value that stays behind"
    with pytest.raises(InvalidConfigError, match="granularity"):
        advised_config(parse_config({}), {"weight": {"granularity": "per_galaxy"}})


def test_a_patch_that_names_another_method_needs_no_word_on_the_keys_of_the_old_one() -> None:
    config = parse_config({"preset": "int8"})
    for method in ("minmax", "mse", "percentile"):
        advised = advised_config(config, {"activation": {"calibration": {"method": method}}})
        assert advised.activation.calibration.method == method
        before, after = (one.model_dump(mode="json") for one in (config, advised))
        assert parse_config(patched(before, patch_between(before, after))) == advised
