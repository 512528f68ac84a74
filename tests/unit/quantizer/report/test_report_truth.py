"""Notes say what is so, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.report import Report
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    data,
    make_model,
    network,
    normal,
    prepare_proto,
    quantize_file,
)
from worker.quantizer.graph.provenance import fates, outline

SELECTED = "include and exclude leave nothing to quantize: the model is returned as it was uploaded"
NOTHING = "nothing in this model can be quantized: the model is returned as it was uploaded"


def softmax_report(folder: Path, **settings: object) -> Report:
    model = make_model("(float[N,4] x) => (float[N,4] y) { [s] y = Softmax<axis=1>(x) }")
    return quantize_file(folder, model, {"x": normal(4, 4)}, config(**settings)).report


@pytest.mark.parametrize(
    "settings",
    [
        {"exclude": [{"op_type": "Conv"}, {"op_type": "MatMul"}, {"op_type": "Add"}]},
        {"include": [{"node": "soft"}]},
    ],
)
def test_the_users_own_selection_is_named_as_the_cause(tmp_path: Path, settings: dict[str, object]) -> None:
    report = quantize_file(tmp_path, network(), data(), config(**settings)).report
    assert SELECTED in report.notes
    assert NOTHING not in report.notes


def test_a_model_without_anything_to_quantize_is_the_cause_whatever_is_selected(tmp_path: Path) -> None:
    for settings in ({}, {"exclude": [{"node": "s"}]}):
        assert NOTHING in softmax_report(tmp_path, **settings).notes


def test_a_model_returned_as_it_was_is_not_called_large_or_slow(tmp_path: Path) -> None:
    notes = softmax_report(tmp_path).notes
    assert not [note for note in notes if "not smaller" in note or "not faster" in note]


@pytest.mark.parametrize(("wanted", "told"), [(100, True), (24, False), (8, False), (None, False)])
def test_more_calibration_samples_than_there_are(tmp_path: Path, wanted: int | None, told: bool) -> None:
    report = quantize_file(tmp_path, network(), data(24), config(calibration_samples=wanted)).report
    note = "calibration_samples is 100, but the dataset holds only 24: all of them were used"
    assert (note in report.notes) is told


def test_an_output_without_figures_is_explained(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,3] y, float[N,4] z) { [fc] y = Gemm(x, w) [log] z = Log(x) }", {"w": normal(4, 3)}
    )
    report = quantize_file(tmp_path, model, {"x": -np.abs(normal(4, 4))}, config()).report
    assert "output 'z' of the float model holds NaN or Inf: its distance has no figure" in report.notes
    assert [output.sqnr_db is None for output in report.fidelity.outputs] == [False, True]


def test_folded_nodes_are_told_with_the_node_that_took_them_in(tmp_path: Path) -> None:
    settings = config(exclude=[{"op_type": "BatchNormalization"}, {"node": "bn"}, {"node": "bias"}])
    report = quantize_file(tmp_path, network(), data(), settings).report
    for note in (
        "exclude op_type 'BatchNormalization' has no effect: node 'bn' was folded into node 'stem' (Conv)",
        "exclude node 'bn' has no effect: the node was folded into node 'stem' (Conv)",
        "exclude node 'bias' has no effect: the node was folded into node 'dense' (Gemm)",
    ):
        assert note in report.notes


def test_the_fate_of_every_node_that_is_gone() -> None:
    model = make_model(
        f"(float[N,3,4,4] x) => (float[N,8,4,4] y) {{ [conv] a = Conv(x, w) {batchnorm_text('a', 'b')} "
        "[scale] c = Mul(b, k) [same] d = Identity(c) [two] t = Add(p, p) [add] e = Add(d, t) [dead] f = Relu(x) "
        "[last] y = Sigmoid(e) }",
        {"w": normal(8, 3, 1, 1), **batchnorm_weights(8), "k": np.float32(2.0), "p": normal(1, 1, 4, 4)},
    )
    before = outline(ir.from_proto(model).graph)
    found = fates(before, prepare_proto(model)[0].graph)
    assert found["bn"] == found["scale"] == "folded into node 'conv' (Conv)"
    assert found["two"] == "computed in advance: its result is a constant"
    assert found["dead"] == "removed: it changes nothing, or nothing needs its result"
    assert found["same"].startswith(("removed", "folded into node 'conv'"))
    assert set(found) == {"bn", "scale", "two", "dead", "same"}
