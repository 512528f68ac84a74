"""Quantization-aware training as the last step of a quantization, and which samples it takes for what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from service.contracts.algorithms.training import QuantizationAwareTraining
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Toolkit
from worker.quantizer.training.samples import Numbers


class TrainingStep(Step[QuantizationAwareTraining]):
    """Trains the quantized network as a whole, from where the steps before it have brought it."""

    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """The draft with the parameters and scales of the best epoch.

        Raises:
            NotDifferentiableError: an operator has no derivative here.
            InvalidConfigError: losses, augmentations or batch_norm do not fit the model or the data.
            EngineError: the device is not there.
            ResourceLimitError: the samples fit neither into memory nor on disk.
            CanceledError: the run was canceled.
        """
        from worker.quantizer.training.trainer import train  # with torch, which takes a second

        return train(self.spec, draft, toolkit)


@dataclass(frozen=True)
class SampleSplit:
    """Numbers of samples, int64, ascending; none is in two of them.

    Attributes:
        training: are learned from.
        validation: the best epoch is chosen by them.
        judging: nothing is chosen by them.
    """

    training: Numbers
    validation: Numbers
    judging: Numbers


def split_samples(
    samples: int, *, validation_share: float, judging: int, classes: Numbers | None, seed: int
) -> SampleSplit:
    """Draw the parts at random, each class in its share where there are class labels: datasets are often sorted.

    Args:
        samples: at least 4.
        validation_share: of the samples that are not for judging; at least one, and two are left to learn from.
        judging: samples for judging; at most a quarter of all.
        classes: int64 [samples], or None.
        seed: of the draw.
    """
    random = np.random.default_rng([seed, samples])
    order = random.permutation(samples)
    if classes is not None:
        order = _interleaved(order, classes)
    judged = min(judging, samples // 4)
    rest = samples - judged
    chosen = max(1, min(round(rest * validation_share), rest - 2))
    parts = np.split(order, [judged, judged + chosen])
    return SampleSplit(training=np.sort(parts[2]), validation=np.sort(parts[1]), judging=np.sort(parts[0]))


def _interleaved(order: np.ndarray, classes: Numbers) -> np.ndarray:
    """The order changed so that any stretch of it holds all classes in about their shares."""
    place = np.empty(len(order), np.float64)
    drawn = classes[order]
    for number in np.unique(drawn):
        where = np.flatnonzero(drawn == number)
        place[where] = (np.arange(len(where)) + 0.5) / len(where)
    return order[np.argsort(place, kind="stable")]
