"""What was gained and what it cost: size, speed and accuracy in a figure and a few sentences each."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.report import Flips, Interval, LatencyFigures, MetricFigures, Report
from service.reports.figures import NOTHING, count, difference, figure, milliseconds, name, percent, size, times
from service.reports.verdict import Tone

# From here on what else the machine did is worth a word.
_BUSY_PERCENT = 20.0
_SOURCES = {
    "evaluation": "the evaluation data",
    "calibration": "the calibration data, which the ranges were taken from",
    "random": "random data, which tells nothing of accuracy",
}


@dataclass(frozen=True)
class Gain:
    """One thing compared between both models.

    Attributes:
        title: what.
        before, after: of the float and the quantized model.
        change: the figure that matters, in words.
        tone: whether it is one for the better.
        sentences: what the figure rests on.
    """

    title: str
    before: str
    after: str
    change: str
    tone: Tone
    sentences: tuple[str, ...]


def gains(report: Report) -> list[Gain]:
    """Size, speed, the first metric and the distance from the float model."""
    found = [_size(report)]
    speed = _speed(report)
    if speed is not None:
        found.append(speed)
    found += [metric_gain(metric, report.fidelity.samples) for metric in report.metrics[:1]]
    return [*found, _likeness(report)]


def source_words(report: Report) -> str:
    """Which data the figures of accuracy were measured on."""
    return f"{count(report.fidelity.samples, 'sample')} of {_SOURCES[report.fidelity.source]}"


def metric_gain(metric: MetricFigures, samples: int) -> Gain:
    """A metric of both models, and what the samples can carry of it."""
    unit, drop = metric.unit, metric.drop
    sure: Tone = "plain"
    if metric.drop_interval is not None:
        sure = "bad" if metric.drop_interval.low > 0 else "good" if metric.drop_interval.high < 0 else "unsure"
    elif drop is not None:
        sure = "bad" if drop > 0 else "good"
    return Gain(
        title=name(metric.name),
        before=figure(metric.float_, unit),
        after=figure(metric.quantized, unit),
        change=change_words(drop, unit),
        tone=sure,
        sentences=tuple(metric_sentences(metric, metric.samples or samples)),
    )


def change_words(drop: float | None, unit: str) -> str:
    """A drop as "0.68 points worse"."""
    if drop is None:
        return "not defined"
    if round(drop, 4) == 0:
        return "unchanged"
    return f"{difference(drop, unit)} {'worse' if drop > 0 else 'better'}"


def metric_sentences(metric: MetricFigures, samples: int) -> list[str]:
    """What a reader has to know of a metric before trusting its figures."""
    told = []
    if metric.drop_interval is not None:
        told.append(_drop_words(metric.drop_interval, metric.unit))
    if metric.flips is not None:
        told.append(flip_words(metric.flips, samples))
    if metric.p_value is not None:
        told.append(f"p = {metric.p_value:.2g}: the chance of a difference this large if neither model were better.")
    if metric.drop_interval is None and metric.unit == "%":
        told.append(f"Measured on {count(samples, 'sample')}; one sample is {100 / max(samples, 1):.2g} points.")
    if metric.chance is not None:
        told.append(f"Guessing would reach {figure(metric.chance, metric.unit)}.")
    return told


def flip_words(flips: Flips, samples: int) -> str:
    """Which samples changed sides."""
    told = (
        f"{flips.lost:,} of {count(samples, 'sample')} changed from right to wrong, {flips.won:,} from wrong to right"
    )
    if flips.confident:
        told += f"; the float model had been sure (90 % or more) of {flips.confident:,} of the lost ones"
    return told + "."


def _drop_words(interval: Interval, unit: str) -> str:
    low, high = difference(interval.low, unit), difference(interval.high, unit)
    shorter = low.removesuffix(" points")
    sure = f"With {interval.confidence * 100:g} % confidence"
    if interval.low > 0:
        return f"{sure} it got worse, by {shorter} to {high}."
    if interval.high < 0:
        return f"{sure} it got better, by {high.removesuffix(' points')} to {low}."
    return (
        f"{sure} the change lies between {low} better and {high} worse: these samples cannot tell whether there is one."
    )


def _size(report: Report) -> Gain:
    before, after = report.float_.size_bytes, report.quantized.size_bytes
    smaller = after < before
    change = f"{times(before / max(after, 1))} smaller" if smaller else f"{times(after / max(before, 1))} larger"
    saved = f"{percent(100 * (1 - after / max(before, 1)))} of the file are gone." if smaller else ""
    return Gain(
        title="File size",
        before=size(before),
        after=size(after),
        change="unchanged" if before == after else change,
        tone="good" if smaller else "bad",
        sentences=(saved,) if saved else (),
    )


def _speed(report: Report) -> Gain | None:
    figures = report.latency
    if figures is not None:
        return _timed(figures)
    before, after = report.float_.latency_ms, report.quantized.latency_ms
    if not before or not after:
        return None
    return Gain(
        title="Time of one run",
        before=milliseconds(before),
        after=milliseconds(after),
        change=_speed_words(after / before),
        tone="good" if after < before else "bad",
        sentences=("Medians at batch 1 on this machine; how sure they are was not measured.",),
    )


def _timed(figures: LatencyFigures) -> Gain:
    interval = figures.ratio_interval
    tone: Tone = {"faster": "good", "slower": "bad", "undecided": "unsure"}[figures.verdict]  # type: ignore[assignment]
    change = "undecided" if figures.verdict == "undecided" else _speed_words(figures.ratio)
    told = [
        f"With {interval.confidence * 100:g} % confidence it takes {interval.low:.2f} to {times(interval.high)} "
        "the float model's time" + (": it may be faster or slower." if figures.verdict == "undecided" else "."),
        f"{count(figures.runs, 'run')} of either model in turn, batch {figures.batch_size}, "
        f"{count(figures.threads, 'thread')}.",
    ]
    busy = figures.load.other_busy_percent
    if busy is not None and busy >= _BUSY_PERCENT:
        told.append(f"Other processes took {percent(busy, 0)} of the machine meanwhile: time it again on a quiet one.")
    return Gain(
        "Time of one run", milliseconds(figures.float_ms), milliseconds(figures.quantized_ms), change, tone, tuple(told)
    )


def _speed_words(ratio: float) -> str:
    if ratio <= 0:
        return "not measurable"
    return f"{times(1 / ratio)} as fast" if ratio <= 1 else f"takes {times(ratio)} as long"


def _likeness(report: Report) -> Gain:
    """How near the outputs are to the float model's."""
    fidelity = report.fidelity
    told = []
    if fidelity.sqnr_db is not None:
        parts = 10.0 ** (min(max(fidelity.sqnr_db, -100.0), 100.0) / 10.0)
        of = f"1 part in {parts:,.0f}" if parts >= 2 else f"{100 / parts:,.0f} %"
        told.append(f"Error power is {of} of the outputs' power (SQNR {figure(fidelity.sqnr_db, 'dB')}).")
        if fidelity.sqnr_interval_db is not None:
            told.append(_between(fidelity.sqnr_interval_db, "dB"))
    told.append(f"Measured on {source_words(report)}.")
    agreement = fidelity.top1_agreement
    interval = fidelity.top1_agreement_interval
    if agreement is not None and interval is not None:
        told.insert(0, _between(interval, "%"))
    if agreement is not None:
        change = f"{percent(agreement, 2)} same decision"
    else:
        change = f"SQNR {figure(fidelity.sqnr_db, 'dB')}" if fidelity.sqnr_db is not None else NOTHING
    return Gain("Likeness to the float model", "", "", change, "plain", tuple(told))


def _between(interval: Interval, unit: str) -> str:
    return f"With {interval.confidence * 100:g} % confidence {interval.low:.2f} to {interval.high:.2f} {unit}."
