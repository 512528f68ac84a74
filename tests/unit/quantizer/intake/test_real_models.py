"""The real models: accepted with the facts that their publishers state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.intake.loading import load_model

pytestmark = DATA_MARKS


REFUSED = {"sklearn_randomforest", "superres_prepost_op18"}


def zoo() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((required_data_dir() / "zoo" / "meta.json").read_text())
    return facts


CHOSEN = ["derived_resnet20_loop", "derived_resnet32_external", "derived_resnet32_ort_qdq", "point_history_lstm"]


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_models_are_accepted_with_their_facts(name: str) -> None:
    check_facts(name)


@pytest.mark.long
def test_all_models_are_accepted_with_their_facts() -> None:
    names = set(zoo()) - REFUSED
    assert set(CHOSEN) < names
    for name in names:
        check_facts(name)


def check_facts(name: str) -> None:
    facts = zoo()[name]
    path = required_data_dir() / "zoo" / facts["file"]
    summary = inspect_model(path, threads=1)
    assert summary.opset == facts["opset"], name
    assert summary.ir_version == facts["ir_version"], name
    assert summary.op_counts == facts["ops"], name
    assert summary.node_count == sum(facts["ops"].values()), name
    assert [(tensor.name, tensor.dtype) for tensor in summary.inputs] == [
        (given["name"], given["dtype"]) for given in facts["inputs"]
    ]
    for tensor, given in zip(summary.inputs, facts["inputs"], strict=True):
        assert tensor.shape is not None
        assert [axis for axis in tensor.shape if isinstance(axis, int)] == [
            axis for axis in given["shape"] if isinstance(axis, int) and axis >= 0
        ]
    assert len(summary.outputs) == len(facts["outputs"])
    assert summary.parameter_count > 0 or name == "tiny_multi_io"
    assert len(list(load_model(path).graph)) <= summary.node_count
