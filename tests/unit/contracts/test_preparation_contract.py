"""Preparation in the contract: every switch is taken, shapes are judged against the model before any job runs."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.compatibility import check_selected
from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.model import TensorInfo
from service.contracts.preparation import PreparationSpec, brought_op_types, fixed_inputs
from tests.support.each import each
from tests.unit.contracts.refusals import problems
from tests.unit.contracts.test_compatibility import model, tensor

INPUTS = (tensor("x", "float32", "N", 3, None, None), TensorInfo(name="a/b", dtype="int64", shape=None))
MODEL = model(*INPUTS).model_copy(update={"op_counts": {"Split": 1}, "node_names": ("part",), "prepared_op_types": ()})


@each("name", list(PreparationSpec.model_fields))
def test_every_setting_is_taken(name: str) -> None:
    default = getattr(PreparationSpec(), name)
    other: dict[str, Any] = {"opset": 21, "fixed_shapes": {"x": (1, 3, 8, 8)}}
    settings = parse_config({"preparation": {name: other.get(name, not default)}})
    assert getattr(settings.preparation, name) == other.get(name, not default)


@pytest.mark.parametrize("length", [0, -1, 2**31])
def test_lengths_out_of_bounds_are_refused(length: int) -> None:
    found = problems({"preparation": {"fixed_shapes": {"x": [length, 3, 8, 8]}}})
    assert found[0][0] == "/config/preparation/fixed_shapes/x/0"


def test_shapes_are_taken_over_by_name() -> None:
    spec = PreparationSpec(fixed_shapes={"a/b": (5,), "x": (2, 3, 8, 9)})
    assert [(one.name, one.shape) for one in fixed_inputs(INPUTS, spec)] == [
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
