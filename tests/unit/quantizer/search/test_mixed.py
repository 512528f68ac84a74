"""Mixed precision: which layers are lowered, and whether the goal is met by the model that comes out."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.contracts.algorithms import MixedPrecision
from service.contracts.algorithms.precision import Level
from service.contracts.config import parse_config
from service.contracts.errors import CanceledError, InvalidConfigError
from service.contracts.search import Sensitivity
from tests.unit.quantizer.search.benches import (
    Canceling,
    Listener,
    branches,
    chain_of_convolutions,
    residual_blocks,
    samples,
    toolkit_for,
)
from tests.unit.quantizer.toolbox import config, quantize_file, run_onnx, sqnr_db
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import StepResult
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.search import sensitivity as sensitivity_step
from worker.quantizer.search.goal import GoalEvaluator, GoalMeasurement
from worker.quantizer.search.mixed_precision import MixedPrecisionStep

PER_TENSOR = config(weight={"granularity": "per_tensor"})


def mixed(limit: float = 30.0, **settings: Any) -> MixedPrecision:
    settings = {"combination": "A16W16_A8W8", **settings}
    goal = settings.pop("goal", {"kind": "distance", "metric": "sqnr", "limit": limit})
    return MixedPrecision.model_validate({"goal": goal, **settings})


@cache
def _applied(document: str) -> StepResult:
    draft, toolkit = toolkit_for(chain_of_convolutions(outlier=2), PER_TENSOR)
    return MixedPrecisionStep(MixedPrecision.model_validate_json(document)).apply(draft, toolkit)


def applied(spec: MixedPrecision) -> tuple[StepResult, QuantizationPlan]:
    """Every mix is searched once, and not changed."""
    change = _applied(spec.model_dump_json())
    return change, change.draft.plan


def lowered(plan: QuantizationPlan) -> set[str]:
    return {weight.node for weight in plan.weights.values() if weight.spec.dtype == "int8"}


@pytest.mark.slow
def test_the_most_sensitive_layer_keeps_its_precision() -> None:
    loose, _ = applied(mixed(10.0))
    assert set(loose.nodes) == {"conv0", "conv1", "conv2", "conv3", "dense"}
    tight, plan = applied(mixed(41.0))
    assert 0 < len(tight.nodes) < 5
    assert "conv2" not in tight.nodes
    assert lowered(plan) == set(tight.nodes)
    assert "goal met" in tight.summary
    feeds = {"x": samples()["x"]}
    expected = run_onnx(chain_of_convolutions(outlier=2), feeds)["y"]
    assert sqnr_db(expected, run_onnx(tight.draft.emitted_bytes(), feeds)["y"]) >= 41.0
    quality, _ = applied(mixed(41.0, optimize="quality"))  # the other direction ends at the same mix
    assert tight.nodes == quality.nodes


@pytest.mark.parametrize("combination", ["A16W16_A16W8", "A16W8_A8W8", "A8W16_A8W8"])
def test_each_combination_gives_its_own_types(combination: str) -> None:
    change, plan = applied(mixed(38.0, combination=combination))
    high, _, low = combination.partition("_")
    words = {"A16": "int16", "A8": "uint8", "W16": "int16", "W8": "int8"}
    weights = {weight.node: weight.spec.dtype for weight in plan.weights.values()}
    activations = {entry.source: entry.spec.dtype for entry in plan.activations.values()}
    reads = {"conv0": "x", "conv1": "r0", "conv2": "r1", "conv3": "r2", "dense": "r3"}
    for node, source in reads.items():
        level = low if node in change.nodes else high
        assert weights[node] == words["W" + level.partition("W")[2]]
        assert activations.get(source, activations.get("f")) == words[level.partition("W")[0]]


def levels_of(step: dict[str, Any], **settings: Any) -> tuple[Level, Level]:
    (found,) = parse_config({"algorithms": [{"method": "mixed_precision", **step}], **settings}).algorithms
    assert isinstance(found, MixedPrecision)
    return found.high, found.low


def test_a_combination_changes_types_or_takes_the_place_of_the_presets_levels() -> None:
    own = {"weight": {"granularity": "per_tensor"}, "activation": {"calibration": {"method": "percentile"}}}
    high, low = levels_of({"combination": "A16W16_A8W8"}, preset="plain", **own)
    for level, types in ((high, ("int16", "int16")), (low, ("uint8", "int8"))):
        assert (level.activation.dtype, level.weight.dtype) == types
        assert level.activation.calibration.method == "percentile"
        assert level.weight.granularity == "per_tensor"
    high, low = levels_of({"combination": "A16W8_A8W8"}, preset="npu_int8")
    assert (high.activation.dtype, low.activation.dtype) == ("int16", "int8")
    assert {spec.scale for level in (high, low) for spec in (level.activation, level.weight)} == {"power_of_two"}
    step = {"method": "mixed_precision", "combination": "A16W8_A8W8"}
    once = parse_config({"preset": "npu_int8", "algorithms": [step]})
    assert parse_config(once.model_dump(mode="json")) == once
    # a combination or levels of ones own take the place of the presets
    high, low = levels_of({"combination": "A16W8_A8W8"}, preset="s16s16_mixed_s8s8")
    assert (high.weight.dtype, low.weight.dtype) == ("int8", "int8")
    assert high.activation.calibration.percentile == 99.9999
    high, low = levels_of({}, preset="s16s16_mixed_s8s8")
    assert (high.weight.dtype, low.weight.dtype) == ("int16", "int8")
    float_ = {"activation": "float32", "weight": "float32"}
    high, low = levels_of({"combination": "A16W8_A8W8", "high": float_}, preset="plain")
    assert high.is_float
    assert low.weight.granularity == "per_channel"


def test_float_is_the_highest_level() -> None:
    spec = mixed(
        39.0,
        combination=None,
        high={"activation": "float32", "weight": "float32"},
        low={"activation": {}, "weight": {"granularity": "per_tensor"}},
    )
    change, plan = applied(spec)
    in_float = {"conv0", "conv1", "conv2", "conv3", "dense"} - set(change.nodes)
    assert in_float
    assert all(not plan.nodes[name].quantized for name in in_float)
    assert all(plan.nodes[name].quantized for name in change.nodes)


@pytest.mark.slow
def test_selectors_budgets_and_goals_bind() -> None:
    change, _ = applied(mixed(10.0, exclude=[{"node": "conv0"}]))
    assert "conv0" not in change.nodes
    change, _ = applied(mixed(10.0, include=[{"op_type": "Conv"}]))
    assert "dense" not in change.nodes
    change, plan = applied(mixed(60.0, budget={"max_mean_bits": 10}))
    sizes = {weight.initializer: weight for weight in plan.weights.values()}
    bits = sum(int(weight.spec.dtype[3:]) * weight.integers.size for weight in sizes.values())
    assert bits / sum(weight.integers.size for weight in sizes.values()) <= 10
    assert "goal missed" in change.summary
    # a goal or a budget out of reach is told
    change, _ = applied(mixed(10.0, budget={"max_latency_ratio": 1e-6}))
    assert "over budget" in change.summary
    assert "of the float model's latency, 1e-06 allowed" in change.summary
    change, plan = applied(mixed(150.0))
    assert lowered(plan) == set()
    assert "goal missed by" in change.summary
    # a drop goal needs a metric that is there
    with pytest.raises(InvalidConfigError, match="'mean_iou'"):
        applied(mixed(goal={"kind": "drop", "metric": "mean_iou", "max_drop": 1.0}))
    change, _ = applied(mixed(goal={"kind": "drop", "max_drop": 0.0}))
    assert "top1 drop" in change.summary


def test_layers_that_share_a_tensor_move_together() -> None:
    for limit in (30.0, 45.0):
        draft, toolkit = toolkit_for(branches(outlier=300.0), PER_TENSOR)
        change = MixedPrecisionStep(mixed(limit)).apply(draft, toolkit)
        assert ("b" in change.nodes) == ("c" in change.nodes)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"high": {"activation": {}, "weight": {}}, "low": {"activation": {}, "weight": {}}}, "the same"),
        ({"high": {"activation": {}, "weight": {}}, "low": {"activation": "float32", "weight": "float32"}}, "low"),
        ({"high": {"activation": "float32", "weight": {}}, "low": {"activation": {}, "weight": {}}}, "stays float"),
        ({"combination": "A32W8_A8W8"}, "A16W16_A8W16"),
    ],
)
def test_levels_that_make_no_sense_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        MixedPrecision.model_validate(settings)


@pytest.mark.slow
def test_the_whole_pipeline_runs_it(tmp_path) -> None:
    arrays = samples()
    settings = parse_config({"preset": "plain", "algorithms": [mixed(38.0).model_dump(mode="json")]})
    result = quantize_file(tmp_path, chain_of_convolutions(outlier=2), arrays, settings)
    (outcome,) = result.report.algorithms
    assert outcome.kept
    assert result.report.fidelity.sqnr_db >= 38.0
    assert "goal met" in outcome.summary
    assert [file.kind for file in result.files] == ["sensitivity_json", "sensitivity_csv", "samples"]
    found = Sensitivity.model_validate_json(result.files[0].content)
    assert found.layers[0].node == "conv2"


def test_a_search_that_was_broken_off_does_not_repeat_its_evaluations(tmp_path: Path, monkeypatch) -> None:
    def attempt(run: SilentRun) -> StepResult:
        store = CheckpointStore(tmp_path)
        draft, toolkit = toolkit_for(chain_of_convolutions(outlier=2), PER_TENSOR, checkpoint=store, run=run)
        return MixedPrecisionStep(mixed(41.0)).apply(draft, toolkit)

    whole, _ = applied(mixed(41.0))
    needed = int(re.search(r"(\d+) evaluations", whole.summary)[1])
    measured: list[Draft] = []
    original = GoalEvaluator.measure

    def counted(self: GoalEvaluator, draft: Draft) -> GoalMeasurement:
        measured.append(draft)
        return original(self, draft)

    monkeypatch.setattr(GoalEvaluator, "measure", counted)
    with pytest.raises(CanceledError):
        attempt(Canceling("mixed precision", 3))
    finished = 2
    measured.clear()
    monkeypatch.setattr(sensitivity_step, "analyse", None)  # the ranking is taken over too
    resumed = attempt(SilentRun())
    assert len(measured) == needed - finished
    assert f"{finished} of them by an earlier attempt" in resumed.summary
    assert resumed.draft.emitted_bytes() == whole.draft.emitted_bytes()


def test_every_trial_tells_how_many_are_lowered_and_what_the_goal_speaks_of(tmp_path: Path) -> None:
    runs = Listener(), Listener()
    for run in runs:
        store = CheckpointStore(tmp_path)
        draft, toolkit = toolkit_for(chain_of_convolutions(outlier=2), PER_TENSOR, checkpoint=store, run=run)
        change = MixedPrecisionStep(mixed(41.0)).apply(draft, toolkit)
        told = [(step, values) for stage, step, values in run.told if stage == "mixed precision"]
        assert [step for step, _ in told] == list(range(1, len(told) + 1))
        assert f"{len(told)} evaluations" in change.summary
        lowered = {values["lowered"]: values["goal_sqnr"] for _, values in told}
        assert len(lowered) == len(told)
        assert max(k for k, value in lowered.items() if value >= 41.0) == len(change.nodes)
    assert runs[0].told == runs[1].told


@pytest.mark.slow
def test_a_mix_is_measured_with_the_bias_correction_that_follows(tmp_path: Path) -> None:
    step = mixed(33.0).model_dump(mode="json")
    biased = {"weight": {"granularity": "per_tensor"}, "preset": "plain"}

    def summary(*following: dict[str, Any]) -> tuple[str, float]:
        settings = parse_config({**biased, "algorithms": [step, *following]})
        report = quantize_file(tmp_path, chain_of_convolutions(outlier=2), samples(), settings).report
        assert report.fidelity.sqnr_db is not None
        return report.algorithms[0].summary, report.fidelity.sqnr_db

    alone, reached = summary()
    corrected, reached_so = summary({"method": "bias_correction", "mode": "full"})
    assert "bias correction" not in alone
    assert "measured with the bias correction that follows" in corrected
    for told, got in ((alone, reached), (corrected, reached_so)):
        assert float(told.partition("sqnr ")[2].split()[0]) == pytest.approx(got, abs=0.02)


def test_an_output_is_named_or_numbered() -> None:
    by_name, _ = applied(mixed(41.0, output_index="y"))
    by_number, _ = applied(mixed(41.0, output_index=0))
    assert by_name.nodes == by_number.nodes
    for ref in ("z", 1):
        with pytest.raises(InvalidConfigError, match=f"no output {ref!r}"):
            applied(mixed(41.0, output_index=ref))


@pytest.mark.slow
def test_the_operands_of_an_addition_have_one_type() -> None:
    model = residual_blocks(outlier=30.0)
    feeds = {"x": samples()["x"]}
    expected = run_onnx(model, feeds)["y"]
    mixes = set()
    for limit in (20.0, 42.0, 46.0):
        draft, toolkit = toolkit_for(model, PER_TENSOR)
        change = MixedPrecisionStep(mixed(limit)).apply(draft, toolkit)
        plan = change.draft.plan
        for k in range(3):
            first, second = (plan.activations[name].spec for name in (f"d{k}", f"s{k}"))
            assert first == second
        mixes.add(change.nodes)
        assert sqnr_db(expected, run_onnx(change.draft.emitted_bytes(), feeds)["y"]) >= limit
    assert len(mixes) == 3
