"""A forward pass is timed within bounds, and a model that cannot be timed is none the worse for it."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from service.contracts.model import ForwardPass, ModelSummary
from tests.unit.quantizer.toolbox import make_model, normal
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.runtime import host, timing
from worker.quantizer.runtime.host import LoadMeter
from worker.quantizer.runtime.session import Session, SessionSettings
from worker.quantizer.runtime.timing import Kernel, read_profile

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


def test_a_pass_is_timed_with_as_many_samples_as_the_model_takes(tmp_path: Path) -> None:
    for text, samples, elements in ((FREE, 8, 3 * 64), (FIXED, 1, 12), (INDEXED, 8, 64)):
        found = forward(tmp_path, text)
        assert found is not None
        assert found.seconds > 0.0
        assert (found.samples, found.elements, found.threads) == (samples, elements, 1)


def test_what_does_not_run_on_made_up_inputs_or_was_not_asked_for_is_accepted_all_the_same(tmp_path: Path) -> None:
    for text in (WORDS, UNFIT, ENDLESS):
        assert forward(tmp_path, text) is None
    vast, unasked = inspected(tmp_path, VAST).work, inspected(tmp_path, FREE, timed=False).work
    assert vast is None or vast.forward is None
    assert unasked is not None and unasked.forward is None


def test_a_model_that_is_large_or_takes_too_long_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_MOST_BYTES", 4 * 3 * 64 * 8 - 1)
    found = forward(tmp_path, FREE)
    assert found is not None
    assert found.samples == 1, "eight samples are too many, one is not"
    monkeypatch.setattr(timing, "_MOST_BYTES", 1)
    assert forward(tmp_path, FREE) is None
    monkeypatch.undo()
    monkeypatch.setattr(timing, "_FIRST_SECONDS", 0.0)
    steps = "".join(f"y{k + 1} = Erf(y{k}) " for k in range(400))
    assert forward(tmp_path, f"g (float[n,256,256] y0) => (float[n,256,256] y400) {{ {steps} }}") is None


# user nice system idle iowait irq softirq steal guest guest_nice
FORM = "cpu  {user} 0 {system} {idle} {wait} 0 0 {steal} 999 999\ncpu0 1 2 3 4\n"


def stat(path: Path, user: int, system: int, idle: int, wait: int, steal: int) -> None:
    path.write_text(FORM.format(user=user, system=system, idle=idle, wait=wait, steal=steal))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(host, "_PROC_STAT", tmp_path / "stat")
    monkeypatch.setattr(host.os, "sysconf", lambda name: 100)
    return tmp_path / "stat"


def test_others_are_what_is_busy_and_not_our_own(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = iter([1.0, 1.5])  # 50 ticks of our own
    monkeypatch.setattr(host, "_own_seconds", lambda: next(own))
    stat(proc, 1000, 100, 5000, 10, 0)
    meter = LoadMeter.start()
    stat(proc, 1100, 130, 5050, 20, 10)  # 140 of 200 busy
    assert meter.read().other_busy_percent == pytest.approx(45.0)


def test_too_short_a_time_and_a_system_that_does_not_tell(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat(proc, 1000, 100, 5000, 10, 0)
    meter = LoadMeter.start()
    stat(proc, 1010, 100, 5000, 10, 0)
    assert meter.read().other_busy_percent is None
    monkeypatch.delattr(host.os, "getloadavg")
    proc.unlink()
    found = LoadMeter.start().read()
    assert (found.other_busy_percent, found.load_average) == (None, None)
    assert found.cpu_count >= 1


def event(name: str, ts: int, dur: int, cat: str = "Node") -> dict[str, object]:
    return {"name": name, "ts": ts, "dur": dur, "cat": cat}


def test_the_first_run_is_left_out_the_median_counts_and_a_loop_does_not_count_its_body_twice(tmp_path: Path) -> None:
    events = []
    for k, dur in enumerate((900, 10, 12, 500)):
        events += [event("model_run", 1000 * k, 990, "Session"), event("conv_kernel_time", 1000 * k + 1, dur)]
    (tmp_path / "p.json").write_text(json.dumps(events))
    assert read_profile(tmp_path / "p.json") == [Kernel("conv", 12.0)]
    events = [event("model_run", 0, 50, "Session"), event("model_run", 100, 1000, "Session")]
    events += [event("loop_kernel_time", 110, 100), event("a_kernel_time", 120, 30), event("b_kernel_time", 150, 10)]
    events += [event("a_kernel_time", 165, 30), event("after_kernel_time", 220, 7), event("sync", 111, 5, "Session")]
    (tmp_path / "p.json").write_text(json.dumps(events))
    assert dict(read_profile(tmp_path / "p.json")) == {"loop": 30.0, "a": 60.0, "b": 10.0, "after": 7.0}


def test_a_session_says_what_its_nodes_took(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,64] x) => (float[N,64] y) { [fc] t = MatMul(x, w) [soft] s = Softmax(t) [end] y = Sin(s) }",
        {"w": normal(64, 64)},
    )
    session = Session(model.SerializeToString(), threads=1, settings=SessionSettings(profile=tmp_path / "profile"))
    for _ in range(3):
        session.run({"x": normal(2, 64)})
    found = read_profile(session.end_profile())
    assert {"fc", "soft", "end"} <= {kernel.node for kernel in found}
    assert all(kernel.microseconds >= 0 for kernel in found)
