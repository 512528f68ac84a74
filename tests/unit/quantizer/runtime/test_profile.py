"""onnxruntime's profile, by kernel."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.quantizer.toolbox import make_model, normal
from worker.quantizer.runtime.profile import Kernel, read_profile
from worker.quantizer.runtime.session import Session


def event(name: str, ts: int, dur: int, cat: str = "Node") -> dict[str, object]:
    return {"name": name, "ts": ts, "dur": dur, "cat": cat}


def test_the_first_run_is_left_out_and_the_median_counts(tmp_path: Path) -> None:
    events = []
    for k, dur in enumerate((900, 10, 12, 500)):
        events += [event("model_run", 1000 * k, 990, "Session"), event("conv_kernel_time", 1000 * k + 1, dur)]
    (tmp_path / "p.json").write_text(json.dumps(events))
    assert read_profile(tmp_path / "p.json") == [Kernel("conv", 12.0)]


def test_a_loop_does_not_count_its_body_twice(tmp_path: Path) -> None:
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
    session = Session(model.SerializeToString(), threads=1, profile=tmp_path / "profile")
    for _ in range(3):
        session.run({"x": normal(2, 64)})
    found = read_profile(session.end_profile())
    assert {"fc", "soft", "end"} <= {kernel.node for kernel in found}
    assert all(kernel.microseconds >= 0 for kernel in found)
