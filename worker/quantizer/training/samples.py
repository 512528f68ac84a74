"""The samples of a training: read once from a stream, then drawn in any order, from memory or from mapped files; and
which of them are learned from, chosen by and judged on.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from service.contracts.compatibility import fed_shape
from service.contracts.errors import DatasetMismatchError, ResourceLimitError
from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset, SampleBatch, choose_batch_size
from worker.quantizer.data.dataset import holds_whole_inputs
from worker.quantizer.data.ragged import told_shape
from worker.quantizer.data.stored import sample_bytes
from worker.quantizer.layerwise.frontier import DEFAULT_LIMITS, StoreLimits, free_memory_bytes
from worker.quantizer.run.interface import Run

Array = np.ndarray[Any, Any]
Numbers = np.ndarray[Any, np.dtype[np.int64]]

# Shares of what is free that samples may take: the rest is for the network, its activations and their gradients.
_MEMORY_SHARE, _DISK_SHARE = 0.25, 0.5
# What is read from the dataset at once.
_READ_BYTES, _MOST_READ = 16 << 20, 256


@dataclass(frozen=True)
class Minibatch:
    """Samples that run together."""

    feeds: dict[str, Array]  # by input name, of the model's dtype, [size, ...]; whole inputs have the input's own shape
    arrays: dict[str | None, Array]  # those that were asked for, as stored, [valid, ...]; None stands for the labels
    numbers: Numbers  # of the samples, int64 [valid], counted from 0
    size: int  # samples in the feeds; those after the valid ones repeat the last, to fill up a fixed batch

    @property
    def valid(self) -> int:
        """Real samples."""
        return len(self.numbers)


@dataclass
class _SampleColumn:
    """One input or one asked array of all samples, [samples, ...]; with ``whole`` each sample is a whole input."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    whole: bool
    values: Array | None = None
    file: BinaryIO | None = field(default=None, repr=False)

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def write(self, start: int, block: Array) -> None:
        if self.file is not None:
            self.file.write(block.reshape(-1).view(np.uint8).data)  # tofile does not say why it wrote less
        elif self.values is not None:
            self.values[start : start + len(block)] = block

    def map(self) -> None:
        """Give back what was written into the file as an array that is read when it is used."""
        if self.file is not None:
            self.file.close()
            self.values = np.memmap(self.file.name, self.dtype, "r", shape=self.shape)
            self.file = None

    def extend(self, block: Array) -> None:
        """Put samples behind the others; all are in memory then."""
        self.values = np.concatenate([np.asarray(self.values), block.astype(self.dtype)])
        self.shape = self.values.shape

    def take(self, numbers: Numbers) -> Array:
        """A new array in memory, [numbers, ...]."""
        if self.values is None:
            raise ValueError("the samples are read once the context is entered")
        return np.asarray(self.values)[numbers]


class TrainingSamples:
    """The first samples of a dataset as minibatches in any order; a context manager, which reads them.

    What is drawn does not depend on where it lies.

    ``arrays`` are names of stored arrays to hand out besides, None being the labels. Level 2 of ``limits`` puts all on
    disk; else what does not fit into memory goes there, into a scratch folder in ``folder``; None: in that for
    temporary files.
    """

    def __init__(
        self,
        data: OpenDataset,
        inputs: Sequence[TensorInfo],
        count: int,
        arrays: Collection[str | None],
        run: Run,
        limits: StoreLimits = DEFAULT_LIMITS,
        folder: Path | None = None,
    ) -> None:
        self._data, self._inputs, self._asked, self._run = data, tuple(inputs), tuple(arrays), run
        self._limits, self._parent = limits, folder
        self._folder: Path | None = None
        self._feeds: dict[str, _SampleColumn] = {}
        self._arrays: dict[str | None, _SampleColumn] = {}
        self.count = min(count, data.samples)
        if self.count < 1:
            raise ValueError("there are no samples to train on")
        sizes = {choose_batch_size(self._inputs, data, preferred) for preferred in (1, 2)}
        #: Samples that the model takes at once; None: as many as one likes. A whole input is one sample.
        self.fixed_batch: int | None = sizes.pop() if len(sizes) == 1 else None
        self._whole = {tensor.name for tensor in self._inputs if self._holds_whole(tensor)}

    def __enter__(self) -> TrainingSamples:
        """Read all samples.

        Raises:
            DatasetMismatchError: an input or an asked array is not there, or does not fit; or its samples differ in
                shape, so that they cannot be drawn together.
            DatasetFormatError: damaged bytes.
            ResourceLimitError: the samples fit neither into memory nor on disk.
            CanceledError: the run was canceled.
        """
        try:
            self._read()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Forget the samples, and remove all files."""
        self.close()

    def close(self) -> None:
        """Forget the samples, and remove all files."""
        for column in self._columns():
            if column.file is not None:
                column.file.close()
        self._feeds.clear()
        self._arrays.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def notes(self) -> tuple[str, ...]:
        """Where samples lie that do not fit into memory, for the report."""
        return () if self._folder is None else ("the training samples were kept on disk",)

    def batch(self, numbers: np.ndarray) -> Minibatch:
        """The samples of these numbers, in this order.

        Args:
            numbers: integers [n], 0 to ``count`` - 1; at most ``fixed_batch``, which fewer are filled up to by
                repeating the last.
        """
        wanted: Numbers = np.asarray(numbers, np.int64).reshape(-1)
        size = len(wanted) if self.fixed_batch is None else self.fixed_batch
        if not 0 < len(wanted) <= size:
            raise ValueError(f"{len(wanted)} samples for a batch of {self.fixed_batch or 'one or more'}")
        if wanted.min() < 0 or wanted.max() >= self.count:
            raise IndexError(f"samples are numbered from 0 to {self.count - 1}")
        filled = np.concatenate([wanted, np.repeat(wanted[-1:], size - len(wanted))])
        feeds = {name: column.take(filled)[0] if column.whole else column.take(filled) for name, column in self._fed()}
        return Minibatch(feeds, {name: column.take(wanted) for name, column in self._arrays.items()}, wanted, size)

    def values(self, name: str, numbers: Numbers) -> Array:
        """What an input reads of the samples of these numbers, [numbers, ...]; whole inputs have their own shape."""
        return dict(self._fed())[name].take(numbers)

    def append(self, feeds: Mapping[str, Array]) -> Numbers:
        """Put samples behind the others and return their numbers; arrays that are handed out besides hold zeros there.

        Args:
            feeds: of every input, [samples, ...], in any shape of as many elements.
        """
        added = len(next(iter(feeds.values())))
        for name, column in self._fed():
            column.extend(feeds[name].reshape(added, *column.shape[1:]))
        for column in self._arrays.values():
            column.extend(np.zeros((added, *column.shape[1:]), column.dtype))
        self.count += added
        return np.arange(self.count - added, self.count, dtype=np.int64)

    def minibatches(self, order: np.ndarray, size: int, *, fill: bool) -> Iterator[np.ndarray]:
        """``order`` in pieces of ``size``; of as many whole batches as that holds, at least one, where they are fixed.

        Args:
            order: numbers of samples, integers [n].
            size: wanted.
            fill: hand out what is too short for a fixed batch, too: to measure on all samples. A training leaves it
                out, as its repeated samples would count double; a set smaller than one batch is never left out.
        """
        fixed = self.fixed_batch or 1
        step = max(size // fixed, 1) * fixed
        end = len(order) if fill else len(order) // fixed * fixed or len(order)
        for start in range(0, end, step):
            yield order[start : min(start + step, end)]

    def _fed(self) -> Iterator[tuple[str, _SampleColumn]]:
        if not self._feeds:
            raise ValueError("the samples are read once the context is entered")
        yield from self._feeds.items()

    def _columns(self) -> list[_SampleColumn]:
        return [*self._feeds.values(), *self._arrays.values()]

    def _holds_whole(self, tensor: TensorInfo) -> bool:
        array, spec = self._data.array_for(tensor)
        fed = fed_shape(spec, array.shape)
        return fed is not None and holds_whole_inputs(tensor, fed)

    def _refuse_varying(self) -> None:
        asked = [(f"array {source.name!r}", source) for name in self._asked if (source := self._data.stored(name))]
        read = [(f"input {tensor.name!r}", self._data.array_for(tensor)[0]) for tensor in self._inputs]
        varying = next((what for what, source in [*read, *asked] if None in told_shape(source)), None)
        if varying is not None:
            raise DatasetMismatchError(
                f"a training draws samples at random and runs them together, but those of {varying} differ in shape",
                hint="Pad or cut the samples to one shape, or finetune by adaround or adaquant, which take them one by "
                "one.",
            )

    def _read(self) -> None:
        self._refuse_varying()
        largest = max(sample_bytes(array.dtype, array.shape) for array, _ in map(self._data.array_for, self._inputs))
        preferred = max(1, min(_MOST_READ, _READ_BYTES // max(largest, 1)))
        size = choose_batch_size(self._inputs, self._data, preferred)
        stream = self._data.batches(self._inputs, size, samples=range(self.count), arrays=self._asked)
        for batch in stream:
            self._run.check()
            if not self._feeds:
                self._make_room(batch)
            first = batch.numbers[0]
            for name, values in batch.feeds.items():
                self._feeds[name].write(first, values[None] if name in self._whole else values[: batch.valid])
            for asked, values in batch.arrays.items():
                self._arrays[asked].write(first, values)
        for column in self._columns():
            column.map()

    def _make_room(self, batch: SampleBatch) -> None:
        """Place for all samples, of the shapes of the first ones: the small arrays in memory before the large ones."""
        for name, values in batch.feeds.items():
            whole = name in self._whole
            shape = values.shape if whole else values.shape[1:]
            self._feeds[name] = _SampleColumn((self.count, *shape), values.dtype, whole)
        for asked, values in batch.arrays.items():
            self._arrays[asked] = _SampleColumn((self.count, *values.shape[1:]), values.dtype, whole=False)
        limit = self._limits.memory_bytes
        left = int(free_memory_bytes() * _MEMORY_SHARE) if limit is None else limit
        on_disk = []
        for column in sorted(self._columns(), key=lambda column: column.size_bytes):
            # An empty file cannot be mapped.
            if column.size_bytes == 0 or (self._limits.level != 2 and column.size_bytes <= left):
                column.values = np.empty(column.shape, column.dtype)
                left -= column.size_bytes
            else:
                on_disk.append(column)
        if on_disk:
            self._open_files(on_disk)

    def _open_files(self, columns: Sequence[_SampleColumn]) -> None:
        folder = self._folder = Path(tempfile.mkdtemp(prefix="training-", dir=self._parent))
        wanted, limit = sum(column.size_bytes for column in columns), self._limits.disk_bytes
        there = int(shutil.disk_usage(folder).free * _DISK_SHARE) if limit is None else limit
        if wanted > there:
            raise ResourceLimitError(
                f"The {self.count} training samples need {wanted} bytes, which fit neither in memory nor in the "
                f"{there} bytes allowed on disk.",
                hint="Set data_size to fewer samples, or give the job more memory.",
                resource="disk",
            )
        for k, column in enumerate(columns):
            column.file = (folder / str(k)).open("wb")


def epoch_order(count: int, seed: int, epoch: int) -> Numbers:
    """The order in which an epoch takes its samples: a permutation of 0 to ``count`` - 1, int64 [count]."""
    return np.random.default_rng([seed, epoch]).permutation(count).astype(np.int64, copy=False)


@dataclass(frozen=True)
class SampleSplit:
    """Numbers of samples, int64, ascending; none is in two of them."""

    training: Numbers  # are learned from
    validation: Numbers  # the best epoch is chosen by them
    judging: Numbers  # nothing is chosen by them


def split_samples(
    samples: int, *, validation_share: float, judging: int, classes: Numbers | None, seed: int
) -> SampleSplit:
    """Draw the parts at random, each class in its share where there are class labels: datasets are often sorted.

    Args:
        samples: at least 4.
        validation_share: of the samples that are not for judging; at least one, and two are left to learn from.
        judging: samples for judging; at most a quarter of all.
        classes: int64 [samples], or None.
        seed: of the draw.
    """
    random = np.random.default_rng([seed, samples])
    order = random.permutation(samples)
    if classes is not None:
        order = _interleaved(order, classes)
    judged = min(judging, samples // 4)
    rest = samples - judged
    chosen = max(1, min(round(rest * validation_share), rest - 2))
    parts = np.split(order, [judged, judged + chosen])
    return SampleSplit(training=np.sort(parts[2]), validation=np.sort(parts[1]), judging=np.sort(parts[0]))


def _interleaved(order: np.ndarray, classes: Numbers) -> np.ndarray:
    """The order changed so that any stretch of it holds all classes in about their shares."""
    place = np.empty(len(order), np.float64)
    drawn = classes[order]
    for number in np.unique(drawn):
        where = np.flatnonzero(drawn == number)
        place[where] = (np.arange(len(where)) + 0.5) / len(where)
    return order[np.argsort(place, kind="stable")]
