"""A step is kept or undone by the same rule, whoever tries it: a config, the autopilot, or mixed precision."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts.algorithms import AdaRound, Algorithm, BiasCorrection, CrossLayerEqualization, MixedPrecision
from service.contracts.algorithms.precision import DistanceGoal
from service.contracts.config import parse_config
from service.contracts.costs import spread
from tests.support.each import each
from tests.unit.quantizer.search.benches import SAMPLES, chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import config, data, network, quantize_file, run_onnx, sqnr_db
from worker.quantizer.evaluation.compare import layer_distances
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import NO_DATA, NO_LOSS, OUT_OF_TIME, refine
from worker.quantizer.refine.judge import SQNR_WORSE, Judge
from worker.quantizer.refine.step import Step, StepResult, TimeLimit, Toolkit
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.search.goal import GoalEvaluator
from worker.quantizer.search.mixed_precision import Corrections
from worker.quantizer.search.recipes import Basis, RecipeTrials


class Spoiler(Step[BiasCorrection]):
    judged = True

    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        plan = draft.plan.copy()
        plan.weights = {
            name: replace(weight, integers=np.zeros_like(weight.integers)) for name, weight in plan.weights.items()
        }
        return StepResult(replace(draft, plan=plan), tuple(plan.nodes), "spoiled", judged=self.judged)


class Willful(Spoiler):
    judged = False


def by_config(algorithm: Algorithm, draft: Draft, toolkit: Toolkit) -> Draft:
    judge = Judge(toolkit.case, toolkit.services, range(8))
    drafts, (outcome,) = refine(draft, [toolkit.step_of(algorithm)], toolkit, judge)
    assert outcome.kept == (len(drafts) == 2)
    return drafts[-1]


def by_autopilot(algorithm: Algorithm, draft: Draft, toolkit: Toolkit) -> Draft:
    judge = Judge(toolkit.case, toolkit.services, range(8))
    bench = RecipeTrials(draft, toolkit, judge, GoalEvaluator(DistanceGoal(limit=20.0), toolkit.case, toolkit.services))
    trial = bench.trial(Basis("as configured"), (algorithm,))
    assert trial.kept == is_spoiled(bench.draft_of(trial))
    return bench.draft_of(trial)


def by_mixed_precision(algorithm: Algorithm, draft: Draft, toolkit: Toolkit) -> Draft:
    mix = MixedPrecision.model_validate({"combination": "A16W16_A8W8"})
    config = toolkit.case.config.model_copy(update={"algorithms": (mix, algorithm)})
    return Corrections(mix, replace(toolkit, case=replace(toolkit.case, config=config))).applied(draft)


def is_spoiled(draft: Draft) -> bool:
    return not any(weight.integers.any() for weight in draft.plan.weights.values() if weight.integers is not None)


@each("run", [by_config, by_autopilot, by_mixed_precision])
@each(
    ("accept", "kind", "kept"), [("if_better", Spoiler, False), ("always", Spoiler, True), ("if_better", Willful, True)]
)
def test_what_is_kept(
    run: Callable[[Algorithm, Draft, Toolkit], Draft], accept: str, kind: type[Spoiler], kept: bool
) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    toolkit = replace(toolkit, step_of=kind)
    assert is_spoiled(run(BiasCorrection(accept=accept), draft, toolkit)) == kept


class Repairer(Spoiler):
    def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
        if not is_spoiled(draft):
            return super().apply(draft, toolkit)
        plan = draft.plan.copy()
        Parameters(draft.graph, plan).fill()
        return StepResult(replace(draft, plan=plan), tuple(plan.nodes), "repaired")


@pytest.mark.parametrize(
    ("behind", "kept"), [([Repairer], True), ([Spoiler], True), ([], False), ([Repairer, Repairer], False)]
)
def test_what_is_judged_at_the_end_is_judged_by_what_the_others_make_of_it(
    behind: list[type[Spoiler]], kept: bool
) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    first = Spoiler(BiasCorrection(accept="if_better_at_end"))
    others = [kind(BiasCorrection(accept="always")) for kind in behind]
    judge = Judge(toolkit.case, toolkit.services, range(8))
    drafts, outcomes = refine(draft, [first, *others], toolkit, judge)
    assert [outcome.kept for outcome in outcomes] == [kept, *(True for _ in others)]
    assert len(drafts) == 1 + sum(outcome.kept for outcome in outcomes)
    plain, _ = refine(draft, others, toolkit, judge)
    assert judge.worse(drafts[-1], plain[-1]) is None
    if behind:
        assert outcomes[0].summary.endswith("judged with all later steps: spoiled")


class JudgeOfSpoiled(Judge):
    def loss(self, draft: Draft, *, lost_sqnr_db: float = 0.0, lost_percent: float = 0.0) -> str | None:
        return "all is lost" if is_spoiled(draft) else None


@each(("before", "runs"), [(Spoiler, True), (None, False)])
def test_what_runs_on_a_loss_is_skipped_where_there_is_none(before: type[Spoiler] | None, runs: bool) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    first = [before(BiasCorrection(accept="always"))] if before else []
    steps = [*first, Repairer(BiasCorrection(accept="always", when="loss"))]
    _, outcomes = refine(draft, steps, toolkit, JudgeOfSpoiled(toolkit.case, toolkit.services, range(8)))
    last = outcomes[-1]
    assert last.kept == runs
    assert (last.summary, last.reason_code) == (
        ("all is lost: repaired", None) if runs else (NO_LOSS().words, NO_LOSS.code)
    )


def test_what_learns_from_data_on_a_loss_is_left_out_where_inputs_are_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    monkeypatch.setattr(toolkit.case.calibration, "is_random", True, raising=False)
    steps = [Spoiler(BiasCorrection(accept="always")), Repairer(BiasCorrection(accept="always", when="loss"))]
    _, outcomes = refine(draft, steps, toolkit, JudgeOfSpoiled(toolkit.case, toolkit.services, range(8)))
    assert [outcome.reason_code for outcome in outcomes] == [None, NO_DATA.code]


@each(
    ("behind", "kept", "walked"),
    [([], False, 1), ([Spoiler], True, 2), ([Willful, Repairer, Repairer], True, 2)],
)
def test_what_is_reconsidered_goes_both_ways_only_where_the_first_ends_in_a_loss(
    behind: list[type[Spoiler]], kept: bool, walked: int
) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    ways = []

    class Counting(Step[BiasCorrection]):
        def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
            ways.append(is_spoiled(draft))
            return StepResult.nothing(NO_LOSS())

    always = BiasCorrection(accept="always")
    steps = [Spoiler(BiasCorrection(accept="reconsidered")), Counting(always), *(kind(always) for kind in behind)]
    drafts, outcomes = refine(draft, steps, toolkit, JudgeOfSpoiled(toolkit.case, toolkit.services, range(8)))
    assert len(ways) == walked
    assert outcomes[0].kept == kept
    assert outcomes[0].before is not None
    assert len(drafts) == 1 + sum(outcome.kept for outcome in outcomes)


class Short(TimeLimit):
    """Of which nothing is left that takes any time."""

    def allows(self, seconds: float = 0.0) -> bool:
        return seconds == 0.0


@each(("accept",), [("reconsidered",), ("if_better_at_end",)])
def test_behind_the_time_limit_nothing_begins_and_nothing_runs_twice(accept: str) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    always = BiasCorrection(accept="always")
    judge = JudgeOfSpoiled(toolkit.case, toolkit.services, range(8))
    over = replace(toolkit, time_limit=TimeLimit.of(1e-9))
    drafts, outcomes = refine(
        draft, [Spoiler(always), Spoiler(BiasCorrection(accept=accept)), Spoiler(always)], over, judge
    )
    assert len(drafts) == 1
    assert [outcome.reason_code for outcome in outcomes] == [OUT_OF_TIME.code] * 3
    ways = []

    class Counting(Step[BiasCorrection]):
        def apply(self, draft: Draft, toolkit: Toolkit) -> StepResult:
            ways.append(is_spoiled(draft))
            return StepResult.nothing(NO_LOSS())

    steps = [Spoiler(BiasCorrection(accept=accept)), Counting(always), Spoiler(always)]
    assert len(refine(draft, steps, replace(toolkit, time_limit=TimeLimit.of(600.0)), judge)[0]) > 1
    assert sorted(ways) == [False, True]  # there is time for both
    ways.clear()
    _, outcomes = refine(draft, steps, replace(toolkit, time_limit=Short(end=0.0)), judge)
    assert ways == [False]
    assert "max_seconds" in outcomes[0].summary


def rounded_by(choice: object) -> tuple[list[Draft], str]:
    draft, toolkit = toolkit_for(
        chain_of_convolutions(3), config(weight={"dtype": "int4", "granularity": "per_tensor"})
    )
    step = toolkit.step_of(AdaRound(unrestricted=choice))
    drafts, (outcome,) = refine(draft, [step], toolkit, Judge(toolkit.case, toolkit.services, range(8)))
    return drafts, outcome.summary


@pytest.mark.slow
def test_a_knob_that_is_auto_takes_the_value_that_the_judge_prefers() -> None:
    (_, free), _ = rounded_by(True)
    (_, bound), _ = rounded_by(False)
    (_, best), told = rounded_by("auto")
    _, toolkit = toolkit_for(chain_of_convolutions(3))
    judge = Judge(toolkit.case, toolkit.services, range(8))
    scores = {name: judge.score(one).sqnr_db or 0.0 for name, one in (("true", free), ("false", bound))}
    better = max(scores, key=lambda name: scores[name])
    assert abs(scores["true"] - scores["false"]) > 0.01
    assert best.emitted_bytes() == (free if better == "true" else bound).emitted_bytes()
    assert told.startswith(f"unrestricted {better} chosen of")
    for name, score in scores.items():
        assert f"unrestricted {name} {score:.2f} dB" in told


def test_all_combinations_of_open_knobs_are_variants() -> None:
    both = AdaRound(unrestricted="auto", scale_refit="auto").variants()
    assert {(one.unrestricted, one.scale_refit) for one in both} == set(itertools.product((True, False), repeat=2))
    assert AdaRound().variants() == (AdaRound(),)
    assert {one.mode for one in BiasCorrection(mode="auto").variants()} == {"fast", "full"}
    weights = {one.activation_weight for one in CrossLayerEqualization(activation_weight="auto").variants()}
    assert weights == {0.1, 1.0, 0.01}


@pytest.mark.slow
def test_variants_do_not_mix_up_what_they_have_kept(tmp_path: Path) -> None:
    settings = config(weight={"dtype": "int4", "granularity": "per_tensor"})
    found = []
    for _ in range(2):
        draft, toolkit = toolkit_for(chain_of_convolutions(3), settings, checkpoint=CheckpointStore(tmp_path))
        step = toolkit.step_of(AdaRound(unrestricted="auto"))
        drafts, _ = refine(draft, [step], toolkit, Judge(toolkit.case, toolkit.services, range(8)))
        found.append(drafts[-1].emitted_bytes())
    assert found[0] == found[1] == rounded_by("auto")[0][-1].emitted_bytes()


CHOSEN = 12


def outputs(model: bytes, x: np.ndarray, batch: int) -> np.ndarray:
    rest = -len(x) % batch
    padded = np.concatenate([x, np.repeat(x[-1:], rest, axis=0)])
    found = [run_onnx(model, {"x": padded[k : k + batch]}, optimized=False)["y"] for k in range(0, len(padded), batch)]
    return np.concatenate(found)[: len(x)]


@each("batch", ["N", "8"])
def test_samples_that_fill_up_the_last_batch_do_not_count(batch: str) -> None:
    model = chain_of_convolutions(2, batch=batch)
    draft, toolkit = toolkit_for(model)
    case, numbers = toolkit.case, spread(SAMPLES, CHOSEN)
    x = samples()["x"][numbers]
    expected, got = (outputs(content, x, 8) for content in (model.SerializeToString(), draft.emitted_bytes()))
    wanted = pytest.approx(sqnr_db(expected, got), abs=2e-3)
    assert Judge(case, toolkit.services, numbers).score(draft).sqnr_db == wanted
    pairs, run = {"dense": ("y", "y")}, toolkit.services.run
    layers = layer_distances(case.reference, draft.session(1), pairs, limit=CHOSEN, run=run)
    assert layers["dense"] == wanted


WORSE = SQNR_WORSE(before=30.0, after=20.0)


@pytest.mark.slow
def test_what_is_undone_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "worse", lambda self, after, before, **_: WORSE)
    for accept, told in (("if_better", (False, WORSE.code)), ("always", (True, None))):
        settings = config(algorithms=[{"method": "bias_correction", "accept": accept}])
        (found,) = quantize_file(tmp_path, network(), data(), settings).report.algorithms
        assert (found.kept, found.reason_code) == told
        undone = f"undone, as it made the network worse: {WORSE.words}; "
        assert found.summary.startswith(undone) == (accept == "if_better")


NO_TYPE = {"method": "adaround", "target_op_type": ["ConvTranspose"]}
MX6 = {"weight": {"dtype": "mx6"}, "bias": {"dtype": "float32"}}


@pytest.mark.slow
@each(
    ("algorithm", "settings", "code", "told"),
    [
        (NO_TYPE, {}, "no-layer-of-type", "ConvTranspose"),
        ({**NO_TYPE, "solver": "gradient"}, {}, "no-layer-of-type", "ConvTranspose"),
        ({"method": "adaquant", "solver": "moments"}, MX6, "no-integer-weight", "its weight is not stored as integers"),
    ],
)
def test_what_has_nothing_to_do_says_why(
    algorithm: dict[str, object], settings: dict[str, object], code: str, told: str, tmp_path: Path
) -> None:
    report = quantize_file(tmp_path, network(), data(), config(algorithms=[algorithm], **settings)).report
    (found,) = report.algorithms
    assert (found.kept, found.reason_code, found.nodes) == (False, code, 0)
    assert told in found.summary


ALL = [
    {"method": "smooth_quant", "accept": "always"},
    {"method": "cross_layer_equalization"},
    {"method": "sensitivity"},
    {
        "method": "mixed_precision",
        "combination": "A16W16_A8W8",
        "goal": {"kind": "distance", "metric": "sqnr", "limit": 20},
    },
    {"method": "bias_correction", "mode": "full", "accept": "always"},
    {"method": "adaround", "solver": "gram", "selective_update": True},
]
GRADIENTS = [
    {"method": "bias_correction", "mode": "fast", "accept": "always"},
    {"method": "adaquant", "solver": "gradient", "num_iterations": 4, "selective_update": True, "accept": "always"},
]
GOAL = {"kind": "drop", "metric": "top1", "max_drop": 1.0}
SEARCH = [{"method": "autopilot", "goal": GOAL, "budget": {"max_trials": 3}}]


def differences(before: Any, after: Any, where: str) -> list[str]:
    """Where two plans or journals differ, to the last element of an array."""
    if isinstance(before, np.ndarray):
        same = isinstance(after, np.ndarray) and before.dtype == after.dtype and np.array_equal(before, after)
        return [] if same else [where]
    if isinstance(before, dict) and isinstance(after, dict) and list(before) == list(after):
        return [found for key in before for found in differences(before[key], after[key], f"{where}[{key!r}]")]
    if hasattr(before, "__dataclass_fields__") and type(before) is type(after):
        names = before.__dataclass_fields__
        pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
        return [found for name, pair in pairs.items() for found in differences(*pair, f"{where}.{name}")]
    return [] if before == after else [where]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "algorithms"),
    [("onnxruntime_cpu", ALL), ("amd_npu_cnn", GRADIENTS), ("onnxruntime_cpu", SEARCH)],
    ids=["all", "gradients", "search"],
)
def test_no_draft_of_a_run_is_changed(
    target: str, algorithms: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[Draft, Any]] = []
    construct = Draft.__init__

    def remember(draft: Draft, *args: Any, **settings: Any) -> None:
        construct(draft, *args, **settings)
        made.append((draft, deepcopy((draft.plan, draft.plan_log))))

    monkeypatch.setattr(Draft, "__init__", remember)
    settings = parse_config({"preset": "plain", "target": target, "algorithms": algorithms})
    result = quantize_file(tmp_path, network(), data(32), settings)
    assert len(result.report.algorithms) == len(algorithms) and len(made) > 2 * len(algorithms)
    changed = [found for draft, (plan, _) in made for found in differences(plan, draft.plan, "plan")]
    changed += [found for draft, (_, plan_log) in made for found in differences(plan_log, draft.plan_log, "plan_log")]
    assert not changed
