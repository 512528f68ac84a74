"""Steps of a training, and its state as arrays: to come back to the best epoch, and to go on in another attempt."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from service.contracts.report import TrainingEpoch
from worker.quantizer.evaluation.certainty import Evidence, document_of
from worker.quantizer.run.checkpoint import Arrays, CheckpointStore, Pace, pack, unpack
from worker.quantizer.training.augmentation import Augmenter
from worker.quantizer.training.losses import Tensors
from worker.quantizer.training.network import TrainingContext, ValidationScore, teacher_outputs
from worker.quantizer.training.operands import is_frozen
from worker.quantizer.training.optimizer import End, ScheduledOptimizer
from worker.quantizer.training.quantizers import LearnedGrid, Oscillations, freezing_threshold, spread
from worker.quantizer.training.samples import Minibatch, epoch_order
from worker.quantizer.training.twin import Twin

Tell = Callable[[int], None]


class DivergedError(Exception):
    """The loss is no number any more. The trainer takes it and ends the training: nobody else sees it."""


class TrainingLoop:
    """What one step is, and what is remembered from step to step.

    The losses of ``context`` are settled.

    Raises:
        InvalidConfigError: an augmentation does not fit the model.
    """

    def __init__(self, context: TrainingContext) -> None:
        self._spec, self._networks, self._losses = context.spec, context.networks, context.losses
        self._samples, self._run, self._seed = context.samples, context.run, context.seed
        self._numbers = context.split.training
        inputs = context.toolkit.case.inputs
        self._augmenter = Augmenter(self._spec.augmentations, inputs, self._seed, pointer=context.pointer)
        self.oscillations: dict[str, Oscillations] = {}  # of every weight on integers, by initializer
        changed = bool(self._spec.augmentations) or bool(self._losses.inner_tensors)
        keeps = self._losses.needs_teacher and not changed
        self._targets = teacher_outputs(self._networks, self._samples, self._run) if keeps else None
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
                step = number + place
                twin.norms_frozen = is_frozen(step, total)
                losses.append(self._gradients(numbers, epoch, place))
                factor = self._move(optimizer, step, total)
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


# The state of a training as arrays: to come back to the best epoch, and to go on in another attempt.

_KEY = "qat state"
# Saving may take this part of the training's time.
_MOST_TIME = 0.05
TwinState = Mapping[str, torch.Tensor]


def state_of(twin: Twin) -> TwinState:
    """All that a twin has learned, as it is now; ``load_state_dict`` brings it back there."""
    return {name: tensor.detach().clone() for name, tensor in twin.state_dict().items()}


@dataclass
class TrainingProgress:
    """Where a training stands."""

    epochs: list[TrainingEpoch]  # told so far, the first of them before any step
    best_epoch: int  # the one that is kept
    best: TwinState  # what the twin had learned then
    lowest_epoch: int  # the one with the best score
    lowest: ValidationScore  # its score
    budget: tuple[int, End] | None = None  # the number of steps and what bounds it, once they are fixed
    spent_seconds: float = 0.0  # by all attempts

    @property
    def epoch(self) -> int:
        """Number of the last epoch."""
        return self.epochs[-1].epoch

    @property
    def steps(self) -> int:
        """Taken by its end."""
        return self.epochs[-1].steps


class TrainingCheckpoints:
    """Checkpoints of one training: after each epoch, unless epochs are so short that saving would slow them down."""

    def __init__(self, store: CheckpointStore, twin: Twin) -> None:
        self._store, self._twin = store, twin
        self._pace = Pace(_MOST_TIME)

    def save(
        self, optimizer: torch.optim.Optimizer, oscillations: Mapping[str, Oscillations], progress: TrainingProgress
    ) -> None:
        """Keep the state after an epoch."""
        if not self._store.is_kept or not self._pace.is_due:
            return
        began, lowest = time.monotonic(), progress.lowest
        facts = {
            "epochs": [entry.model_dump(mode="json") for entry in progress.epochs],
            "best_epoch": progress.best_epoch,
            "lowest_epoch": progress.lowest_epoch,
            "lowest": {
                "loss": lowest.loss,
                "metric": lowest.metric,
                "evidence": document_of(lowest.evidence),
                "losses": lowest.losses,
            },
            "budget": progress.budget,
            "spent_seconds": progress.spent_seconds,
        }
        arrays: Arrays = {"facts": np.frombuffer(json.dumps(facts).encode(), np.uint8)}
        arrays |= {f"now\n{name}": _array(tensor) for name, tensor in self._twin.state_dict().items()}
        arrays |= {f"best\n{name}": _array(tensor) for name, tensor in progress.best.items()}
        for place, state in optimizer.state_dict()["state"].items():
            arrays |= {f"moves\n{place}\n{key}": _array(value) for key, value in state.items() if value is not None}
        for name, one in oscillations.items():
            arrays |= {f"jumps\n{name}\n{key}": array for key, array in one.state().items()}
        self._store.save(_KEY, pack(arrays))
        self._pace.spent(began)

    def load(
        self, optimizer: torch.optim.Optimizer, oscillations: Mapping[str, Oscillations]
    ) -> TrainingProgress | None:
        """Bring twin, optimizer and oscillations to where an earlier attempt stood; None if there was none."""
        arrays = self._store.load_as(_KEY, unpack)
        if arrays is None:
            return None
        facts = json.loads(arrays["facts"].tobytes())
        device = next(self._twin.parameters()).device
        self._twin.load_state_dict(_tensors(arrays, "now\n", device))
        state = optimizer.state_dict()
        for name, tensor in _tensors(arrays, "moves\n", device).items():
            place, key = name.split("\n")
            state["state"].setdefault(int(place), {})[key] = tensor.cpu() if key == "step" else tensor
        optimizer.load_state_dict(state)
        for name, one in oscillations.items():
            prefix = f"jumps\n{name}\n"
            one.load_state(
                {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}, device
            )
        lowest, budget = facts["lowest"], facts["budget"]
        evidence = Evidence.from_document(lowest["evidence"])
        return TrainingProgress(
            epochs=[TrainingEpoch.model_validate(entry) for entry in facts["epochs"]],
            best_epoch=facts["best_epoch"],
            best=_tensors(arrays, "best\n", device),
            lowest_epoch=facts["lowest_epoch"],
            lowest=ValidationScore(lowest["loss"], lowest["metric"], evidence, tuple(lowest["losses"])),
            budget=None if budget is None else (budget[0], cast(End, budget[1])),
            spent_seconds=facts["spent_seconds"],
        )


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    return np.array(tensor.detach().cpu().numpy())


def _tensors(arrays: Arrays, prefix: str, device: torch.device) -> dict[str, torch.Tensor]:
    return {
        name[len(prefix) :]: torch.from_numpy(np.array(array)).to(device)
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
