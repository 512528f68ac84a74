"""Watches the arrays of a dataset go by and tells what was in them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from service.contracts.data_profile import MAX_PROFILED_ARRAYS, DataProfile, Waveforms
from worker.quantizer.data.profile.classes import count_classes
from worker.quantizer.data.profile.values import ValueCounter
from worker.quantizer.data.profile.waves import WaveTracer, holds_waves
from worker.quantizer.data.ragged import RaggedArray
from worker.quantizer.data.stored import Array, ArraySource

Watch = Callable[[int, Array], None]


class Profiler:
    """Takes in each array once, in blocks; memory does not grow with them.

    Exact are samples per class, and the least and the greatest value of each array. Means and histograms are so for
    arrays of up to 2**20 values, and estimated from every n-th value of larger ones. Waveforms are of up to 16 samples,
    evenly from all.

    Args:
        block_bytes: of a block at most, but for blocks of one sample.
    """

    def __init__(self, block_bytes: int) -> None:
        self._block_bytes = block_bytes
        self._values: dict[str, ValueCounter] = {}
        self._waves: WaveTracer | None = None

    def watch(self, array: ArraySource) -> Watch | None:
        """What takes in the array: the number of a block's first sample, and the block; None: the array is left out."""
        if len(self._values) >= MAX_PROFILED_ARRAYS:
            return None
        sample = math.prod(array.shape[1:])
        values = sum(map(array.elements, range(array.shape[0]))) if isinstance(array, RaggedArray) else None
        counter = ValueCounter(
            array.dtype,
            array.shape[0] * sample if values is None else values,
            self._block_bytes // array.dtype.itemsize,
            sample,
        )
        self._values[array.name] = counter
        if self._waves is not None or not holds_waves(array):
            return lambda start, block: counter.add(block)
        tracer = self._waves = WaveTracer(array)

        def both(start: int, block: Array) -> None:
            counter.add(block)
            tracer.add(start, block)

        return both

    def profile(self, classes: np.ndarray[Any, np.dtype[np.int64]] | None, waveforms: Waveforms | None) -> DataProfile:
        """What has been found.

        Args:
            classes: the labels, if they are class numbers.
            waveforms: those of an archive of sounds, which take the place of an array's.
        """
        found = {name: counter.profile() for name, counter in self._values.items()}
        return DataProfile(
            classes=None if classes is None else count_classes(classes),
            values={name: one for name, one in found.items() if one is not None},
            waveforms=waveforms or (None if self._waves is None else self._waves.waveforms()),
        )
