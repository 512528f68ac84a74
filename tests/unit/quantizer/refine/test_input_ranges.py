"""Ranges of network inputs follow what the outputs make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.contracts.algorithms import BiasCorrection
from service.contracts.errors import QuantmillError
from service.contracts.specs import AutoCalibration, MinMaxCalibration, PercentileCalibration, TensorRange
from tests.support.each import each
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.search.benches import chain_of_convolutions, samples
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, sqnr_db
from worker.quantizer.pipeline import Result
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft

CLIPS, FEATURES, LOUD = 40, 8, 0

# One loud feature that the layer hardly looks at, beside seven small ones that make the output.
WEIGHT = normal(FEATURES, 5, seed=1)
WEIGHT[LOUD] *= 1e-4
NET = "(float[N, 8] x) => (float[N, 5] y) { y = MatMul (x, w) }"
TWO = "(float[N, 8] x, float[N, 5] u) => (float[N, 5] y) { m = MatMul (x, w)  n = MatMul (u, v)  y = Add (m, n) }"


def loud() -> np.ndarray:
    samples = normal(CLIPS, FEATURES, seed=2)
    samples[:, LOUD] = 300 + 40 * normal(CLIPS, seed=3)
    return samples


def calibrated(model: onnx.ModelProto, feeds: dict[str, np.ndarray], **settings: Any) -> Draft:
    chosen: dict[str, Any] = {"method": "mse", **settings.pop("calibration", {})}
    types = {"dtype": "int8", "symmetric": True, "scale": "power_of_two", "calibration": chosen}
    made = config(preset="plain", activation={**types, **settings.pop("activation", {})}, algorithms=[], **settings)
    return Bench(model, feeds, BiasCorrection(), made).draft


def half_width(draft: Draft, name: str = "x") -> float:
    found = draft.plan.ranges[name]
    return max(abs(found.minimum), abs(found.maximum))


def by_hand(model: onnx.ModelProto, samples: np.ndarray, exponent: int) -> float:
    """dB at which the float network's output is met if its input is rounded to int8 multiples of 2^exponent."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    step = np.float32(2.0**exponent)
    rounded = np.clip(np.rint(samples / step), -128, 127) * step
    (exact,), (made,) = (session.run(None, {"x": fed.astype(np.float32)}) for fed in (samples, rounded))
    return sqnr_db(exact, made)


def notes_of(draft: Draft) -> list[str]:
    return [note for note in draft.plan_log.notes if note.startswith("input ")]


def test_a_loud_feature_that_nobody_looks_at_does_not_set_the_range() -> None:
    model, samples = make_model(NET, {"w": WEIGHT}), loud()
    draft = calibrated(model, {"x": samples})
    figures = {exponent: by_hand(model, samples, exponent) for exponent in range(-10, 4)}
    chosen = round(np.log2(half_width(draft) / 127.5))
    assert figures[chosen] > max(figures.values()) - 0.5
    assert figures[chosen] > figures[round(np.log2(300 / 127.5))] + 20
    assert len(notes_of(draft)) == 1 and "dB closer" in notes_of(draft)[0]


@each(("dtype", "scale"), [("uint8", "float32"), ("int8", "power_of_two")])
def test_other_grids_follow_too(dtype: str, scale: str) -> None:
    draft = calibrated(
        make_model(NET, {"w": WEIGHT}), {"x": loud()}, activation={"dtype": dtype, "scale": scale, "symmetric": False}
    )
    assert half_width(draft) < 40


def test_each_input_has_a_range_of_its_own_and_one_whose_features_all_count_that_of_least_square_error() -> None:
    samples, other = loud(), normal(CLIPS, 5, seed=5)
    draft = calibrated(make_model(TWO, {"w": WEIGHT, "v": normal(5, 5, seed=4)}), {"x": samples, "u": other})
    assert half_width(draft) < 40
    assert half_width(draft, "u") == 2.0**-5 * 127
    assert len(notes_of(draft)) == 1


def test_what_leaves_the_range_of_an_input_as_it_is() -> None:
    model = make_model(NET, {"w": WEIGHT})
    for method in ("minmax", "non_overflow"):  # they cover everything
        draft = calibrated(model, {"x": loud()}, calibration={"method": method})
        assert half_width(draft) >= 300 and not notes_of(draft)
    text = "(float[N, 8] x) => (int64[N, 1] y) { m = MatMul (x, w)  y = ArgMax <axis = 1> (m) }"
    draft = calibrated(make_model(text, {"w": WEIGHT}), {"x": loud()})
    assert half_width(draft) > 200 and not notes_of(draft), "outputs without floats decide nothing"


def test_a_range_that_was_given_is_kept(tmp_path: Path) -> None:
    given = {"x": {"minimum": -508.0, "maximum": 508.0}}
    settings = config(preset="plain", activation={"calibration": {"method": "mse"}}, algorithms=[])
    held = settings.model_copy(update={"tensor_ranges": {"x": TensorRange(**given["x"])}})
    free, kept = (
        quantize_file(tmp_path, make_model(NET, {"w": WEIGHT}), {"x": loud()}, chosen).report
        for chosen in (settings, held)
    )
    assert kept.tensor_ranges["x"].maximum == 508.0
    assert [any(note.startswith("input ") for note in report.notes) for report in (free, kept)] == [True, False]


CUT, WHOLE = {"method": "percentile", "percentile": 90.0}, {"method": "minmax"}
MATMUL = make_model("(float[N, 8] x) => (float[N, 5] y) { y = MatMul (x, w) }", {"w": normal(8, 5, seed=1)})


def quantized(folder: Path, model: Any, arrays: dict[str, np.ndarray], *candidates: dict[str, Any]) -> Result:
    """By one method, or by the best of several."""
    method = candidates[0] if len(candidates) == 1 else {"method": "auto", "candidates": candidates}
    return quantize_file(folder, model, arrays, config(preset="plain", activation={"calibration": method}))


def test_a_candidate_that_cuts_off_what_counts_is_not_chosen(tmp_path: Path) -> None:
    arrays = {"x": normal(48, 8, seed=2)}
    result, by_name, other = (quantized(tmp_path, MATMUL, arrays, *c) for c in ((CUT, WHOLE), (WHOLE,), (CUT,)))
    assert result.report.manifest.config.activation.calibration == MinMaxCalibration()
    (note,) = [note for note in result.report.notes if note.startswith("calibration auto")]
    assert "minmax was chosen" in note and "percentile 90" in note
    assert by_name.report.fidelity.sqnr_db == result.report.fidelity.sqnr_db > other.report.fidelity.sqnr_db + 3


def test_outliers_that_nobody_needs_are_cut_and_equal_candidates_leave_the_first(tmp_path: Path) -> None:
    x, weight = normal(48, 8, seed=2), normal(8, 5, seed=1)
    x[0, 3], weight[3] = 500.0, 1e-6  # of 48 samples, and the weight behind it is next to 0
    model = make_model("(float[N, 8] x) => (float[N, 5] y) { y = MatMul (x, w) }", {"w": weight})
    narrow, all_of_it = ({"method": "percentile", "percentile": share} for share in (99.0, 100.0))
    result = quantized(tmp_path, model, {"x": x}, WHOLE, narrow)
    assert result.report.manifest.config.activation.calibration == PercentileCalibration(percentile=99.0)
    result = quantized(tmp_path, MATMUL, {"x": normal(48, 8, seed=2)}, all_of_it, WHOLE)
    assert result.report.manifest.config.activation.calibration == PercentileCalibration(percentile=100.0)


def test_the_bytes_are_those_of_the_chosen_method(tmp_path: Path) -> None:
    model, arrays = chain_of_convolutions(3), {"x": samples()["x"]}
    result = quantized(tmp_path, model, arrays, {"method": "auto"})
    chosen = result.report.manifest.config.activation.calibration
    assert chosen in AutoCalibration().candidates
    assert quantized(tmp_path, model, arrays, chosen.model_dump(mode="json")).model == result.model


def test_overrides_are_settled_too(tmp_path: Path) -> None:
    auto = {"method": "auto", "candidates": [CUT, WHOLE]}
    overrides = [{"match": {"node": "conv1"}, "activation": {"dtype": "int8", "symmetric": True, "calibration": auto}}]
    settings = config(preset="plain", overrides=overrides)
    result = quantize_file(tmp_path, chain_of_convolutions(3), {"x": samples()["x"]}, settings)
    (override,) = result.report.manifest.config.overrides
    assert override.activation is not None and override.activation.calibration == MinMaxCalibration()
    assert result.report.manifest.config.activation.calibration == MinMaxCalibration()


def test_candidates_are_methods_and_there_is_one_at_least() -> None:
    for candidates in ([], [{"method": "auto"}], [{"method": "minmax"}] * 9):
        with pytest.raises(QuantmillError):
            config(preset="plain", activation={"calibration": {"method": "auto", "candidates": candidates}})


ONE_SCALE = {"granularity": "per_tensor", "calibration": {"method": "mse"}}
CHANNELS, LOUDER = 8, 30.0


def dead_net(function: str = "Relu", *, dead: tuple[int, ...] = (3,), read_twice: bool = False) -> onnx.ModelProto:
    """A Conv with huge weights in its dead channels, which a bias keeps below 0, in front of ``function``."""
    weight, bias = normal(CHANNELS, 4, 3, 3, seed=1, scale=0.1), np.zeros(CHANNELS, np.float32)
    for channel in dead:
        weight[channel] *= LOUDER
        bias[channel] = -200
    outputs = "float[N, 8, 8, 8] y" + (", float[N, 8, 8, 8] z" if read_twice else "")
    second = "z = Tanh (made)" if read_twice else ""
    text = f"""(float[N, 4, 10, 10] x) => ({outputs}) {{
        made = Conv (x, w, b)
        y = {function}
        {second}
    }}"""
    constants = {"w": weight, "b": bias, "zero": np.float32(0), "six": np.float32(6), "minus": np.float32(-1)}
    used = {name: array for name, array in constants.items() if name in ("w", "b") or name in function}
    return make_model(text, used)


def calibrated_per_tensor(model: onnx.ModelProto, **weight: object) -> Draft:
    settings = config(preset="plain", weight={**ONE_SCALE, **weight}, algorithms=[])
    return Bench(model, {"x": normal(12, 4, 10, 10)}, BiasCorrection(), settings).draft


def silence_of(draft: Draft) -> list[str]:
    return [note for note in draft.plan_log.notes if "0 on all calibration data" in note]


@each("function", ["Relu (made)", "Clip (made, zero, six)"])
def test_a_silent_channel_leaves_the_scale_to_the_others(function: str) -> None:
    draft = calibrated_per_tensor(dead_net(function))
    alone = calibrated_per_tensor(dead_net(function, dead=()))
    weight, other = draft.plan.weights["w"], alone.plan.weights["w"]
    assert draft.plan.silent["w"].tolist() == [channel == 3 for channel in range(CHANNELS)]
    assert weight.quantization.scale <= other.quantization.scale * 1.1
    awake = [channel for channel in range(CHANNELS) if channel != 3]
    original = normal(CHANNELS, 4, 3, 3, seed=1, scale=0.1)
    assert sqnr_db(original[awake], Parameters(draft.graph, draft.plan).weight("w").present[awake]) > 35
    assert len(silence_of(draft)) == 1 and "(1)" in silence_of(draft)[0]
    assert not silence_of(alone)


@each(
    ("function", "options", "model"),
    [
        ("Relu (made)", {"granularity": "per_channel"}, {}),
        ("Relu (made)", {"calibration": {"method": "minmax"}}, {}),
        ("Clip (made, minus, six)", {}, {}),  # not cut off at 0
        ("Relu (made)", {}, {"read_twice": True}),
    ],
)
def test_where_it_could_matter_all_channels_count(function: str, options: dict, model: dict) -> None:
    draft = calibrated_per_tensor(dead_net(function, **model), **options)
    weight = draft.plan.weights["w"]
    loudest = np.abs(normal(CHANNELS, 4, 3, 3, seed=1, scale=0.1)[3]).max() * LOUDER
    assert float(np.max(weight.quantization.scale)) * weight.quantization.limits[1] > 0.5 * loudest
    assert not silence_of(draft)


def test_a_layer_that_is_silent_throughout_keeps_its_scale_and_calibrating_anew_what_is_known() -> None:
    draft = calibrated_per_tensor(dead_net("Relu (made)", dead=tuple(range(CHANNELS))))
    assert draft.plan.silent["w"].all() and not silence_of(draft)
    assert float(draft.plan.weights["w"].quantization.scale) > 0.01
    settings = config(preset="plain", weight=ONE_SCALE, algorithms=[])
    bench = Bench(dead_net("Relu (made)"), {"x": normal(12, 4, 10, 10)}, BiasCorrection(), settings)
    anew = bench.toolkit.recalibrate(bench.draft, bench.draft.prepared, touched=("x",))
    assert anew.plan.silent["w"].tolist() == bench.draft.plan.silent["w"].tolist()
    assert anew.plan.weights["w"].quantization.scale == bench.draft.plan.weights["w"].quantization.scale
    assert silence_of(anew) == silence_of(bench.draft)


# Pixels: a network that sums them up and compares neighbours.
PICTURES = np.random.default_rng(7).integers(0, 256, (40, 3, 8, 8)).astype(np.float32)
PICTURES = np.round((PICTURES + PICTURES[:, :, :, ::-1] + 2 * PICTURES.mean(axis=(2, 3), keepdims=True)) / 4)
CONV = make_model(
    "(float[N, 3, 8, 8] x) => (float[N, 4, 6, 6] y) { y = Conv (x, w) }", {"w": normal(4, 3, 3, 3, seed=6)}
)


def of_pixels(pictures: np.ndarray, **settings: Any) -> Draft:
    chosen = {"dtype": "uint8", "symmetric": False, "scale": "float32", "calibration": {"method": "minmax"}}
    return calibrated(CONV, {"x": pictures}, activation={**chosen, **settings})


def test_pixels_get_the_grid_that_holds_them() -> None:
    draft = of_pixels(PICTURES / np.float32(255))
    found = draft.plan.ranges["x"]
    assert (found.minimum, found.maximum) == pytest.approx((0.0, 1.0), rel=1e-6)
    assert PICTURES.max() < 250, "brighter ones may come"
    assert len(notes_of(draft)) == 1 and "holds every value" in notes_of(draft)[0]
    for other in ({"symmetric": True}, {"scale": "power_of_two"}):
        assert not notes_of(of_pixels(PICTURES / np.float32(255), **other))


def test_pixels_between_two_levels_are_moved_off_the_ties() -> None:
    stretched = np.round((PICTURES - PICTURES.min()) * (255 / np.ptp(PICTURES)))
    pictures = (stretched / 127.5 - 1).astype(np.float32)
    draft = of_pixels(pictures)
    found = draft.plan.ranges["x"]
    assert 1.0 < found.maximum < 1.02 and len(notes_of(draft)) == 1
    session = ort.InferenceSession(CONV.SerializeToString(), providers=["CPUExecutionProvider"])

    def sqnr(scale: np.ndarray, zero: np.ndarray) -> float:
        rounded = (np.clip(np.rint(pictures / scale) + int(zero), 0, 255) - int(zero)) * scale
        (exact,), (made,) = (session.run(None, {"x": fed}) for fed in (pictures, rounded))
        return sqnr_db(exact, made)

    grid = draft.plan.activations["x"].quantization
    assert sqnr(grid.scale, grid.zero_point) > sqnr(np.float32(2 / 255), np.int64(127)) + 1.0
