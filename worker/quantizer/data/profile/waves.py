"""Waveforms small enough to be stored: the least and the greatest value of each column of time."""

from __future__ import annotations

import re

import numpy as np

from service.contracts.data_profile import MAX_WAVEFORMS, WAVEFORM_COLUMNS, WAVEFORM_STEPS, Waveform, Waveforms
from service.contracts.sheets import sheet_numbers
from worker.quantizer.data.ragged import told_shape
from worker.quantizer.data.stored import Array, ArraySource

# An array of sounds is known by its name and its shape: values alone look like those of many other things.
_NAMES = {
    "audio", "input_values", "pcm", "signal", "signals", "sound", "sounds", "speech", "voice", "wav", "wave",
    "waveform", "waveforms", "waves",
}  # fmt: skip
_LEAST_LENGTH = 256
_CHANNEL_RANK = 3


def wave_numbers(samples: int) -> list[int]:
    """The samples whose waveforms are kept: those that stand on the sheet of a dataset of pictures."""
    return sheet_numbers(samples)[:MAX_WAVEFORMS]


def holds_waves(array: ArraySource) -> bool:
    """True for an array that plainly holds sounds: called so, float or int16 [samples, time] or [samples, 1, time]."""
    words = {array.name.lower(), *re.split(r"[^a-z]+", array.name.lower())}
    shape = told_shape(array)
    if not words & _NAMES or not (array.dtype.kind in "fV" or array.dtype == np.int16):
        return False
    one_channel = len(shape) == 2 or (len(shape) == _CHANNEL_RANK and shape[1] == 1)
    return one_channel and array.shape[-1] >= _LEAST_LENGTH


def waveform(number: int, values: Array) -> Waveform:
    """The envelope of one sound.

    Args:
        number: of the sample.
        values: [n], finite.
    """
    columns = min(len(values), WAVEFORM_COLUMNS)
    if not columns:
        return Waveform(number=number, length=0, minimum=0.0, maximum=0.0, lows=(), highs=())
    starts = np.arange(columns) * len(values) // columns
    lows = np.minimum.reduceat(values, starts).astype(np.float64) + 0.0  # no -0
    highs = np.maximum.reduceat(values, starts).astype(np.float64) + 0.0
    low, high = float(lows.min()), float(highs.max())
    peak = max(abs(low), abs(high)) or 1.0
    return Waveform(
        number=number, length=len(values), minimum=low, maximum=high, lows=_steps(lows, peak), highs=_steps(highs, peak)
    )


def _steps(values: Array, peak: float) -> tuple[int, ...]:
    return tuple(np.rint(values / peak * WAVEFORM_STEPS).astype(np.int64).tolist())


class WaveTracer:
    """Keeps some waveforms of one array that is read in blocks.

    Args:
        array: one that ``holds_waves``.
    """

    def __init__(self, array: ArraySource) -> None:
        self._name = array.name
        self._wanted = wave_numbers(array.shape[0])
        self._found: list[Waveform] = []

    def add(self, start: int, block: Array) -> None:
        """Take in the samples from ``start`` on, [count, ...]."""
        for number in self._wanted:
            if start <= number < start + len(block):
                self._found.append(waveform(number, block[number - start].reshape(-1)))

    def waveforms(self) -> Waveforms:
        """What has been kept."""
        return Waveforms(array=self._name, samples=tuple(self._found))
