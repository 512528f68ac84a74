"""The float network cut into pieces, so that an error can enter between any two of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx
import onnx_ir as ir

from worker.quantizer.runtime import Session, serialized


@dataclass(frozen=True)
class Segment:
    """Consecutive nodes of the main graph.

    Attributes:
        nodes: their indices in the graph's proto.
        reads: tensors made before it, or fed.
        makes: its tensors that are read after it, or are outputs of the graph.
        constants: initializers it reads.
    """

    nodes: tuple[int, ...]
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    constants: tuple[str, ...]


class Segmented:
    """A prepared model cut after every tensor of ``cuts`` and before every node of ``starts``.

    Args:
        model: prepared float model.
        cuts: tensors that must be visible between segments.
        starts: names of nodes that begin a segment.
        threads: of the sessions.
    """

    def __init__(self, model: ir.Model, cuts: Iterable[str], starts: Iterable[str], *, threads: int) -> None:
        self._proto = ir.to_proto(model)
        self._threads = threads
        graph = self._proto.graph
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {
            value.name: int(value.dtype)
            for value in (*model.graph.inputs, *(made for node in model.graph for made in node.outputs))
            if value.name and value.dtype is not None
        }
        self.inputs = [value.name for value in graph.input if value.name not in self._initializers]
        self.outputs = [value.name for value in graph.output]
        self.segments = self._cut(set(cuts), set(starts))

    def _cut(self, cuts: set[str], starts: set[str]) -> list[Segment]:
        nodes = self._proto.graph.node
        pieces: list[list[int]] = [[]]
        for k, node in enumerate(nodes):
            if node.name in starts and pieces[-1]:
                pieces.append([])
            pieces[-1].append(k)
            if cuts.intersection(node.output):
                pieces.append([])
        pieces = [piece for piece in pieces if piece]
        last_read = {name: len(pieces) for name in self.outputs}
        all_reads = [list(dict.fromkeys(name for k in piece for name in read_names(nodes[k]))) for piece in pieces]
        for position, names in enumerate(all_reads):
            for name in names:
                last_read[name] = max(last_read.get(name, -1), position)
        segments = []
        for position, piece in enumerate(pieces):
            made = list(dict.fromkeys(name for k in piece for name in nodes[k].output if name))
            outer = [name for name in all_reads[position] if name not in made]
            segments.append(
                Segment(
                    nodes=tuple(piece),
                    reads=tuple(name for name in outer if name not in self._initializers),
                    makes=tuple(name for name in made if last_read.get(name, -1) > position),
                    constants=tuple(name for name in outer if name in self._initializers),
                )
            )
        return segments

    @cached_property
    def last_reader(self) -> dict[str, int]:
        """By tensor, the last segment that reads it."""
        return {name: k for k, segment in enumerate(self.segments) for name in segment.reads}

    def session(self, segment: Segment, replaced: Mapping[str, np.ndarray] | None = None) -> Session:
        """A session of the segment; ``replaced`` are other values for some of its constants."""
        graph = self._proto.graph
        part = onnx.ModelProto()
        part.ir_version = self._proto.ir_version
        part.opset_import.extend(self._proto.opset_import)
        part.graph.name = "segment"
        part.graph.node.extend(graph.node[k] for k in segment.nodes)
        for name in segment.constants:
            other = (replaced or {}).get(name)
            stored = self._initializers[name] if other is None else onnx.numpy_helper.from_array(other, name)
            part.graph.initializer.append(stored)
        part.graph.input.extend(self._described(name) for name in segment.reads)
        part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in segment.makes)
        return Session(serialized(part), threads=self._threads, what="part of the float model", arena=False)

    def _described(self, name: str) -> onnx.ValueInfoProto:
        info = onnx.ValueInfoProto(name=name)
        info.type.tensor_type.elem_type = self._types.get(name, onnx.TensorProto.FLOAT)
        return info


def read_names(node: onnx.NodeProto) -> list[str]:
    """Tensors that a node reads, those that its sub-graphs take from outside included."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        graphs = [attribute.g] if attribute.HasField("g") else list(attribute.graphs)
        for graph in graphs:
            inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            inner.update(name for one in graph.node for name in one.output)
            read = [name for one in graph.node for name in read_names(one)]
            read += [value.name for value in graph.output]
            names += [name for name in read if name not in inner]
    return names
