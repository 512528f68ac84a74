"""Whether a quantized model is good enough, measured by running it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from service.contracts.algorithms.precision import DistanceGoal, DropGoal
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation_checks import find_output
from worker.quantizer.context import Context
from worker.quantizer.data import Batch, Dataset, choose_batch_size
from worker.quantizer.evaluation.metrics import Agreement
from worker.quantizer.refine.draft import Draft
from worker.quantizer.runtime import Session, is_large

_BATCH = 8
_TINY = 1e-30
# Outputs of the float model that are kept, so that it runs once.
_KEPT_BYTES = 256 * 2**20
# A paired bootstrap's resamples, and the share of them that may say otherwise.
_RESAMPLES, _CHANCE = 1000, 0.025
_SLACK = 1e-9


@dataclass(frozen=True)
class Measured:
    """How a draft stands to the goal.

    Attributes:
        value: of the metric's drop, or of the distance.
        gap: how far it is beyond the limit, in units of the metric; 0 or less if the goal is met.
        parts: the metric batch by batch, larger is better, for comparisons in pairs; empty where it is not defined.
    """

    value: float
    gap: float
    parts: tuple[float, ...] = ()

    @property
    def met(self) -> bool:
        """True if the goal is met."""
        return self.gap <= _SLACK


class _HasMeasured(Protocol):
    @property
    def measured(self) -> Measured: ...


_T = TypeVar("_T", bound=_HasMeasured)


@dataclass(frozen=True)
class _Part:
    batch: Batch
    expected: dict[str, np.ndarray]


class Referee:
    """Measures drafts on the evaluation data if there is any, else on the calibration data.

    Args:
        goal: what to measure.
        context: of the run.
        output_index: of the output that a distance is measured on.
    """

    def __init__(self, goal: DropGoal | DistanceGoal, context: Context, *, output_index: int = 0) -> None:
        self._goal = goal
        self._context = context
        self._output_index = output_index
        self._kept: list[_Part] | None = None
        self._before: dict[str, float] | None = None
        self.notes: list[str] = []

    @property
    def data(self) -> Dataset:
        """What drafts are measured on."""
        return self._context.measured_on

    def measure(self, draft: Draft) -> Measured:
        """Run the draft's emitted model.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        model = draft.emitted()
        session = Session(model, threads=self._context.threads, what="quantized model", optimized=not is_large(model))
        if isinstance(self._goal, DropGoal):
            return self._drop(session, self._goal)
        return self._distance(session, self._goal)

    @staticmethod
    def clear_winner(candidates: Sequence[_T]) -> _T:
        """The first candidate, unless a later one is better by more than chance; candidates stand simplest first."""
        best = candidates[0]
        for other in candidates[1:]:
            pairs = zip(other.measured.parts, best.measured.parts, strict=False)
            differences = [new - old for new, old in pairs]
            nearer = other.measured.gap < best.measured.gap
            if clearly_positive(differences) if len(differences) > 2 else nearer:
                best = other
        return best

    def _drop(self, session: Session, goal: DropGoal) -> Measured:
        metrics, names = self._context.metrics, self._context.float_session.output_names
        if not metrics.fed_by(self.data):
            return self._agreement(session, goal)
        before, after, parts = metrics.start(), metrics.start(), []
        for part in self._parts():
            got = dict(zip(names, session.run(part.batch.feeds, names), strict=True))
            if self._before is None:
                before.update(part.batch, part.expected)
            alone = metrics.start()
            for measured in (after, alone):
                measured.update(part.batch, got, part.expected)
            parts.append(alone.values.get(goal.metric))
        self._before = before.values if self._before is None else self._before
        if goal.metric not in after.values:
            return self._agreement(session, goal)
        facts = metrics.facts(goal.metric)
        reference = facts.ideal if facts.against_float else self._before.get(goal.metric)
        if reference is None:
            raise self._unmeasured(goal)
        sign = 1.0 if facts.better == "higher" else -1.0
        drop = sign * (reference - after.values[goal.metric])
        known = [sign * value for value in parts if value is not None]
        return Measured(drop, drop - goal.max_drop, tuple(known) if len(known) == len(parts) else ())

    def _agreement(self, session: Session, goal: DropGoal) -> Measured:
        """Top-1 without labels: the float model's decisions are taken for the truth."""
        if goal.metric != "top1":
            raise self._unmeasured(goal)
        names = self._context.float_session.output_names[:1]
        whole, parts = Agreement(), []
        for part in self._parts():
            got = part.batch.cut(session.run(part.batch.feeds, names)[0])
            expected = part.batch.cut(part.expected[names[0]])
            alone = Agreement()
            for measured in (whole, alone):
                measured.update(expected, got)
            parts.append(alone.percent)
        if whole.percent is None:
            raise self._unmeasured(goal)
        note = "the data has no labels: the goal was judged by the share of samples with the same decision"
        if note not in self.notes:
            self.notes.append(note)
        drop = 100.0 - whole.percent
        return Measured(drop, drop - goal.max_drop, tuple(value for value in parts if value is not None))

    def _unmeasured(self, goal: DropGoal) -> InvalidConfigError:
        source = "evaluation" if self._context.evaluation is not None else "calibration"
        return InvalidConfigError(
            f"the goal names the metric {goal.metric!r}, which the {source} data does not give",
            hint="Give labels, declare the metric in evaluation.metrics, or use a goal of kind distance.",
        )

    def _parts(self) -> Iterator[_Part]:
        """The data with the float model's outputs, which are kept if they are not too large."""
        if self._kept is not None:
            for part in self._kept:
                self._context.run.check()
                yield part
            return
        context, kept, taken = self._context, [], 0
        names = context.float_session.output_names
        size = choose_batch_size(context.inputs, self.data, _BATCH)
        arrays = context.metrics.arrays if context.metrics.fed_by(self.data) else ()
        for batch in self.data.batches(context.inputs, size, arrays=arrays):
            context.run.check()
            outputs = context.float_session.run(batch.feeds, names, start=batch.start)
            part = _Part(batch, dict(zip(names, outputs, strict=True)))
            taken += sum(array.nbytes for array in (*outputs, *batch.feeds.values()) if isinstance(array, np.ndarray))
            if taken <= _KEPT_BYTES:
                kept.append(part)
            yield part
        self._kept = kept if taken <= _KEPT_BYTES else None

    def _distance(self, session: Session, goal: DistanceGoal) -> Measured:
        names = self._context.float_session.output_names
        name = names[self._output_index]
        sums, parts = _Sums(), []
        smaller_is_better = goal.metric in ("l2", "kl")
        sign = -1.0 if smaller_is_better else 1.0
        for part in self._parts():
            got = session.run(part.batch.feeds, [name])[0]
            alone = _Sums()
            for measured in (sums, alone):
                measured.update(part.batch.cut(part.expected[name]), part.batch.cut(got))
            parts.append(sign * alone.value(goal.metric))
        value = sums.value(goal.metric)
        return Measured(value, sign * (goal.limit - value), tuple(parts))


def clearly_positive(differences: Sequence[float]) -> bool:
    """Paired bootstrap: whether the mean of all but the lowest 2.5 % of resamples lies above 0; the seed is fixed.

    Args:
        differences: of two candidates, batch by batch.
    """
    values = np.asarray(differences, dtype=np.float64)
    chosen = np.random.default_rng(0).integers(0, values.size, (_RESAMPLES, values.size))
    return bool(np.quantile(values[chosen].mean(axis=1), _CHANCE) > 0.0)


def output_place(ref: int | str, context: Context) -> int:
    """The number of the output that a config names or numbers.

    Raises:
        InvalidConfigError: the model has no such output.
    """
    names = context.float_session.output_names
    name = find_output(ref, names)
    if name is None:
        raise InvalidConfigError(f"the model has no output {ref!r}", hint=f"Its outputs are {', '.join(names)}.")
    return names.index(name)


class _Sums:
    """What all distances are made of."""

    def __init__(self) -> None:
        self._signal = self._noise = self._twin = self._dot = self._divergence = 0.0
        self._peak = 0.0
        self._count = self._rows = 0

    def update(self, expected: np.ndarray, got: np.ndarray) -> None:
        x, y = expected.astype(np.float64).reshape(-1), got.astype(np.float64).reshape(-1)
        self._signal += float(x @ x)
        self._twin += float(y @ y)
        self._dot += float(x @ y)
        self._noise += float(((x - y) ** 2).sum())
        self._peak = max(self._peak, float(np.abs(x).max(initial=0.0)))
        self._count += x.size
        p, q = (_log_softmax(values.astype(np.float64)) for values in (expected, got))
        self._divergence += float((np.exp(p) * (p - q)).sum())
        self._rows += p.size // max(p.shape[-1], 1) if p.ndim else 1

    def value(self, metric: str) -> float:
        """The distance of this name."""
        if metric == "sqnr":
            return float(10 * np.log10(max(self._signal, _TINY) / max(self._noise, _TINY)))
        if metric == "psnr":
            return float(10 * np.log10(max(self._peak**2, _TINY) / max(self._noise / max(self._count, 1), _TINY)))
        if metric == "cosine":
            return float(self._dot / max((self._signal * self._twin) ** 0.5, _TINY))
        if metric == "l2":
            return float((self._noise / max(self._signal, _TINY)) ** 0.5)
        return self._divergence / max(self._rows, 1)


def _log_softmax(values: np.ndarray) -> np.ndarray:
    if not values.ndim:
        return values
    shifted = values - values.max(axis=-1, keepdims=True)
    result: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result
