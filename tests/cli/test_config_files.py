"""Recipes in JSON, YAML and TOML; the same in all of them, and errors that point into what was written."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from service.contracts.documents import MAX_BYTES, read_document
from service.contracts.errors import FieldProblem, InvalidConfigError, problem_summary
from worker.commands.recipes import load_recipe

RECIPE: dict[str, Any] = {
    "preset": "int8", "weight": {"granularity": "per_tensor"}, "exclude": [{"node": "conv"}, {"op_type": "Softmax"}],
    "evaluation": {"gate": {"min_sqnr_db": 5.5}}, "algorithms": [],
}  # fmt: skip
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
    other = written(tmp_path, "other.json", WRITTEN["recipe.json"])
    assert load_recipe(None, path).config == load_recipe(None, other).config


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{", "is not a JSON document"),
        ("a.yaml", "a: [1", "is not a YAML document"),
        ("a.yaml", "a: 1\na: 2", "the key 'a' is given twice"),
        ("a.yaml", "a: &b {x: 1, x: 2}\nc: {<<: *b}", "the key 'x' is given twice"),
        ("a.yaml", "c: {<<: {x: 1, x: 2}}", "the key 'x' is given twice"),
        ("a.yaml", "=: 1\n=: 2", "the key '=' is given twice"),
        ("a.yaml", "? !!set {x}\n: 1", "a key is not a string"),
        ("a.yaml", "preset: !!python/object/apply:os.system ['touch canary']", "is not a YAML document"),
        ("a.yaml", "&a [*a]", "contains itself"),
        ("a.yaml", "1: int8", "the key 1 is not a string"),
        ("a.yaml", "a: !!binary aGk=", "a bytes is not allowed in a config"),
        ("a.toml", "preset = ", "is not a TOML document"),
        ("a.toml", "seed = 1979-05-27", "a date is not allowed in a config"),
        ("a.yaml", "[" * 3_000, "is not a YAML document"),
    ],
)
def test_what_is_no_config_is_told_so(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        load_recipe(None, written(tmp_path, name, text))
    assert not Path("canary").exists()


def test_a_few_lines_of_aliases_do_not_become_a_billion_values(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join(['*a' + str(k - 1)] * 10)}]" for k in range(1, 12)]
    with pytest.raises(InvalidConfigError, match="aliases"):
        read_document(written(tmp_path, "bomb.yaml", "\n".join(lines)))


def test_what_is_written_overrides_what_is_merged(tmp_path: Path) -> None:
    text = """
base: &base {dtype: int8, symmetric: true}
same: *base
other: &other {dtype: uint8, granularity: per_tensor}
weight: {<<: *base, dtype: int4}
behind: {dtype: int4, <<: *base}
both: &both {<<: [*base, *other]}
again: {<<: *both, symmetric: false}
"""
    found = read_document(written(tmp_path, "a.yaml", text))
    assert found["same"] == {"dtype": "int8", "symmetric": True}
    assert found["weight"] == found["behind"] == {"dtype": "int4", "symmetric": True}
    assert found["both"] == {"dtype": "int8", "symmetric": True, "granularity": "per_tensor"}
    assert found["again"] == {"dtype": "int8", "symmetric": False, "granularity": "per_tensor"}


def test_a_file_of_another_size_than_any_config_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / "big.yaml").open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(InvalidConfigError, match="larger than"):
        read_document(tmp_path / "big.yaml")


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


@pytest.mark.parametrize(
    ("command", "document", "pointers"),
    [
        (
            "inspect {model}",
            {"format": "quark", "config": {"nodes_to_exclude": ["cnov"]}},
            ["/config/nodes_to_exclude/0"],
        ),
        ("inspect {model}", {"exclude": [{"node": "cnov"}]}, ["/exclude/0"]),
        (
            "evaluate {model} --evaluation {evaluation}",
            {"evaluation": {"metrics": [{"kind": "sqnr"}]}},
            ["/evaluation/metrics/0/kind"],
        ),
        ("quantize {model} --calibration {calibration} --output q.onnx", {"seed": -1}, ["/seed"]),
        (
            "quantize {model} --calibration {calibration} --output q.onnx",
            {"weight": {"dtype": "int9"}, "activaton": {}, "seed": -1},
            ["/weight/dtype", "/activaton", "/seed"],
        ),
    ],
)
def test_commands_point_into_the_file_and_tell_each_fault_once(quantmill, tiny, tmp_path, command, document, pointers):
    written(tmp_path, "own.json", json.dumps(document))
    places = {"model": tiny.model, "evaluation": tiny.evaluation, "calibration": tiny.calibration}
    done = quantmill(*(word.format(**places) for word in command.split()), "--config", "own.json", code=1)
    assert "error[invalid-config]" in done.stderr
    for pointer in pointers:
        assert done.stderr.count(pointer) == 1, done.stderr
    written(tmp_path, "own.yaml", "preset: int8_per_tensor\n")
    assert quantmill("inspect", tiny.model, "--config", "own.yaml").returncode == 0


def test_notes_of_a_translated_config_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "top1.onnx").write_bytes(b"some bytes")
    metric = {"kind": "onnx", "name": "mine", "graph": {"path": "top1.onnx"}}
    quark = {"format": "quark", "config": {"per_channel": True}, "evaluation": {"metrics": [metric]}}
    path = written(tmp_path, "quark.json", json.dumps(quark))
    config = load_recipe(None, path).config
    assert config.weight.granularity == "per_channel"
    assert config.evaluation.metrics[0].graph.base64 == base64.b64encode(b"some bytes").decode()
    assert f"note: {path}: /config: include_cle is not given" in capsys.readouterr().err


def test_what_the_contract_refuses_is_told_of_the_key_in_the_file(tmp_path: Path) -> None:
    quark = {"calibrate_method": "CalibrationMethod.Percentile", "extra_options": {"Percentile": 40}}
    with pytest.raises(InvalidConfigError) as caught:
        load_recipe(None, written(tmp_path, "quark.json", json.dumps({"format": "quark", "config": quark})))
    assert [problem.pointer for problem in caught.value.errors] == ["/config/extra_options/Percentile"]
    assert caught.value.detail.startswith("/config/extra_options/Percentile: ")
