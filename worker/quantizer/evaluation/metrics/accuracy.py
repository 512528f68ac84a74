"""What is measured where no metric is declared: top1 and top5 of the first output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from worker.quantizer.data import Batch
from worker.quantizer.evaluation.certainty.contributions import Hits
from worker.quantizer.evaluation.metrics.classes import ranks
from worker.quantizer.evaluation.metrics.distances import class_scores


class Accuracy:
    """top1 and top5 of class scores against labels; top1 alone for a model that returns class numbers.

    A label is in the top k if fewer than k classes rank before it: those that score higher, and of those that score
    the same the ones with a smaller number (as arg max decides).
    """

    def __init__(self) -> None:
        self.fits = True  # as long as the first output classifies what the labels speak of
        self._hits = {"top1": Hits(), "top5": Hits()}
        self._has_top5 = False

    def take(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """Take in one batch of a model's outputs; from one on that does not fit there is no value."""
        first, labels = next(iter(outputs.values())), batch.labels
        can_fit = self.fits and isinstance(first, np.ndarray)
        self.fits = can_fit and labels is not None and self.update(batch.cut(first), labels)

    def update(self, output: np.ndarray, labels: np.ndarray) -> bool:
        """Take in one batch; False if the output is no classification of the labels."""
        if output.dtype.kind in "iu" and output.size == labels.size:
            found = {"top1": output.reshape(-1) == labels}
        else:
            scores = class_scores(output)
            if scores is None or scores.ndim != 2 or scores.shape[0] != labels.size or labels.max() >= scores.shape[1]:
                return False
            rank = ranks(scores, labels)
            found = {"top1": rank < 1, "top5": rank < 5}
            self._has_top5 = scores.shape[1] > 5
        for name, hit in found.items():
            self._hits[name].add(np.stack([hit, np.ones_like(hit)], axis=1).astype(np.uint8), samples=labels.size)
        return True

    @property
    def metrics(self) -> dict[str, float]:
        """In percent: top1, and top5 where there are more than five classes."""
        return {name: hits.value for name, hits in self.contributions.items()}

    @property
    def contributions(self) -> dict[str, Hits]:
        """Which samples are right, by name of the metric."""
        if not self._hits["top1"].units or not self.fits:
            return {}
        return {name: hits for name, hits in self._hits.items() if name == "top1" or self._has_top5}
