"""Preparation in the contract: every switch is taken, shapes are judged against the model before any job runs."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.compatibility import check_selected
from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.model import ModelSummary, TensorInfo
from service.contracts.preparation import PreparationSpec, brought_op_types, fixed_inputs

INPUTS = (
    TensorInfo(name="x", dtype="float32", shape=("N", 3, None, None)),
    TensorInfo(name="a/b", dtype="int64", shape=None),
)
MODEL = ModelSummary(
    ir_version=8,
    opset={"ai.onnx": 17},
    producer="",
    inputs=INPUTS,
    outputs=(),
    node_count=1,
    op_counts={"Split": 1},
    parameter_count=0,
    size_bytes=1,
    sha256="0" * 64,
    node_names=("part",),
    prepared_op_types=(),
)


@pytest.mark.parametrize("name", PreparationSpec.model_fields)
def test_every_setting_is_taken(name: str) -> None:
    default = getattr(PreparationSpec(), name)
    other: dict[str, Any] = {"opset": 21, "fixed_shapes": {"x": (1, 3, 8, 8)}}
    settings = parse_config({"preparation": {name: other.get(name, not default)}})
    assert getattr(settings.preparation, name) == other.get(name, not default)


@pytest.mark.parametrize("shape", [[0, 3, 8, 8], [-1, 3, 8, 8], [2**31, 3, 8, 8]])
def test_lengths_out_of_bounds_are_refused(shape: list[int]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_config({"preparation": {"fixed_shapes": {"x": shape}}})
    assert caught.value.errors[0].pointer == "/preparation/fixed_shapes/x/0"


def test_shapes_are_taken_over_by_name() -> None:
    spec = PreparationSpec(fixed_shapes={"a/b": (5,), "x": (2, 3, 8, 9)})
    assert [(tensor.name, tensor.shape) for tensor in fixed_inputs(INPUTS, spec)] == [
        ("x", (2, 3, 8, 9)),
        ("a/b", (5,)),
    ]
    assert fixed_inputs(INPUTS, PreparationSpec()) == INPUTS


def test_every_shape_that_does_not_fit_is_named() -> None:
    spec = PreparationSpec(fixed_shapes={"x": (1, 4, 8, 8), "y~": (1,), "a/b": (1, 2, 3)})
    with pytest.raises(InvalidConfigError) as caught:
        fixed_inputs(INPUTS, spec)
    assert [(problem.pointer, problem.message) for problem in caught.value.errors] == [
        ("/config/preparation/fixed_shapes/x", "input 'x': axis 1 is 3 in the model and cannot become 4"),
        ("/config/preparation/fixed_shapes/y~0", "input 'y~': the model has no such input; it has 'x', 'a/b'"),
    ]


def test_selectors_may_name_what_a_switch_brings_in() -> None:
    selecting = {"exclude": [{"op_type": "Slice"}]}
    check_selected(parse_config({**selecting, "preparation": {"split_to_slice": True}}), MODEL)
    with pytest.raises(InvalidConfigError, match="no operator 'Slice'"):
        check_selected(parse_config(selecting), MODEL)
    assert brought_op_types(PreparationSpec()) == frozenset()
