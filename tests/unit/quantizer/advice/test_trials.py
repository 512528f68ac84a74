"""Trials: within their seconds, told where they fail, ended by a cancellation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import CanceledError, EngineError
from service.contracts.report import Report
from tests.unit.quantizer.advice.planted import PER_TENSOR, Planted, chain, images, rows, wide_output
from tests.unit.quantizer.toolbox import quantize_file
from worker.quantizer import pipeline
from worker.quantizer.refine.draft import QuantizedDraft
from worker.quantizer.run.interface import Run, SilentRun

QUICK = {"latency_runs": 1, "layer_samples": 1}
BROKEN = Planted(chain(spread=1000.0), images(), None, PER_TENSOR)


class Watched(SilentRun):
    """Notes stages, and cancels in the one it is told to."""

    def __init__(self, cancel_in: str | None = None) -> None:
        self.stages: list[str] = []
        self._cancel_in = cancel_in

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        self.stages.append(stage)

    def check(self) -> None:
        if self._cancel_in is not None and self._cancel_in in self.stages:
            raise CanceledError("the run was canceled")


def quantized(folder: Path, case: Planted = BROKEN, *, run: SilentRun | None = None, **evaluation: Any) -> Report:
    found = parse_config({"algorithms": [], **case.settings, "evaluation": {**QUICK, **evaluation}})
    return quantize_file(folder, case.model, case.calibration, found, evaluation=case.evaluation, run=run).report


@pytest.mark.slow
def test_what_helped_stands_first_and_nothing_is_tried_once_it_is_mended(tmp_path: Path) -> None:
    watched = Watched()
    report = quantized(tmp_path, run=watched, advice_seconds=3600)
    first = report.advice[0]
    assert first.status == "tried" and first.helped and first.figure is not None
    assert first.figure.metric == "sqnr_db" and first.figure.samples == report.fidelity.samples
    assert first.figure.after is not None and first.figure.after > 20.0
    figures = [advice.figure.after for advice in report.advice if advice.helped and advice.figure is not None]
    assert figures == sorted(figures, key=lambda after: -(after or 0.0))
    assert any("an earlier trial fixes the loss" in (advice.why or "") for advice in report.advice)
    assert watched.stages[-1] == [stage.name for stage in report.stages][-1] == "advice"
    assert watched.stages.index("latency") < watched.stages.index("result") < watched.stages.index("advice")
    # without seconds the same advice is listed, and untried
    untried = quantized(tmp_path, advice_seconds=0)
    assert untried.fidelity.sqnr_db is not None and untried.fidelity.sqnr_db < 10.0
    told = [{advice.code: advice.config for advice in each.advice} for each in (untried, report)]
    assert told[0] == told[1]
    for advice in untried.advice:
        assert (advice.status, advice.figure) == ("untried", None) and "not tried" in (advice.why or "")


def test_a_trial_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: pipeline.Quantizing, config: QuantizationConfig, run: Run) -> QuantizedDraft:
        raise EngineError("the runtime broke down")

    monkeypatch.setattr(pipeline.Quantizing, "again", fails)
    report = quantized(tmp_path, advice_seconds=3600)
    assert report.advice
    for advice in report.advice:
        assert (advice.status, advice.figure) == ("untried", None)
        assert "the runtime broke down" in (advice.why or "")


def test_a_cancellation_ends_the_search_for_advice(tmp_path: Path) -> None:
    with pytest.raises(CanceledError):
        quantized(tmp_path, run=Watched(cancel_in="advice"), advice_seconds=3600)


@pytest.mark.slow
def test_labels_beyond_chance_decide_by_their_metric(tmp_path: Path) -> None:
    """Labels are the float model's decisions; one scale for all leaves the small outputs nothing."""
    x = rows(400)["x"]
    model = wide_output()
    weight = np.frombuffer(model.graph.initializer[0].raw_data, np.float32).reshape(16, 8)
    scores = (x @ weight)[:, 1:]
    labels = scores.argmax(axis=1)
    case = Planted(model, {"x": x}, {"x": x, "labels": labels}, PER_TENSOR)
    metrics = [{"kind": "top1", "name": "top1", "output": "z"}]
    report = quantized(tmp_path, case, advice_seconds=3600, metrics=metrics)
    assert report.metrics[0].float_ == 100.0 and (report.metrics[0].drop or 0) > 20.0
    first = report.advice[0]
    assert first.helped and first.figure is not None
    assert (first.figure.metric, first.figure.unit, first.figure.before) == ("top1", "%", report.metrics[0].quantized)
    assert first.figure.after is not None and first.figure.after > 95.0
    assert "top" in first.because


def test_random_data_leads_to_no_advice(tmp_path: Path) -> None:
    settings = parse_config({
        "algorithms": [], **PER_TENSOR, "random_calibration": {"samples": 8}, "evaluation": QUICK,
    })  # fmt: skip
    onnx.save(chain(spread=1000.0), tmp_path / "m.onnx")
    report = pipeline.quantize(tmp_path / "m.onnx", settings, None, run=SilentRun(), threads=1).report
    assert report.fidelity.source == "random" and report.advice == ()


def test_damage_that_cannot_be_looked_at_leaves_the_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object, **named: object) -> None:
        raise EngineError("no inner tensor can be read")

    monkeypatch.setattr("worker.quantizer.advice.advise.find_damage", fails)
    report = quantized(tmp_path, advice_seconds=3600)
    assert report.advice == ()
    assert any("no inner tensor can be read" in note for note in report.notes)
