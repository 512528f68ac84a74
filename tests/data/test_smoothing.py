"""SmoothQuant on a real transformer, whose input has one channel ten times larger than the next."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from service.contracts.algorithms import SmoothQuant
from service.contracts.config import parse_config
from tests.support.data import DATA_MARKS, required_data_dir
from tests.unit.quantizer.equalization.benches import Bench, float_outputs, quantized_outputs
from tests.unit.quantizer.toolbox import sqnr_db

pytestmark = DATA_MARKS

CLIPS = 16


@pytest.mark.parametrize(("preset", "gain_db"), [("int8", 3.0), ("xint8", 1.0)])
def test_a_speech_transformer_keeps_its_function_and_gets_far_better_on_integers(preset: str, gain_db: float) -> None:
    folder = required_data_dir() / "speech"
    clips = np.load(folder / "kwt1_calibration.npz")["inputs"][: 2 * CLIPS].astype(np.float32)
    feeds, unseen = {"input": clips[:CLIPS]}, {"input": clips[CLIPS:]}
    settings = parse_config({"preset": preset, "algorithms": []})
    it = Bench(onnx.load(folder / "kwt1.onnx"), feeds, SmoothQuant(), settings)
    change = it.apply()
    assert change.draft is not None
    expected = next(iter(float_outputs(it.draft, unseen).values()))
    got = next(iter(float_outputs(change.draft, unseen).values()))
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()
    before, after = (next(iter(quantized_outputs(d, unseen).values())) for d in (it.draft, change.draft))
    # under xint8 the range of the input, found by what it does to the output, has taken care of the loud channel
    assert sqnr_db(expected, after) > max(sqnr_db(expected, before) + gain_db, 20.0)
