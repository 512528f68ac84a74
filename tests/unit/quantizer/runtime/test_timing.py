"""A forward pass is timed within bounds, and a model that cannot be timed is none the worse for it."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from service.contracts.model import ForwardPass, ModelSummary
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.runtime import timing

HEAD = '<ir_version: 8, opset_import: ["" : 17]> '
FREE = "g (float[n,3,s] x) => (float[n,3,s] y) { y = Softmax(x) }"
FIXED = "g (float[1,3,4] x, float[n,2] z) => (float[1,3,4] y, float[n,2] w) { y = Relu(x) w = Relu(z) }"
INDEXED = """g (int64[n,s] x) => (float[n,s,2] y) <float[3,2] t = {0, 1, 2, 3, 4, 5}> { y = Gather(t, x) }"""
WORDS = "g (string[n] x) => (string[n] y) { y = Identity(x) }"
# What an axis of 64 cannot be.
UNFIT = "g (float[n,s] x) => (float[n,2,3] y) <int64[3] shape = {-1, 2, 3}> { y = Reshape(x, shape) }"
# Of which hardly anything is computed.
VAST = "g (float[1099511627776,1099511627776] x) => (int64[2] y) { y = Shape(x) }"
ENDLESS = """g (int64 x, bool go) => (float[1] y) <float[1] one = {1}>
{ y = Loop(x, go, one) <body = b (int64 i, bool c, float[1] v) => (bool d, float[1] w)
{ d = Identity(c) w = Relu(v) }> }"""


def inspected(folder: Path, text: str, *, timed: bool = True) -> ModelSummary:
    path = folder / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    return inspect_model(path, threads=1, timed=timed)


def forward(folder: Path, text: str) -> ForwardPass | None:
    work = inspected(folder, text).work
    assert work is not None
    return work.forward


@pytest.mark.parametrize(("text", "samples", "elements"), [(FREE, 8, 3 * 64), (FIXED, 1, 12), (INDEXED, 8, 64)])
def test_a_pass_is_timed_with_as_many_samples_as_the_model_takes(
    tmp_path: Path, text: str, samples: int, elements: int
) -> None:
    found = forward(tmp_path, text)
    assert found is not None
    assert found.seconds > 0.0
    assert (found.samples, found.elements, found.threads) == (samples, elements, 1)


@pytest.mark.parametrize("text", [WORDS, UNFIT, ENDLESS], ids=["words", "unfit", "a loop"])
def test_what_does_not_run_on_made_up_inputs_is_accepted_all_the_same(tmp_path: Path, text: str) -> None:
    assert forward(tmp_path, text) is None


def test_an_input_that_fits_nowhere_is_not_made(tmp_path: Path) -> None:
    work = inspected(tmp_path, VAST).work
    assert work is None or work.forward is None


def test_nobody_times_who_does_not_ask(tmp_path: Path) -> None:
    work = inspected(tmp_path, FREE, timed=False).work
    assert work is not None
    assert work.forward is None


def test_a_model_that_is_large_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_MOST_BYTES", 4 * 3 * 64 * 8 - 1)
    found = forward(tmp_path, FREE)
    assert found is not None
    assert found.samples == 1, "eight samples are too many, one is not"
    monkeypatch.setattr(timing, "_MOST_BYTES", 1)
    assert forward(tmp_path, FREE) is None


def test_a_pass_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_FIRST_SECONDS", 0.0)
    steps = "".join(f"y{k + 1} = Erf(y{k}) " for k in range(400))
    text = f"g (float[n,256,256] y0) => (float[n,256,256] y400) {{ {steps} }}"
    assert forward(tmp_path, text) is None
