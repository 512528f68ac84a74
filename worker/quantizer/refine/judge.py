"""Scores drafts against the float model on samples that no step has learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

import numpy as np

from service.contracts.metrics import Facts, PerClassAccuracy, TopKMetric
from service.contracts.report import Score
from worker.quantizer.context import Context
from worker.quantizer.data import Batch, choose_batch_size
from worker.quantizer.evaluation.metrics import Distance, comparable, metric_words
from worker.quantizer.refine.draft import Draft
from worker.quantizer.runtime import Session, is_large

_BATCH = 8
_FEWEST, _MOST, _PART = 4, 64, 6
# Below this the difference of two scores is rounding of the runtime.
_SAME_DB = 0.005


def held_back_samples(available: int) -> int:
    """How many of ``available`` calibration samples are for judging: a sixth of them, at most 64.

    With fewer than 24 samples all of them are used for both.
    """
    part = min(available // _PART, _MOST)
    return part if part >= _FEWEST else available


@dataclass(frozen=True)
class _Expected:
    batch: Batch
    outputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class _Measured:
    """A score, and the metric of each batch alone, None where it is undefined."""

    score: Score
    parts: tuple[float | None, ...]


class Judge:
    """Runs drafts on the first ``samples`` calibration samples.

    Args:
        context: of the run.
        samples: how many.
    """

    def __init__(self, context: Context, samples: int) -> None:
        self._context = context
        self.samples = samples
        self._metrics = context.metrics
        self._measurable = context.metrics.fed_by(context.calibration)
        self._expected: list[_Expected] | None = None
        self._known: list[tuple[Draft, _Measured]] = []

    def score(self, draft: Draft) -> Score:
        """SQNR of the worst output in dB, and the first declared metric (else top-1) where the labels are there."""
        return self._measured(draft).score

    def worse(self, after: Draft, before: Draft) -> str | None:
        """Why ``after`` is worse than ``before``; None if it is not."""
        new, old = self._measured(after), self._measured(before)
        facts = self._metrics.facts(self._metrics.primary)
        return is_worse(new.score, old.score, facts, noise=self._noise(new, old))

    def _noise(self, after: _Measured, before: _Measured) -> float:
        """Standard error of the difference between two values of the metric.

        Of shares of samples it is known; of other metrics it is estimated from the differences batch by batch.
        """
        one, other = before.score.value, after.score.value
        if one is None or other is None:
            return math.inf
        if self._counts_samples:
            return share_noise(one, other, self.samples)
        return paired_noise(after.parts, before.parts)

    @property
    def _counts_samples(self) -> bool:
        """True if the metric is a share of the samples, in percent."""
        declared = self._metrics.spec.metrics
        return not declared or (isinstance(declared[0], TopKMetric) and not isinstance(declared[0], PerClassAccuracy))

    def _measured(self, draft: Draft) -> _Measured:
        for known, found in self._known:
            if known is draft:
                return found
        model = draft.emitted()
        session = Session(model, threads=self._context.threads, what="quantized model", optimized=not is_large(model))
        measured = self._measure(session)
        self._known = [*self._known[-1:], (draft, measured)]
        return measured

    def _measure(self, session: Session) -> _Measured:
        distances: dict[str, Distance] = {}
        whole, parts = self._metrics.start(), []
        for part in self._parts():
            self._context.run.check()
            names = list(part.outputs)
            got = dict(zip(names, session.run(part.batch.feeds, names), strict=True))
            for name, expected in part.outputs.items():
                if comparable(expected, got[name]):
                    distances.setdefault(name, Distance()).update(expected, got[name])
            if self._measurable:
                alone = self._metrics.start()
                for measured in (whole, alone):
                    measured.update(part.batch, got, part.outputs)
                parts.append(alone.values.get(self._metrics.primary))
        figures = [distance.sqnr_db for distance in distances.values()]
        known = [figure for figure in figures if figure is not None]
        worst = min(known) if known and len(known) == len(figures) else None
        primary = self._metrics.primary
        return _Measured(
            Score(sqnr_db=None if worst is None else round(worst, 3), metric=primary, value=whole.values.get(primary)),
            tuple(parts),
        )

    def _parts(self) -> list[_Expected]:
        if self._expected is None:
            context = self._context
            session, names = context.float_session, context.float_session.output_names
            size = choose_batch_size(context.inputs, context.calibration, _BATCH)
            arrays = self._metrics.arrays if self._measurable else ()
            batches = context.calibration.batches(context.inputs, size, limit=self.samples, arrays=arrays)
            self._expected = [_Expected(batch, self._outputs(session, names, batch)) for batch in batches]
        return self._expected

    @staticmethod
    def _outputs(session: Session, names: list[str], batch: Batch) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(batch.feeds, names, start=batch.start), strict=True))


def share_noise(one: float, other: float, samples: int) -> float:
    """Standard error of the difference of two shares of ``samples``, all in percent, by the larger one's binomial."""
    share = min(max(one, other, 1.0), 99.0) / 100
    return float(100.0 * (2.0 * share * (1.0 - share) / max(samples, 1)) ** 0.5)


def paired_noise(after: Sequence[float | None], before: Sequence[float | None]) -> float:
    """Standard error of the mean difference of figures taken batch by batch; infinite for fewer than three pairs."""
    pairs = zip(after, before, strict=True)
    differences = [new - old for new, old in pairs if new is not None and old is not None]
    return stdev(differences) / len(differences) ** 0.5 if len(differences) > 2 else math.inf


def is_worse(after: Score, before: Score, facts: Facts, *, noise: float) -> str | None:
    """Why a draft with score ``after`` is worse than one with ``before``; None if it is not.

    The metric decides only where it moves by more than chance would: over few samples a single label more or less means
    nothing, while SQNR sees every score of every sample.

    Args:
        after: of the changed draft.
        before: of the draft that it was made of.
        facts: unit and direction of the metric.
        noise: standard error of the difference between both values of the metric.
    """
    if before.value is not None and after.value is None:
        return f"{after.metric} has no value any more"
    if before.value is not None and after.value is not None:
        gain = after.value - before.value if facts.better == "higher" else before.value - after.value
        if gain > 2 * noise:
            return None
        if gain < -2 * noise:
            return metric_words(after.metric, (before.value, after.value), facts.unit)
    if before.sqnr_db is None:
        return None
    if after.sqnr_db is None:
        return f"SQNR {before.sqnr_db:.2f} dB -> none: the outputs are not finite"
    if after.sqnr_db < before.sqnr_db - _SAME_DB:
        return f"SQNR {before.sqnr_db:.2f} -> {after.sqnr_db:.2f} dB"
    return None
