"""What every search is made of: candidates are built and measured within a time, each once, and one is chosen.

``TimedRun`` bounds a search, ``Trials`` holds what became of its candidates and takes over what an earlier attempt has
measured, ``within_reach`` leaves those to choose from. A search that makes whole models has them from a
``ModelBuilder``. What is tried, and what counts, is the search's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from service.contracts.config import QuantizationConfig
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Case, Draft, Filled, QuantizedDraft
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import ForwardingRun, Run
from worker.quantizer.run.services import Services

Found = TypeVar("Found", bound="TrialOutcome")
Tried = TypeVar("Tried")


class OutOfTimeError(Exception):
    """The time of a search is used up. The search itself takes it and returns the best so far: nobody else sees it."""


class TimedRun(ForwardingRun):
    """Another run that also ends, by ``OutOfTimeError``, at a deadline.

    Args:
        run: takes progress and log, and may be canceled.
        seconds: from now to the deadline; None: there is none.
        clock: monotonic, in seconds.
    """

    def __init__(self, run: Run, seconds: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(run)
        self._clock = clock
        self._begin = clock()
        self._deadline = None if seconds is None else self._begin + seconds
        self.lenient = False

    @property
    def is_over(self) -> bool:
        """True behind the deadline."""
        return self._deadline is not None and self._clock() > self._deadline

    @property
    def seconds_spent(self) -> float:
        """Since the search began."""
        return self._clock() - self._begin

    @property
    def seconds_left(self) -> float | None:
        """Until the deadline; None if there is none."""
        return None if self._deadline is None else max(self._deadline - self._clock(), 0.0)

    def check(self) -> None:
        """Raise ``CanceledError`` if the run was canceled, ``OutOfTimeError`` behind the deadline.

        While ``lenient`` is set the deadline does not count: something has to be finished in any case.
        """
        super().check()
        if self.is_over and not self.lenient:
            raise OutOfTimeError("the time of the search is used up")


class TrialOutcome(Protocol):
    """What a trial has found of a candidate."""

    @property
    def document(self) -> dict[str, Any]:
        """For a checkpoint: what JSON can hold."""


class Trials(Generic[Found]):
    """What was found of each candidate of a search, in the order in which they were tried.

    Every trial is a checkpoint: a search that was broken off does not repeat it.

    Args:
        store: takes what is found.
        told: called with the number of a trial, from 1, and what was found, whoever has found it.
        shared: what is found depends on the identity of the run alone, not on time: other jobs may take it over.
    """

    def __init__(
        self, store: CheckpointStore, *, told: Callable[[int, Found], None] | None = None, shared: bool = False
    ) -> None:
        self._store, self._told, self._shared = store, told, shared
        self._found: dict[str, Found] = {}
        self.taken_over = 0

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Found]:
        return iter(list(self._found.values()))

    def get(self, key: str) -> Found | None:
        """What was found of a candidate; None if it was not tried."""
        return self._found.get(key)

    def number(self, key: str) -> int:
        """Of the trial of a candidate, from 1."""
        return list(self._found).index(key) + 1

    def of(self, key: str, measure: Callable[[], Found], decode: Callable[[dict[str, Any]], Found]) -> Found:
        """What was found of a candidate; it is measured if nobody has done so.

        Args:
            key: the candidate in full: what no other piece of the run's work has for a key.
            measure: builds it and measures it.
            decode: makes what was found of its document.
        """
        if key in self._found:
            return self._found[key]
        found = self._store.load_as(key, lambda stored: decode(json.loads(stored)))
        if found is not None:
            self.taken_over += 1
        else:
            found = measure()
            if self._store.is_kept:
                self._store.save(key, json.dumps(found.document).encode(), shared=self._shared)
        self.enter(key, found)
        return found

    def enter(self, key: str, found: Found) -> None:
        """Take in what was found elsewhere."""
        self._found[key] = found
        if self._told is not None:
            self._told(len(self._found), found)


def within_reach(tried: Sequence[Tried], *, fits: Callable[[Tried], bool], met: Callable[[Tried], bool]) -> list[Tried]:
    """Those that fit the budget and meet the goal; if none does, those that fit the budget; if none does, all.

    Args:
        tried: measured candidates.
        fits: the budget is kept.
        met: the goal is met; where none fits, by those beyond the budget.
    """
    fitting = [one for one in tried if fits(one)] or list(tried)
    return [one for one in fitting if met(one)] or fitting


class ModelBuilder(Protocol):
    """Builds other models of what is quantized, for searches behind the report: of other drafts, or other configs."""

    @property
    def filled(self) -> Filled:
        """The drafts of the model at hand."""

    @property
    def case(self) -> Case:
        """What is quantized, on which data."""

    @property
    def services(self) -> Services:
        """Of the run."""

    def emit(self, draft: Draft | None = None) -> QuantizedDraft:
        """The model of the last draft, or of another one."""

    def planned(self, config: QuantizationConfig) -> QuantizationPlan:
        """The plan that a config makes, without numbers; no data is looked at."""

    def again(self, config: QuantizationConfig, run: Run) -> QuantizedDraft:
        """The model quantized under a config, on the same data; nothing of it joins the files of the run."""
