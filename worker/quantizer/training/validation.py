"""How good a network in training is on samples that it is not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from service.contracts.metrics import Facts
from worker.quantizer.evaluation.side_by_side import Expected, Measurement, Twins, expected_outputs
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.judge import metric_noise
from worker.quantizer.run.services import Services
from worker.quantizer.training.losses import Losses
from worker.quantizer.training.network import Networks

_BATCH = 16
# Expected outputs and samples that are kept from epoch to epoch; more are made anew each time.
_KEPT_BYTES = 256 << 20


@dataclass(frozen=True)
class Standing:
    """How good a network is.

    Attributes:
        loss: mean over the samples.
        metric: None where there are no labels for it.
        parts: the metric batch by batch.
    """

    loss: float
    metric: float | None
    parts: tuple[float | None, ...] = ()


class Validation:
    """Samples [first, last) of the calibration set.

    Args:
        case: what is quantized.
        services: of the run.
        losses: settled.
        first: number of the first sample.
        last: number of the sample to stop before.
    """

    def __init__(self, case: Case, services: Services, losses: Losses, first: int, last: int) -> None:
        self._case, self._services, self._losses = case, services, losses
        self._first, self._last = first, last
        metrics = case.metrics
        wanted = case.config.evaluation.gate.metric
        known = {metric.name for metric in metrics.spec.metrics} or {metrics.primary}
        name = wanted if wanted in known else metrics.primary
        self._measurable = metrics.fed_by(case.calibration)
        #: What the best epoch is chosen by; None: the loss.
        self.metric = name if self._measurable else None

    @property
    def samples(self) -> int:
        """How many."""
        return self._last - self._first

    def measure(self, networks: Networks) -> Standing:
        """Loss and metric of the quantized network.

        Raises:
            CanceledError: the run was canceled.
        """
        total, count = 0.0, 0
        found = Measurement(self._case.metrics, self.metric, part=True) if self.metric is not None else None
        with torch.no_grad():
            for expected in self._expected():
                self._services.run.check()
                batch = expected.batch
                student, teacher = networks.both(batch.feeds)
                value = self._losses(
                    student.cut(batch.valid, batch.size), teacher.cut(batch.valid, batch.size), batch.arrays
                )
                total, count = total + float(value.total) * batch.valid, count + batch.valid
                if found is not None:
                    got = {name: tensor.cpu().numpy() for name, tensor in student.outputs.items()}
                    found.update(Twins(batch, expected.outputs, {name: got[name] for name in expected.outputs}))
        if found is None:
            return Standing(total / count, None)
        return Standing(total / count, found.value, tuple(found.parts))

    def is_better(self, one: Standing, other: Standing) -> bool:
        """True if ``one`` is better: by the metric where that moves by more than chance, else by the loss.

        Over few samples a label more or less means nothing, while the loss sees every score of every sample.
        """
        if not np.isfinite(one.loss):
            return False
        if not np.isfinite(other.loss):
            return True
        if self.metric is not None and one.metric is not None and other.metric is not None:
            gain = one.metric - other.metric
            gain = gain if self._facts.better == "higher" else -gain
            noise = metric_noise(
                self._case.metrics.spec, (one.metric, other.metric), (one.parts, other.parts), self.samples
            )
            if abs(gain) > 2 * noise:
                return gain > 0
        return one.loss < other.loss

    @cached_property
    def _facts(self) -> Facts:
        return self._case.metrics.facts(self.metric or self._case.metrics.primary)

    def _expected(self) -> Iterable[Expected]:
        return self._kept if self._kept is not None else self._stream()

    @cached_property
    def _kept(self) -> list[Expected] | None:
        kept, size = [], 0
        for one in self._stream():
            kept.append(one)
            size += sum(array.nbytes for array in one.arrays)
            if size > _KEPT_BYTES:
                return None
        return kept

    def _stream(self) -> Iterator[Expected]:
        case = self._case
        arrays = {*self._losses.arrays, *(case.metrics.arrays if self._measurable else ())}
        return expected_outputs(
            case.float_session,
            case.calibration,
            case.inputs,
            run=self._services.run,
            batch_size=_BATCH,
            first=self._first,
            last=self._last,
            arrays=arrays,
        )
