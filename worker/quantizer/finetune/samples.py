"""What a block reads and should make, taken from the walk: in memory, or in files that are mapped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np
import onnx_ir as ir

from worker.quantizer.finetune.blocks import Block, BlockSamples, computes_by_rows, rounding_grid
from worker.quantizer.graph.values import name_of
from worker.quantizer.layerwise import Frontier, Part
from worker.quantizer.layerwise.frontier import StoreLimits, free_memory_bytes, real_samples
from worker.quantizer.layerwise.models import rests_as_integers

# Share of the free memory that the samples of one layer may take; torch rearranges them, so that they are there twice
# for a moment.
_MEMORY_SHARE = 0.25


# Tensors of the samples of a part, without padding.
_Read = Callable[[Part], np.ndarray]


def _real(read: _Read) -> _Read:
    return lambda part: real_samples(read(part), part)


def _rows(read: _Read) -> _Read:
    """Every row along the last axis as a sample of its own."""

    def rows(part: Part) -> np.ndarray:
        array = read(part)
        return array.reshape(-1, array.shape[-1])

    return rows


def _cut(rows: np.ndarray, samples: int) -> np.ndarray:
    """[rows, k] as about so many samples of one length, [samples, rows of each, k]; a remainder is left out."""
    length = max(1, len(rows) // samples)
    count = len(rows) // length
    return rows[: count * length].reshape(count, length, rows.shape[-1])


class SampleGatherer:
    """Gathers the samples of one block after another; a context manager.

    Level 2 of ``limits`` puts all on disk; else what does not fit into memory goes there. With ``mixed`` the float
    network's inputs are needed too.
    """

    def __init__(self, frontier: Frontier, limits: StoreLimits, *, mixed: bool) -> None:
        self._frontier = frontier
        self._limits = limits
        self._mixed = mixed
        self._folder: Path | None = None
        self._on_disk = 0

    def __enter__(self) -> SampleGatherer:
        """The gatherer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Remove all files."""
        self.forget()

    @property
    def notes(self) -> list[str]:
        """Where samples lay that did not fit into memory, for the report."""
        return [f"the samples of {self._on_disk} layers were kept on disk"] if self._on_disk else []

    def forget(self) -> None:
        """Remove the files of the last block."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def gather(self, block: Block) -> BlockSamples | str:
        """The samples of ``block``, or why it has none that can be drawn from."""
        self.forget()
        frontier, inputs = self._frontier, block.inputs
        piece = frontier.piece(block.nodes, [name_of(block.output)], quantized=False, unrounded=False)

        def target(part: Part) -> np.ndarray:
            return frontier.run(piece, part, quantized=False)[name_of(block.output)]

        wanted: dict[str, _Read] = {"target": _real(target)}
        wanted |= {f"quantized {name}": _real(self._quantized(block, value)) for name, value in inputs.items()}
        if self._mixed:
            wanted |= {f"float {name}": _real(partial(frontier.tensor, name, quantized=False)) for name in inputs}
        first = {role: read(frontier.parts[0]) for role, read in wanted.items()}
        if any(array.ndim == 0 for array in first.values()) or len({len(array) for array in first.values()}) > 1:
            return "its input and its output do not have the samples on their first axis"
        share = frontier.samples / frontier.parts[0].valid
        by_rows = self._differ(wanted, first)
        if by_rows:
            if not computes_by_rows(block.nodes) or any(array.ndim != 3 for array in first.values()):
                return "gradients run samples together, and those of its tensors differ in shape"
            read_first = wanted[f"quantized {next(iter(inputs))}"]
            share = sum(read_first(part).size for part in frontier.parts) / read_first(frontier.parts[0]).size
            wanted = {role: _rows(read) for role, read in wanted.items()}
        to_disk = not self._fits(int(sum(array.nbytes for array in first.values()) * share))
        self._on_disk += to_disk
        gathered = {
            role: self._stacked((read(part) for part in frontier.parts), to_disk) for role, read in wanted.items()
        }
        if len({len(array) for array in gathered.values()}) > 1:
            return "its tensors change their shape from sample to sample"
        if by_rows:
            gathered = {role: _cut(rows, frontier.samples) for role, rows in gathered.items()}
        return BlockSamples(
            {name: gathered[f"quantized {name}"] for name in inputs},
            gathered["target"],
            {name: gathered[f"float {name}"] for name in inputs} if self._mixed else {},
        )

    def _differ(self, wanted: Mapping[str, _Read], first: Mapping[str, np.ndarray]) -> bool:
        """True if the data's samples differ in shape, and these tensors with them."""
        frontier = self._frontier
        if not frontier.feed.data.varying(frontier.feed.inputs):
            return False
        pairs = ((read, first[role].shape[1:]) for role, read in wanted.items())
        return any(read(part).shape[1:] != shape for read, shape in pairs for part in frontier.parts)

    def _quantized(self, block: Block, value: ir.Value) -> Callable[[Part], np.ndarray]:
        grid = rounding_grid(value, block.nodes, self._frontier.plan)
        if grid is None or rests_as_integers(value, self._frontier.plan):
            return lambda part: self._frontier.tensor(name_of(value), part, quantized=True)
        at_run_time = grid.at_run_time()
        return lambda part: at_run_time.fake(self._frontier.tensor(name_of(value), part, quantized=True))

    def _fits(self, size: int) -> bool:
        if self._limits.level == 2:
            return False
        limit = self._limits.memory_bytes
        return size <= (int(free_memory_bytes() * _MEMORY_SHARE) if limit is None else limit)

    def _stacked(self, parts: Iterable[np.ndarray], to_disk: bool) -> np.ndarray:
        """The parts one behind the other, as far as they have the shape of the first."""
        if not to_disk:
            arrays = list(parts)
            arrays = [array for array in arrays if array.shape[1:] == arrays[0].shape[1:]]
            return np.concatenate(arrays) if len(arrays) > 1 else arrays[0]
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="finetune-"))
        path = self._folder / str(len(list(self._folder.iterdir())))
        shape: tuple[int, ...] = ()
        count = 0
        with path.open("wb") as file:
            for array in parts:
                shape = shape or array.shape[1:]
                if array.shape[1:] == shape:
                    # tofile does not say why it wrote less
                    file.write(array.astype(np.float32, copy=False).reshape(-1).view(np.uint8).data)
                    count += len(array)
        return np.memmap(path, np.float32, "r", shape=(count, *shape))
