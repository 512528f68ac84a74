"""A dataset of which everything is known that validation may tell."""

from __future__ import annotations

import math

from service.contracts.data_profile import (
    WAVEFORM_COLUMNS,
    WAVEFORM_STEPS,
    ClassCounts,
    DataProfile,
    ValueProfile,
    Waveform,
    Waveforms,
)
from service.contracts.dataset import DatasetSummary, LabelSummary, MediaSummary
from tests.support.front import dataset_summary

HOSTILE_CLASS = "<svg onload=alert(1)> \u202egnp.evil " + "n" * 300
_CLASSES = ("cat", "dog", HOSTILE_CLASS)


def class_counts(*samples: int) -> ClassCounts:
    """Classes 0, 1 and so on."""
    facts = {"distinct": len(samples), "fewest": min(samples), "most": max(samples)}
    return ClassCounts(**facts, numbers=tuple(range(len(samples))), counts=samples)


def value_profile(*counts: int, low: float = -4.0, high: float = 4.0, values: int | None = None) -> ValueProfile:
    """Values in bins from ``low`` to ``high``."""
    ends = {"minimum": low, "maximum": high, "low": low, "high": high, "mean": 0.0}
    return ValueProfile(**ends, values=values or sum(counts), counted=sum(counts), counts=counts)


def waveform(number: int, peak: float) -> Waveform:
    """A second of a tone."""
    highs = tuple(round(WAVEFORM_STEPS * abs(math.sin(k / 9))) for k in range(WAVEFORM_COLUMNS))
    lows = tuple(-high for high in highs)
    return Waveform(number=number, length=16_000, minimum=0.0 - peak, maximum=peak, lows=lows, highs=highs)


def full_profile() -> DataProfile:
    """Classes, values and waveforms."""
    sounds = tuple(waveform(number, 2000.0 * number) for number in range(5))
    return DataProfile(
        classes=class_counts(20, 8, 4),
        values={"x": value_profile(1, 20, 3000, 900, 0, 4, values=6144)},
        waveforms=Waveforms(array="x", sample_rate_hz=16_000, full_scale=32768.0, samples=sounds),
    )


def profiled_summary() -> DatasetSummary:
    """Data that fits ``model_summary``."""
    labels = LabelSummary(array="labels", count=32, minimum=0, maximum=2, dtype="int64", shape=(32,))
    media = MediaSummary(archive="zip", codecs={"WAV": 32}, classes=_CLASSES, smallest=(100,), largest=(16_000,))
    return dataset_summary(labels=labels).model_copy(update={"media": media, "profile": full_profile()})
