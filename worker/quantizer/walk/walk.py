"""One visit of the network in topological order, float and quantized side by side.

    plan = draft.plan.copy()
    with Walk(draft.prepared, plan, Feed.of(workshop)) as walk:
        for visit in walk.visits():
            for part in visit.parts:
                x, x_quantized = visit.x(part), visit.x_quantized(part)     # float32 [n, ...]
            visit.weight.integers = ...                                    # the network behind it runs with these

``x`` is the node's input in the float network, ``x_quantized`` the one that onnxruntime computes in the network
quantized so far, with every edit of the nodes before. No segment runs twice: what crosses from one visited node to the
next waits in a ``Store``, quantized tensors as their integers, and goes with its last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from service.contracts.errors import ResourceLimitError
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.graph.values import is_constant, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan, Role
from worker.quantizer.walk.feed import Feed, Part, real_samples
from worker.quantizer.walk.models import Piece, PieceMaker, dequantized, rests_as_integers
from worker.quantizer.walk.segments import Segment, cut
from worker.quantizer.walk.store import Store, StoreFullError
from worker.quantizer.walk.visit import Visit

_FLOAT, _QUANTIZED = "float", "quantized"


def is_tunable(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True for a quantized linear node with a constant weight."""
    entry = plan.nodes[node_name(node)]
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    return entry.role is Role.LINEAR and is_constant(weight) and name_of(weight) in plan.weights  # type: ignore[arg-type]


class Walk:
    """A walk through one network; a context manager. Visit it once.

    Args:
        prepared: the float network.
        plan: filled; the caller edits weights and biases of the node being visited, and of no other.
        feed: samples, threads.
        visited: which nodes; default: all quantized linear nodes with a constant weight.

    Raises:
        EngineError: onnxruntime failed on the data.
        CanceledError: the run was canceled.
        ResourceLimitError: not even one part of the samples fits into memory and on disk.
    """

    def __init__(
        self,
        prepared: Prepared,
        plan: QuantizationPlan,
        feed: Feed,
        visited: Callable[[ir.Node], bool] | None = None,
    ) -> None:
        self.plan = plan
        self.feed = feed
        self.graph = prepared.graph
        wanted = visited or (lambda node: is_tunable(node, plan))
        self._segments = cut(self.graph, plan, {node_name(node) for node in self.graph if wanted(node)})
        self._pieces = PieceMaker(prepared, threads=feed.threads, device=feed.device)
        self._values = {v.name: v for v in (*self.graph.inputs, *(made for n in self.graph for made in n.outputs))}
        self._inputs = {value.name for value in self.graph.inputs}
        self._store = Store(feed.limits)
        self.parts: list[Part] = []
        self.notes: list[str] = []
        self._dropped = 0

    def __enter__(self) -> Walk:
        """The walk."""
        return self

    def __exit__(self, *error: object) -> None:
        """Forget all tensors."""
        self._store.__exit__(*error)

    @property
    def total(self) -> int:
        """Number of visits."""
        return len(self._segments) - 1

    @property
    def samples(self) -> int:
        """Samples that are walked with."""
        return sum(part.valid for part in self.parts)

    @property
    def waiting_bytes(self) -> int:
        """What waits in memory and on disk."""
        return self._store.memory_bytes + self._store.disk_bytes

    def visits(self) -> Iterator[Visit]:
        """Each visited node in topological order, with the tensors that it reads."""
        self._load()
        for k in range(self.total):
            self._advance(self._segments[k], self._segments[k + 1])
            yield Visit(self, k, self._segments[k + 1])
        if self._dropped:
            left = f"there was no room for the tensors of {self._dropped} more"
            self.notes.append(f"{self.samples} samples were walked to the end: {left}")
        if self._store.overflowed:
            self.notes.append("waiting tensors did not all fit into memory: some waited on disk")

    def rest(self, index: int) -> list[ir.Node]:
        """All nodes from the visit of number ``index`` on, for a ``piece`` of the whole rest of the network."""
        return [node for segment in self._segments[index + 1 :] for node in segment.nodes]

    def finish(self) -> Iterator[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """After the last visit: the network's outputs by name, float and quantized, part by part."""
        self._advance(self._segments[-1], None)
        for part in self.parts:
            names = [name_of(value) for value in self.graph.outputs]
            yield (
                {name: real_samples(self.tensor(name, part, quantized=False), part) for name in names},
                {name: real_samples(self.tensor(name, part, quantized=True), part) for name in names},
            )

    def tensor(self, name: str, part: Part, *, quantized: bool) -> np.ndarray:
        """A waiting tensor as floats: of the float network, or as the quantized network reads it. Padding included."""
        array = self._store.get(self._key(name, part, quantized))
        if quantized and rests_as_integers(self._values[name], self.plan):
            return dequantized(array, self._grid(name))
        return array

    def stored(self, name: str, part: Part) -> np.ndarray:
        """A waiting tensor of the quantized network as it waits. Padding included."""
        return self._store.get(self._key(name, part, True))

    def piece(self, nodes: Sequence[ir.Node], makes: Sequence[str], *, quantized: bool, unrounded: bool) -> Piece:
        """Nodes of the network that read waiting tensors, ready for ``run``."""
        made = {value for node in nodes for value in node.outputs}
        read = (v for n in nodes for v in n.inputs if v is not None and not is_constant(v) and v not in made)
        names = list(dict.fromkeys(name_of(value) for value in read))
        if not quantized:
            return self._pieces.float_piece(nodes, names, makes)
        return self._pieces.quantized_piece(nodes, names, makes, self.plan, unrounded=makes if unrounded else ())

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

    def _load(self) -> None:
        feed = self.feed
        size = feed.part_size()
        first = self._segments[0].reads or self._segments[1].reads if self.total else ()
        used = {name for segment in self._segments for name in segment.reads} | {v.name for v in self.graph.outputs}
        for batch in feed.data.batches(feed.inputs, size, start=feed.first, limit=feed.last):
            feed.run.check()
            part = Part(len(self.parts), batch.valid, size)
            self.parts.append(part)
            try:
                for name, array in batch.feeds.items():
                    if name in used:
                        self._store.put(self._key(name, part, False), array, read_next=name in first)
            except StoreFullError:
                self._dropped += max(feed.last - batch.start - batch.valid, 0)
                self._do_without_last_part()
                return

    def _advance(self, segment: Segment, following: Segment | None) -> None:
        """Run the float and the quantized nodes of ``segment`` on all parts."""
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
        if quantized and array.dtype == np.float32 and rests_as_integers(self._values[tensor], self.plan):
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
