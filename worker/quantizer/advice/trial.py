"""Tries pieces of advice: the same model and data, quantized under another config and measured as the report was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from service.contracts.config import QuantizationConfig
from service.contracts.errors import CanceledError, QuantmillError
from service.contracts.report import AdviceFigure, Score, StageFigures
from worker.quantizer.advice.loss import AccuracyLoss
from worker.quantizer.evaluation.nhwc import NhwcSession
from worker.quantizer.evaluation.side_by_side import KeptOutputs
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import QuantizedDraft
from worker.quantizer.refine.judge import Scored, score_session
from worker.quantizer.run.interface import ForwardingRun, Run
from worker.quantizer.run.services import Services
from worker.quantizer.search.trials import ModelBuilder, OutOfTimeError, TimedRun

# Stages of a run that a trial has no part of.
_NOT_REPEATED = ("load", "sanity", "layers", "latency", "advice")
_SHORTEST_PASS_SECONDS = 0.05
_BATCH = 8


@dataclass(frozen=True)
class AdviceTrial:
    """What became of a piece of advice.

    Attributes:
        figure: before and after; None: it was not tried, or not to the end.
        score: of the model that it made; None likewise.
        helped: None: not tried.
        why: it was not tried, or did not help, in words.
    """

    figure: AdviceFigure | None = None
    score: Score | None = None
    helped: bool | None = None
    why: str | None = None


class AdviceRun(ForwardingRun):
    """The run of trials: their stages and their log are those of a search, not of the job.

    Args:
        run: takes progress, and may be canceled.
    """

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self.done, self.total, self.code = 0, 0, ""

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Say which trial it is; its own stages are left out."""
        self._run.progress("advice", self.done, self.total or None, "trials", self.code)

    def overall(self, share: float, seconds_left: float) -> None:
        """Nothing: the whole is the job's."""

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Nothing: they are figures of a model that nobody gets."""

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Nothing, likewise."""


class ConfigTrials:
    """Tries configs until the time is used up, or nothing is left to mend.

    Args:
        builder: quantizes the model at hand.
        loss: what is to be mended.
        done: the model of the report.
        case: the data.
        services: of the run.
        seconds: that all trials may take.
    """

    def __init__(
        self,
        builder: ModelBuilder,
        loss: AccuracyLoss,
        done: QuantizedDraft,
        case: Case,
        services: Services,
        *,
        seconds: float,
    ) -> None:
        self._builder, self._loss, self._case, self._services = builder, loss, case, services
        self._seconds = seconds
        self._conflicts = _conflicts(done)
        self._mended = False
        self._done = done
        labels = case.metrics.arrays if loss.by_metric else ()
        self._expected = KeptOutputs(
            case.float_session, case.measured_on, case.inputs, batch_size=_BATCH, arrays=labels
        )
        self.run = AdviceRun(services.run)
        self._timed = TimedRun(self.run, seconds)

    def attempt(self, code: str, config: QuantizationConfig, cost: float) -> AdviceTrial:
        """Quantize under ``config``, and measure.

        Args:
            code: of the advice.
            config: resolved.
            cost: in passes over the calibration data, on top of what the run itself took.

        Raises:
            CanceledError: the run was canceled.
        """
        self._services.run.check()
        if self._mended:
            return AdviceTrial(why="not tried: what was tried before mends it")
        if not self._seconds:
            return AdviceTrial(why="not tried: evaluation.advice_seconds is 0")
        expected, left = _expected_seconds(self._services.stages.figures, cost), self._timed.seconds_left or 0.0
        if expected > left:
            told = f"it takes about {expected:.0f} s, and {left:.0f} s of evaluation.advice_seconds were left"
            return AdviceTrial(why=f"not tried: {told}")
        self.run.code = code
        begin = time.monotonic()
        try:
            made = self._builder.again(config, self._timed)
            found, before = self._measure(made), self._before
        except CanceledError:
            raise
        except OutOfTimeError:
            return AdviceTrial(why="not tried to the end: the seconds of evaluation.advice_seconds were used up")
        except QuantmillError as error:
            return AdviceTrial(why=f"not tried to the end: {error.detail}")
        loss, score = self._loss, found.score
        figure = AdviceFigure(
            metric=loss.name,
            unit=loss.unit,
            before=loss.figure(loss.score),
            after=loss.figure(score),
            samples=loss.samples,
            seconds=round(time.monotonic() - begin, 3),
        )
        broken = _conflicts(made) - self._conflicts
        if broken:
            rule, where = min(broken)
            return AdviceTrial(figure, score, False, f"the target's rule {rule} cannot be kept with it at {where!r}")
        helped = loss.helped(found, before)
        self._mended = helped and loss.is_mended(score)
        return AdviceTrial(figure, score, helped, None if helped else "it did not help")

    @cached_property
    def _before(self) -> Scored:
        """The model of the report: its figures are known, but not what its metric rests on, sample by sample."""
        return self._measure(self._done) if self._loss.by_metric else Scored(self._loss.score)

    def _measure(self, made: QuantizedDraft) -> Scored:
        """The figures of a model on the data of the report."""
        nhwc = () if made.plan.is_empty else made.prepared.nhwc_inputs
        session = NhwcSession(made.content.runnable, nhwc, threads=self._services.threads, what="quantized model")
        run, by_metric = self._timed, self._loss.by_metric
        return score_session(session, self._expected.batches(run), self._case.metrics, run, by_metric=by_metric)


def _expected_seconds(stages: Sequence[StageFigures], cost: float) -> float:
    """What a trial takes: all that the run took to quantize and measure, and ``cost`` passes over the data more."""
    again = sum(stage.seconds for stage in stages if stage.name not in _NOT_REPEATED)
    passes = sum(stage.seconds for stage in stages if stage.name == "statistics")
    return again + cost * max(passes, _SHORTEST_PASS_SECONDS)


def _conflicts(done: QuantizedDraft) -> set[tuple[str, str]]:
    """Rules of the target that could not be kept, and where."""
    return {(decision.rule, decision.where) for decision in done.plan_log.decisions if decision.conflict}
