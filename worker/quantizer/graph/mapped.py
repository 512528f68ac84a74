"""Weights that lie in a file, mapped into memory: where they lie, and how their memory is given back.

A model of many gigabytes is read page by page; the pages that were read stay in memory until somebody needs it, and
count as the process's own. So what is mapped from large files is given back many times a second, whoever has read it:
numpy, or a session in the midst of a run. A reader who comes again finds the page in the system's cache of the file.

To give back what is mapped at an address is to destroy what lies there once the mapping has ended. So memory is given
back only of mappings whose owner is known, and held for as long as that takes: one that is dropped meanwhile ends
afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import tempfile
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph import sizes

# Where a mapping lies that its owner alone writes to, as the runtime's are, and its file.
_PRIVATE = re.compile(r"^(?P<first>[0-9a-f]+)-(?P<end>[0-9a-f]+) r[w-]-p \S+ \S+ \d+ +(?P<path>/.*)$", re.MULTILINE)
# How much of it was written to, and is the process's own since then.
_WRITTEN = re.compile(r"^Anonymous: +(\d+) kB$", re.MULTILINE)
_MAPS, _SMAPS = Path("/proc/self/maps"), Path("/proc/self/smaps")
# Files of this size and more are swept, so often.
SWEPT_BYTES = 1 << 28
_SWEEP_SECONDS = 0.02
# A file, and addresses at which a part of it is mapped.
_Range = tuple[str, int, int]


@dataclass(frozen=True)
class FilePlace:
    """Where the bytes of a tensor lie."""

    folder: Path  # that the file lies in
    location: str  # of the file in it
    offset: int = 0  # of the first byte in the file


class Mapped:
    """Of a tensor that is a view of a mapped file: where its bytes lie. The base beside it is the tensor itself.

    Args:
        values: the view; of elements of fewer than 8 bits packed, uint8 [bytes].
        like: the tensor that it takes the place of: its dtype, shape, name and doc string.
        place: of its bytes.
    """

    def __init__(self, values: np.ndarray, like: ir.TensorProtocol, place: FilePlace) -> None:
        facts: dict[str, Any] = {
            "value": values,
            "dtype": like.dtype,
            "shape": ir.Shape(like.shape.numpy()),
            "name": like.name,
            "doc_string": like.doc_string,
        }
        super().__init__(**facts)
        self.place = place

    @property
    def path(self) -> Path:
        """The file."""
        return self.place.folder / self.place.location


class MappedTensor(Mapped, ir.Tensor[np.ndarray]):
    """A tensor whose array is a view of a mapped file."""


class MappedPackedTensor(Mapped, ir.PackedTensor[np.ndarray]):
    """The same of elements of fewer than 8 bits, packed as ONNX has them."""


def raw_bytes(tensor: ir.TensorProtocol) -> np.ndarray:
    """The bytes of a tensor as ONNX stores them, uint8 [bytes]; of a mapped one a view."""
    if isinstance(tensor, MappedTensor | MappedPackedTensor):
        flat: np.ndarray = np.ascontiguousarray(tensor.raw).reshape(-1)
        return flat.view(np.uint8)
    return np.frombuffer(tensor.tobytes(), np.uint8)


def forget(tensor: ir.TensorProtocol | None) -> None:
    """Give back the memory of one mapped tensor; who reads it again reads the file again."""
    if isinstance(tensor, MappedTensor | MappedPackedTensor) and tensor.nbytes > sizes.TENSOR_BYTES:
        view = _view_of(tensor)
        if view is not None:
            begin = _address(tensor.raw) - _address(np.frombuffer(view, np.uint8))
            first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (begin + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if end > first:
                _give_back(view, first, end - first)


def _view_of(tensor: MappedTensor | MappedPackedTensor) -> mmap.mmap | None:
    """What keeps the bytes of a tensor mapped; None if they are not, or nobody knows who does."""
    owner: object = tensor.raw
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap.mmap) else None


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def _give_back(view: mmap.mmap, first: int = 0, length: int | None = None) -> None:
    """Of a mapping that nobody can write to nothing is lost, and it lies where it lies while ``view`` is held."""
    # ValueError: somebody has closed it, which cannot be done while its bytes are held. OSError: it is locked.
    with suppress(OSError, ValueError), memoryview(view) as held:
        if held.readonly:
            view.madvise(mmap.MADV_DONTNEED, first, len(held) - first if length is None else length)


def _give_back_of(owner: object, first: int, end: int) -> None:
    """The same of addresses at which ``owner`` keeps something mapped; that it is held here is what makes this safe."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(end - first), mmap.MADV_DONTNEED)
    del owner


def forget_pages(model: ir.Model) -> None:
    """Give back the memory of the mapped files that weights of ``model`` lie in; who reads on reads the file again."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    held = [one for one in tensors if isinstance(one, MappedTensor | MappedPackedTensor)]
    for view in {id(view): view for view in map(_view_of, held) if view is not None}.values():
        _give_back(view)
    forget_files({one.path for one in held})


def forget_files(mapped: Collection[Path]) -> None:
    """Give back the memory of all mappings of these files whose owners are known: ``know`` and ``building``."""
    _forget({str(file.resolve()) for file in mapped})


def know(file: Path, view: mmap.mmap) -> None:
    """Let the memory of a mapping of a file be given back as long as the mapping lives; nobody may close it before."""
    _OWNERS.add_view(str(file.resolve()), view)


def sweep(file: Path, view: mmap.mmap) -> None:
    """The same, and from now on give back the memory of all mappings of the file, as long as there are any."""
    know(file, view)
    _SWEEPER.add(str(file.resolve()))


def known_in(folder: Path) -> set[Path]:
    """The files in a folder that are mapped, and known."""
    return {file for file in map(Path, _OWNERS.files()) if file.is_relative_to(folder.resolve())}


@contextmanager
def building(files: Collection[Path]) -> Iterator[list[object]]:
    """While the runtime reads a model and maps its files; one at a time, so that it is clear whose a mapping is.

    What the reader puts into the list owns what was mapped meanwhile: the memory of that is given back as long as the
    owner lives, and not before it is made. The owner must be what unmaps the files when it ends, no wrapper of it.
    """
    names = {str(file.resolve()) for file in files}
    with _OWNERS.building:
        swept = _SWEEPER.swept(names)
        before = _private(names)
        owners: list[object] = []
        yield owners
        if owners and names:
            made = [
                (path, *part)
                for path, first, end in _private(names, pristine=True)
                for part in _outside(first, end, [(begin, stop) for other, begin, stop in before if other == path])
            ]
            _OWNERS.add_owner(owners.pop(), made)
    for file in swept:
        _SWEEPER.add(file)


def _private(files: Collection[str], *, pristine: bool = False) -> list[_Range]:
    """Where files are mapped privately; ``pristine``: and nobody has written there, as that would be lost.

    Nothing where the system does not tell. The runtime maps weights so that it may write to them, but does not.
    """
    found: list[_Range] = []
    if not files or not _SMAPS.exists():
        return found
    text = (_SMAPS if pristine else _MAPS).read_text()
    for mapping in _PRIVATE.finditer(text):
        if mapping["path"] in files:
            written = _WRITTEN.search(text, mapping.end()) if pristine else None
            if not pristine or (written is not None and written[1] == "0"):
                found.append((mapping["path"], int(mapping["first"], 16), int(mapping["end"], 16)))
    return found


def _outside(first: int, end: int, taken: Collection[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The parts of a range that lie in none of ``taken``: neighbours are told of as one mapping, whosever they are."""
    for begin, stop in sorted(taken):
        if begin < end and stop > first:
            if begin > first:
                yield first, begin
            first = stop
    if first < end:
        yield first, end


def _forget(files: Collection[str]) -> None:
    """Give back the memory of all mappings of files whose owners live; each owner is held meanwhile."""
    for view in _OWNERS.views(files):
        _give_back(view)
    for owner, first, end in _OWNERS.ranges(files):
        _give_back_of(owner, first, end)


class _Owners:
    """Who keeps which files mapped. Addresses alone tell nothing: when a mapping ends, others get its addresses.

    A weak reference to something that is ending, and may have unmapped its files already, gives nothing.
    """

    def __init__(self) -> None:
        self.building = threading.Lock()
        self._lock = threading.Lock()
        self._views: list[tuple[str, weakref.ref[mmap.mmap]]] = []
        self._owned: list[tuple[weakref.ref[object], list[_Range]]] = []
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """A fork has no other threads, and nobody who would open what they have locked."""
        self.building, self._lock = threading.Lock(), threading.Lock()

    def add_view(self, file: str, view: mmap.mmap) -> None:
        with self._lock:
            self._views = [entry for entry in self._views if entry[1]() is not None]
            self._views.append((file, weakref.ref(view)))

    def add_owner(self, owner: object, ranges: list[_Range]) -> None:
        with self._lock:
            self._owned = [entry for entry in self._owned if entry[0]() is not None]
            self._owned.append((weakref.ref(owner), ranges))

    def views(self, files: Collection[str]) -> Iterator[mmap.mmap]:
        """Those of files that live, each held until the next one is asked for."""
        for file, reference in self._views:
            view = reference() if file in files else None
            if view is not None:
                yield view

    def ranges(self, files: Collection[str]) -> Iterator[tuple[object, int, int]]:
        """What others keep mapped of files, beside the owner, who is held until the next one is asked for."""
        for reference, ranges in self._owned:
            wanted = [one for one in ranges if one[0] in files]
            owner = reference() if wanted else None
            if owner is not None:
                yield from ((owner, first, end) for _, first, end in wanted)

    def files(self) -> set[str]:
        """Those that somebody keeps mapped."""
        alive = {file for file, reference in self._views if reference() is not None}
        for reference, ranges in self._owned:
            if reference() is not None:
                alive.update(path for path, _, _ in ranges)
        return alive


_OWNERS = _Owners()


class _Sweeper:
    """A thread that gives back what is mapped, and ends when nothing is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: set[str] = set()
        self._process: int | None = None  # that the thread runs in; a fork has none
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def add(self, file: str) -> None:
        with self._lock:
            self._files.add(file)
            if self._process != os.getpid():
                self._process = os.getpid()
                threading.Thread(target=self._run, name="mapped-pages", daemon=True).start()

    def swept(self, files: Collection[str]) -> set[str]:
        """Those of files that are swept."""
        with self._lock:
            return self._files.intersection(files)

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_SWEEP_SECONDS)
            _forget(self.swept(_OWNERS.files()))
            with self._lock:
                self._files &= _OWNERS.files()
                if not self._files:
                    self._process = None
                    return


_SWEEPER = _Sweeper()


# Arrays that are too large to be held: each in a scratch file of its own, and mapped from there.
#
# A model of gigabytes is quantized weight by weight: what is made of one is put here before the next one is read.


class SpillFolder:
    """A folder of scratch files; it goes when nobody holds the spill any more, or what was put on it.

    Args:
        parent: folder to make it in; None: that of temporary files. A disk, where memory is to be spared: what lies
            on a tmpfs is memory.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix=".quantmill-spill-", dir=parent)
        self.folder = Path(self._temporary.name)
        self._count = 0
        self._known: dict[int, str] = {}  # file by address of its first byte

    def another(self) -> SpillFolder:
        """An empty one beside it."""
        return SpillFolder(self.folder.parent)

    def subfolder(self) -> Path:
        """A new folder for files that are nobody's arrays."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    def array(self, array: np.ndarray) -> np.ndarray:
        """The same array, mapped if that is worth while; whoever reads it must not write."""
        if array.nbytes <= sizes.TENSOR_BYTES:
            return array
        tensor = self.tensor(ir.Tensor(np.ascontiguousarray(array)))
        return tensor.numpy()

    def tensor(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The same tensor, mapped if that is worth while and it is not yet."""
        if isinstance(tensor, Mapped) or tensor.nbytes <= sizes.TENSOR_BYTES or tensor.dtype == ir.DataType.STRING:
            return tensor
        location = self._location(tensor)
        with (self.folder / location).open("rb") as file:
            view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        sweep(self.folder / location, view)
        place = FilePlace(self.folder, location)
        made: MappedTensor | MappedPackedTensor
        if tensor.dtype.bitwidth < 8:
            made = MappedPackedTensor(np.frombuffer(view, np.uint8), tensor, place)
        else:
            values = np.frombuffer(view, tensor.dtype.numpy()).reshape(tensor.shape.numpy())
            self._known[_address(values)] = location
            made = MappedTensor(values, tensor, place)
        made.spill = self  # type: ignore[union-attr]  # the file stays as long as the tensor
        forget(made)
        return made

    def graph(self, graph: ir.Graph) -> None:
        """Put the initializers of a graph here, without those of its sub-graphs."""
        for value in graph.initializers.values():
            if value.const_value is not None:
                value.const_value = self.tensor(value.const_value)

    def _location(self, tensor: ir.TensorProtocol) -> str:
        """The file of a tensor's bytes; written, unless it is an array that was put here before."""
        if isinstance(tensor, ir.Tensor) and isinstance(tensor.raw, np.ndarray) and tensor.dtype.bitwidth >= 8:
            known = self._known.get(_address(tensor.raw))
            path = self.folder / (known or "")
            if known and tensor.raw.flags.c_contiguous and path.stat().st_size == tensor.nbytes:
                return known
        self._count += 1
        location = str(self._count)
        (self.folder / location).write_bytes(raw_bytes(tensor).data)
        return location
