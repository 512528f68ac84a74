"""Which samples a training learns from, chooses its epoch by, and is judged on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from worker.quantizer.training.samples import Numbers


@dataclass(frozen=True)
class Split:
    """Numbers of samples, int64, ascending; none is in two of them.

    Attributes:
        training: are learned from.
        validation: the best epoch is chosen by them.
        judging: nothing is chosen by them.
    """

    training: Numbers
    validation: Numbers
    judging: Numbers


def split(samples: int, *, validation_share: float, judging: int, classes: Numbers | None, seed: int) -> Split:
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
    return Split(training=np.sort(parts[2]), validation=np.sort(parts[1]), judging=np.sort(parts[0]))


def _interleaved(order: np.ndarray, classes: Numbers) -> np.ndarray:
    """The order changed so that any stretch of it holds all classes in about their shares."""
    place = np.empty(len(order), np.float64)
    drawn = classes[order]
    for number in np.unique(drawn):
        where = np.flatnonzero(drawn == number)
        place[where] = (np.arange(len(where)) + 0.5) / len(where)
    return order[np.argsort(place, kind="stable")]
