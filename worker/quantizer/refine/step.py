"""What an algorithm looks like to the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from service.contracts.algorithms import Algorithm
from service.contracts.report import RangeChange
from service.contracts.search import Search
from worker.quantizer.context import Context
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.refine.draft import Draft
from worker.quantizer.statistics.collect import Request


def _no_steps(algorithm: Algorithm) -> Step:
    raise LookupError(f"this workshop has no step for {algorithm.method}")


class Recalibrate(Protocol):
    """Plans and calibrates a changed float model anew."""

    def __call__(self, changed: Prepared, *, base: Draft | None = None, touched: Collection[str] = ()) -> Draft:
        """The calibrated draft.

        Args:
            changed: the float model.
            base: a draft whose tensors compute in ``changed`` what they did, but for those ``touched``: their ranges
                are taken over. None: nothing is.
            touched: names of tensors.
        """


@dataclass(frozen=True)
class Workshop:
    """What a step works with.

    Attributes:
        context: config, data, threads, progress.
        recalibrate: plans and calibrates a changed float model anew.
        held_back: the first so many calibration samples are for judging steps; no step may learn from them.
        step_of: makes the step of an algorithm, for a step that tries others.
    """

    context: Context
    recalibrate: Recalibrate
    held_back: int
    step_of: Callable[[Algorithm], Step] = field(default=_no_steps)

    @property
    def first_sample(self) -> int:
        """Number of the first calibration sample that a step may learn from."""
        return self.held_back if self.held_back < self.context.calibration_samples else 0


@dataclass(frozen=True)
class Change:
    """What a step made of a draft.

    Attributes:
        draft: the new one; None if there was nothing to do.
        nodes: names of the nodes that it changed.
        summary: one sentence for the report, or the reason why there was nothing to do.
        search: what it has tried, for a step that searches.
        ranges: what became of the ranges of tensors, for a step that moves them.
        errors: mean square error of a layer's outputs before and after, by node, for a step that reconstructs layers.
        judged: False for a step that pursues a goal of its own and measures itself whether it is met.
    """

    draft: Draft | None
    nodes: tuple[str, ...]
    summary: str
    search: Search | None = None
    ranges: tuple[RangeChange, ...] = ()
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    judged: bool = True


class Step(Protocol):
    """One algorithm with its settings."""

    @property
    def method(self) -> str:
        """Its name in configs and reports."""

    def requests(self, draft: Draft) -> list[Request]:
        """Statistics of the float network that ``apply`` needs; collected together with all others.

        Args:
            draft: planned, without numbers.
        """

    def apply(self, draft: Draft, workshop: Workshop) -> Change:
        """A new draft, made from ``draft`` and its statistics.

        Raises:
            EngineError: the runtime failed on the data.
            CanceledError: the run was canceled.
        """
