"""What a run is told of every finished layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contracts.algorithms import AdaQuant, AdaRound
from service.contracts.errors import CanceledError
from tests.unit.quantizer.search.benches import Listener, chain_of_convolutions, toolkit_for
from tests.unit.quantizer.toolbox import config
from worker.quantizer.finetune.step import MOST_TOLD, FinetuneStep, tell_layer
from worker.quantizer.refine.step import StepResult, TimeLimit
from worker.quantizer.run.checkpoint import CheckpointStore

LAYERS = ["conv0", "conv1", "conv2", "dense"]
W4 = {"weight": {"dtype": "int4", "granularity": "per_tensor"}}


def finetuned(run: Listener, spec: AdaRound | AdaQuant | None = None, folder: Path | None = None) -> StepResult:
    draft, toolkit = toolkit_for(
        chain_of_convolutions(3), config(**W4), checkpoint=None if folder is None else CheckpointStore(folder), run=run
    )
    return FinetuneStep(spec or AdaRound()).apply(draft, toolkit)


@pytest.mark.parametrize(
    "spec",
    [AdaRound(), AdaRound(solver="gradient", num_iterations=20), AdaRound(selective_update=True)],
    ids=["adaround", "gradient", "selective"],
)
def test_every_layer_is_told_once_with_what_is_left_of_its_error(spec: AdaRound | AdaQuant) -> None:
    run = Listener()
    change = finetuned(run, spec)
    assert [(stage, step) for stage, step, _ in run.told] == [(spec.method, k) for k in (1, 2, 3, 4)]
    assert list(change.errors) == LAYERS
    for (before, after), (_, _, values) in zip(change.errors.values(), run.told, strict=True):
        assert (values["error_before"], values["error_after"]) == (before, after)
        assert values["error_left_percent"] == pytest.approx(100.0 * after / before)
        assert 0.0 < after <= before
    lines = [words for words in run.words if words.startswith(f"{spec.method}, layer ")]
    assert [line.split(": ")[0] for line in lines] == [
        f"{spec.method}, layer {k + 1} of 4, {name}" for k, name in enumerate(LAYERS)
    ]


def test_a_second_attempt_tells_the_whole_curve_and_a_layer_without_an_error_no_share_of_it(tmp_path: Path) -> None:
    class Canceling(Listener):
        def check(self) -> None:
            if len(self.told) >= 2:
                raise CanceledError("stop")

    whole, first, second = Listener(), Canceling(), Listener()
    finetuned(whole)
    with pytest.raises(CanceledError):
        finetuned(first, folder=tmp_path)
    change = finetuned(second, folder=tmp_path)
    assert "2 reused from" in change.summary
    assert first.told == whole.told[:2]
    assert second.told == whole.told
    # a layer without an error has no share of it
    run = Listener()
    tell_layer(run, "adaround", 1, 1, "conv", 0.0, 0.0)
    assert run.told == [("adaround", 1, {"error_before": 0.0, "error_after": 0.0, "error_left_percent": None})]
    assert run.words == ["adaround, layer 1 of 1, conv: error 0 -> 0"]


def test_layers_that_the_time_does_not_reach_are_left_as_they_are() -> None:
    class OfLayers(TimeLimit):
        def allows(self, seconds: float = 0.0) -> bool:
            return len(run.told) < 2

    run = Listener()
    draft, toolkit = toolkit_for(chain_of_convolutions(3), config(**W4), run=run)
    change = FinetuneStep(AdaRound()).apply(draft, replace(toolkit, time_limit=OfLayers()))
    assert list(change.errors) == LAYERS[:2]
    assert "of 4 layers changed" in change.summary and "2 not reached within max_seconds" in change.summary
    assert change.draft is not None
    same = [
        np.array_equal(draft.plan.weights[name].integers, weight.integers)
        for name, weight in change.draft.plan.weights.items()
    ]
    assert not all(same[:2]) and same[2:] == [True, True]


@pytest.mark.parametrize("total", [1, MOST_TOLD, MOST_TOLD + 1, 5000])
def test_of_many_layers_some_are_told_evenly_and_the_last_one_always(total: int) -> None:
    run: Any = Listener()
    for number in range(1, total + 1):
        tell_layer(run, "adaround", number, total, f"layer{number}", 2.0, 1.0)
    steps = [step for _, step, _ in run.told]
    assert len(steps) == min(total, MOST_TOLD) == len(run.words)
    assert steps[-1] == total
    gaps = {after - before for before, after in zip([0, *steps], steps, strict=False)}
    assert max(gaps) - min(gaps) <= 1
