"""What the page of a dataset shows of its content: drawings, each with the figures that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from service.contracts.dataset import ClassCounts, DatasetSummary, ValueProfile, Waveform, Waveforms
from service.dashboard import dataset_charts
from service.reports.figures import count, figure, percent
from service.reports.names import name

# More arrays than these have their range in the table alone.
_DRAWN_ARRAYS = 24


class ClassRow(NamedTuple):
    """A class and its samples; ``name`` is None where the dataset has numbers alone."""

    number: int
    name: str | None
    samples: int


@dataclass(frozen=True)
class ClassesShown:
    """Samples per class; without a picture where there are too many classes to draw."""

    words: str
    rows: list[ClassRow]
    is_whole: bool
    picture: Markup | None


class BinRow(NamedTuple):
    """Values from ``low`` to below ``high``."""

    low: float
    high: float
    values: int


@dataclass(frozen=True)
class ValuesShown:
    """The values of an array; without a picture where all are equal."""

    name: str
    words: str
    rows: list[BinRow]
    picture: Markup | None


class WaveRow(NamedTuple):
    """A sound, drawn and in words."""

    wave: Waveform
    length: str
    peak: str
    picture: Markup


@dataclass(frozen=True)
class WavesShown:
    """Sounds, all on one scale."""

    array: str
    rows: list[WaveRow]


@dataclass(frozen=True)
class ContentShown:
    """All that is drawn of a dataset, and the ranges of its arrays by name."""

    classes: ClassesShown | None
    ranges: dict[str, ValueProfile]
    values: list[ValuesShown]
    values_more: int
    waves: WavesShown | None


def content(summary: DatasetSummary | None) -> ContentShown | None:
    """What is drawn; None for a dataset that is not validated, or was before its content was counted."""
    if summary is None or summary.profile is None:
        return None
    found = summary.profile
    drawn = list(found.values.items())[:_DRAWN_ARRAYS]
    return ContentShown(
        classes=None if found.classes is None else _classes(found.classes, summary),
        ranges=found.values,
        values=[_values(array, profile) for array, profile in drawn],
        values_more=len(found.values) - len(drawn),
        waves=None if found.waveforms is None else _waves(found.waveforms),
    )


def _classes(found: ClassCounts, summary: DatasetSummary) -> ClassesShown:
    names = () if summary.media is None else summary.media.classes or ()
    rows = [
        ClassRow(number, names[number] if number < len(names) else None, samples)
        for number, samples in zip(found.numbers, found.counts, strict=True)
    ]
    return ClassesShown(_class_words(found, summary), rows, found.is_whole, _class_picture(found, rows))


def _class_words(found: ClassCounts, summary: DatasetSummary) -> str:
    each = f"{found.fewest:,} to {count(found.most, 'sample')}"
    if found.fewest == found.most:
        each = count(found.most, "sample")
    words = f"{count(found.distinct, 'class', 'classes')} of {each} each."
    greatest = None if summary.labels is None else summary.labels.maximum
    absent = 0 if greatest is None else greatest + 1 - found.distinct
    if absent > 0:
        words += f" {count(absent, 'class number')} below the greatest {'has' if absent == 1 else 'have'} no sample."
    return words


def _class_picture(found: ClassCounts, rows: list[ClassRow]) -> Markup | None:
    if not found.is_whole:
        return None
    label = f"Samples by class, {len(rows)} in all: {found.fewest} to {found.most} each; the table holds the figures"
    if len(rows) > dataset_charts.MOST_ROWS:
        return dataset_charts.class_outline(found.numbers, found.counts, label)
    return dataset_charts.class_rows([(row.name or f"class {row.number}", row.samples) for row in rows], label)


def _values(array: str, profile: ValueProfile) -> ValuesShown:
    edges = profile.edges()
    bins = [BinRow(low, high, n) for low, high, n in zip(edges, edges[1:], profile.counts, strict=False) if n]
    if profile.minimum == profile.maximum:
        return ValuesShown(array, f"Every value is {figure(profile.minimum)}.", [], None)
    words = f"{figure(profile.minimum)} to {figure(profile.maximum)}, mean {figure(profile.mean)}"
    if not profile.is_exact:
        share = percent(100 * profile.counted / profile.values, 2)
        words += f"; mean and counts are of {profile.counted:,} of {profile.values:,} values ({share}), evenly taken"
    label = f"Values of {name(array, 40)}: how often each occurs; {words}; the table holds the figures"
    return ValuesShown(array, words, bins, dataset_charts.values(profile, label))


def _waves(found: Waveforms) -> WavesShown:
    loudest = max((wave.peak for wave in found.samples), default=0.0)
    return WavesShown(found.array, [_wave(wave, found, loudest) for wave in found.samples])


def _wave(wave: Waveform, found: Waveforms, loudest: float) -> WaveRow:
    length = count(wave.length, "value")
    if found.sample_rate_hz is not None:
        length = f"{wave.length / found.sample_rate_hz:.2f} s"
    peak = figure(wave.peak)
    if found.full_scale is not None:
        peak = f"{percent(100 * wave.peak / found.full_scale)} of full scale"
    label = f"Waveform of sample {wave.number}: {length}, peak {peak}"
    return WaveRow(wave, length, peak, dataset_charts.waveform(wave, loudest, label))
