"""Tries pieces of advice: the same model and data, quantized under another config and measured as the report was."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from service.contracts.config import QuantizationConfig
from service.contracts.errors import CanceledError, QuantmillError
from service.contracts.report import AdviceFigure, Score, StageFigures
from worker.quantizer.advice.fitting import Quantizer
from worker.quantizer.advice.loss import Loss, Measured
from worker.quantizer.evaluation.metrics import Distances
from worker.quantizer.evaluation.nhwc import NhwcSession
from worker.quantizer.evaluation.side_by_side import KeptOutputs, Measurement, side_by_side
from worker.quantizer.precision.autopilot.deadline import OutOfTimeError, TimedRun
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.draft import Quantized
from worker.quantizer.run.interface import ForwardingRun, Run
from worker.quantizer.run.services import Services

# Stages of a run that a trial has no part of.
_NOT_REPEATED = ("load", "sanity", "layers", "latency", "advice")
_SHORTEST_PASS_SECONDS = 0.05
_BATCH = 8


@dataclass(frozen=True)
class Trial:
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


class Bench:
    """Tries configs until the time is used up, or nothing is left to mend.

    Args:
        quantizer: quantizes the model at hand.
        loss: what is to be mended.
        done: the model of the report.
        case: the data.
        services: of the run.
        seconds: that all trials may take.
    """

    def __init__(
        self, quantizer: Quantizer, loss: Loss, done: Quantized, case: Case, services: Services, *, seconds: float
    ) -> None:
        self._quantizer, self._loss, self._case, self._services = quantizer, loss, case, services
        self._end = time.monotonic() + seconds
        self._seconds = seconds
        self._conflicts = _conflicts(done)
        self._mended = False
        self._done = done
        self._measured_before: Measured | None = None
        labels = case.metrics.arrays if loss.by_metric else ()
        self._expected = KeptOutputs(
            case.float_session, case.measured_on, case.inputs, batch_size=_BATCH, arrays=labels
        )
        self.run = AdviceRun(services.run)

    def attempt(self, code: str, config: QuantizationConfig, cost: float) -> Trial:
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
            return Trial(why="not tried: what was tried before mends it")
        if not self._seconds:
            return Trial(why="not tried: evaluation.advice_seconds is 0")
        expected, left = _expected_seconds(self._services.stages.figures, cost), self._end - time.monotonic()
        if expected > left:
            told = f"it takes about {expected:.0f} s, and {max(left, 0):.0f} s of evaluation.advice_seconds were left"
            return Trial(why=f"not tried: {told}")
        self.run.code = code
        begin = time.monotonic()
        try:
            timed = TimedRun(self.run, left)
            made, found = self._measured(config, timed)
            before = self._before(timed)
        except CanceledError:
            raise
        except OutOfTimeError:
            return Trial(why="not tried to the end: the seconds of evaluation.advice_seconds were used up")
        except QuantmillError as error:
            return Trial(why=f"not tried to the end: {error.detail}")
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
            return Trial(figure, score, False, f"the target's rule {rule} cannot be kept with it at {where!r}")
        helped = loss.helped(found, before)
        self._mended = helped and loss.is_mended(score)
        return Trial(figure, score, helped, None if helped else "it did not help")

    def _before(self, run: Run) -> Measured:
        """The model of the report: its figures are known, but not what its metric rests on, sample by sample."""
        if self._measured_before is None:
            known = Measured(self._loss.score)
            self._measured_before = self._measure(self._done, run) if self._loss.by_metric else known
        return self._measured_before

    def _measured(self, config: QuantizationConfig, run: TimedRun) -> tuple[Quantized, Measured]:
        made = self._quantizer.again(config, run)
        return made, self._measure(made, run)

    def _measure(self, made: Quantized, run: Run) -> Measured:
        """The figures of a model on the data of the report."""
        case, name = self._case, self._loss.score.metric
        nhwc = () if made.plan.is_empty else made.prepared.nhwc_inputs
        session = NhwcSession(made.content.runnable, nhwc, threads=self._services.threads, what="quantized model")
        distances, found = Distances(), Measurement(case.metrics, name)
        for twins in side_by_side(session, self._expected.batches(run), run):
            distances.update(twins.pairs())
            if self._loss.by_metric:
                found.update(twins)
        worst = distances.worst_db
        value = found.value if self._loss.by_metric else None
        score = Score(sqnr_db=None if worst is None else round(worst, 3), metric=name, value=value)
        return Measured(score, found.evidence if self._loss.by_metric else None)


def _expected_seconds(stages: Sequence[StageFigures], cost: float) -> float:
    """What a trial takes: all that the run took to quantize and measure, and ``cost`` passes over the data more."""
    again = sum(stage.seconds for stage in stages if stage.name not in _NOT_REPEATED)
    passes = sum(stage.seconds for stage in stages if stage.name == "statistics")
    return again + cost * max(passes, _SHORTEST_PASS_SECONDS)


def _conflicts(done: Quantized) -> set[tuple[str, str]]:
    """Rules of the target that could not be kept, and where."""
    return {(decision.rule, decision.where) for decision in done.journal.decisions if decision.conflict}
