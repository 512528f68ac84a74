"""Random inputs in place of data: what they are, and what nobody may conclude from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.data_checks import check_data_given
from service.contracts.dataset import RandomCalibration
from service.contracts.errors import CalibrationMissingError, InvalidConfigError
from service.contracts.model import TensorInfo
from service.quark import use_quark_words
from tests.unit.quantizer.toolbox import config, make_model, network, normal, write_npz
from worker.quantizer.data import RandomDataset
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun

X = TensorInfo(name="x", dtype="float32", shape=("n", 3, 4))
IDS = TensorInfo(name="ids", dtype="int64", shape=(2, 5))
GATE_WORDS = ("max_drop", "min_value", "min_sqnr_db")


def read(*inputs: TensorInfo, seed: int = 0, **spec: Any) -> dict[str, np.ndarray]:
    data = RandomDataset(inputs, RandomCalibration.model_validate(spec), seed)
    batches = list(data.batches(inputs, 1))
    assert len(batches) == data.samples
    return {tensor.name: np.stack([batch.feeds[tensor.name] for batch in batches]) for tensor in inputs}


def test_values_lie_in_their_ranges_and_reach_across_them() -> None:
    ranges = {"x": {"minimum": -3, "maximum": 5}, "ids": {"minimum": 7, "maximum": 9}}
    found = read(X, IDS, samples=50, ranges=ranges)
    assert found["x"].shape == (50, 1, 3, 4)
    assert (found["x"].dtype, found["ids"].dtype) == (np.float32, np.int64)
    assert -3 <= found["x"].min() < -2.9
    assert 4.9 < found["x"].max() <= 5
    assert set(found["ids"].reshape(-1)) == {7, 8, 9}


def test_without_ranges_values_lie_between_0_and_1() -> None:
    flag = TensorInfo(name="flag", dtype="bool", shape=())
    found = read(X, IDS, flag, samples=30)
    assert 0 <= found["x"].min() < found["x"].max() <= 1
    assert set(found["ids"].reshape(-1)) == {0, 1}
    assert set(found["flag"]) == {True, False}
    free = TensorInfo(name="x", dtype="float32", shape=("n", 3, "height", "width"))
    assert read(free, shapes={"x": [2, 3, 6, 7]})["x"].shape == (8, 2, 3, 6, 7)


def test_the_seed_decides_and_samples_differ() -> None:
    one, again, other = read(X, seed=1)["x"], read(X, seed=1)["x"], read(X, seed=2)["x"]
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert len(np.unique(one.reshape(len(one), -1), axis=0)) == len(one)
    first = RandomDataset([X], RandomCalibration(), 1)
    assert first.summary.sha256 == RandomDataset([X], RandomCalibration(), 1).summary.sha256
    assert first.summary.sha256 != RandomDataset([X], RandomCalibration(samples=9), 1).summary.sha256


BYTE = TensorInfo(name="x", dtype="uint8", shape=(1,))


@pytest.mark.parametrize(
    ("tensor", "spec", "pointer"),
    [
        (TensorInfo(name="x", dtype="float32", shape=("n", 3, "h", "w")), {}, "shapes"),
        (TensorInfo(name="x", dtype="float32", shape=None), {}, "shapes"),
        (X, {"shapes": {"x": [1, 4, 4]}}, "shapes/x"),
        (X, {"shapes": {"x": [1, 3]}}, "shapes/x"),
        (X, {"shapes": {"y": [1, 3]}}, "shapes/y"),
        (X, {"ranges": {"y": {"minimum": 0, "maximum": 1}}}, "ranges/y"),
        (X, {"ranges": {"x": {"minimum": 1, "maximum": 0}}}, "ranges/x"),
        (IDS, {"ranges": {"ids": {"minimum": 0.2, "maximum": 0.7}}}, "ranges/ids"),
        (BYTE, {"ranges": {"x": {"minimum": 0, "maximum": 256}}}, "ranges/x"),
    ],
)
def test_what_does_not_fit_the_input_is_refused(tensor: TensorInfo, spec: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        RandomDataset([tensor], RandomCalibration.model_validate(spec), 0)
    assert caught.value.errors[0].pointer == f"/config/random_calibration/{pointer}"


def test_no_data_is_an_error_that_names_the_way_out() -> None:
    with pytest.raises(CalibrationMissingError) as caught:
        check_data_given(config(), calibration=False, evaluation=True)
    assert caught.value.errors[0].pointer == "/calibration_dataset_id"
    assert "random_calibration" in (caught.value.hint or "")
    use_quark_words(caught.value)
    assert "UseRandomData" in (caught.value.hint or "")
    check_data_given(config(), calibration=True, evaluation=False)
    check_data_given(config(random_calibration={}), calibration=False, evaluation=False)
    check_data_given(config(preset="int8_dynamic"), calibration=False, evaluation=False)


@pytest.mark.parametrize(
    ("settings", "pointer"),
    [
        *(({"evaluation": {"gate": {word: 1.0}}}, f"evaluation/gate/{word}") for word in GATE_WORDS),
        ({"evaluation": {"metrics": [{"kind": "top1"}]}}, "evaluation/metrics/0"),
        ({"algorithms": [{"method": "autopilot"}]}, "algorithms/0"),
    ],
)
def test_accuracy_is_never_judged_on_random_data(settings: dict[str, Any], pointer: str) -> None:
    recipe = config(random_calibration={}, **settings)
    with pytest.raises(InvalidConfigError) as caught:
        check_data_given(recipe, calibration=False, evaluation=False)
    assert [problem.pointer for problem in caught.value.errors] == [f"/config/{pointer}"]
    check_data_given(recipe, calibration=False, evaluation=True)


def quantized(folder: Path, model: onnx.ModelProto, data: Any = None, **settings: Any) -> Result:
    onnx.save(model, folder / "float.onnx")
    few = {"latency_runs": 1, "layer_samples": 2, **settings.pop("evaluation", {})}
    return quantize(folder / "float.onnx", config(evaluation=few, **settings), None, data, run=SilentRun(), threads=1)


def test_the_report_says_so_loudly_and_the_verdict_claims_nothing(tmp_path: Path) -> None:
    gate = {"gate": {"max_size_bytes": 10**9}}
    report = quantized(tmp_path, network(), random_calibration={"samples": 4}, evaluation=gate).report
    assert report.notes[0].startswith("RANDOM DATA, ACCURACY UNKNOWN")
    assert report.summary.startswith("on random data (accuracy unknown)")
    assert report.fidelity.source == "random"
    assert report.metrics == ()
    assert (report.manifest.calibration_sha256, report.manifest.calibration_preprocessing) == (None, None)
    assert [clause.clause for clause in report.gate] == ["max_size_bytes"]


def test_ranges_follow_the_ranges_that_were_given(tmp_path: Path) -> None:
    model = make_model("(float[N,4] x) => (float[N,3] y) { [fc] y = MatMul(x, w) }", {"w": normal(4, 3)})
    ranges = {"x": {"minimum": -2.0, "maximum": 6.0}}
    report = quantized(tmp_path, model, random_calibration={"samples": 200, "ranges": ranges}).report
    found = report.tensor_ranges["x"]
    assert (found.minimum, found.maximum) == (pytest.approx(-2.0, abs=0.1), pytest.approx(6.0, abs=0.1))
    report = quantized(tmp_path, model, preset="int8_dynamic").report  # takes no ranges, and needs no data
    assert report.notes[0].startswith("RANDOM DATA, ACCURACY UNKNOWN: there was no data")


IMAGE = {"w": normal(4, 3, 3, 3)}
ATTENDED = """e = Gather(table, ids) m = MatMul(e, w) f = Cast<to=1>(mask) u = Unsqueeze(f, last)"""
MADE_UP: dict[str, tuple[str, dict[str, np.ndarray], dict[str, list[int]]]] = {
    "picture": ("(float[N,3,H,W] x) => (float[N,4,C,D] y) { y = Conv(x, w) }", IMAGE, {"x": [1, 3, 224, 224]}),
    "picture of small sides": (
        "(float[N,3,H,W] x) => (float[N,A,B] y) { r = Reshape(x, s) y = MatMul(r, w) }",
        {"s": np.array([1, 3, 4096]), "w": normal(4096, 4)}, {"x": [1, 3, 64, 64]},
    ),
    "channels last, of unknown sizes": (
        "(float[?,?,?,3] x) => (float[N,A,B,4] y) { y = MatMul(x, w) }", {"w": normal(3, 4)}, {"x": [1, 224, 224, 3]},
    ),
    "text": (
        f"(int64[batch,sequence] ids, int64[batch,sequence] mask) => (float[N,S,4] y) {{ {ATTENDED} y = Div(m, u) }}",
        {"table": normal(9, 5), "w": normal(5, 4), "last": np.array([2])}, {"ids": [1, 16], "mask": [1, 16]},
    ),
    "decoder with a cache": (
        "(int64[B,S] ids, int64[B,T] attention_mask, float[B,2,P,4] past_key_values_0) => (float[B,A,K,4] y) { "
        "e = Gather(table, ids) q = MatMul(e, w) r = Reshape(q, s) h = Transpose<perm=[0,2,1,3]>(r) "
        "k = Concat<axis=2>(past_key_values_0, h) f = Cast<to=1>(attention_mask) u = Unsqueeze(f, around) "
        "y = Div(k, u) }",
        {"table": normal(9, 5), "w": normal(5, 8), "s": np.array([0, 0, 2, 4]), "around": np.array([1, 3])},
        {"ids": [1, 16], "attention_mask": [1, 20], "past_key_values_0": [1, 2, 4, 4]},
    ),
    "sound": (
        "(float[N,T] sound) => (float[N,A,4] y) { r = Reshape(sound, s) y = MatMul(r, w) }",
        {"s": np.array([0, -1, 400]), "w": normal(400, 4)}, {"sound": [1, 16_000]},
    ),
    "nothing known": ("(float[] x) => (float[] y) { y = Conv(x, w) }", IMAGE, {"x": [3, 224, 224]}),
}  # fmt: skip


@pytest.mark.parametrize("preset", ["int8_dynamic", "int8_weights"])
@pytest.mark.parametrize("what", MADE_UP)
def test_shapes_that_are_left_open_are_made_up(tmp_path: Path, what: str, preset: str) -> None:
    text, weights, shapes = MADE_UP[what]
    report = quantized(tmp_path, make_model(text, weights), preset=preset).report
    told = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    assert report.notes[1] == f"the model leaves shapes of its inputs open; the random ones have {told}"
    assert report.fidelity.sqnr_db is not None and report.fidelity.sqnr_db > 20, "masks are ones"


def test_where_none_is_found_the_hint_has_the_right_rank(tmp_path: Path) -> None:
    weights = {"s": np.array([1, 7]), "w": normal(7, 4), "table": normal(9, 1)}
    graph = "(int64[N,S] ids) => (float[N,4] y) { e = Gather(table, ids) r = Reshape(e, s) y = MatMul(r, w) }"
    model = make_model(graph, weights)
    with pytest.raises(InvalidConfigError) as caught:
        quantized(tmp_path, model, preset="int8_dynamic")
    assert '{"ids": [1, 16]}' in (caught.value.hint or "")
    given = quantized(tmp_path, model, preset="int8_dynamic", random_calibration={"shapes": {"ids": [1, 7]}})
    assert not any("leaves shapes" in note for note in given.report.notes)


@pytest.mark.slow
def test_given_data_is_measured_and_the_note_says_what_was_random(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "evaluation.npz", x=normal(6, 3, 10, 10), labels=np.arange(6) % 5)
    report = quantized(tmp_path, network(), data, random_calibration={}, evaluation={"gate": {"min_value": 0.0}}).report
    assert (report.fidelity.source, report.verdict) == ("evaluation", "pass")
    assert "ranges are those of random inputs" in report.notes[0]
    report = quantize(tmp_path / "float.onnx", config(random_calibration={}), data, run=SilentRun(), threads=1).report
    assert any("random_calibration was not needed" in note for note in report.notes)
    assert report.fidelity.source == "calibration"
