"""Two models side by side over a dataset: only real samples count, whatever the batch."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from service.contracts.distributions import wilson
from service.contracts.errors import EngineError, UnsupportedModelError
from tests.unit.quantizer.toolbox import Arrays, input_infos, make_model, normal, rng, run_onnx, sqnr_db, write_npz
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.command import evaluated
from worker.quantizer.evaluation.compare import ModelComparison, compare
from worker.quantizer.evaluation.side_by_side import FloatReference
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime.session import Session

WEIGHT = normal(6, 8, scale=0.5)


def classifier(weight: np.ndarray, batch: str = "N") -> onnx.ModelProto:
    return make_model(
        f"(float[{batch},6] x) => (float[{batch},8] y) {{ t = MatMul(x, w) y = Softmax(t) }}", {"w": weight}
    )


def session(model: onnx.ModelProto) -> Session:
    return Session(model.SerializeToString(), threads=1)


def compared(
    reference: onnx.ModelProto,
    twin: onnx.ModelProto,
    arrays: Arrays,
    labels: np.ndarray | None = None,
    **options: object,
) -> ModelComparison:
    held_against = FloatReference(session(reference), ArrayDataset(arrays, labels), input_infos(reference))
    return compare(held_against, session(twin), run=SilentRun(), **options)


def coarse(array: np.ndarray) -> np.ndarray:
    return np.round(array * 3) / np.float32(3)


@pytest.mark.parametrize(("batch", "samples"), [("N", 10), ("1", 10), ("4", 10), ("4", 3), ("16", 10)])
def test_every_sample_counts_once(batch: str, samples: int) -> None:
    x, labels = normal(samples, 6), rng(1).integers(0, 8, samples)
    found = compared(classifier(WEIGHT, batch), classifier(coarse(WEIGHT), batch), {"x": x}, labels)
    expected = run_onnx(classifier(WEIGHT), {"x": x})["y"]
    got = run_onnx(classifier(coarse(WEIGHT)), {"x": x})["y"]
    assert found.fidelity.samples == samples
    assert found.fidelity.sqnr_db == pytest.approx(sqnr_db(expected, got), abs=0.01)
    agreeing = 100 * (expected.argmax(axis=1) == got.argmax(axis=1)).mean()
    assert found.fidelity.top1_agreement == pytest.approx(agreeing, abs=1e-3)
    assert found.float_metrics["top1"] == pytest.approx(100 * (expected.argmax(axis=1) == labels).mean(), abs=1e-3)
    assert found.quantized_metrics["top1"] == pytest.approx(100 * (got.argmax(axis=1) == labels).mean(), abs=1e-3)
    assert found.labels_used
    some = compared(classifier(WEIGHT, batch), classifier(coarse(WEIGHT), batch), {"x": x}, limit=2).fidelity
    assert (some.samples, some.sqnr_db) == (2, pytest.approx(sqnr_db(expected[:2], got[:2]), abs=0.01))


def test_the_worst_output_counts_and_the_first_decides() -> None:
    text = (
        "(float[N,6] x) => (float[N,8] y, float[N,8] z, int64[N] k) { y = MatMul(x, w) z = MatMul(x, v) "
        "k = ArgMax<axis=1, keepdims=0>(y) }"
    )
    reference = make_model(text, {"w": WEIGHT, "v": WEIGHT})
    twin = make_model(text, {"w": WEIGHT, "v": coarse(WEIGHT)})
    found = compared(reference, twin, {"x": normal(20, 6)}).fidelity
    by_name = {output.name: output for output in found.outputs}
    assert list(by_name) == ["y", "z", "k"]
    assert by_name["y"].sqnr_db == 200.0
    assert found.sqnr_db == by_name["z"].sqnr_db < 40
    assert found.cosine == by_name["z"].cosine
    assert found.top1_agreement == 100.0
    assert by_name["k"].sqnr_db is None
    assert by_name["k"].top1_agreement == 100.0


def test_what_is_not_compared_and_a_twin_that_returns_nan() -> None:
    model = make_model("(float[N,6] x) => (float[N,1] y) { y = MatMul(x, w) }", {"w": normal(6, 1)})
    found = compared(model, model, {"x": normal(9, 6)}, np.zeros(9, np.int64))
    assert not found.labels_used
    assert found.float_metrics == found.quantized_metrics == {}
    # outputs whose length depends on the values have no distance
    text = "(float[N,6] x) => (int64[2,K] y) { t = MatMul(x, w) r = Relu(t) y = NonZero(r) }"
    found = compared(make_model(text, {"w": WEIGHT}), make_model(text, {"w": -WEIGHT + 0.3}), {"x": normal(9, 6)})
    assert found.fidelity.sqnr_db is None
    # a twin that returns nan is an error unless both do
    broken = WEIGHT.copy()
    broken[0, 0] = np.nan
    with pytest.raises(EngineError) as caught:
        compared(classifier(WEIGHT), classifier(broken), {"x": normal(9, 6)})
    assert caught.value.where == {"output": "y", "sample": 0}
    assert caught.value.hint
    assert compared(classifier(broken), classifier(broken), {"x": normal(9, 6)}).fidelity.sqnr_db is None


# evaluate: the same figures for files.


def evaluate(folder, model: onnx.ModelProto, arrays: Arrays, reference: onnx.ModelProto | None = None) -> dict:
    onnx.save(model, folder / "model.onnx")
    if reference is not None:
        onnx.save(reference, folder / "reference.onnx")
    source = write_npz(folder / "data.npz", **arrays)
    other = folder / "reference.onnx" if reference is not None else None
    found = evaluated(folder / "model.onnx", source, other, threads=1, run=SilentRun())
    return found.report.to_json_dict()


def test_evaluate_one_model(tmp_path) -> None:
    x, labels = normal(30, 6), rng(1).integers(0, 8, 30)
    found = evaluate(tmp_path, classifier(WEIGHT), {"x": x, "labels": labels})
    right = run_onnx(classifier(WEIGHT), {"x": x})["y"].argmax(axis=1) == labels
    assert found["samples"] == 30
    assert found["model"]["metrics"]["top1"] == pytest.approx(100 * right.mean(), abs=1e-3)
    assert found["model"]["size_bytes"] == (tmp_path / "model.onnx").stat().st_size
    assert found["model"]["latency_ms"] > 0
    assert not {"reference", "fidelity", "latency"} & set(found), "nothing is compared"
    assert (found["kind"], found["verdict"], found["manifest"]["reference_sha256"]) == ("evaluation", "none", None)
    assert [metric["name"] for metric in found["metrics"]] == ["top1", "top5"]
    for metric in found["metrics"]:
        assert not {"reference_interval", "drop", "drop_interval", "p_value", "flips"} & set(metric)
        assert metric["value"] == found["model"]["metrics"][metric["name"]]
        low, high = wilson(round(found["model"]["metrics"][metric["name"]] * 0.3), 30, 0.95)
        told = metric["interval"]["low"], metric["interval"]["high"]
        assert told == pytest.approx((100 * low, 100 * high), abs=1e-4)


def test_evaluate_beside_a_reference_of_the_same_outputs(tmp_path) -> None:
    x, labels = normal(30, 6), rng(1).integers(0, 8, 30)
    arrays = {"x": x, "labels": labels}
    found = evaluate(tmp_path, classifier(coarse(WEIGHT)), arrays, classifier(WEIGHT))
    expected = compared(classifier(WEIGHT), classifier(coarse(WEIGHT)), {"x": x}, labels)
    assert found["fidelity"] == expected.fidelity.model_dump(mode="json")
    assert found["reference"]["metrics"] == expected.float_metrics
    assert found["model"]["metrics"] == expected.quantized_metrics
    # models with other outputs are not compared
    other = make_model("(float[N,6] x) => (float[N,8] scores) { scores = MatMul(x, w) }", {"w": WEIGHT})
    with pytest.raises(UnsupportedModelError) as caught:
        evaluate(tmp_path, classifier(WEIGHT), {"x": normal(4, 6)}, other)
    assert "['y'] and ['scores']" in caught.value.detail
    assert caught.value.hint
