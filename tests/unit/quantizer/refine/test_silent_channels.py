"""Output channels that never wake do not choose the scale of a whole weight."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from service.contracts.algorithms import BiasCorrection
from tests.unit.quantizer.equalization.benches import Bench
from tests.unit.quantizer.toolbox import config, make_model, normal, sqnr_db
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft

WHOLE = {"granularity": "per_tensor", "calibration": {"method": "mse"}}
CHANNELS, LOUD = 8, 30.0


def net(function: str = "Relu", *, dead: tuple[int, ...] = (3,), read_twice: bool = False) -> onnx.ModelProto:
    """A Conv with huge weights in its dead channels, which a bias keeps below 0, in front of ``function``."""
    weight, bias = normal(CHANNELS, 4, 3, 3, seed=1, scale=0.1), np.zeros(CHANNELS, np.float32)
    for channel in dead:
        weight[channel] *= LOUD
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


def calibrated(model: onnx.ModelProto, **weight: object) -> Draft:
    settings = config(preset="plain", weight={**WHOLE, **weight}, algorithms=[])
    return Bench(model, {"x": normal(12, 4, 10, 10)}, BiasCorrection(), settings).draft


def notes_of(draft: Draft) -> list[str]:
    return [note for note in draft.journal.notes if "0 on all calibration data" in note]


@pytest.mark.parametrize("function", ["Relu (made)", "Clip (made, zero, six)"])
def test_a_silent_channel_leaves_the_scale_to_the_others(function: str) -> None:
    draft = calibrated(net(function))
    alone = calibrated(net(function, dead=()))
    weight, other = draft.plan.weights["w"], alone.plan.weights["w"]
    assert draft.plan.silent["w"].tolist() == [channel == 3 for channel in range(CHANNELS)]
    assert weight.quantization.scale <= other.quantization.scale * 1.1
    awake = [channel for channel in range(CHANNELS) if channel != 3]
    original = normal(CHANNELS, 4, 3, 3, seed=1, scale=0.1)
    assert sqnr_db(original[awake], Parameters(draft.graph, draft.plan).weight("w").present[awake]) > 35
    assert len(notes_of(draft)) == 1 and "(1)" in notes_of(draft)[0]
    assert not notes_of(alone)


@pytest.mark.parametrize(
    ("function", "options", "model"),
    [
        ("Relu (made)", {"granularity": "per_channel"}, {}),
        ("Relu (made)", {"calibration": {"method": "minmax"}}, {}),
        ("Clip (made, minus, six)", {}, {}),
        ("Relu (made)", {}, {"read_twice": True}),
    ],
    ids=["a scale per channel", "minmax covers all", "not cut off at 0", "others read it"],
)
def test_where_it_could_matter_all_channels_count(function: str, options: dict, model: dict) -> None:
    draft = calibrated(net(function, **model), **options)
    weight = draft.plan.weights["w"]
    loudest = np.abs(normal(CHANNELS, 4, 3, 3, seed=1, scale=0.1)[3]).max() * LOUD
    largest = float(np.max(weight.quantization.scale)) * weight.quantization.limits[1]
    assert largest > 0.5 * loudest
    assert not notes_of(draft)


def test_a_layer_that_is_silent_throughout_keeps_its_scale() -> None:
    draft = calibrated(net("Relu (made)", dead=tuple(range(CHANNELS))))
    assert draft.plan.silent["w"].all()
    assert float(draft.plan.weights["w"].quantization.scale) > 0.01
    assert not notes_of(draft)


def test_calibrating_anew_keeps_what_is_known_and_tells_it() -> None:
    settings = config(preset="plain", weight=WHOLE, algorithms=[])
    bench = Bench(net("Relu (made)"), {"x": normal(12, 4, 10, 10)}, BiasCorrection(), settings)
    anew = bench.toolkit.recalibrate(bench.draft, bench.draft.prepared, touched=("x",))
    assert anew.plan.silent["w"].tolist() == bench.draft.plan.silent["w"].tolist()
    assert anew.plan.weights["w"].quantization.scale == bench.draft.plan.weights["w"].quantization.scale
    assert notes_of(anew) == notes_of(bench.draft)
