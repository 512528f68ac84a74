"""What moves the parameters of a twin: how long, how fast, and how fast each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from service.contracts.algorithms.training import Optimizer, QuantizationAwareTraining, Schedule
from worker.quantizer.training.twin import Twin

# Peaks where the config names none: in parts of a weight's size, and for plain gradients as they are.
_ADAM_RATE, _SGD_RATE = 3e-3, 1e-2
# What a parameter of zeros counts for, in parts of the mean size of all.
_LEAST_SIZE = 1e-2
_PEAK = "peak"
# Part of the seconds that are planned for, so that the last epoch is as a rule whole when they are over.
_PLANNED_SHARE = 0.95

End = Literal["epochs", "steps", "seconds"]


def peak_of(spec: Optimizer) -> float:
    """The learning rate of weights at its peak."""
    if spec.learning_rate is not None:
        return spec.learning_rate
    return _SGD_RATE if spec.kind == "sgd" else _ADAM_RATE


@dataclass
class ScheduledOptimizer:
    """An optimizer whose learning rates follow a schedule."""

    optimizer: torch.optim.Optimizer  # of torch; every group holds its peak
    schedule: Schedule  # of the config
    clip: float | None  # largest norm of all gradients; None: any

    @staticmethod
    def of(
        twin: Twin, spec: Optimizer, schedule: Schedule, clip: float | None, learning_rate: float
    ) -> ScheduledOptimizer:
        """For all parameters of a twin.

        Adam's steps do not hang on how large gradients are: there weights move by parts of their own size, so that one
        rate serves layers of any scale; the shift of a normalization moves by parts of its standard deviation.

        ``learning_rate`` is that of weights, at its peak.
        """
        groups = list(_groups(twin, spec, learning_rate))
        if spec.kind == "sgd":
            nesterov = spec.momentum > 0
            return ScheduledOptimizer(
                torch.optim.SGD(groups, momentum=spec.momentum, nesterov=nesterov, fused=True), schedule, clip
            )
        kind = torch.optim.AdamW if spec.kind == "adamw" else torch.optim.Adam
        return ScheduledOptimizer(kind(groups, betas=spec.betas, fused=True), schedule, clip)

    def step(self, number: int, total: int) -> float:
        """Move the parameters by their gradients, and forget these; the schedule's factor.

        Steps are numbered from 0.
        """
        factor = rate(self.schedule, number, total)
        for group in self.optimizer.param_groups:
            group["lr"] = group[_PEAK] * factor
        if self.clip is not None:
            held = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
            nn.utils.clip_grad_norm_(held, self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return factor


def _groups(twin: Twin, spec: Optimizer, learning_rate: float) -> Iterator[dict[str, Any]]:
    masters = [values for values in twin.masters.parameters() if values.requires_grad]
    weights = {id(master) for _, master, _ in twin.weights_on_grids()}
    sizes = [float(values.detach().square().mean().sqrt()) for values in masters]
    usual = sum(sizes) / max(len(sizes), 1) or 1.0
    for values, size in zip(masters, sizes, strict=True):
        unit = 1.0 if spec.kind == "sgd" else max(size, _LEAST_SIZE * usual)
        peak = learning_rate * unit
        # what decays in a step is the learning rate times this, whatever the weight's size
        decay = spec.weight_decay / (unit if spec.kind == "adamw" else 1.0) if id(values) in weights else 0.0
        yield {"params": [values], "lr": peak, _PEAK: peak, "weight_decay": decay}
    for name in twin.norms:
        norm = twin.norms[name]
        for values, measure in ((norm.gamma, norm.gamma), (norm.beta, norm.sigma())):
            size = float(measure.detach().square().mean().sqrt())
            peak = learning_rate if spec.kind == "sgd" else learning_rate * size
            yield {"params": [values], "lr": peak, _PEAK: peak, "weight_decay": 0.0}
    scales = list(twin.scale_parameters())
    peak = learning_rate if spec.scale_learning_rate is None else spec.scale_learning_rate
    if scales:
        yield {"params": scales, "lr": peak, _PEAK: peak, "weight_decay": 0.0}


def rate(schedule: Schedule, step: int, total: int) -> float:
    """What the peak of a learning rate is multiplied by in one step.

    First it rises evenly from 0 over the steps of ``warmup``; the step after them is the first at the peak. Then it
    stays there (constant), falls to ``final`` in the last step on half a cosine (Loshchilov and Hutter 2017, without
    restarts), or by ``step_factor`` every ``step_share`` of all steps.

    ``step`` counts from 0; what is beyond the last step is taken for that.
    """
    last = max(total - 1, 0)
    at = min(step, last)
    rising = min(round(schedule.warmup * total), last)
    warm = min(1.0, (at + 1) / (rising + 1))
    if schedule.kind == "constant":
        return warm
    if schedule.kind == "step":
        return warm * schedule.step_factor ** (at // max(1, round(schedule.step_share * total)))
    progress = max(at - rising, 0) / max(last - rising, 1)
    return warm * (schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + math.cos(math.pi * progress)))


class Budget:
    """How many steps a training takes.

    Where seconds bound it, ``total`` is a guess during the first epoch (as many epochs as there are by default, or as
    epochs and steps allow), and fixed by ``measured`` after it; the seconds end the training earlier only where the
    machine becomes slower. No clock is read here: the caller tells the time.

    Of epochs, steps and seconds None is no limit.

    Raises:
        ValueError: nothing ends the training, or an epoch has no steps.
    """

    def __init__(self, epochs: int | None, steps: int | None, seconds: float | None, *, epoch_steps: int) -> None:
        if epoch_steps < 1:
            raise ValueError(f"{epoch_steps} steps in an epoch")
        self.epoch_steps = epoch_steps
        self._seconds = seconds
        bounds: list[tuple[int, End]] = []
        if epochs is not None:
            bounds.append((epochs * epoch_steps, "epochs"))
        if steps is not None:
            bounds.append((steps, "steps"))
        if not bounds and seconds is None:
            raise ValueError("nothing ends the training")
        guess: tuple[int, End] = (QuantizationAwareTraining.DEFAULT_EPOCHS * epoch_steps, "seconds")
        #: Steps of the whole training, as far as is known.
        self.total, self._bound = min(bounds) if bounds else guess
        self._is_guess = not bounds
        #: What ended the training; None as long as nothing did.
        self.ended_by: End | None = None
        #: True once ``total`` does not change any more.
        self.is_fixed = seconds is None

    @staticmethod
    def of(spec: QuantizationAwareTraining, seconds: float | None, *, epoch_steps: int) -> Budget:
        """That of a config; ``seconds`` are those of the training, or what all algorithms have left if that is less."""
        return Budget(spec.most_epochs(epoch_steps), spec.steps, seconds, epoch_steps=epoch_steps)

    def measured(self, training_seconds: float, validation_seconds: float, spent_seconds: float) -> None:
        """Fix the number of steps by the time that the first epoch took; nothing happens where it is fixed.

        The seconds are those of the steps of the first epoch, of measuring after an epoch, and of the whole training so
        far, with what came before the first epoch.
        """
        if self._seconds is None or self.is_fixed:
            return
        left = self._seconds * _PLANNED_SHARE - spent_seconds
        epochs = max(int(left / max(training_seconds + validation_seconds, 1e-9)), 0)
        # What is left after whole epochs may do for a part of one, with its own validation.
        rest = left - epochs * (training_seconds + validation_seconds) - validation_seconds
        part = int(max(rest, 0.0) * self.epoch_steps / max(training_seconds, 1e-9))
        fitting = self.epoch_steps * (1 + epochs) + min(part, self.epoch_steps - 1)
        if self._is_guess or fitting < self.total:
            self.total, self._bound, self._is_guess = fitting, "seconds", False
        self.is_fixed = True

    def resume(self, total: int, bound: End) -> None:
        """Go on with what an earlier attempt has fixed, as told by ``fixed``."""
        self.total, self._bound, self._is_guess, self.is_fixed = total, bound, False, True

    @property
    def fixed(self) -> tuple[int, End] | None:
        """The number of steps and what bounds it, for a checkpoint; None as long as they are not fixed."""
        return (self.total, self._bound) if self.is_fixed else None

    def is_over(self, steps: int, spent_seconds: float) -> bool:
        """True if no step is to follow; ``ended_by`` then says why."""
        if self._seconds is not None and spent_seconds >= self._seconds:
            self.ended_by = "seconds"
        elif steps >= self.total and not self._is_guess:
            self.ended_by = self._bound
        return self.ended_by is not None
