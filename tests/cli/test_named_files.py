"""Errors of the command line name the file and the option that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.client.errors import RejectedError
from service.contracts.config import parse_config
from service.contracts.errors import DatasetMismatchError, InvalidConfigError, NotOnnxError, StateError, of_role
from service.schedules.times import check_cron, check_zone
from worker.commands.naming import naming_files
from worker.commands.recipes import load_recipe


def test_a_file_that_is_no_model_is_named_in_the_sentence() -> None:
    with pytest.raises(NotOnnxError) as caught, naming_files(Path("/x.zip")):
        raise NotOnnxError("the file is not an ONNX model")
    assert caught.value.detail == "model /x.zip is not an ONNX model"


def test_a_dataset_that_does_not_fit_is_named_with_its_option() -> None:
    named = naming_files(Path("m"), calibration=Path("c.npz"))
    with pytest.raises(DatasetMismatchError) as caught, named, of_role("calibration dataset"):
        raise DatasetMismatchError("input 'x' has no array")
    assert caught.value.where == {"calibration dataset": "c.npz (--calibration)"}


def test_what_a_service_rejects_is_named_by_its_file() -> None:
    problem = NotOnnxError("the file is not an ONNX model", pointer="/files/0").problem()
    with pytest.raises(RejectedError) as caught, naming_files(Path("x.zip"), reference=Path("r.onnx")):
        error = RejectedError(problem)
        error.where["role"] = "reference model"
        raise error
    told = caught.value.problem()
    assert told.detail == "reference model r.onnx (--reference) is not an ONNX model"
    assert (told.where, [one.pointer for one in told.errors]) == ({}, [""])


def test_weights_that_do_not_fit_are_not_told_as_the_model() -> None:
    with pytest.raises(StateError) as caught, naming_files(Path("m.onnx")):
        raise StateError("the file is no state")
    assert (caught.value.detail, caught.value.where) == ("the file is no state", {})


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("c.json", '{"preset": "int8",\n "weight": {"bits": 99}}', ", line 2"),
        ("c.yaml", "algorithms:\n- method: cle\n- method: adaquant\n  steps: 3\n", ", line 2"),
        ("c.toml", "[weight]\nbits = 99\n", ""),
    ],
)
def test_an_error_of_a_config_names_its_file_and_line(tmp_path: Path, name: str, text: str, line: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidConfigError) as caught:
        load_recipe(None, file)
    assert caught.value.where["file"] == f"{file}{line}"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("top5", """must be an object such as {"kind": "top5"}, not 'top5'"""),
        ("accuracy", """such as {"kind": "top1"}, not 'accuracy'; nearest kind: 'accuracy_at_k'"""),
    ],
)
def test_a_metric_given_as_a_word_is_answered_by_its_form(given: str, told: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_config({"evaluation": {"metrics": [given]}})
    assert told in caught.value.detail


def test_a_wrong_preset_is_answered_by_where_presets_are_listed() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_config({"preset": "int9"})
    assert caught.value.hint == "GET /v1/presets lists the presets."


def test_wrong_times_are_answered_by_an_example() -> None:
    with pytest.raises(ValueError, match="0 3"):
        check_cron("nightly")
    with pytest.raises(ValueError, match="Europe/Berlin"):
        check_zone("Berlin")
