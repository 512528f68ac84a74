"""A step is kept or undone by the same rule, whoever tries it: a config, the autopilot, or mixed precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from service.contracts.algorithms import AdaRound, Algorithm, BiasCorrection, CrossLayerEqualization, MixedPrecision
from service.contracts.algorithms.precision import DistanceGoal
from tests.unit.quantizer.precision.benches import chain_of_convolutions, toolkit_for
from tests.unit.quantizer.toolbox import config
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.precision.autopilot.space import Basis
from worker.quantizer.precision.autopilot.trials import Bench
from worker.quantizer.precision.goal import Referee
from worker.quantizer.precision.mixed.step import Corrections
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import refine
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Change, Step, Toolkit
from worker.quantizer.run.checkpoint import CheckpointStore


class Spoiler(Step[BiasCorrection]):
    """Leaves no weight but 0."""

    judged = True

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        plan = draft.plan.copy()
        plan.weights = {
            name: replace(weight, integers=np.zeros_like(weight.integers)) for name, weight in plan.weights.items()
        }
        return Change(replace(draft, plan=plan), tuple(plan.nodes), "spoiled", judged=self.judged)


class Willful(Spoiler):
    """Asks nobody."""

    judged = False


def by_config(algorithm: Algorithm, draft: Draft, toolkit: Toolkit) -> Draft:
    drafts, (outcome,) = refine(draft, [toolkit.step_of(algorithm)], toolkit, Judge(toolkit.case, toolkit.services, 8))
    assert outcome.kept == (len(drafts) == 2)
    return drafts[-1]


def by_autopilot(algorithm: Algorithm, draft: Draft, toolkit: Toolkit) -> Draft:
    judge = Judge(toolkit.case, toolkit.services, 8)
    bench = Bench(draft, toolkit, judge, Referee(DistanceGoal(limit=20.0), toolkit.case, toolkit.services))
    trial = bench.trial(Basis("as configured"), (algorithm,))
    assert trial.kept == is_spoiled(bench.draft_of(trial))
    return bench.draft_of(trial)


def by_mixed_precision(algorithm: Algorithm, draft: Draft, toolkit: Toolkit) -> Draft:
    mix = MixedPrecision.model_validate({"combination": "A16W16_A8W8"})
    config = toolkit.case.config.model_copy(update={"algorithms": (mix, algorithm)})
    return Corrections(mix, replace(toolkit, case=replace(toolkit.case, config=config))).applied(draft)


def is_spoiled(draft: Draft) -> bool:
    return not any(weight.integers.any() for weight in draft.plan.weights.values() if weight.integers is not None)


@pytest.mark.parametrize("run", [by_config, by_autopilot, by_mixed_precision])
@pytest.mark.parametrize(
    ("accept", "kind", "kept"), [("if_better", Spoiler, False), ("always", Spoiler, True), ("if_better", Willful, True)]
)
def test_what_is_kept(
    run: Callable[[Algorithm, Draft, Toolkit], Draft], accept: str, kind: type[Spoiler], kept: bool
) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    toolkit = replace(toolkit, step_of=kind)
    assert is_spoiled(run(BiasCorrection(accept=accept), draft, toolkit)) == kept


class Repairer(Spoiler):
    """Gives all weights back, where there is nothing left of them; spoils those of others."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        if not is_spoiled(draft):
            return super().apply(draft, toolkit)
        plan = draft.plan.copy()
        Parameters(draft.graph, plan).fill()
        return Change(replace(draft, plan=plan), tuple(plan.nodes), "repaired")


@pytest.mark.parametrize(
    ("behind", "kept"), [([Repairer], True), ([Spoiler], True), ([], False), ([Repairer, Repairer], False)]
)
def test_what_is_judged_at_the_end_is_judged_by_what_the_others_make_of_it(
    behind: list[type[Spoiler]], kept: bool
) -> None:
    """Spoiled twice is no worse than spoiled once."""
    draft, toolkit = toolkit_for(chain_of_convolutions(2))
    first = Spoiler(BiasCorrection(accept="if_better_at_end"))
    others = [kind(BiasCorrection(accept="always")) for kind in behind]
    judge = Judge(toolkit.case, toolkit.services, 8)
    drafts, outcomes = refine(draft, [first, *others], toolkit, judge)
    assert [outcome.kept for outcome in outcomes] == [kept, *(True for _ in others)]
    assert len(drafts) == 1 + sum(outcome.kept for outcome in outcomes)
    plain, _ = refine(draft, others, toolkit, judge)
    assert judge.worse(drafts[-1], plain[-1]) is None
    if behind:
        assert outcomes[0].summary.endswith("judged with all steps behind it: spoiled")


def rounded_by(choice: object) -> tuple[list[Draft], str]:
    draft, toolkit = toolkit_for(
        chain_of_convolutions(3), config(weight={"dtype": "int4", "granularity": "per_tensor"})
    )
    step = toolkit.step_of(AdaRound(unrestricted=choice))
    drafts, (outcome,) = refine(draft, [step], toolkit, Judge(toolkit.case, toolkit.services, 8))
    return drafts, outcome.summary


def test_a_knob_that_is_auto_takes_the_value_that_the_judge_prefers() -> None:
    (_, free), _ = rounded_by(True)
    (_, bound), _ = rounded_by(False)
    (_, best), told = rounded_by("auto")
    _, toolkit = toolkit_for(chain_of_convolutions(3))
    judge = Judge(toolkit.case, toolkit.services, 8)
    scores = {name: judge.score(one).sqnr_db or 0.0 for name, one in (("true", free), ("false", bound))}
    better = max(scores, key=lambda name: scores[name])
    assert abs(scores["true"] - scores["false"]) > 0.01
    assert best.emitted_bytes() == (free if better == "true" else bound).emitted_bytes()
    assert told.startswith(f"unrestricted {better} chosen of")
    for name, score in scores.items():
        assert f"unrestricted {name} {score:.2f} dB" in told


def test_all_combinations_of_open_knobs_are_variants() -> None:
    both = AdaRound(unrestricted="auto", scale_refit="auto").variants()
    assert {(one.unrestricted, one.scale_refit) for one in both} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    assert AdaRound().variants() == (AdaRound(),)
    assert {one.mode for one in BiasCorrection(mode="auto").variants()} == {"fast", "full"}
    assert {one.activation_weight for one in CrossLayerEqualization(activation_weight="auto").variants()} == {
        0.1,
        1.0,
        0.01,
    }


def test_variants_do_not_mix_up_what_they_have_kept(tmp_path: Path) -> None:
    settings = config(weight={"dtype": "int4", "granularity": "per_tensor"})
    found = []
    for _ in range(2):
        draft, toolkit = toolkit_for(chain_of_convolutions(3), settings, checkpoint=CheckpointStore(tmp_path))
        step = toolkit.step_of(AdaRound(unrestricted="auto"))
        drafts, _ = refine(draft, [step], toolkit, Judge(toolkit.case, toolkit.services, 8))
        found.append(drafts[-1].emitted_bytes())
    assert found[0] == found[1] == rounded_by("auto")[0][-1].emitted_bytes()
