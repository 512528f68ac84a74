"""Recipes in JSON, YAML and TOML; the same in all of them, and errors that point into what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.contracts.errors import FieldProblem, InvalidConfigError, problem_summary
from worker.commands.config_files import MAX_BYTES, read_document
from worker.commands.local import load_config, load_recipe

RECIPE: dict[str, Any] = {
    "preset": "int8",
    "weight": {"granularity": "per_tensor"},
    "exclude": [{"node": "conv"}, {"op_type": "Softmax"}],
    "evaluation": {"gate": {"min_sqnr_db": 5.5}},
    "algorithms": [],
}
WRITTEN = {
    "recipe.json": json.dumps(RECIPE),
    "recipe.yaml": """
preset: int8
weight: {granularity: per_tensor}
exclude:
  - node: conv
  - op_type: Softmax
evaluation:
  gate: {min_sqnr_db: 5.5}
algorithms: []
""",
    "recipe.toml": """
preset = "int8"
algorithms = []
exclude = [{node = "conv"}, {op_type = "Softmax"}]
weight.granularity = "per_tensor"
[evaluation.gate]
min_sqnr_db = 5.5
""",
}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", WRITTEN)
def test_every_format_says_the_same(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, name, WRITTEN[name])
    assert read_document(path) == RECIPE
    assert load_config(None, path) == load_config(None, written(tmp_path, "other.json", WRITTEN["recipe.json"]))


def test_a_quark_config_in_yaml(tmp_path: Path) -> None:
    text = "format: quark\nconfig:\n  per_channel: true\n  include_cle: false\n"
    assert load_config(None, written(tmp_path, "quark.yml", text)).weight.granularity == "per_channel"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "is not a JSON document"),
        ("a.yaml", "a: [1", "is not a YAML document"),
        ("a.yaml", "a: 1\na: 2", "the key 'a' stands twice"),
        ("a.yaml", "a: &b {x: 1, x: 2}\nc: {<<: *b}", "the key 'x' stands twice"),
        ("a.yaml", "c: {<<: {x: 1, x: 2}}", "the key 'x' stands twice"),
        ("a.yaml", "=: 1\n=: 2", "the key '=' stands twice"),
        ("a.yaml", "? !!set {x}\n: 1", "a key is no text"),
        ("a.yaml", "preset: !!python/object/apply:os.system ['touch canary']", "is not a YAML document"),
        ("a.yaml", "&a [*a]", "holds itself"),
        ("a.yaml", "1: int8", "the key 1 is no text"),
        ("a.yaml", "a: !!binary aGk=", "a bytes has no place in a config"),
        ("a.toml", "preset = ", "is not a TOML document"),
        ("a.toml", "seed = 1979-05-27", "a date has no place in a config"),
        ("a.yaml", "[" * 20_000, "is not a YAML document"),
    ],
)
def test_what_is_no_config_is_told_so(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        load_config(None, written(tmp_path, name, text))
    assert not Path("canary").exists()


def test_a_few_lines_of_aliases_do_not_become_a_billion_values(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join(['*a' + str(k - 1)] * 10)}]" for k in range(1, 12)]
    with pytest.raises(InvalidConfigError, match="aliases"):
        read_document(written(tmp_path, "bomb.yaml", "\n".join(lines)))


def test_plain_aliases_are_fine(tmp_path: Path) -> None:
    text = "a: &one {dtype: int8}\nb: *one\nc:\n  <<: *one\n  symmetric: true\n"
    assert read_document(written(tmp_path, "a.yaml", text)) == {
        "a": {"dtype": "int8"}, "b": {"dtype": "int8"}, "c": {"dtype": "int8", "symmetric": True}
    }  # fmt: skip


def test_what_is_written_overrides_what_is_merged(tmp_path: Path) -> None:
    text = """
base: &base {dtype: int8, symmetric: true}
other: &other {dtype: uint8, granularity: per_tensor}
weight: {<<: *base, dtype: int4}
behind: {dtype: int4, <<: *base}
both: &both {<<: [*base, *other]}
again: {<<: *both, symmetric: false}
"""
    found = read_document(written(tmp_path, "a.yaml", text))
    assert found["weight"] == found["behind"] == {"dtype": "int4", "symmetric": True}
    assert found["both"] == {"dtype": "int8", "symmetric": True, "granularity": "per_tensor"}
    assert found["again"] == {"dtype": "int8", "symmetric": False, "granularity": "per_tensor"}


def test_a_file_of_another_size_than_any_config_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "big.yaml").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidConfigError, match="larger than"):
        read_document(tmp_path / "big.yaml")


def test_quantize_and_inspect_take_yaml(quantmill, tiny, tmp_path):
    written(tmp_path, "recipe.yaml", "preset: int8_per_tensor\n")
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--config", "recipe.yaml", "--output", "q.onnx",
        "--report", "r.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "r.json").read_text())["manifest"]["config"]["preset"] == "int8_per_tensor"
    assert quantmill("inspect", tiny.model, "--config", "recipe.yaml").returncode == 0


def test_checks_point_into_the_file(tmp_path: Path) -> None:
    gate = {"evaluation": {"gate": {"min_sqnr_db": 5}}, "random_calibration": {}}
    recipe = load_recipe(None, written(tmp_path, "own.json", json.dumps(gate)))
    error = InvalidConfigError("no", pointer="/config/evaluation/gate/min_sqnr_db")
    with pytest.raises(InvalidConfigError) as caught, recipe.pointing_into_file():
        raise error
    assert caught.value.errors[0].pointer == "/evaluation/gate/min_sqnr_db"


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("/config/weight/granularity", "/config/per_channel"),
        ("/algorithms/0", "/config/include_cle"),
        ("/config/preparation/nothing", "/config"),
        ("/config/evaluation/gate", "/evaluation/gate"),
        ("/calibration_dataset_id", "/calibration_dataset_id"),
    ],
)
def test_checks_of_a_translated_config_point_at_quarks_keys(tmp_path: Path, raised: str, told: str) -> None:
    quark = {"format": "quark", "config": {"per_channel": True, "include_cle": True}, "evaluation": {}}
    recipe = load_recipe(None, written(tmp_path, "quark.json", json.dumps(quark)))
    with pytest.raises(InvalidConfigError) as caught, recipe.pointing_into_file():
        raise InvalidConfigError("no", pointer=raised)
    assert caught.value.errors[0].pointer == told


def test_a_summary_of_problems_is_moved_with_them(tmp_path: Path) -> None:
    recipe = load_recipe(None, written(tmp_path, "own.json", "{}"))
    inside = FieldProblem(pointer="/config/weight", code="no", message="is bad")
    outside = FieldProblem(pointer="", code="no", message="is missing", where={"header": "X"})
    with pytest.raises(InvalidConfigError) as caught, recipe.pointing_into_file():
        raise InvalidConfigError(problem_summary((inside,)), errors=(inside, outside))
    assert [problem.pointer for problem in caught.value.errors] == ["/weight", ""]
    with pytest.raises(InvalidConfigError) as caught, recipe.pointing_into_file():
        raise InvalidConfigError(problem_summary((inside,)), errors=(inside,))
    assert caught.value.detail == "/weight: is bad"


def test_inspect_points_into_the_file(quantmill, tiny, tmp_path):
    quark = {"format": "quark", "config": {"nodes_to_exclude": ["cnov"]}}
    written(tmp_path, "quark.json", json.dumps(quark))
    done = quantmill("inspect", tiny.model, "--config", "quark.json")
    assert done.returncode == 1
    assert "at /config/nodes_to_exclude/0" in done.stderr
    written(tmp_path, "own.json", json.dumps({"exclude": [{"node": "cnov"}]}))
    own = quantmill("inspect", tiny.model, "--config", "own.json")
    assert "at /exclude/0" in own.stderr


def test_evaluate_points_into_the_file(quantmill, tiny, tmp_path):
    written(tmp_path, "own.json", json.dumps({"evaluation": {"metrics": [{"kind": "sqnr"}]}}))
    done = quantmill("evaluate", tiny.model, "--evaluation", tiny.evaluation, "--config", "own.json")
    assert done.returncode == 1
    assert "at /evaluation/metrics/0/kind" in done.stderr


def test_each_fault_of_a_config_is_told_once(quantmill, tiny, tmp_path):
    written(tmp_path, "one.json", json.dumps({"weight": {"dtype": "int9"}}))
    done = quantmill("quantize", tiny.model, "--calibration", tiny.calibration, "--config", "one.json",
                     "--output", "q.onnx")  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("/weight/dtype") == 1
    written(tmp_path, "two.json", json.dumps({"weight": {"dtype": "int9"}, "activaton": {}, "seed": -1}))
    done = quantmill("quantize", tiny.model, "--calibration", tiny.calibration, "--config", "two.json",
                     "--output", "q.onnx")  # fmt: skip
    for pointer in ("/weight/dtype", "/activaton", "/seed"):
        assert done.stderr.count(pointer) == 1, done.stderr
    assert "error[invalid-config]: The quantization config is not valid" in done.stderr
