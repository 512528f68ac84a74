"""Datasets: re-iterable streams of model inputs, read in blocks of samples."""

from __future__ import annotations

import hashlib
import threading
from bisect import bisect_left
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from service.contracts.compatibility import fed_shape
from service.contracts.dataset import (
    UNLABELLED,
    DatasetSummary,
    FileFormat,
    InputSpec,
    PreprocessingSpec,
    Thumbnails,
)
from service.contracts.errors import DatasetMismatchError, of_role
from service.contracts.model import TensorInfo
from worker.quantizer.data.array_files import detect_format, read_npz, read_safetensors
from worker.quantizer.data.media import Media, read_media, refuse_for_arrays
from worker.quantizer.data.pictures import for_stored_pictures
from worker.quantizer.data.preprocess import Transform
from worker.quantizer.data.ragged import ChosenReader, RaggedArray, alike, grouped, largest_sample, pieces, told_shape
from worker.quantizer.data.selection import are_classes, one_hot_classes, read_labels, select_arrays
from worker.quantizer.data.stored import Array, ArraySource, MemoryArray
from worker.quantizer.data.summary import BLOCK_BYTES, Identity, Profiler, summarize
from worker.quantizer.data.zips import DEFAULT_MAX_TOTAL_BYTES

THUMBNAILS_FILE = "thumbnails.png"
Labels = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class SampleBatch:
    """Inputs for one run of a model."""

    feeds: dict[str, Array]  # by input name, C-contiguous, of the model's dtype
    labels: Labels | None  # class numbers int64 [valid], or None
    numbers: Sequence[int]  # of the real samples, ascending, all of one shape; what fills up repeats the last one
    # those that were asked for by name, as they are stored, [valid, ...]; None stands for the labels
    arrays: Mapping[str | None, Array] = field(default_factory=dict)
    size: int = 0  # samples in the feeds, with those that fill up

    @property
    def valid(self) -> int:
        """How many samples are real."""
        return len(self.numbers)

    def cut(self, output: Array, axis: int = 0) -> Array:
        """A model output without the samples that fill up; what has no such axis of samples stays as it is."""
        if self.valid < self.size and output.ndim > axis and output.shape[axis] == self.size:
            return output[(slice(None),) * axis + (slice(0, self.valid),)]
        return output


class OpenDataset:
    """Arrays that share their first axis, and how they become model inputs.

    Args:
        stored: the arrays by name.
        preprocessing: which arrays feed which inputs, and how.

    Raises:
        DatasetError: the arrays do not make a dataset; see ``select_arrays``.
    """

    is_random = False
    # Shapes of inputs, by name, that nobody has given: of random inputs alone.
    made_up: Mapping[str, tuple[int, ...]] = {}

    def __init__(self, stored: Mapping[str, ArraySource], preprocessing: PreprocessingSpec) -> None:
        self.preprocessing = preprocessing
        self.selection = select_arrays(stored, preprocessing)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.selection.samples

    @cached_property
    def labels(self) -> Labels | None:
        """Class numbers, int64 [samples], those of one-hot labels included; -1 where a sample has no label.

        None if there are no labels, no sample has one, or they are not class numbers.
        """
        stored = self.selection.labels
        if stored is None:
            return None
        found = read_labels(stored) if are_classes(stored) else one_hot_classes(stored)
        return None if found is None or (found == UNLABELLED).all() else found

    @cached_property
    def summary(self) -> DatasetSummary:
        """Facts and checks of the whole dataset; the first use reads all of it.

        Raises:
            NonFiniteDataError: NaN or Inf in an array.
            DatasetError: damaged bytes or unusable labels.
        """
        return self.summarized(None)

    def summarized(self, profiler: Profiler | None) -> DatasetSummary:
        """Read all of the dataset and describe it; with a profiler, which sees every block, its content, too.

        Raises:
            NonFiniteDataError: NaN or Inf in an array.
            DatasetError: damaged bytes or unusable labels.
        """
        return summarize(
            self.selection, self.preprocessing, classes=self.labels, identify=self._identity, profiler=profiler
        )

    def _identity(self) -> Identity:
        """What the file is; asked once all of it has been read."""
        raise NotImplementedError

    def array_for(self, tensor: TensorInfo) -> tuple[ArraySource, InputSpec]:
        """The stored array that feeds a model input, and its spec.

        Raises:
            DatasetMismatchError: there is none.
        """
        spec = self.preprocessing.input(tensor.name)
        array = self.selection.arrays.get(spec.array or tensor.name)
        if array is None:
            raise DatasetMismatchError(
                f"input {tensor.name!r} has no array {spec.array or tensor.name!r}; "
                f"the dataset contains {', '.join(map(repr, self.selection.arrays))}",
                hint="Store one array per model input under the input's name, or map arrays in preprocessing.inputs.",
                input=tensor.name,
            )
        return array, spec

    def stored(self, name: str | None) -> ArraySource | None:
        """The array of this name, or the labels if ``name`` is None; None if there is none."""
        labels = self.selection.labels
        if labels is not None and name in (None, labels.name):
            return labels
        return None if name is None else self.selection.arrays.get(name)

    def varying(self, inputs: Sequence[TensorInfo]) -> list[str]:
        """Names of the inputs whose samples differ in shape.

        Raises:
            DatasetMismatchError: an input has no array.
        """
        return [tensor.name for tensor in inputs if None in told_shape(self.array_for(tensor)[0])]

    def largest(self, inputs: Sequence[TensorInfo]) -> int:
        """Number of the sample with the most elements in all inputs, the first of several: 0 if all have one shape.

        Raises:
            DatasetMismatchError: an input has no array.
        """
        return largest_sample([self.array_for(tensor)[0] for tensor in inputs])

    def batches(
        self,
        inputs: Sequence[TensorInfo],
        batch_size: int,
        *,
        samples: Sequence[int] | None = None,
        arrays: Collection[str | None] = (),
    ) -> Iterator[SampleBatch]:
        """Batches of samples in their order; the next one is read while the caller works on the last.

        A batch mixes no shapes: it ends where the next sample of any array that it reads has another one.

        Args:
            inputs: the model's inputs.
            batch_size: samples per batch at most, as given by ``choose_batch_size``.
            samples: ascending numbers, of which those that there are count; None: all.
            arrays: names of stored arrays to hand out besides, None being the labels.

        Raises:
            DatasetMismatchError: an input has no array, or its spec does not fit it; an array is not there.
            DatasetFormatError: damaged bytes.
        """
        plan = _Plan(self, inputs, batch_size, arrays)
        wanted = range(self.samples) if samples is None else samples[: bisect_left(samples, self.samples)]
        if len(wanted) <= batch_size:
            return plan.run(wanted)
        return _read_ahead(plan.run(wanted))


class _Plan:
    """How the feeds of one pass are read and transformed."""

    def __init__(
        self, dataset: OpenDataset, inputs: Sequence[TensorInfo], batch_size: int, arrays: Collection[str | None]
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}, not positive")
        self._labels = dataset.labels
        self._batch_size = batch_size
        self._sources: dict[str, ArraySource] = {}
        self._feeds: list[tuple[str, str, Transform, bool]] = []
        self._pad = False
        for tensor in inputs:
            array, spec = dataset.array_for(tensor)
            transform = Transform(tensor, spec, array.dtype, told_shape(array))
            whole = holds_whole_inputs(tensor, transform.shape)
            if whole and batch_size != 1:
                raise ValueError(f"input {tensor.name!r} takes whole inputs, one sample at a time")
            self._pad = self._pad or (not whole and _fixed_batch(tensor) is not None)
            self._sources[array.name] = array
            self._feeds.append((tensor.name, array.name, transform, whole))
        self._asked: dict[str | None, str] = {}
        for name in arrays:
            source = dataset.stored(name)
            if source is None:
                raise DatasetMismatchError(
                    f"the dataset has no {'labels' if name is None else f'array {name!r}'}",
                    hint="Store the array that the metric names beside the inputs, with as many samples.",
                )
            self._asked[name] = source.name
            self._sources[source.name] = source

    def run(self, samples: Sequence[int]) -> Generator[SampleBatch, None, None]:
        """The batches of these samples."""
        readers: dict[str, ChosenReader] = {}
        with ExitStack() as opened:
            for name, source in self._sources.items():
                reader = opened.enter_context(closing(source.open()))
                readers[name] = ChosenReader(source, reader, self._batch_size)
            for numbers in alike(self._sources.values(), samples, self._batch_size):
                blocks = {name: reader.read(numbers) for name, reader in readers.items()}
                yield SampleBatch(
                    feeds={
                        name: self._feed(blocks[array], transform, whole)
                        for name, array, transform, whole in self._feeds
                    },
                    labels=None if self._labels is None else self._labels[numbers],
                    numbers=numbers,
                    arrays={asked: blocks[name] for asked, name in self._asked.items()},
                    size=self._batch_size if self._pad else len(numbers),
                )

    def _feed(self, block: Array, transform: Transform, whole: bool) -> Array:
        values = transform(block)
        if whole:
            return values.reshape(values.shape[1:])
        missing = self._batch_size - len(values)
        if self._pad and missing:
            values = np.concatenate([values, np.repeat(values[-1:], missing, axis=0)])
        return values


def _read_ahead(batches: Generator[SampleBatch, None, None]) -> Iterator[SampleBatch]:
    """Prepare at most one batch in a thread of its own; unpacking and arithmetic release the interpreter lock.

    A caller that stops early may leave this to the garbage collector, which comes at any moment, also while the same
    thread holds locks of ``threading``: so the end takes no lock and waits for nobody, and the files are closed by the
    thread that reads them. ``SimpleQueue.put`` is made for such moments.
    """
    wanted: SimpleQueue[bool] = SimpleQueue()
    found: SimpleQueue[SampleBatch | BaseException | None] = SimpleQueue()
    threading.Thread(target=_read, args=(batches, wanted, found), name="read-ahead", daemon=True).start()
    wanted.put(True)
    try:
        while (batch := found.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            wanted.put(True)
            yield batch
    finally:
        wanted.put(False)


def _read(
    batches: Generator[SampleBatch, None, None],
    wanted: SimpleQueue[bool],
    found: SimpleQueue[SampleBatch | BaseException | None],
) -> None:
    """Read a batch for each that is wanted; None is the end, and an error is one, too."""
    batch: SampleBatch | BaseException | None
    try:
        while wanted.get():
            try:
                batch = next(batches, None)
            except BaseException as error:  # noqa: BLE001 - raised where the batch is wanted
                batch = error
            found.put(batch)
            if not isinstance(batch, SampleBatch):
                return
    finally:
        batches.close()


class FileDataset(OpenDataset):
    """A dataset in a file; see ``open_dataset``. ``media`` is set for archives of pictures or sounds."""

    def __init__(
        self, path: Path, preprocessing: PreprocessingSpec, *, max_total_bytes: int, role: str | None = None
    ) -> None:
        self.path, self._role = path, role
        self.media: Media | None = None
        self._format: FileFormat = detect_format(path)
        stored: Mapping[str, ArraySource]
        if self._format == "npz" or self._format == "safetensors":
            is_npz = self._format == "npz"
            stored = grouped(read_npz(path, max_total_bytes=max_total_bytes) if is_npz else read_safetensors(path))
            preprocessing = for_stored_pictures(preprocessing, stored)
            refuse_for_arrays(preprocessing)
        else:
            self.media = read_media(path, self._format, preprocessing, max_total_bytes=max_total_bytes)
            stored = self.media.stored
        super().__init__(stored, preprocessing)

    def summarized(self, profiler: Profiler | None) -> DatasetSummary:
        """The same; errors say what the data is for."""
        with of_role(self._role):
            return super().summarized(profiler)

    def _identity(self) -> Identity:
        with self.path.open("rb") as file:
            size_bytes, sha256 = self.path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
        if self.media is not None:
            return Identity(self.media.content, size_bytes, sha256, self.media.summary(), self.media.waveforms())
        return Identity("npz" if self._format == "npz" else "safetensors", size_bytes, sha256)


class ArrayDataset(OpenDataset):
    """A dataset in memory.

    Args:
        arrays: by name, first axis = samples; or, as in a file, single samples by ``NAME/0000`` and so on.
        labels: class numbers [samples], or other labels [samples, ...].
        preprocessing: as for a file; must not name labels.
    """

    def __init__(
        self,
        arrays: Mapping[str, Array],
        labels: Array | None = None,
        preprocessing: PreprocessingSpec | None = None,
    ) -> None:
        stored = {name: MemoryArray(name, np.asarray(values)) for name, values in arrays.items()}
        if labels is not None:
            stored["labels"] = MemoryArray("labels", np.asarray(labels))
        super().__init__(grouped(stored), preprocessing or PreprocessingSpec())

    def _identity(self) -> Identity:
        digest, size_bytes = hashlib.sha256(), 0
        labels = [self.selection.labels] if self.selection.labels is not None else []
        for array in [*self.selection.arrays.values(), *labels]:
            reader = array.open()
            digest.update(f"{array.name}\0{array.dtype}\0{list(array.shape)}\0".encode())
            for _, count in pieces([array], 0, self.samples, self.samples):
                data = np.ascontiguousarray(reader.read(count))
                if isinstance(array, RaggedArray):
                    digest.update(f"{list(data.shape)}\0".encode())
                digest.update(data.tobytes())
                size_bytes += data.nbytes
        return Identity("npz", size_bytes, digest.hexdigest())


def open_dataset(
    path: Path,
    preprocessing: PreprocessingSpec,
    *,
    role: str | None = None,
    max_total_bytes: int = DEFAULT_MAX_TOTAL_BYTES,
) -> FileDataset:
    """Open an .npz or .safetensors file, or an archive of pictures or sounds, told apart by content.

    Reads headers only; a .tar.gz is unpacked once to find them.

    Args:
        path: the file.
        preprocessing: which arrays feed which inputs, and how.
        role: what the data is for, in words; errors name it.
        max_total_bytes: largest accepted sum of unpacked sizes.

    Raises:
        DatasetError: no such format, damaged, hostile, or arrays that do not make a dataset.
    """
    with of_role(role):
        return FileDataset(path, preprocessing, max_total_bytes=max_total_bytes, role=role)


def holds_whole_inputs(tensor: TensorInfo, fed: tuple[int | None, ...]) -> bool:
    """True if an array of fed shape ``fed`` has one axis more than the input: each sample is a whole input."""
    return tensor.shape is not None and len(fed) == len(tensor.shape) + 1


def choose_batch_size(inputs: Sequence[TensorInfo], dataset: OpenDataset, preferred: int) -> int:
    """Samples per run: 1 if an array holds whole inputs, else the model's fixed first axis, else ``preferred``.

    Raises:
        DatasetMismatchError: an input has no array, or the inputs' fixed first axes contradict each other.
    """
    fixed: dict[int, str] = {}
    for tensor in inputs:
        array, spec = dataset.array_for(tensor)
        fed = fed_shape(spec, array.shape)
        if fed is not None and holds_whole_inputs(tensor, fed):
            fixed.setdefault(1, tensor.name)
        elif (axis := _fixed_batch(tensor)) is not None:
            fixed.setdefault(axis, tensor.name)
    if len(fixed) > 1:
        said = " and ".join(f"{size} (input {name!r})" for size, name in sorted(fixed.items()))
        raise DatasetMismatchError(
            f"the inputs cannot be cut into common batches: batch sizes {said}",
            hint="Store whole inputs, with one axis more than the input has, for every input without a batch axis.",
        )
    return next(iter(fixed), preferred)


def _fixed_batch(tensor: TensorInfo) -> int | None:
    first = tensor.shape[0] if tensor.shape else None
    return first if isinstance(first, int) and first > 0 else None


def inspect_dataset(path: Path, preprocessing: PreprocessingSpec, *, thumbnails: Path | None = None) -> DatasetSummary:
    """Check all of a dataset and say what is in it, with a profile. Reads the file once, in blocks.

    Args:
        path: an .npz or .safetensors file, or an archive of pictures or sounds.
        preprocessing: which arrays feed which inputs, and how.
        thumbnails: folder that gets a sheet of small pictures, if the dataset holds pictures; None: none is made.

    Raises:
        DatasetError: with code dataset-format (damaged or hostile file), dataset-arrays (missing, unequal or
            unsupported arrays), dataset-labels, dataset-empty or non-finite-data.
    """
    data = open_dataset(path, preprocessing)
    summary = data.summarized(Profiler(BLOCK_BYTES))
    if thumbnails is None or data.media is None:
        return summary
    sheet = thumbnails / THUMBNAILS_FILE
    if not data.media.write_thumbnails(sheet):
        return summary
    content = sheet.read_bytes()
    made = Thumbnails(file=sheet.name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    return summary.model_copy(update={"thumbnails": made})
