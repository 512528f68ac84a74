"""The names under which results are downloaded."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.artifacts.naming import model_stem, named, recipe_name
from service.contracts.config import parse_config
from service.contracts.presets import PRESETS
from service.contracts.runner import FILE_PATTERN
from service.jobs.outcome import NewArtifact
from tests.support.each import each


def artifact(kind: str, filename: str) -> NewArtifact:
    return NewArtifact(kind, filename, "application/octet-stream", "0" * 64, 1)


@each(
    ("settings", "name"),
    [
        ({}, "int8"),
        ({"preset": "float16_model"}, "float16_model"),
        ({"evaluation": {"gate": {"min_sqnr_db": 10}}, "seed": 3, "calibration_samples": 8}, "int8"),
        ({"weight": {"granularity": "per_tensor"}}, "int8-custom"),
        ({"target": "tensorrt"}, "int8-tensorrt"),
        ({"target": "tensorrt", "algorithms": []}, "int8-custom-tensorrt"),
    ],
)
def test_the_recipe_is_the_preset_and_what_became_of_it(settings: dict[str, Any], name: str) -> None:
    assert recipe_name(parse_config(settings)) == name


def test_every_preset_gives_a_file_name() -> None:
    for preset in PRESETS:
        name = recipe_name(parse_config({"preset": preset}))
        assert re.fullmatch(FILE_PATTERN, f"net.{name}.onnx") and "custom" not in name


@each(
    ("file", "stem"),
    [
        ("mobilenet_v1_0.75_224.onnx", "mobilenet_v1_0.75_224"),
        ("net.ONNX", "net"),
        ("exported.pt2", "exported"),
        ("C:\\models\\my net.onnx", "my_net"),
        ("../../etc/passwd", "passwd"),
        ("Größe.onnx", "Groe"),
        (".onnx", "model"),
        ("", "model"),
        ("網路.onnx", "model"),
    ],
)
def test_the_model_is_named_by_its_file(file: str, stem: str) -> None:
    assert model_stem(file) == stem


@given(st.text(max_size=300))
def test_any_file_name_gives_a_safe_one(file: str) -> None:
    done = named(artifact("model", "model.onnx"), file, parse_config({"preset": "int8"}))
    assert re.fullmatch(FILE_PATTERN, done.filename)


def test_only_model_and_report_are_renamed() -> None:
    config = parse_config({})
    assert named(artifact("report", "report.json"), "net.onnx", config).filename == "net.int8.report.json"
    other = artifact("sensitivity_json", "sensitivity.json")
    assert named(other, "net.onnx", config) == other
