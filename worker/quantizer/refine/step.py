"""What an algorithm looks like to the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from service.contracts.algorithms import Algorithm
from service.contracts.reason import Reason
from service.contracts.report import RangeChange, TrainingFigures
from service.contracts.search import Search
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.calibration import calibrate, take_over
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.run.services import Services
from worker.quantizer.statistics.collect import Request

Spec = TypeVar("Spec", bound=Algorithm)


@dataclass(frozen=True)
class Toolkit:
    """What a step works with."""

    case: Case  # what is quantized
    services: Services  # of the run
    held_back: int  # the first so many calibration samples are for judging steps; no step may learn from them
    step_of: Callable[[Algorithm], Step[Any]]  # makes the step of an algorithm, for a step that tries others
    # steps that need their statistics whenever a changed float model is calibrated anew
    to_come: Sequence[Step[Any]] = ()

    @property
    def first_sample(self) -> int:
        """Number of the first calibration sample that a step may learn from."""
        return self.held_back if self.held_back < self.case.calibration_samples else 0

    def recalibrate(self, draft: Draft, changed: Prepared, *, touched: Collection[str] | None = None) -> Draft:
        """A changed float model, planned and calibrated anew.

        ``touched`` are names of the tensors that no longer compute what they did; the ranges of all others are taken
        over from ``draft``. None: no range is.

        Raises:
            EngineError: a tensor has no finite range, or the runtime failed.
            CanceledError: the run was canceled.
        """
        made = draft.replanned(self.case.config, changed)
        kept = {} if touched is None else take_over(draft.plan, made.plan, touched)
        if any(tensor not in kept for tensor in self.case.config.tensor_ranges):
            made.plan_log.note("tensor_ranges are not used for tensors that an algorithm has changed")
        return calibrate(made, self.case, self.services, self.to_come, kept=kept)


@dataclass(frozen=True)
class Change:
    """What a step made of a draft."""

    draft: Draft | None  # the new one; None if there was nothing to do
    nodes: tuple[str, ...]  # names of the nodes that it changed
    summary: str  # one sentence for the report, or the reason why there was nothing to do
    search: Search | None = None  # what it has tried, for a step that searches
    ranges: tuple[RangeChange, ...] = ()  # what became of the ranges of tensors, for a step that moves them
    # mean square error of a layer's outputs before and after, by node, for a step that reconstructs layers
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    training: TrainingFigures | None = None  # how it went, for a step that trains
    judged: bool = True  # False for a step that pursues a goal of its own and measures itself whether it is met
    reason: Reason | None = None  # why there was nothing to do

    @classmethod
    def nothing(cls, reason: Reason, *, errors: dict[str, tuple[float, float]] | None = None) -> Change:
        """There was nothing to do."""
        return cls(None, (), reason.words, errors=errors or {}, reason=reason)


@dataclass(frozen=True)
class Step(ABC, Generic[Spec]):
    """One algorithm. It holds its settings and nothing else: what it knows of a network is in the draft."""

    spec: Spec  # its entry in the config

    @property
    def method(self) -> str:
        """Its name in configs and reports."""
        return self.spec.method

    def requests(self, draft: Draft) -> list[Request]:
        """Statistics of the float network that ``apply`` finds in its draft; collected together with all others.

        The draft is planned, without numbers.
        """
        return []

    def variants(self, draft: Draft) -> tuple[Any, ...]:
        """The settings to try on ``draft``: with a value in the place of every knob that is ``auto``."""
        return self.spec.variants()

    @abstractmethod
    def apply(self, draft: Draft, toolkit: Toolkit) -> Change:
        """A new draft, made from ``draft`` and its statistics.

        Raises:
            InvalidConfigError: the settings do not fit the model or the data.
            EngineError: the runtime failed on the data.
            CanceledError: the run was canceled.
        """
