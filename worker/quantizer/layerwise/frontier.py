"""The frontier of a visit: what it is fed with, and tensors made and not yet read, in memory or on disk."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir

from service.contracts.errors import ResourceLimitError
from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset, choose_batch_size
from worker.quantizer.graph.values import name_of
from worker.quantizer.layerwise.models import Piece, PieceMaker, Segment, outside, rests_as_integers
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.run.interface import Run

# Where tensors wait between the segment that makes them and the last one that reads them: in memory or on disk.

Level = Literal["auto", 0, 1, 2]
_MEMINFO = Path("/proc/meminfo")
_CGROUP_LIMIT, _CGROUP_USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
# Shares of what is free that waiting tensors may take: the rest is for the layers being solved, and for others.
_MEMORY_SHARE, _DISK_SHARE = 0.4, 0.5
_UNKNOWN_MEMORY = 1 << 30


class StoreFullError(Exception):
    """A tensor fits neither into memory nor on disk. The walk answers it by going on with fewer samples."""


@dataclass(frozen=True)
class StoreLimits:
    """Where tensors may wait."""

    # 0 all in memory; 1 in memory what the next layer reads, on disk what waits longer; 2 all on disk; auto as 0. What
    # does not fit where the level wants it goes to the next level.
    level: Level = "auto"
    memory_bytes: int | None = None  # that waiting tensors may take in memory; None: a share of what is free
    disk_bytes: int | None = None  # the same on disk


DEFAULT_LIMITS = StoreLimits()


@dataclass
class _Entry:
    size: int
    array: np.ndarray | None
    path: Path | None
    dtype: np.dtype
    shape: tuple[int, ...]


class Store:
    """Arrays by key; ``close`` it when they are no longer needed.

    The scratch folder is made in ``folder``; None: in that for temporary files.
    """

    def __init__(self, limits: StoreLimits, folder: Path | None = None) -> None:
        self._level = 0 if limits.level == "auto" else limits.level
        self._entries: dict[object, _Entry] = {}
        self._parent = folder
        self._folder: Path | None = None
        self._memory_limit = limits.memory_bytes
        self._disk_limit = limits.disk_bytes
        self._files = 0
        self.memory_bytes = self.disk_bytes = 0
        self.overflowed = False  # something did not fit where the level wanted it

    def close(self) -> None:
        """Remove everything, files too."""
        self._entries.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def put(self, key: object, array: np.ndarray, *, read_next: bool) -> None:
        """Keep ``array`` under ``key``, which must be free.

        The array is not copied where it stays in memory, and nobody may write into it. With ``read_next`` the very next
        segment reads it.

        Raises:
            StoreFullError: it fits nowhere.
        """
        if key in self._entries:
            raise ValueError(f"{key!r} is kept already")
        in_memory = self._level == 0 or (self._level == 1 and read_next)
        if in_memory and self.memory_bytes + array.nbytes > self._memory():
            in_memory, self.overflowed = False, True
        if not in_memory and _fits_file(array):
            self._entries[key] = self._write(array)
            return
        self.memory_bytes += array.nbytes
        self._entries[key] = _Entry(array.nbytes, array, None, array.dtype, array.shape)

    def get(self, key: object) -> np.ndarray:
        """The array of ``key``; not to be written into."""
        entry = self._entries[key]
        if entry.array is not None:
            return entry.array
        if entry.path is None:
            raise ValueError("an entry without an array or a file")
        return np.fromfile(entry.path, entry.dtype).reshape(entry.shape)

    def discard(self, key: object) -> None:
        """Forget ``key``, if it is there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        if entry.path is None:
            self.memory_bytes -= entry.size
        else:
            entry.path.unlink()
            self.disk_bytes -= entry.size

    def put_away(self, key: object) -> None:
        """At level 1, move an array that nothing reads next from memory to disk.

        Raises:
            StoreFullError: there is no room on disk.
        """
        entry = self._entries[key]
        if self._level == 1 and entry.array is not None and _fits_file(entry.array):
            self._entries[key] = self._write(entry.array)
            self.memory_bytes -= entry.size

    def discard_where(self, condition: Callable[[object], bool]) -> None:
        """Forget all keys for which ``condition`` holds."""
        for key in [key for key in self._entries if condition(key)]:
            self.discard(key)

    def _write(self, array: np.ndarray) -> _Entry:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="walk-", dir=self._parent))
        if self._disk_limit is None:
            self._disk_limit = int(shutil.disk_usage(self._folder).free * _DISK_SHARE)
        if self.disk_bytes + array.nbytes > self._disk_limit:
            raise StoreFullError
        path = self._folder / str(self._files)
        self._files += 1
        with path.open("wb") as file:
            file.write(array.reshape(-1).view(np.uint8).data)  # tofile does not say why it wrote less
        self.disk_bytes += array.nbytes
        return _Entry(array.nbytes, None, path, array.dtype, array.shape)

    def _memory(self) -> int:
        if self._memory_limit is None:
            self._memory_limit = int(free_memory_bytes() * _MEMORY_SHARE)
        return self._memory_limit


def _fits_file(array: np.ndarray) -> bool:
    return array.nbytes > 0 and array.dtype.kind in "biuf"


def free_memory_bytes() -> int:
    """Memory that this process could still get: the machine's, or the container's or the process's own limit."""
    free = [_UNKNOWN_MEMORY]
    with contextlib.suppress(OSError, KeyError):  # no Linux: a guess is all there is
        lines = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines())
        free = [int(lines["MemAvailable"].split()[0]) * 1024]
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        free.append(int(_CGROUP_LIMIT.read_text()) - int(_CGROUP_USED.read_text()))
    return max(min([*free, *_address_space()]), 0)


def _address_space() -> list[int]:
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return []
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        return []
    return [limit - pages * os.sysconf("SC_PAGE_SIZE")]


# What a walk is fed with.

# Elements of the inputs in one part: large enough to keep all threads busy, small enough to be little of the whole.
_PART_ELEMENTS = 320_000
_LARGEST_PART = 32


@dataclass(frozen=True)
class Feed:
    """What a walk is fed with."""

    data: OpenDataset  # calibration set
    inputs: Sequence[TensorInfo]  # the model's inputs
    samples: Sequence[int]  # ascending numbers
    threads: int  # of the sessions
    run: Run  # asked between runs whether to stop
    limits: StoreLimits = DEFAULT_LIMITS  # where tensors wait
    device: str = "cpu"  # where the layers run; see ``runtime.providers_of``

    @staticmethod
    def of(
        toolkit: Toolkit, *, samples: int | None = None, limits: StoreLimits | None = None, device: str = "cpu"
    ) -> Feed:
        """The calibration samples that a step may learn from, or ``samples`` of them, spread over all."""
        case, services = toolkit.case, toolkit.services
        return Feed(
            case.calibration,
            case.inputs,
            toolkit.learning(samples),
            services.threads,
            services.run,
            limits or DEFAULT_LIMITS,
            device,
        )

    def part_size(self) -> int:
        """Samples that run together at most."""
        one, largest = choose_batch_size(self.inputs, self.data, 1), self.data.largest(self.inputs)
        elements = 1
        for batch in self.data.batches(self.inputs, one, samples=[largest]):
            elements = sum(array.size for array in batch.feeds.values())
        wanted = max(1, min(_LARGEST_PART, _PART_ELEMENTS // max(elements, 1)))
        return choose_batch_size(self.inputs, self.data, int(wanted))


@dataclass(frozen=True)
class Part:
    """Consecutive samples that run together: the ``number``-th part, ``valid`` real samples of ``size``."""

    number: int
    valid: int
    size: int


def real_samples(array: np.ndarray, part: Part) -> np.ndarray:
    """Without the padding of a last short part."""
    return array[: part.valid] if array.ndim and array.shape[0] == part.size else array


_FLOAT, _QUANTIZED = "float", "quantized"


class Frontier:
    """The waiting tensors of all samples, and what a few nodes make of them.

    The plan is filled, and read anew whenever nodes run.
    """

    def __init__(self, prepared: Prepared, plan: QuantizationPlan, feed: Feed) -> None:
        self.plan = plan
        self.feed = feed
        originals = prepared.facts.stand_ins
        self._pieces = PieceMaker(prepared.model, threads=feed.threads, device=feed.device, originals=originals)
        self._inputs = {value.name for value in prepared.graph.inputs}
        self._store = Store(feed.limits)
        self.parts: list[Part] = []
        self._dropped = 0

    def close(self) -> None:
        """Forget all tensors."""
        self._store.close()

    @property
    def samples(self) -> int:
        """Samples that are walked with."""
        return sum(part.valid for part in self.parts)

    @property
    def waiting_bytes(self) -> int:
        """What waits in memory and on disk."""
        return self._store.memory_bytes + self._store.disk_bytes

    @property
    def notes(self) -> list[str]:
        """Where room was short, for the report."""
        notes = []
        if self._dropped:
            left = f"there was no room for the tensors of {self._dropped} more"
            notes.append(f"{self.samples} samples were walked to the end: {left}")
        if self._store.overflowed:
            notes.append("waiting tensors did not all fit into memory: some waited on disk")
        return notes

    def tensor(self, name: str, part: Part, *, quantized: bool) -> np.ndarray:
        """A waiting tensor as floats: of the float network, or as the quantized network reads it. Padding included."""
        array = self._store.get(self._key(name, part, quantized))
        if quantized and rests_as_integers(self._pieces.values[name], self.plan):
            return self._grid(name).dequantize(array)
        return array

    def stored(self, name: str, part: Part) -> np.ndarray:
        """A waiting tensor of the quantized network as it waits. Padding included."""
        return self._store.get(self._key(name, part, True))

    def piece(self, nodes: Sequence[ir.Node], makes: Sequence[str], *, quantized: bool, unrounded: bool) -> Piece:
        """Nodes of the network that read waiting tensors, ready for ``run``."""
        reads = [name_of(value) for value in outside(nodes)]
        if not quantized:
            return self._pieces.float_piece(nodes, reads, makes)
        return self._pieces.quantized_piece(nodes, reads, makes, self.plan, unrounded=makes if unrounded else ())

    def run(self, piece: Piece, part: Part, *, quantized: bool) -> dict[str, np.ndarray]:
        """What ``piece`` makes of the waiting tensors, by tensor; integers where it makes integers. With padding."""
        self.feed.run.check()
        feeds = {}
        for name, tensor in piece.fed.items():
            if quantized and tensor not in piece.as_integers:
                feeds[name] = self.tensor(tensor, part, quantized=True)
            else:
                feeds[name] = self._store.get(self._key(tensor, part, quantized))
        names = list(piece.made.values())
        return dict(zip(piece.made, piece.session.run(feeds, names), strict=True))

    def load(self, used: Collection[str], first: Collection[str]) -> None:
        """Let the samples wait: those inputs that are ``used``, of which the very next segment reads ``first``.

        Raises:
            ResourceLimitError: not even one part of the samples fits into memory and on disk.
        """
        feed = self.feed
        size = feed.part_size()
        for batch in feed.data.batches(feed.inputs, size, samples=feed.samples):
            feed.run.check()
            part = Part(len(self.parts), batch.valid, batch.size)
            self.parts.append(part)
            try:
                for name, array in batch.feeds.items():
                    if name in used:
                        self._store.put(self._key(name, part, False), array, read_next=name in first)
            except StoreFullError:
                self._dropped += sum(number > batch.numbers[-1] for number in feed.samples)
                self._do_without_last_part()
                return

    def advance(self, segment: Segment, following: Segment | None) -> None:
        """Run the float and the quantized nodes of ``segment`` on all parts, and forget what nothing behind it reads.

        Raises:
            EngineError: onnxruntime failed on the data.
            CanceledError: the run was canceled.
            ResourceLimitError: not even one part of the samples fits into memory and on disk.
        """
        pieces = {}
        if segment.makes:
            pieces[False] = self._pieces.float_piece(segment.nodes, segment.reads, segment.makes)
            pieces[True] = self._pieces.quantized_piece(segment.nodes, segment.reads, segment.makes, self.plan)
        next_reads = set(following.reads) if following is not None else set()
        done = 0
        while done < len(self.parts):
            part = self.parts[done]
            try:
                for quantized, piece in pieces.items():
                    for tensor, array in self.run(piece, part, quantized=quantized).items():
                        self._keep(tensor, part, array, quantized=quantized, read_next=tensor in next_reads)
                self._let_go(segment, part, next_reads)
                done += 1
            except StoreFullError:
                self._do_without_last_part()
                for tensor in segment.makes if done < len(self.parts) else ():
                    for quantized in (False, True):
                        self._store.discard(self._key(tensor, part, quantized))

    def _let_go(self, segment: Segment, part: Part, next_reads: Collection[str]) -> None:
        """Forget what nothing behind ``segment`` reads."""
        for tensor in segment.reads:
            for key in {self._key(tensor, part, quantized) for quantized in (False, True)}:
                if tensor in segment.spent:
                    self._store.discard(key)
                elif tensor not in next_reads:
                    self._store.put_away(key)

    def _keep(self, tensor: str, part: Part, array: np.ndarray, *, quantized: bool, read_next: bool) -> None:
        if quantized and array.dtype == np.float32 and rests_as_integers(self._pieces.values[tensor], self.plan):
            array = self._grid(tensor).at_run_time().quantize(array)
        self._store.put(self._key(tensor, part, quantized), array, read_next=read_next)

    def _do_without_last_part(self) -> None:
        """Make room: forget the last samples.

        Raises:
            ResourceLimitError: they are the only ones.
        """
        dropped = self.parts.pop()
        self._dropped += dropped.valid
        if not self.parts:
            raise ResourceLimitError(
                "The tensors between two layers fit neither into memory nor into the space that they may take on disk.",
                hint="Raise cache_limit_bytes, or give the job more memory.",
                resource="disk",
            )
        self._store.discard_where(lambda key: isinstance(key, tuple) and key[2] == dropped.number)

    def _key(self, tensor: str, part: Part, quantized: bool) -> tuple[str, str, int]:
        side = _QUANTIZED if quantized and tensor not in self._inputs else _FLOAT
        return side, tensor, part.number

    def _grid(self, tensor: str) -> IntegerGrid:
        grid = self.plan.activations[tensor].quantization
        if not isinstance(grid, IntegerGrid):
            raise TypeError(f"{tensor!r} has no integer grid")
        return grid
