"""What a report says of size and speed: the true cause of growth, and faster or slower only where it is decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts.report import Interval, LatencyFigures, MachineLoad
from tests.unit.quantizer.toolbox import config, make_model, network, normal, quantize_file
from worker.quantizer.plan.types import NodePlan, QuantizationPlan, Role
from worker.quantizer.report import assemble
from worker.quantizer.report.words import cost_notes

PLAN = QuantizationPlan(nodes={"a": NodePlan("a", "Conv", Role.LINEAR)})


def latency(low: float, high: float, busy: float | None = 0.0) -> LatencyFigures:
    def interval(low: float, high: float) -> Interval:
        return Interval(low=low, high=high, confidence=0.99, method="order_statistics", samples=20)

    return LatencyFigures(
        float_ms=2.0,
        quantized_ms=2.0,
        float_interval_ms=interval(1.9, 2.1),
        quantized_interval_ms=interval(1.9, 2.1),
        ratio=(low + high) / 2,
        ratio_interval=interval(low, high),
        verdict="faster" if high < 1 else "slower" if low > 1 else "undecided",
        runs=20,
        batch_size=1,
        threads=1,
        load=MachineLoad(cpu_count=2, load_average=None, other_busy_percent=busy),
    )


def test_slower_is_said_only_where_it_is_so() -> None:
    assert cost_notes(PLAN, latency(0.4, 0.6), None) == ()
    assert "not faster here" in cost_notes(PLAN, latency(1.2, 1.4), None)[0]
    (undecided,) = cost_notes(PLAN, latency(0.8, 1.25), None)
    assert "0.80 to 1.25 times" in undecided


@pytest.mark.parametrize(("busy", "told"), [(None, 0), (3.0, 0), (10.0, 1), (48.6, 1)])
def test_the_load_is_told_where_others_were_busy(busy: float | None, told: int) -> None:
    notes = cost_notes(PLAN, latency(0.4, 0.6, busy), None)
    assert len(notes) == told
    assert not told or f"took {busy:.0f} %" in notes[0]


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [(0.4, 0.6, "2.00x faster"), (1.5, 2.5, "2.00x slower"), (0.8, 1.2, "not measurably faster")],
)
def test_the_summary_speaks_of_what_is_decided(
    low: float, high: float, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "measure_latency", lambda *args, **kwargs: latency(low, high))
    report = quantize_file(tmp_path, network(), {"x": normal(8, 3, 10, 10)}, config()).report
    assert words in report.summary
    assert report.latency == latency(low, high)


def growth(folder: Path, text: str, weights: dict[str, np.ndarray], x: np.ndarray, **settings: Any) -> str:
    report = quantize_file(folder, make_model(text, weights), {"x": x}, config(**settings)).report
    assert report.quantized.size_bytes >= report.float_.size_bytes
    (told,) = [note for note in report.notes if "not smaller" in note]
    return told


def test_few_weights_are_outweighed_by_nodes(tmp_path: Path) -> None:
    text = "(float[N,4] x) => (float[N,4] y) { [fc] t = Gemm(x, w) [act] r = Relu(t) [fc2] y = Gemm(r, w2) }"
    told = growth(tmp_path, text, {"w": normal(4, 4), "w2": normal(4, 4)}, normal(8, 4))
    assert told.startswith("the quantized model is not smaller: Q/DQ nodes, names and shapes add ")
    assert "while weights of 128 bytes were quantized" in told


def test_a_weight_that_floats_read_too_is_stored_twice(tmp_path: Path) -> None:
    text = (
        "(float[N,64] x, float[N,64,64] k) => (float[N,64] y, float[N,64,64] z) { [fc] t = Gemm(x, w) "
        "[act] r = Relu(t) [fc2] y = Gemm(r, w) [power] z = Pow(k, w) }"
    )
    arrays = {"x": normal(8, 64), "k": np.ones((8, 64, 64), np.float32)}
    report = quantize_file(tmp_path, make_model(text, {"w": normal(64, 64)}), arrays, config()).report
    (told,) = [note for note in report.notes if "not smaller" in note]
    assert told.startswith("the quantized model is not smaller: weights of 16384 bytes are stored twice")
