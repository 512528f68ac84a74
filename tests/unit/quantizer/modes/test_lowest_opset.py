"""A model that cannot be lifted is told the lowest opset that the recipe can do with: that one passes, none below."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnx
import onnx.version_converter
import pytest

from service.contracts.errors import InvalidConfigError, UnsupportedModelError
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file

RECIPES: dict[str, dict[str, Any]] = {
    "int8": {},
    "int4": {"weight": {"dtype": "int4"}},
    "int16": {"activation": {"dtype": "int16", "symmetric": True}},
    "blocks": {"preset": "int4_weights"},
}


def net(opset: int) -> onnx.ModelProto:
    text = "(float[N,4] x) => (float[N,4] y) { a = MatMul(x, w) y = Relu(a) }"
    return make_model(text, {"w": normal(4, 4)}, opset=opset)


@pytest.fixture
def no_lifting(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_hint_names_the_lowest_that_works(tmp_path: Path, recipe: str, no_lifting: None) -> None:
    settings = config(**RECIPES[recipe])
    with pytest.raises(UnsupportedModelError) as caught:
        quantize_file(tmp_path, net(12), {"x": normal(16, 4)}, settings)
    (lowest,) = (int(number) for number in re.findall(r"opset (\d+) or later", caught.value.hint or ""))
    assert quantize_file(tmp_path, net(lowest), {"x": normal(16, 4)}, settings).model
    with pytest.raises(UnsupportedModelError) as below:
        quantize_file(tmp_path, net(lowest - 1), {"x": normal(16, 4)}, settings)
    assert f"opset {lowest} or later" in (below.value.hint or "")


@pytest.mark.parametrize(
    ("opset", "asked", "settings"), [(17, 15, {}), (22, 17, RECIPES["int4"]), (17, 18, RECIPES["int4"])]
)
def test_a_wish_that_cannot_be_had_names_one_that_can(
    tmp_path: Path, opset: int, asked: int, settings: dict[str, Any]
) -> None:
    def quantized(wish: int) -> bytes:
        chosen = config(**settings, preparation={"opset": wish})
        return quantize_file(tmp_path, net(opset), {"x": normal(16, 4)}, chosen).model

    with pytest.raises(InvalidConfigError) as caught:
        quantized(asked)
    (lowest,) = (int(number) for number in re.findall(r"Ask for (\d+) or later", caught.value.hint or ""))
    assert quantized(lowest)
    with pytest.raises(InvalidConfigError):
        quantized(lowest - 1)
