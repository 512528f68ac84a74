"""The frontier of a walk: tensors that some node has made and a later one reads, float and quantized side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from service.contracts.errors import ResourceLimitError
from worker.quantizer.graph.values import name_of
from worker.quantizer.layerwise.feed import Feed, Part
from worker.quantizer.layerwise.models import Piece, PieceMaker, rests_as_integers
from worker.quantizer.layerwise.segments import Segment, outside
from worker.quantizer.layerwise.store import Store, StoreFullError
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared

_FLOAT, _QUANTIZED = "float", "quantized"


class Frontier:
    """The waiting tensors of all samples, and what a few nodes make of them.

    Args:
        prepared: the float network.
        plan: filled; read anew whenever nodes run.
        feed: samples, threads.
    """

    def __init__(self, prepared: Prepared, plan: QuantizationPlan, feed: Feed) -> None:
        self.plan = plan
        self.feed = feed
        self._pieces = PieceMaker(prepared.model, threads=feed.threads, device=feed.device)
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
        for batch in feed.data.batches(feed.inputs, size, start=feed.first, limit=feed.last):
            feed.run.check()
            part = Part(len(self.parts), batch.valid, batch.size)
            self.parts.append(part)
            try:
                for name, array in batch.feeds.items():
                    if name in used:
                        self._store.put(self._key(name, part, False), array, read_next=name in first)
            except StoreFullError:
                self._dropped += max(feed.last - batch.start - batch.valid, 0)
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
