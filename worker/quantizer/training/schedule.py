"""How long a training lasts, and how its learning rates change meanwhile."""

from __future__ import annotations

import math
from typing import Literal

from service.contracts.algorithms.training import QuantizationAwareTraining, Schedule

End = Literal["epochs", "steps", "seconds"]

# Part of the seconds that are planned for, so that the last epoch is as a rule whole when they are over.
_PLANNED_SHARE = 0.95


def rate(schedule: Schedule, step: int, total: int) -> float:
    """What the peak of a learning rate is multiplied by in one step.

    First it rises evenly from 0 over the steps of ``warmup``; the step after them is the first at the peak. Then it
    stays there (constant), falls to ``final`` in the last step on half a cosine (Loshchilov and Hutter 2017, without
    restarts), or by ``step_factor`` every ``step_share`` of all steps.

    Args:
        schedule: kind and knobs.
        step: from 0 on; what is beyond the last step is taken for that.
        total: all steps of the training.
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

    Args:
        epochs: at most; None: no limit.
        steps: at most; None: no limit.
        seconds: at most; None: no limit.
        epoch_steps: steps in an epoch.

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
        self._ended: End | None = None
        #: True once ``total`` does not change any more.
        self.is_fixed = seconds is None

    @staticmethod
    def of(spec: QuantizationAwareTraining, *, epoch_steps: int) -> Budget:
        """That of a config."""
        return Budget(spec.most_epochs(epoch_steps), spec.steps, spec.seconds, epoch_steps=epoch_steps)

    @property
    def ended_by(self) -> End | None:
        """What ended the training; None as long as nothing did."""
        return self._ended

    def measured(self, training_seconds: float, validation_seconds: float, spent_seconds: float) -> None:
        """Fix the number of steps by the time that the first epoch took; nothing happens where it is fixed.

        Args:
            training_seconds: of the steps of the first epoch.
            validation_seconds: of measuring after an epoch.
            spent_seconds: of the whole training so far, with what came before the first epoch.
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
        """True if no step is to follow; ``ended_by`` then says why.

        Args:
            steps: taken so far.
            spent_seconds: of the whole training so far.
        """
        if self._seconds is not None and spent_seconds >= self._seconds:
            self._ended = "seconds"
        elif steps >= self.total and not self._is_guess:
            self._ended = self._bound
        return self._ended is not None
