"""The learning rate over a training against formulas by hand and schedulers of torch; budgets with told times."""

from __future__ import annotations

import math

import pytest
import torch

from service.contracts.algorithms.training import QuantizationAwareTraining, Schedule
from worker.quantizer.refine.step import TimeLimit
from worker.quantizer.training.optimizer import Budget, rate


def rates(schedule: Schedule, total: int) -> list[float]:
    return [rate(schedule, step, total) for step in range(total)]


def of_torch(total: int, make: type, **settings: float) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler = make(optimizer, **settings)
    found = []
    for _ in range(total):
        found.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return found


def test_cosine_and_steps_are_those_of_torch() -> None:
    schedule = Schedule(kind="cosine", warmup=0.0, final=0.1)
    wanted = of_torch(40, torch.optim.lr_scheduler.CosineAnnealingLR, T_max=39, eta_min=0.1)
    assert rates(schedule, 40) == pytest.approx(wanted, abs=1e-9)
    # steps are those of torch
    schedule = Schedule(kind="step", warmup=0.0, step_share=0.3, step_factor=0.5)
    wanted = of_torch(100, torch.optim.lr_scheduler.StepLR, step_size=30, gamma=0.5)
    assert rates(schedule, 100) == pytest.approx(wanted)


@pytest.mark.parametrize("kind", ["constant", "cosine"])
def test_warmup_rises_evenly_to_the_peak(kind: str) -> None:
    found = rates(Schedule(kind=kind, warmup=0.2, final=0.0), 20)  # type: ignore[arg-type]
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    after = [0.5 * (1 + math.cos(math.pi * k / 15)) if kind == "cosine" else 1.0 for k in range(16)]
    assert found[4:] == pytest.approx(after)

    short = Schedule(kind=kind, warmup=0.9)  # type: ignore[arg-type]
    for total in (1, 2, 3):
        assert all(0.0 < value <= 1.0 for value in rates(short, total))
    assert rate(short, 50, 10) == rate(short, 9, 10)


def test_epochs_and_steps_bound_the_training() -> None:
    by_epochs = Budget(3, 100, None, epoch_steps=10)
    assert (by_epochs.total, by_epochs.is_fixed, by_epochs.fixed) == (30, True, (30, "epochs"))
    assert not by_epochs.is_over(29, 1e9) and by_epochs.ended_by is None
    assert by_epochs.is_over(30, 0.0) and by_epochs.ended_by == "epochs"
    by_steps = Budget(3, 25, None, epoch_steps=10)
    assert by_steps.is_over(25, 0.0) and by_steps.ended_by == "steps"


def test_the_first_epoch_fixes_what_seconds_allow() -> None:
    # 95 planned seconds, 10 spent, 85 left: 8 epochs of 8 + 2 seconds, then 3 seconds of steps and 2 of validation.
    budget = Budget(None, None, 100.0, epoch_steps=16)
    assert not budget.is_fixed
    assert budget.fixed is None
    assert not budget.is_over(10**6, 50.0)  # as long as the number of epochs is a guess
    budget.measured(8.0, 2.0, 10.0)
    assert budget.fixed == (16 + 8 * 16 + 6, "seconds")
    budget.measured(1.0, 1.0, 20.0)
    assert budget.total == 150
    assert not budget.is_over(149, 99.0)
    assert budget.is_over(150, 96.0)
    assert budget.ended_by == "seconds"


def test_seconds_end_a_training_only_where_they_do_not_do() -> None:
    early = Budget(5, None, 10.0, epoch_steps=100)
    assert early.is_over(7, 10.0)
    assert early.ended_by == "seconds"
    late = Budget(None, None, 10.0, epoch_steps=100)
    late.measured(1.0, 0.0, 1.0)
    assert late.is_over(150, 10.5)
    spent = Budget(None, None, 10.0, epoch_steps=100)
    spent.measured(9.0, 1.0, 9.9)
    assert spent.fixed == (100, "seconds")
    # seconds that do for all epochs change nothing
    budget = Budget(3, None, 1000.0, epoch_steps=10)
    assert budget.total == 30
    budget.measured(1.0, 1.0, 2.0)
    assert budget.fixed == (30, "epochs")
    fewer = Budget(300, None, 11.0, epoch_steps=10)
    fewer.measured(1.0, 1.0, 2.0)
    assert fewer.fixed == (10 + 40 + 0, "seconds")


def test_a_config_has_a_budget_and_a_later_attempt_keeps_it() -> None:
    assert Budget.of(QuantizationAwareTraining(), None, epoch_steps=50).fixed == (1500, "epochs")
    assert Budget.of(QuantizationAwareTraining(steps=9), None, epoch_steps=7).fixed == (9, "steps")
    assert Budget.of(QuantizationAwareTraining(seconds=9), 9.0, epoch_steps=7).fixed is None
    with pytest.raises(ValueError, match="nothing ends"):
        Budget(None, None, None, epoch_steps=7)
    with pytest.raises(ValueError, match="0 steps"):
        Budget(1, None, None, epoch_steps=0)
    # a later attempt keeps what was fixed
    budget = Budget(None, None, 100.0, epoch_steps=16)
    budget.resume(48, "seconds")
    budget.measured(1.0, 1.0, 1.0)
    assert budget.fixed == (48, "seconds")
    assert budget.is_over(48, 1.0)


def test_a_limit_of_all_algorithms_tells_what_is_left_for_a_training() -> None:
    assert TimeLimit().left is None
    assert 0.0 < (TimeLimit.of(60.0).left or 0.0) <= 60.0
    assert TimeLimit.of(-1.0).left == 0.0
    assert Budget.of(QuantizationAwareTraining(), 5.0, epoch_steps=50).fixed is None
