"""Which names and operators an inspection lists for the selectors of a config."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from service.contracts.errors import UnsupportedModelError
from tests.unit.quantizer.intake.test_intake import inspect, model_of, relu, weight
from worker.quantizer.intake import inspect as intake


def test_the_names_by_which_a_config_may_call_nodes(tmp_path: Path) -> None:
    model = model_of(
        helper.make_node("MatMul", ["x", "w"], ["m"], name="dense"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["y"]),
        weights=[weight("w", 3, 4), weight("b", 4)],
    )
    summary = inspect(tmp_path, model)
    assert summary.node_names == ("dense", "bias", "Relu_2")
    assert summary.prepared_op_types == ("Gemm",)
    assert intake.open_model(tmp_path / "model.onnx").summary.node_names is None


@pytest.mark.parametrize("bound", ["MAX_NODE_NAMES", "MAX_NODE_NAME_CHARACTERS"])
def test_too_many_names_are_not_listed_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(intake, bound, 2)
    summary = inspect(tmp_path, model_of(relu("x", "a", "one"), relu("a", "b", "two"), relu("b", "y", "three")))
    assert (summary.node_count, summary.node_names) == (3, None)


def test_a_model_that_cannot_be_prepared_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise UnsupportedModelError("opset 9 lacks per-axis quantization", opset=9)

    monkeypatch.setattr(intake, "prepare", refuse)
    with pytest.raises(UnsupportedModelError, match="opset 9 lacks per-axis quantization"):
        inspect(tmp_path, model_of(relu()))


def test_a_quantized_model_is_described_but_its_nodes_are_not_listed(tmp_path: Path) -> None:
    scale = onnx.numpy_helper.from_array(np.float32(0.1), "s")
    model = model_of(
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s"], ["y"]),
        weights=[scale],
    )
    summary = inspect(tmp_path, model)
    assert summary.op_counts == {"DequantizeLinear": 1, "QuantizeLinear": 1}
    assert summary.node_names is None
