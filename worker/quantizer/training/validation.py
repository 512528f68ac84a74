"""How good a network in training is on samples that it is not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from worker.quantizer.data import Batch
from worker.quantizer.evaluation.certainty import Evidence, surely_differ
from worker.quantizer.evaluation.side_by_side import Measurement, Twins
from worker.quantizer.training.network import TrainingContext
from worker.quantizer.training.samples import Minibatch, Numbers

# Batches are as small as it takes to have so many: chance is told from how they differ.
_BATCH, _BATCHES = 16, 16


@dataclass(frozen=True)
class ValidationScore:
    """How good a network is."""

    loss: float  # mean over the samples
    metric: float | None  # None where there are no labels for it
    evidence: Evidence | None = None  # what the metric rests on
    losses: tuple[float, ...] = ()  # the loss batch by batch


class Validation:
    """Some of the samples of a training.

    The losses of ``context`` are settled.

    Attributes:
        metric: what the best epoch is chosen by: the gate's metric; None: there are no labels for it, so the loss.
    """

    def __init__(self, context: TrainingContext, numbers: Numbers) -> None:
        self._case, self._run, self._losses = context.toolkit.case, context.run, context.losses
        self._samples, self._numbers, self._networks = context.samples, numbers, context.networks
        self.metric = self._metric()

    @property
    def samples(self) -> int:
        """How many."""
        return len(self._numbers)

    def measure(self) -> ValidationScore:
        """Loss and metric of the quantized network.

        Raises:
            CanceledError: the run was canceled.
        """
        total, losses = 0.0, []
        found = None if self.metric is None else Measurement(self._case.metrics, self.metric, part=True)
        with torch.no_grad():
            for batch in self._batches():
                self._run.check()
                student, teacher = self._networks.both(batch.feeds)
                value = self._losses(
                    student.cut(batch.valid, batch.size), teacher.cut(batch.valid, batch.size), batch.arrays
                )
                losses.append(float(value))
                total += losses[-1] * batch.valid
                if found is not None:
                    expected, got = (
                        {output: tensor.cpu().numpy() for output, tensor in made.outputs.items()}
                        for made in (teacher, student)
                    )
                    found.update(Twins(self._as_stored(batch), expected, got))
        if found is None:
            return ValidationScore(total / self.samples, None, losses=tuple(losses))
        return ValidationScore(total / self.samples, found.value, found.evidence, tuple(losses))

    def is_better(self, one: ValidationScore, other: ValidationScore) -> bool:
        """True if ``one`` is better: by the metric where that moves by more than chance, else by the loss.

        Over few samples a label more or less means nothing, while the loss sees every score of every sample.
        """
        if not np.isfinite(one.loss):
            return False
        if not np.isfinite(other.loss):
            return True
        gain = self._sure_gain(one, other)
        return one.loss < other.loss if gain is None else gain > 0

    def is_surely_worse(self, one: ValidationScore, other: ValidationScore) -> bool:
        """True if ``one`` is worse by more than chance, batch by batch: by the metric, else by the loss."""
        if not np.isfinite(one.loss):
            return True
        if not np.isfinite(other.loss):
            return False
        gain = self._sure_gain(one, other)
        if gain is not None:
            return gain < 0
        return one.loss > other.loss and surely_differ(*map(Evidence.of_means, (one.losses, other.losses)))

    def _sure_gain(self, one: ValidationScore, other: ValidationScore) -> float | None:
        """By how much the metric is better; None: there is none, or chance moves it as much."""
        name = self.metric
        if name is None or one.metric is None or other.metric is None:
            return None
        gain = one.metric - other.metric
        gain = gain if self._case.metrics.facts(name).better == "higher" else -gain
        return gain if gain and surely_differ(one.evidence, other.evidence) else None

    def _metric(self) -> str | None:
        metrics = self._case.metrics
        if not (metrics.fed_by(self._case.calibration) and metrics.judges_parts and self._networks.gives_all_outputs):
            return None
        wanted = self._case.config.evaluation.gate.metric
        return wanted if wanted in {metric.name for metric in metrics.spec.metrics} else metrics.primary

    def _batches(self) -> Iterator[Minibatch]:
        size = self._samples.fixed_batch or self._networks.largest_part(min(_BATCH, math.ceil(self.samples / _BATCHES)))
        for piece in self._samples.minibatches(self._numbers, size, fill=True):
            yield self._samples.batch(piece)

    def _as_stored(self, batch: Minibatch) -> Batch:
        """The batch as metrics take it."""
        labels = self._case.calibration.labels
        known = None if labels is None else labels[batch.numbers]
        return Batch(batch.feeds, known, int(batch.numbers[0]), batch.valid, batch.arrays, batch.size)
