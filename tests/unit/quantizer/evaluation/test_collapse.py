"""The sanity check: collapsed models fail whatever the gate asks for, sane ones are left alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.report import Fidelity, Interval, MetricFigures, Report
from service.contracts.runner import DatasetSource
from tests.support.tiny import make_model
from worker.quantizer.evaluation.collapse import sanity_clause
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun


def _metric(before: float, after: float, **facts: Any) -> MetricFigures:
    told = {"name": "top1", "kind": "top1", "unit": "%", "better": "higher", "drop": before - after, "samples": 1000}
    return MetricFigures.model_validate({**told, "float": before, "quantized": after, "chance": 0.1, **facts})


def _fidelity(**facts: Any) -> Fidelity:
    told = {"sqnr_db": 20.0, "cosine": 0.9, "top1_agreement": None, "samples": 1000, "source": "evaluation"}
    return Fidelity.model_validate({**told, "outputs": (), **facts})


def _interval(low: float, high: float) -> dict[str, Any]:
    return Interval(low=low, high=high, method="wilson", samples=1000).model_dump()


def test_a_collapse_is_named_with_its_chance_level() -> None:
    clause = sanity_clause([_metric(86.07, 2.05)], _fidelity(), {})
    assert clause is not None
    assert (clause.clause, clause.metric, clause.holds) == ("sanity", "top1", False)
    assert clause.why == "collapsed: top-1 2.05 % is near chance level (0.10 %)"
    assert (clause.got, clause.wanted) == (2.05, pytest.approx(43.085))


# half of the margin of 80 over chance 10 is 40: the limit is 50
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (89.0, None),
        (50.1, None),
        (49.0, "collapsed: top-1 49.00 % lost 51 % of the float model's margin over chance level (10.00 %)"),
        (10.0, "collapsed: top-1 10.00 % is near chance level (10.00 %)"),
        (4.0, "collapsed: top-1 4.00 % is below chance level (10.00 %)"),
    ],
)
def test_more_than_half_of_the_margin_lost(value: float, words: str | None) -> None:
    clause = sanity_clause([_metric(90.0, value, chance=10.0)], _fidelity(), {})
    assert (None if clause is None else clause.why) == words


@pytest.mark.parametrize(
    ("before", "after", "facts", "collapsed"),
    [
        (20.0, 900.0, {"kind": "perplexity", "better": "lower", "unit": "", "chance": 50000.0}, False),
        (20.0, 1100.0, {"kind": "perplexity", "better": "lower", "unit": "", "chance": 50000.0}, True),
        (10.0, 54.0, {"kind": "word_error_rate", "better": "lower", "chance": None}, False),
        (10.0, 56.0, {"kind": "word_error_rate", "better": "lower", "chance": None}, True),
        (60.0, 31.0, {"kind": "mean_iou", "chance": None}, False),
        (60.0, 29.0, {"kind": "mean_iou", "chance": None}, True),
        (0.9, 0.4, {"kind": "r2", "unit": "", "chance": 0.0}, True),
        (1.0, 9.0, {"kind": "rmse", "better": "lower", "unit": "", "chance": None}, False),
    ],
)
def test_other_metrics(before: float, after: float, facts: dict[str, Any], collapsed: bool) -> None:
    clause = sanity_clause([_metric(before, after, **facts)], _fidelity(), {})
    assert (clause is not None) == collapsed


def test_few_samples_leave_it_undecided_and_a_float_model_without_skill_is_not_asked() -> None:
    wide = _metric(90.0, 45.0, chance=10.0, quantized_interval=_interval(20.0, 70.0))
    clause = sanity_clause([wide], _fidelity(), {})
    assert clause is not None and clause.holds is None and "cannot decide it" in (clause.why or "")
    assert sanity_clause([wide.model_copy(update={"samples": 9})], _fidelity(), {}) is None
    unskilled = _metric(14.0, 10.0, chance=10.0, float_interval=_interval(9.0, 20.0))
    assert sanity_clause([unskilled], _fidelity(), {}) is None


def test_agreement_takes_the_place_of_labels() -> None:
    rng = np.random.default_rng(3)
    before, other = rng.integers(0, 10, 1000), rng.integers(0, 10, 1000)
    close = np.where(rng.random(1000) < 0.9, before, other)

    def said(after: np.ndarray) -> bool | None:
        agreement = 100.0 * float((before == after).mean())
        told = {"float_class": before, "quantized_class": after}
        clause = sanity_clause([], _fidelity(top1_agreement=agreement, sqnr_db=-3.0), told)
        assert clause is None or clause.metric == "top1_agreement"
        return None if clause is None else clause.holds

    assert said(close) is None
    assert said(other) is False
    assert said(np.zeros(1000, np.int64)) is False


def test_sqnr_takes_the_place_of_classes_and_random_data_shows_nothing() -> None:
    clause = sanity_clause([], _fidelity(sqnr_db=-0.5), {})
    assert clause is not None and clause.holds is False
    assert clause.why == "collapsed: output SQNR is -0.50 dB, the error is larger than the output"
    assert sanity_clause([], _fidelity(sqnr_db=0.5), {}) is None
    assert sanity_clause([_metric(90.0, 1.0)], _fidelity(source="random"), {}) is None


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Quantizes a small labelled network, whole or with ranges that leave nothing of its activations."""
    folder = tmp_path_factory.mktemp("collapse")
    path = folder / "net.onnx"
    make_model(path)
    session = open_model(path).session(threads=1, what="float model")
    rng = np.random.default_rng(7)
    colour = rng.normal(0, 1.5, (160, 3, 1, 1))
    x = (colour + rng.normal(0, 0.5, (160, 3, 8, 8))).astype(np.float32)
    labels = session.run({"x": x})[0].argmax(axis=1)
    np.savez(folder / "with.npz", x=x, labels=labels)
    np.savez(folder / "without.npz", x=x)
    np.savez(folder / "one-hot.npz", x=x, labels=np.eye(5, dtype=np.float32)[labels])

    def run(*, destroyed: bool, labelled: bool | str, **gate: Any) -> Report:
        ranges = {} if not destroyed else {"tensor_ranges": {"x": {"minimum": -1e6, "maximum": 1e6}}}
        evaluation = {"latency_runs": 1, "advice_seconds": 0, "gate": gate}
        name = {True: "with", False: "without"}.get(labelled, "one-hot")
        source = DatasetSource(path=str(folder / f"{name}.npz"))
        config = parse_config({"preset": "int8", "evaluation": evaluation, **ranges})
        return quantize(path, config, source, source, run=SilentRun(), threads=1).report

    return run


@pytest.mark.parametrize("labelled", [True, False])
def test_a_destroyed_network_fails_with_and_without_a_gate_and_a_sane_one_is_left_alone(
    run_of: Any, labelled: bool
) -> None:
    for gate in ({}, {"max_size_bytes": 10**9}):
        report = run_of(destroyed=True, labelled=labelled, **gate)
        assert report.verdict == "fail"
        assert report.gate[0].clause == "sanity" and report.gate[0].holds is False
        assert report.gate[0].metric == ("top1" if labelled else "top1_agreement")
    assert run_of(destroyed=False, labelled=labelled).verdict == "none"
    assert run_of(destroyed=False, labelled=labelled, max_size_bytes=10**9).verdict == "pass"


def test_the_check_can_be_switched_off(run_of: Any) -> None:
    report = run_of(destroyed=True, labelled=True, sanity=False)
    assert (report.verdict, report.gate) == ("none", ())


def test_one_hot_labels_are_measured_and_missing_ones_are_said(run_of: Any) -> None:
    report = run_of(destroyed=False, labelled=False)
    assert "No labels: accuracy is not measured; agreement with the float model is." in report.notes
    assert "accuracy not measured (no labels)" in report.summary
    report = run_of(destroyed=False, labelled="one-hot")
    assert [metric.name for metric in report.metrics][:1] == ["top1"]
    assert any("Labels are one-hot [160, 5]" in note for note in report.notes)
