"""Default names of jobs, and recipes in short."""

from __future__ import annotations

import pytest

from service.contracts.algorithms.union import ALGORITHMS
from service.jobs.naming import ALGORITHM_NAMES, default_name, recipe


@pytest.mark.parametrize(
    ("preset", "algorithms", "told"),
    [
        ("xint8", ["cross_layer_equalization"], "xint8 + CLE"),
        ("int8", ["bias_correction"], "int8"),
        ("int8_symmetric", ["bias_correction", "adaround", "adaround"], "int8_symmetric + AdaRound"),
        ("plain", ["smooth_quant", "mixed_precision"], "custom config + SmoothQuant + mixed precision"),
        ("a preset of an older release", ["of_tomorrow"], "a preset of an older release + of_tomorrow"),
        (None, None, "custom config"),
    ],
)
def test_a_recipe_is_the_preset_and_what_was_added(preset: str | None, algorithms: list[str] | None, told: str) -> None:
    assert recipe(preset, algorithms) == told


def test_default_names_tell_what_is_done() -> None:
    assert default_name("quantize", "mobilenet@1", preset="int8", algorithms=[]) == "mobilenet@1, int8"
    assert default_name("evaluate", "mobilenet@1") == "Evaluate mobilenet@1"
    assert default_name("inspect_target", "mobilenet@1") == "Inspect mobilenet@1"


def test_every_algorithm_has_a_short_name() -> None:
    assert set(ALGORITHMS) == set(ALGORITHM_NAMES)
