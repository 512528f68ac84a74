"""The search: what it tries, what it chooses, and what it says when the goal or the budget cannot be kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.algorithms import Autopilot, algorithm_contradictions
from service.contracts.base import search_space
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import CanceledError
from service.contracts.report import Score
from service.contracts.search import Search, TrialFigures
from service.contracts.specs import PercentileCalibration
from tests.unit.quantizer.search.benches import Canceling, Listener, chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, quantize_file, run_onnx, sqnr_db
from worker.quantizer.evaluation.certainty import Evidence
from worker.quantizer.graph.metadata import REGION
from worker.quantizer.pipeline import Result
from worker.quantizer.refine.step import StepResult
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.search.autopilot import AutopilotStep, clear_winner, pareto
from worker.quantizer.search.goal import GoalMeasurement
from worker.quantizer.search.recipes import (
    Basis,
    Chain,
    Finalist,
    RecipeTrial,
    RecipeTrials,
    chains,
    structure_of,
    variants,
)

pytestmark = pytest.mark.slow  # quantizes many times

CORRECT, EQUALIZE = "bias_correction", "cross_layer_equalization"
PER_TENSOR = config(weight={"granularity": "per_tensor"})


def pilot(limit: float, **settings: Any) -> Autopilot:
    goal = {"kind": "distance", "metric": "sqnr", "limit": limit}
    return Autopilot.model_validate({"goal": goal, **settings})


def flown(spec: Autopilot, *, store: CheckpointStore | None = None, run: SilentRun | None = None) -> StepResult:
    draft, toolkit = toolkit_for(chain_of_convolutions(3, outlier=1), PER_TENSOR, checkpoint=store, run=run)
    return AutopilotStep(spec).apply(draft, toolkit)


def found(change: StepResult) -> Search:
    assert change.search is not None
    return change.search


def chosen(change: StepResult) -> TrialFigures:
    (trial,) = [trial for trial in found(change).trials if trial.chosen]
    return trial


@pytest.fixture(scope="module")
def easy(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Listener, StepResult]]:
    """A search, and another attempt that takes it over."""
    folder, runs = tmp_path_factory.mktemp("easy"), (Listener(), Listener())
    return [(run, flown(pilot(20.0), store=CheckpointStore(folder), run=run)) for run in runs]


def test_an_easy_goal_needs_no_slow_step_and_the_model_meets_it(easy: list[tuple[Listener, StepResult]]) -> None:
    _, change = easy[0]
    assert found(change).met
    assert not any("adaround" in trial.algorithms for trial in found(change).trials)
    feeds = {"x": samples()["x"]}
    expected = run_onnx(chain_of_convolutions(3, outlier=1), feeds)["y"]
    measured = sqnr_db(expected, run_onnx(change.draft.emitted_bytes(), feeds)["y"])
    assert measured >= 20.0
    assert chosen(change).value == pytest.approx(measured, abs=0.2)


@pytest.mark.long
def test_a_hard_goal_calls_for_slow_steps_and_then_for_float() -> None:
    change = flown(pilot(48.0))
    tried = [algorithm for trial in found(change).trials for algorithm in trial.algorithms]
    assert "adaround" in tried
    assert "mixed_precision" in tried
    assert "qat" not in tried, "no time is set"
    assert found(change).met


def test_a_goal_out_of_reach_returns_the_best_and_the_gap() -> None:
    change = flown(pilot(190.0, budget={"max_trials": 6}))
    assert not found(change).met
    assert found(change).gap > 0
    assert "goal missed by" in change.summary
    assert "6 recipes" in found(change).ended_by
    trials = found(change).trials
    assert chosen(change).gap == min(trial.gap for trial in trials if trial.evaluated and trial.gap is not None)
    # every variant of a method has its statistics
    by_basis = {trial.name.partition(":")[0]: trial.sqnr_db for trial in trials if not trial.algorithms}
    alone = [trial for trial in trials if trial.name.endswith(": bias_correction")]
    assert any(trial.sqnr_db > by_basis[trial.name.partition(":")[0]] for trial in alone)


@pytest.mark.long
def test_the_last_resort_is_to_train_where_a_time_is_set(monkeypatch) -> None:
    monkeypatch.setattr("worker.quantizer.search.autopilot._TRAINING_SHARE", 0.02)
    change = flown(pilot(190.0, budget={"max_seconds": 90.0}))
    last = found(change).trials[-1]
    assert last.algorithms[-1] == "qat"
    assert [trial.algorithms for trial in found(change).trials].index(last.algorithms) > 0
    assert not found(change).met


def test_time_that_is_used_up_ends_the_search_and_a_trial_that_is_under_way(monkeypatch) -> None:
    change = flown(pilot(190.0, budget={"max_seconds": 1e-6}))
    assert "used up" in found(change).ended_by
    assert sum(trial.evaluated for trial in found(change).trials) == 1
    # time that is used up ends a trial that is under way
    original = RecipeTrials._extended

    def slow(self: RecipeTrials, basis: Basis, chain: Any) -> Any:
        monkeypatch.setattr(self.services.run, "_clock", lambda: math.inf)
        self.services.run.check()
        return original(self, basis, chain)

    monkeypatch.setattr(RecipeTrials, "_extended", slow)
    change = flown(pilot(190.0, budget={"max_seconds": 60.0}))
    assert "used up" in found(change).ended_by
    assert not any(trial.algorithms for trial in found(change).trials)
    assert chosen(change).name == "as configured: calibration alone"
    assert change.draft is not None


def test_latency_is_measured_once_for_models_of_one_structure() -> None:
    def structure(settings: QuantizationConfig, **changed: Any) -> str:
        draft, _ = toolkit_for(chain_of_convolutions(2, **changed), settings)
        return structure_of(draft.emitted().model)

    expected = structure(PER_TENSOR)
    assert structure(PER_TENSOR, outlier=1) == expected
    assert structure(config(weight={"granularity": "per_channel"})) != expected
    assert structure(config(weight={"granularity": "per_tensor", "dtype": "uint8"})) != expected
    # latency is measured once for models of one structure
    change = flown(pilot(5.0, finalists=16))
    alone = [trial for trial in found(change).trials if trial.evaluated and not trial.algorithms]
    assert len(alone) > 1
    assert len({trial.latency_ratio for trial in alone}) == 1


@pytest.mark.long
def test_the_smallest_model_counts_where_size_is_the_objective() -> None:
    change = flown(pilot(5.0, objective="size"))
    evaluated = [trial for trial in found(change).trials if trial.evaluated]
    assert any(trial.name.startswith("4-bit weights") for trial in evaluated)
    assert chosen(change).size_bytes == min(trial.size_bytes for trial in evaluated if trial.size_bytes is not None)


def test_a_search_that_was_broken_off_goes_on_without_repeating(tmp_path: Path, monkeypatch) -> None:
    whole = flown(pilot(40.0))
    with pytest.raises(CanceledError):
        flown(pilot(40.0), store=CheckpointStore(tmp_path), run=Canceling("autopilot", 6))
    made: list[str] = []
    original = RecipeTrials._extended

    def counted(self: RecipeTrials, basis: Basis, chain: Any) -> Any:
        made.append(f"{basis.name} {[algorithm.method for algorithm in chain]}")
        return original(self, basis, chain)

    monkeypatch.setattr(RecipeTrials, "_extended", counted)
    resumed = flown(pilot(40.0), store=CheckpointStore(tmp_path))
    taken_over = [trial.name for trial in found(resumed).trials if trial.resumed]
    assert len(taken_over) >= 4
    assert [trial.name for trial in found(resumed).trials] == [trial.name for trial in found(whole).trials]
    assert chosen(resumed).name == chosen(whole).name
    assert resumed.draft.emitted_bytes() == whole.draft.emitted_bytes()


def finalist(
    gap: float, size_bytes: int, latency_ratio: float, parts: tuple[float, ...] = (), sqnr_db: float = 20.0
) -> Finalist:
    score = Score(sqnr_db=sqnr_db, metric="top1", value=None)
    trial = RecipeTrial(Basis("b"), (), score, True, False, 0.0)
    return Finalist(trial, GoalMeasurement(gap, gap, Evidence.of_means(parts)), size_bytes, latency_ratio)


def test_the_pareto_set_holds_what_nothing_beats_and_a_difference_within_chance_is_no_gain() -> None:
    small, fast, exact = finalist(0.3, 10, 0.9), finalist(0.3, 20, 0.5), finalist(0.0, 20, 0.9)
    beaten, twin = finalist(0.3, 20, 0.9), finalist(0.3, 10, 0.9)
    assert pareto([small, fast, exact, beaten, twin]) == [small, fast, exact, twin]
    simple = finalist(0.2, 1, 1.0, (80.0, 90.0, 85.0, 95.0))
    lucky = finalist(0.1, 1, 1.0, (85.0, 85.0, 90.0, 92.0))
    better = finalist(0.0, 1, 1.0, (82.0, 92.0, 87.0, 97.5))
    assert clear_winner([simple, lucky]) is simple
    assert clear_winner([simple, lucky, better]) is better


def test_where_the_metric_tells_no_difference_the_clearly_smaller_error_wins() -> None:
    parts = (80.0, 90.0, 85.0, 95.0)
    simple, alike = finalist(-0.1, 1, 1.0, parts, sqnr_db=23.9), finalist(-0.1, 1, 1.0, parts, sqnr_db=24.1)
    closer, missing = finalist(-0.1, 1, 1.0, parts, sqnr_db=24.9), finalist(0.1, 1, 1.0, parts, sqnr_db=29.0)
    assert clear_winner([simple, alike]) is simple
    assert clear_winner([simple, alike, closer, missing]) is closer


def lost_at_first(**budget: Any) -> StepResult:
    """A search on a network whose logarithm is -inf on every grid that reaches the one large sample."""
    x = np.full((48, 3, 8, 8), 0.01, np.float32)
    x[0] = 100.0
    text = "(float[N,3,8,8] x) => (float[N,5] y) { [f] t = Flatten(x) [dense] s = MatMul(t, k) [log] y = Log(s) }"
    model = make_model(text, {"k": np.full((192, 5), 1 / 192, np.float32)})
    draft, toolkit = toolkit_for(model, PER_TENSOR, x=x)
    return AutopilotStep(pilot(5.0, budget=budget)).apply(draft, toolkit)


def test_a_model_that_is_not_finite_loses_its_trial_alone_and_the_report_says_why() -> None:
    why = "the outputs contain NaN or Inf, or are all zero"
    change = lost_at_first()
    lost = found(change).trials[0]
    assert lost.evaluated and (lost.value, lost.gap, lost.undefined) == (None, None, why)
    assert chosen(change).gap is not None and chosen(change).undefined is None
    assert found(change).gap == chosen(change).gap
    assert Search.model_validate_json(found(change).model_dump_json()) == found(change)
    change = lost_at_first(max_trials=1)
    assert not found(change).met and found(change).gap is None
    assert found(change).undefined == why
    assert "goal missed: the outputs contain NaN or Inf" in change.summary


def labelled(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Samples that the model is right about: of one that guesses nothing is said."""
    found = samples()
    decided = run_onnx(model.SerializeToString(), {"x": found["x"]})["y"].argmax(axis=1)
    return {**found, "labels": decided}


def piloted(folder: Path, arrays: dict[str, np.ndarray] | None = None, **step: Any) -> Result:
    asked = {"method": "autopilot", "goal": {"kind": "drop", "max_drop": 100.0}, **step}
    asked["budget"] = {"max_trials": 3, **step.get("budget", {})}
    model = chain_of_convolutions(2)
    settings = parse_config({"preset": "plain", "algorithms": [asked]})
    return quantize_file(folder, model, arrays or labelled(model), settings)


def test_the_verdict_is_the_goal_and_the_models_of_the_pareto_set_are_files(tmp_path: Path) -> None:
    result = piloted(tmp_path)
    assert result.report.verdict == "pass"
    (outcome,) = result.report.algorithms
    on_front = [trial.file for trial in outcome.search.trials if trial.pareto]
    assert on_front
    assert [file.filename for file in result.files if file.kind != "samples"] == on_front
    assert run_onnx(result.files[0].content, {"x": samples()["x"]})["y"].shape == (48, 5)
    # without labels it goes by the decisions
    report = piloted(tmp_path, {"x": samples()["x"]}, goal={"kind": "drop", "max_drop": 60.0}).report
    assert report.verdict == "pass"
    assert any("no labels" in note for note in report.notes)


@pytest.mark.parametrize(
    ("step", "failing"),
    [
        ({"goal": {"kind": "distance", "metric": "cosine", "limit": 0.5}}, []),
        ({"goal": {"kind": "distance", "metric": "sqnr", "limit": 150.0}}, ["goal"]),
        ({"budget": {"max_size_bytes": 10}}, ["budget.max_size_bytes"]),
    ],
)
def test_a_goal_or_budget_that_is_missed_fails(tmp_path: Path, step: dict[str, Any], failing: list[str]) -> None:
    report = piloted(tmp_path, **step).report
    assert report.verdict == ("fail" if failing else "pass")
    assert [clause.clause for clause in report.gate if not clause.holds] == failing
    assert report.gate[0].got is not None


@pytest.mark.parametrize(
    ("op_types", "methods"),
    [
        ({"Relu"}, [[CORRECT]]),
        ({"ConvTranspose", "MatMul"}, [[CORRECT], [EQUALIZE, CORRECT]]),
        ({"Gemm", "LayerNormalization"}, [[CORRECT], ["smooth_quant", CORRECT]]),
    ],
)
def test_a_chain_is_tried_where_it_finds_something_to_do(op_types: set[str], methods: list[list[str]]) -> None:
    assert [[algorithm.method for algorithm in chain] for chain in chains_for(op_types)] == methods


def chains_for(op_types: set[str]) -> list[Chain]:
    nodes = [ir.node(op_type, inputs=[]) for op_type in sorted(op_types)]
    return chains(ir.Graph(inputs=[], outputs=[], nodes=nodes))


def test_chains_keep_their_order_and_vary_by_what_knobs_declare() -> None:
    every = chains_for({"Conv", "MatMul", "LayerNormalization"})
    assert len(every) == 3
    for chain in every:
        assert list(algorithm_contradictions([algorithm.method for algorithm in chain], ["int8"])) == []
    quickest = every[0]
    (other,) = variants(quickest)
    assert other[0].model_dump() == {**quickest[0].model_dump(), "mode": "fast"}
    assert search_space(PercentileCalibration)["percentile"]
    assert search_space(Autopilot) == {}


@pytest.mark.parametrize("limit", [20.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_what_is_excluded_within_a_region_stays_in_float_whatever_is_tried(tmp_path: Path, limit: float) -> None:
    model = chain_of_convolutions(4, outlier=1)
    for node in model.graph.node:
        if node.name[-1] in "012":  # conv0, relu0 ... relu2
            node.metadata_props.add(key=REGION, value="quant")
    goal = {"kind": "distance", "metric": "sqnr", "limit": limit}
    step = {"method": "autopilot", "goal": goal, "budget": {"max_trials": 8}}
    settings = parse_config({"preset": "plain", "exclude": [{"node": "conv1"}], "algorithms": [step]})
    result = quantize_file(tmp_path, model, samples(), settings)
    told = {row.name: row.reason_code for row in result.report.layers}
    assert (told["conv1"], told["conv3"], told["dense"]) == ("excluded", "outside-regions", "outside-regions")
    for content in (result.model, *(file.content for file in result.files if file.kind != "samples")):
        emitted = onnx.load_from_string(content)
        makers = {name: node.op_type for node in emitted.graph.node for name in node.output}
        nodes = {node.name: node for node in emitted.graph.node}
        stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in emitted.graph.initializer}
        original = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        for name, weight in (("conv1", "w1"), ("conv3", "w3")):
            assert np.array_equal(stored[nodes[name].input[1]], original[weight])
        region = [makers.get(nodes[name].input[1]) for name in ("conv0", "conv2")]
        assert content is not result.model or "DequantizeLinear" in region


def test_every_trial_is_told_as_it_comes_and_again_with_its_value_once_evaluated(easy) -> None:
    for run, change in easy:
        rows = found(change).trials
        latest = {step: values for stage, step, values in run.told if stage == "autopilot"}
        assert list(latest) == list(range(1, len(rows) + 1))
        for row, figures in zip(rows, latest.values(), strict=True):
            costs = {"size_bytes": row.size_bytes, "latency_ratio": row.latency_ratio}
            assert figures == {"sqnr_db": row.sqnr_db} | ({"goal_sqnr": row.value} | costs if row.evaluated else {})
        lines = [line for line in run.words if line.startswith("autopilot, recipe ")]
        assert [line.split(": ", 1)[0] for line in lines] == [f"autopilot, recipe {step}" for step in latest]
        assert all(row.name in line for row, line in zip(rows, lines, strict=True))
    assert all(row.resumed for row in found(easy[1][1]).trials)
