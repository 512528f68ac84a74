"""The samples of one job whose answer quantization has changed."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from service.comparison.samples import Samples


class ChangedSample(NamedTuple):
    """One sample that both models decide otherwise.

    Attributes:
        number: of the sample in its data, from 0.
        label: what it should be; None: the data has no labels.
        before, after: class of the float and of the quantized model.
        confidence: the float model's probability of its own decision, 0 to 1; None: not known.
    """

    number: int
    label: int | None
    before: int
    after: int
    confidence: float | None


class Changes(NamedTuple):
    """What quantization has changed.

    Attributes:
        samples: how many there are in all.
        total: how many of them changed.
        first: the first of those.
    """

    samples: int
    total: int
    first: list[ChangedSample]


def changes(found: Samples, most: int) -> Changes | None:
    """Samples whose class changed, in the order of the data; None: the output gives no class per sample."""
    if found.decisions is None:
        return None
    before, after = found.columns["float_class"], found.columns["quantized_class"]
    labels, sure = found.columns.get("label"), found.columns.get("float_confidence")
    numbers = np.flatnonzero(before != after)
    first = [
        ChangedSample(
            number,
            None if labels is None else int(labels[number]),
            int(before[number]),
            int(after[number]),
            None if sure is None or not math.isfinite(sure[number]) else float(sure[number]),
        )
        for number in numbers[:most].tolist()
    ]
    return Changes(len(before), len(numbers), first)
