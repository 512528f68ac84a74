"""Steps of a training: batches through both networks, gradients added up, parameters moved, oscillations watched."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from worker.quantizer.training.augmentation import Augmenter
from worker.quantizer.training.batch_norm import is_frozen
from worker.quantizer.training.losses import Tensors
from worker.quantizer.training.network import TeacherOutputs, TrainingContext
from worker.quantizer.training.optimizer import ScheduledOptimizer
from worker.quantizer.training.oscillation import Oscillations, freezing_threshold
from worker.quantizer.training.quantizers import LearnedGrid, spread
from worker.quantizer.training.samples import Minibatch, epoch_order

Tell = Callable[[int], None]


class DivergedError(Exception):
    """The loss is no number any more. The trainer takes it and ends the training: nobody else sees it."""


class TrainingLoop:
    """What one step is, and what is remembered from step to step.

    Args:
        context: of the training; its losses settled.

    Attributes:
        oscillations: of every weight on integers, by initializer.
        taken: steps taken by this object.
        seconds: that they took.
        epoch_steps: steps in an epoch.

    Raises:
        InvalidConfigError: an augmentation does not fit the model.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._spec, self._networks, self._losses = context.spec, context.networks, context.losses
        self._samples, self._run, self._seed = context.samples, context.run, context.seed
        self._numbers = context.split.training
        inputs = context.toolkit.case.inputs
        self._augmenter = Augmenter(self._spec.augmentations, inputs, self._seed, pointer=context.pointer)
        self.oscillations: dict[str, Oscillations] = {}
        self.taken, self.seconds = 0, 0.0
        changed = bool(self._spec.augmentations) or bool(self._losses.inner_tensors)
        keeps = self._losses.needs_teacher and not changed
        self._targets = TeacherOutputs.of(self._networks, self._samples, self._run) if keeps else None
        self.epoch_steps = len(self._pieces(0))

    def begin(self, learning_rate: float) -> ScheduledOptimizer:
        """What moves the parameters, at its first step; oscillations are counted anew."""
        self.oscillations = {name: Oscillations() for name, _, _ in self._networks.twin.weights_on_grids()}
        spec = self._spec
        return ScheduledOptimizer.of(
            self._networks.twin, spec.optimizer, spec.schedule, spec.gradient_clip, learning_rate
        )

    def steps(
        self,
        optimizer: ScheduledOptimizer,
        *,
        epoch: int,
        count: int,
        number: int,
        total: int,
        tell: Tell,
        over: Callable[[], bool],
    ) -> tuple[float, float, int]:
        """Take steps in training mode; afterwards the network is in evaluation mode.

        Args:
            optimizer: of the parameters.
            epoch: from 0 on: of the order of samples.
            count: how many, at most those of an epoch.
            number: of the first one, since the beginning.
            total: of the training.
            tell: called after each with the number of steps taken.
            over: asked after each whether it was the last.

        Returns:
            mean loss, the schedule's last factor, and steps taken.

        Raises:
            CanceledError: the run was canceled.
            DivergedError: the loss is no number any more.
        """
        twin = self._networks.twin.train()
        losses: list[float] = []
        factor = 0.0
        try:
            for place, numbers in enumerate(self._pieces(epoch)[:count]):
                began, step = time.monotonic(), number + place
                twin.norms_frozen = is_frozen(step, total)
                losses.append(self._gradients(numbers, epoch, place))
                factor = self._move(optimizer, step, total)
                self.taken, self.seconds = self.taken + 1, self.seconds + time.monotonic() - began
                tell(len(losses))
                if over():
                    break
        finally:
            twin.eval()
        return float(np.mean(losses)), factor, len(losses)

    def _pieces(self, epoch: int) -> list[np.ndarray]:
        order = self._numbers[epoch_order(len(self._numbers), self._seed, epoch)]
        return list(self._samples.minibatches(order, self._spec.batch_size, fill=False))

    def _gradients(self, numbers: np.ndarray, epoch: int, step: int) -> float:
        """Add up the gradients of one batch, part by part; its loss."""
        size = self._samples.fixed_batch or self._networks.largest_part(len(numbers))
        total = 0.0
        for first in range(0, len(numbers), size):
            self._run.check()
            part = numbers[first : first + size]
            share = len(part) / len(numbers)
            loss = self._loss(self._samples.batch(part), epoch, step, first) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        if not math.isfinite(total):
            raise DivergedError
        return total

    def _loss(self, batch: Minibatch, epoch: int, step: int, first: int) -> torch.Tensor:
        feeds = self._networks.feeds(batch.feeds)
        feeds = self._augmenter.augment(feeds, epoch=epoch, step=step * 4096 + first)
        if self._targets is not None:
            teacher: Tensors | None = self._targets.take(batch.numbers)
        elif self._losses.needs_teacher:
            teacher = self._networks.teacher(feeds).cut(batch.valid, batch.size)
        else:
            teacher = None
        with self._autocast():
            student = self._networks.student(feeds).cut(batch.valid, batch.size)
        return self._losses(student, teacher, batch.arrays)

    def _autocast(self) -> AbstractContextManager[object]:
        if self._networks.device.type == "cuda" and self._spec.autocast:
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()

    @torch.no_grad()
    def _move(self, optimizer: ScheduledOptimizer, number: int, total: int) -> float:
        held = list(self._networks.twin.weights_on_grids())
        self._hold(held)
        factor = optimizer.step(number, total)
        freeze = freezing_threshold(self._spec.oscillation_threshold, number, total)
        threshold = freeze if self._spec.freeze_oscillations else None
        for name, master, grid in held:
            self.oscillations[name].update(grid.integers(master * self._networks.twin.factor(name)), threshold)
        self._hold(held)
        return factor

    def _hold(self, held: Sequence[tuple[str, torch.nn.Parameter, LearnedGrid]]) -> None:
        """Keep frozen weights where they are."""
        twin = self._networks.twin
        for name, master, grid in held:
            if not self.oscillations[name].may_hold:
                continue
            if name in twin.norms and not twin.norms_frozen:
                continue  # a normalization that passes by 0 would send the weight far away
            scale = spread(grid.scale(), grid.granularity, master.shape) / twin.factor(name)
            self.oscillations[name].apply(master, scale, torch.zeros((), device=master.device))
