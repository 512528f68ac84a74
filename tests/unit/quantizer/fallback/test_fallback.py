"""A quantized model that is too slow gives way to the fastest that holds the other conditions; the timer is a fake."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_report import check_gate
from service.contracts.report import Interval, LatencyFigures, MachineLoad
from service.contracts.search import Search
from tests.unit.quantizer.toolbox import make_model, normal, quantize_file, run_onnx, sqnr_db
from worker.quantizer import pipeline
from worker.quantizer.evaluation.side_by_side import NhwcSession
from worker.quantizer.fallback import choice
from worker.quantizer.pipeline import Result
from worker.quantizer.report import assemble

# Two convolutions with a chain of elementwise nodes in between.
MODEL = make_model(
    """(float[N,4,8,8] x) => (float[N,4,8,8] y) {
        [a] a = Conv <pads = [1, 1, 1, 1]> (x, w)
        [s1] s = Add (a, x)
        [s2] t = Mul (s, a)
        [s3] u = Add (t, s)
        [b] y = Conv <pads = [1, 1, 1, 1]> (u, v)
    }""",
    {"w": normal(4, 4, 3, 3), "v": normal(4, 4, 3, 3, seed=1)},
)
DATA = {"x": normal(12, 4, 8, 8, seed=2)}
Cost = Callable[[onnx.ModelProto], float]


def figures(ratio: float, spread: float = 0.01) -> LatencyFigures:
    def interval(value: float) -> Interval:
        return Interval(low=value - spread, high=value + spread, method="order_statistics", samples=20)

    verdict = "slower" if ratio - spread > 1 else "faster" if ratio + spread < 1 else "undecided"
    return LatencyFigures(
        float_ms=1.0, quantized_ms=ratio, float_interval_ms=interval(1.0), quantized_interval_ms=interval(ratio),
        ratio=ratio, ratio_interval=interval(ratio), verdict=verdict, runs=20, batch_size=1, threads=1,
        load=MachineLoad(cpu_count=1),
    )  # fmt: skip


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cost], None]:
    """Lets a model take what a function of it says; the float model takes 1."""

    def by(cost: Cost) -> None:
        class Costed(NhwcSession):
            def __init__(self, model: bytes, *args: Any, **settings: Any) -> None:
                super().__init__(model, *args, **settings)
                self.cost = cost(onnx.load_from_string(model))

        def measure(reference: Any, other: Any, *args: Any, **settings: Any) -> LatencyFigures:
            return figures(getattr(other, "cost", 1.0) / getattr(reference.session, "cost", 1.0))

        for module in (choice, assemble):
            monkeypatch.setattr(module, "NhwcSession", Costed)
            monkeypatch.setattr(module, "measure_latency", measure)

    return by


def pairs(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "QuantizeLinear" for node in model.graph.node)


def quantized(
    folder: Path, limit: float = 1.0, *, seconds: float = 600.0, algorithms: tuple[Any, ...] = (), **gate: Any
) -> Result:
    gate = {"max_latency_ratio": limit, "on_fail": "fallback", **gate}
    evaluation = {"gate": gate, "latency_runs": 1, "layer_samples": 1, "advice_seconds": 0, "fallback_seconds": seconds}
    config = parse_config({"preset": "plain", "algorithms": list(algorithms), "evaluation": evaluation})
    return quantize_file(folder, MODEL, DATA, config)


def by_elementwise(model: onnx.ModelProto) -> float:
    """Convolutions are faster on integers; an elementwise node between pairs takes twenty times as long."""
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    written = {name for node in model.graph.node if node.op_type == "QuantizeLinear" for name in node.input[:1]}
    total = 0.4
    for node in model.graph.node:
        read = all(made.get(name) == "DequantizeLinear" for name in node.input[:2])
        if node.op_type == "Conv":
            total += 0.05 if read else 0.2
        elif node.op_type in ("Add", "Mul"):
            total += 1.0 if read and node.output[0] in written else 0.05
    return total


def test_pairs_that_cost_more_than_they_save_are_taken_off(tmp_path: Path, timed: Callable[[Cost], None]) -> None:
    timed(by_elementwise)
    result = quantized(tmp_path)
    report, told = result.report, result.report.fallback
    assert told is not None and told.chosen.kind == "reduced"
    assert [candidate.kind for candidate in told.candidates][:: len(told.candidates) - 1] == ["planned", "float"]
    assert told.chosen.latency_ratio < 1.0 < told.candidates[0].latency_ratio
    layers = {layer.name: layer.reason_code for layer in report.layers}
    assert layers["a"] is None and layers["b"] is None
    assert {layers[name] for name in ("s1", "s2", "s3")} >= {"slower-quantized"}
    assert told.chosen.nodes_taken_off == 3
    assert report.verdict == "pass" and report.latency is not None and report.latency.ratio == told.chosen.latency_ratio
    assert any(region.outcome == "taken_off" and region.kind == "elementwise" for region in told.regions)
    assert any(region.outcome == "kept" and region.kind == "convolution" for region in told.regions)
    assert report.manifest.timed_choice and told.reason in report.notes
    # what stays quantized keeps its integers
    plain = quantize_file(tmp_path, MODEL, DATA, parse_config({"preset": "plain"}))
    whole, part = ({t.name: t for t in onnx.load_from_string(m.model).graph.initializer} for m in (plain, result))
    shared = [name for name in part if name.endswith("_quantized")]
    assert shared and all(part[name].raw_data == whole[name].raw_data for name in shared)


def test_the_float_file_comes_back_where_nothing_else_is_faster(tmp_path: Path, timed: Callable[[Cost], None]) -> None:
    timed(lambda model: 1.2 + 0.1 * pairs(model))
    result = quantized(tmp_path, 1.0)
    report, told = result.report, result.report.fallback
    assert result.model == (tmp_path / "float.onnx").read_bytes()
    assert told is not None and told.chosen.kind == "float" and told.chosen.holds
    assert report.verdict == "pass" and [clause.got for clause in report.gate] == [1.0]
    assert report.quantized.size_bytes == report.float_.size_bytes
    assert "slower-quantized" in {layer.reason_code for layer in report.layers}
    assert "float model is returned" in report.summary and report.advice == ()
    timed(lambda model: 2.0)
    report = quantized(tmp_path, 0.5).report  # a limit that no model keeps
    assert report.fallback is not None and report.fallback.chosen.kind == "float"
    assert report.verdict == "fail" and report.gate[0].got == 1.0


@pytest.mark.parametrize(("limit", "more"), [(3.0, {}), (1.0, {"on_fail": "report"}), (2.005, {})])
def test_what_holds_or_is_undecided_or_only_reported_is_returned_as_planned(tmp_path, timed, limit, more) -> None:
    timed(lambda model: 2.0)
    result = quantized(tmp_path, limit, **more)
    assert result.report.fallback is None and not result.report.manifest.timed_choice
    assert pairs(onnx.load_from_string(result.model))


def test_undecided_falls_back_where_the_gate_counts_it_as_failed(tmp_path: Path, timed: Callable[[Cost], None]) -> None:
    timed(lambda model: 2.0)
    told = quantized(tmp_path, 2.005, on_undecided="fail").report.fallback
    assert told is not None and told.because.startswith("the quantized model may break")


@pytest.mark.slow
def test_conditions_and_seconds_decide_who_may_be_returned(tmp_path: Path, timed: Callable[[Cost], None]) -> None:
    timed(by_elementwise)
    told = quantized(tmp_path, min_sqnr_db=150.0).report.fallback
    assert told is not None and told.chosen.kind == "float"
    assert told.candidates[0].holds is False
    smallest = quantized(tmp_path, max_size_bytes=1).report.fallback
    assert smallest is not None and smallest.chosen.kind == "planned"
    assert "no model meets" in smallest.reason
    # without seconds only the planned and the float model are compared
    timed(by_elementwise)
    told = quantized(tmp_path, seconds=0).report.fallback
    assert told is not None and told.regions == () and told.why_no_regions is not None
    assert [candidate.kind for candidate in told.candidates] == ["planned", "float"] and told.chosen.kind == "float"


def test_a_fallback_needs_a_limit_and_another_model() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        parse_config({"preset": "plain", "evaluation": {"gate": {"on_fail": "fallback"}}})
    assert [problem.pointer for problem in caught.value.errors] == ["/evaluation/gate/on_fail"]
    gate = {"max_latency_ratio": 1.0, "on_fail": "fallback"}
    with pytest.raises(InvalidConfigError) as caught:
        check_gate(EvaluationSpec.model_validate({"gate": gate}))
    assert [problem.pointer for problem in caught.value.errors] == ["/config/evaluation/gate/on_fail"]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, timed: Callable[[Cost], None]) -> None:
    """Each comparison of two models takes eight pairs of a second each, and may be ended between them."""
    timed(by_elementwise)
    told, ticks = choice.measure_latency, [1000.0]

    def measure(*args: Any, run: Any, **settings: Any) -> LatencyFigures:
        for _ in range(8):
            run.check()
            ticks.append(ticks[-1] + 1.0)
        return told(*args, run=run, **settings)

    monkeypatch.setattr(choice, "measure_latency", measure)
    monkeypatch.setattr(pipeline, "falling_back", partial(choice.falling_back, clock=lambda: ticks[-1]))


@pytest.mark.parametrize("seconds", [3, 40, 64, 150])
def test_the_search_ends_with_its_seconds(tmp_path: Path, clock: None, seconds: int) -> None:
    result = quantized(tmp_path, seconds=seconds, min_sqnr_db=1.0)
    told = result.report.fallback
    assert told.seconds <= seconds + 1.0, "what is under way is finished, and nothing else is begun"
    assert told.candidates[-1].kind == "float" and told.candidates[-1].holds, "the float model is judged in any case"
    late = [region for region in told.regions if region.outcome == "untried"]
    assert all(region.why is not None and "used up" in region.why for region in late)


def test_time_is_left_to_judge_what_the_search_has_led_to(tmp_path: Path, clock: None) -> None:
    """Regions by themselves take half of it; joining them would go on behind its part."""
    told = quantized(tmp_path, seconds=64, min_sqnr_db=1.0).report.fallback
    assert told is not None and len(told.regions) == 4 and told.seconds > 48, "all of the search's part was used"
    assert told.chosen.kind == "reduced" and told.chosen.holds


BUDGET = {"max_trials": 1, "max_seconds": None}
AUTOPILOT = {"method": "autopilot", "budget": BUDGET}


def searched(result: Result) -> Search:
    (outcome,) = result.report.algorithms
    assert outcome.search is not None
    return outcome.search


def goal_of(result: Result) -> Any:
    (clause,) = [clause for clause in result.report.gate if clause.clause == "goal"]
    return clause


@pytest.mark.slow
def test_a_goal_is_judged_on_the_model_that_is_returned(tmp_path: Path, timed: Callable[[Cost], None]) -> None:
    timed(by_elementwise)
    goal = {"kind": "distance", "metric": "sqnr", "limit": 10.0}
    result = quantized(tmp_path, algorithms=({**AUTOPILOT, "goal": goal},))
    told, found = result.report.fallback, searched(result)
    assert told is not None and told.chosen.kind == "reduced"
    measured = sqnr_db(run_onnx(MODEL, DATA)["y"], run_onnx(result.model, DATA)["y"])
    (chosen,) = [trial for trial in found.trials if trial.chosen]
    assert found.returned is not None and chosen.value is not None and abs(chosen.value - measured) > 0.5
    assert found.returned.value == pytest.approx(measured, abs=0.05)
    assert goal_of(result).got == found.returned.value and goal_of(result).holds and found.returned.goal_met
    assert found.returned.size_bytes == len(result.model)
    assert {clause.clause for clause in told.chosen.gate} == {"goal"}
    # a goal that no quantized model meets is met by the float one
    timed(by_elementwise)
    goal = {"kind": "distance", "metric": "l2", "limit": 1e-9}
    result = quantized(tmp_path, algorithms=({**AUTOPILOT, "goal": goal},))
    told, found = result.report.fallback, searched(result)
    assert told is not None and told.chosen.kind == "float"
    assert all(candidate.holds is False for candidate in told.candidates[:-1])
    assert not found.goal_met and found.returned is not None and found.returned.goal_met
    assert goal_of(result).holds and result.report.verdict == "pass"


@pytest.mark.slow
def test_the_bytes_of_a_search_count_and_its_latency_is_that_of_the_returned_model(tmp_path, timed) -> None:
    timed(by_elementwise)

    def within(**limits: float) -> Result:
        goal = {"kind": "distance", "metric": "sqnr", "limit": 10.0}
        return quantized(tmp_path, algorithms=({**AUTOPILOT, "goal": goal, "budget": {**BUDGET, **limits}},))

    small = within(max_size_bytes=1, max_latency_ratio=1.0).report.fallback
    assert small is not None and small.chosen.kind == "planned"
    assert all(not candidate.holds for candidate in small.candidates)
    slow = within(max_latency_ratio=0.9)
    told, clauses = slow.report.fallback, {clause.clause: clause for clause in slow.report.gate}
    assert told is not None and told.candidates[0].holds, "latency is what the fallback is for"
    assert clauses["budget.max_latency_ratio"].got == pytest.approx(told.chosen.latency_ratio, abs=1e-4)
