"""The real models: accepted with the facts that their publishers state, or refused with the right code and words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.contracts.errors import UnsupportedModelError
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.intake.loading import load_model

pytestmark = DATA_MARKS

REFUSED = {
    "sklearn_randomforest": ("value 'output_probability' is a map", {"value": "output_probability"}),
    "superres_prepost_op18": (
        "operator domain 'com.microsoft.extensions'",
        {"node": "pre_process_0", "op_type": "DecodeImage", "domain": "com.microsoft.extensions"},
    ),
}


def zoo() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((required_data_dir() / "zoo" / "meta.json").read_text())
    return facts


CHOSEN = ["derived_resnet20_loop", "derived_resnet32_external", "derived_resnet32_ort_qdq", "point_history_lstm"]


@pytest.mark.parametrize("name", CHOSEN)
def test_chosen_models_are_accepted_with_their_facts(name: str) -> None:
    check_facts(name)


@pytest.mark.long
def test_all_models_are_accepted_with_their_facts() -> None:
    names = set(zoo()) - set(REFUSED)
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


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_zoo_models_that_cannot_run_are_refused(name: str) -> None:
    says, where = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        inspect_model(required_data_dir() / "zoo" / zoo()[name]["file"], threads=1)
    assert caught.value.code == "unsupported-model"
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize("file", ["cifar10/resnet20.onnx", "mnist/mnist_cntk_opset8.onnx", "speech/kwt1.onnx"])
def test_labelled_models_are_accepted(file: str) -> None:
    path = required_data_dir() / file
    summary = inspect_model(path, threads=1)
    assert len(summary.inputs) == len(summary.outputs) == 1
    assert summary.inputs[0].dtype == "float32"
    assert summary.size_bytes == path.stat().st_size
    assert 4 * summary.parameter_count <= summary.size_bytes
