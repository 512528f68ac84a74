"""The four cards of a report: accuracy, size, latency and agreement with the float model."""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.contracts.changes import (
    Change,
    change_of,
    latency_change,
    latency_change_of,
    p_words,
    pairs_note,
    size_change,
)
from service.contracts.report import Flips, LatencyFigures, MetricFigures, Report
from service.reports.figures import NOTHING, count, figure, metric_title, milliseconds, percent, size
from service.reports.verdict import Tone, interval_words

# From here on what else the machine did is worth a word.
_BUSY_PERCENT = 20.0
_SOURCES = {
    "evaluation": "the evaluation data",
    "calibration": "the calibration data, which the ranges come from",
    "random": "random data, which shows nothing about accuracy",
}


@dataclass(frozen=True)
class Card:
    """One figure compared between both models.

    Attributes:
        title: of what.
        before, after: of the float and the quantized model; empty where there is no pair.
        change: the figure that matters, in words.
        tone: its colour.
        arrow: up for the better, down for the worse; empty where the words tell it.
        sentences: what the figure rests on.
    """

    title: str
    before: str
    after: str
    change: str
    tone: Tone
    arrow: str
    sentences: tuple[str, ...]


def cards(report: Report) -> list[Card]:
    """Accuracy by the first metric, size, latency, agreement."""
    found = [_accuracy(report), _size(report), _latency(report), _agreement(report)]
    return [card for card in found if card is not None]


def source_words(report: Report) -> str:
    """Which data accuracy was measured on."""
    return f"{count(report.fidelity.samples, 'sample')} of {_SOURCES[report.fidelity.source]}"


def metric_card(metric: MetricFigures, samples: int) -> Card:
    """A metric of both models; ``samples`` is taken where the metric does not say."""
    unit, change = metric.unit, change_of(metric)
    return _card(
        metric_title(metric.name),
        figure(metric.float_, unit),
        figure(metric.quantized, unit),
        change,
        metric_sentences(metric, metric.samples or samples),
    )


def metric_sentences(metric: MetricFigures, samples: int) -> list[str]:
    """What the reader has to know before trusting the figures of a metric."""
    change, told = change_of(metric), []
    if change.interval:
        told.append(f"{change.interval}: {_significance(change)}.")
    if metric.flips is not None:
        told.append(flip_words(metric.flips, samples))
    if metric.p_value is not None:
        told.append(f"{p_words(metric.p_value)}.")
    if not change.interval and metric.unit == "%":
        told.append(f"Measured on {count(samples, 'sample')}; one sample is {100 / max(samples, 1):.2g} points.")
    if metric.chance is not None:
        told.append(f"Chance level: {figure(metric.chance, metric.unit)}.")
    return told


def flip_words(flips: Flips, samples: int) -> str:
    """The prediction flips in a sentence."""
    told = (
        f"Prediction flips: {flips.lost:,} of {count(samples, 'sample')} from right to wrong, "
        f"{flips.won:,} from wrong to right"
    )
    if flips.confident:
        told += f"; float confidence was 90 % or more on {flips.confident:,} of the lost ones"
    return told + "."


def _significance(change: Change) -> str:
    return change.judgement if not change.significant else f"significantly {change.direction}"


def _card(title: str, before: str, after: str, change: Change, sentences: list[str]) -> Card:
    judgement = change.judgement if change.needs_judgement else ""
    words = f"{change.words} ({judgement})" if judgement else change.words
    return Card(title, before, after, words, change.tone, change.arrow, tuple(sentences))


def _accuracy(report: Report) -> Card:
    if report.metrics:
        card = metric_card(report.metrics[0], report.fidelity.samples)
        own_data = report.fidelity.source == "evaluation"
        return card if own_data else replace(card, sentences=(f"Measured on {source_words(report)}.", *card.sentences))
    told = "No labels: accuracy is not measured; agreement with the float model is."
    return Card("Accuracy", "", "", "not measured", "unsure", "", (told,))


def _size(report: Report) -> Card:
    before, after = report.float_.size_bytes, report.quantized.size_bytes
    return _card("File size", size(before), size(after), size_change(before, after), [])


def _latency(report: Report) -> Card | None:
    figures = report.latency
    if figures is not None:
        before, after = milliseconds(figures.float_ms), milliseconds(figures.quantized_ms)
        change = latency_change_of(figures)
        card = _card("Latency", before, after, change, _latency_sentences(figures))
        return replace(card, after=card.after + pairs_note(figures.float_ms, figures.quantized_ms, change))
    float_ms, quantized_ms = report.float_.latency_ms, report.quantized.latency_ms
    if not float_ms or not quantized_ms:
        return None
    told = ["Medians at batch 1 on this machine; significance is not known."]
    change = latency_change(quantized_ms / float_ms)
    return _card("Latency", milliseconds(float_ms), milliseconds(quantized_ms), change, told)


def _latency_sentences(figures: LatencyFigures) -> list[str]:
    told = []
    if figures.not_representative is not None:
        told.append(f"{figures.not_representative}.")
    else:
        interval = latency_change_of(figures).interval
        told.append(f"{interval}{': not significant' if figures.verdict == 'undecided' else ''}.")
    told.append(
        f"{count(figures.runs, 'run')} of either model in turn, batch {figures.batch_size}, "
        f"{count(figures.threads, 'thread')}."
    )
    busy = figures.load.other_busy_percent
    if busy is not None and busy >= _BUSY_PERCENT:
        told.append(f"Other processes used {percent(busy, 0)} of the CPU meanwhile: measure again on an idle machine.")
    return told


def _agreement(report: Report) -> Card:
    """How close the outputs are to the float model's."""
    fidelity, told = report.fidelity, []
    agreement, interval = fidelity.top1_agreement, fidelity.top1_agreement_interval
    if agreement is not None and interval is not None:
        told.append(f"{interval_words(interval, '%')}.")
    if fidelity.sqnr_db is not None:
        told.append(f"SQNR {figure(fidelity.sqnr_db, 'dB')}.")
        if fidelity.sqnr_interval_db is not None:
            told.append(f"{interval_words(fidelity.sqnr_interval_db, 'dB')}.")
    told.append(f"Measured on {source_words(report)}.")
    if agreement is not None:
        return Card("Top-1 agreement", "", "", percent(agreement, 2), "plain", "", tuple(told))
    value = NOTHING if fidelity.sqnr_db is None else figure(fidelity.sqnr_db, "dB")
    return Card("Output SQNR", "", "", value, "plain", "", tuple(told))
