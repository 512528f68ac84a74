"""Ranges of network inputs follow what the outputs make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.contracts.algorithms import BiasCorrection
from service.contracts.calibration import TensorRange
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, sqnr_db
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
    return [note for note in draft.journal.notes if note.startswith("input ")]


def test_a_loud_feature_that_nobody_looks_at_does_not_set_the_range() -> None:
    model, samples = make_model(NET, {"w": WEIGHT}), loud()
    draft = calibrated(model, {"x": samples})
    figures = {exponent: by_hand(model, samples, exponent) for exponent in range(-10, 4)}
    chosen = round(np.log2(half_width(draft) / 127.5))
    assert figures[chosen] > max(figures.values()) - 0.5
    assert figures[chosen] > figures[round(np.log2(300 / 127.5))] + 20
    assert len(notes_of(draft)) == 1 and "dB closer" in notes_of(draft)[0]


@pytest.mark.parametrize("scale", ["float32", "power_of_two"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_other_grids_follow_too(dtype: str, scale: str) -> None:
    draft = calibrated(
        make_model(NET, {"w": WEIGHT}), {"x": loud()}, activation={"dtype": dtype, "scale": scale, "symmetric": False}
    )
    assert half_width(draft) < 40


def test_an_input_whose_features_all_count_stays_at_the_least_square_error() -> None:
    even = normal(FEATURES, 5, seed=1)
    samples = normal(CLIPS, FEATURES, seed=2)
    draft = calibrated(make_model(NET, {"w": even}), {"x": samples})
    assert half_width(draft) == 2.0**-5 * 127
    assert not notes_of(draft)


@pytest.mark.parametrize("method", [{"method": "minmax"}, {"method": "non_overflow"}])
def test_methods_that_cover_everything_do_so_for_inputs(method: dict[str, Any]) -> None:
    draft = calibrated(make_model(NET, {"w": WEIGHT}), {"x": loud()}, calibration=method)
    assert half_width(draft) >= 300 and not notes_of(draft)


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


def test_each_input_has_a_range_of_its_own() -> None:
    samples, other = loud(), normal(CLIPS, 5, seed=5)
    draft = calibrated(make_model(TWO, {"w": WEIGHT, "v": normal(5, 5, seed=4)}), {"x": samples, "u": other})
    assert half_width(draft) < 40
    assert half_width(draft, "u") == 2.0**-5 * 127
    assert len(notes_of(draft)) == 1


def test_outputs_without_floats_decide_nothing() -> None:
    text = "(float[N, 8] x) => (int64[N, 1] y) { m = MatMul (x, w)  y = ArgMax <axis = 1> (m) }"
    draft = calibrated(make_model(text, {"w": WEIGHT}), {"x": loud()})
    assert half_width(draft) > 200 and not notes_of(draft)
