"""The part of a model that makes one of its tensors."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from worker.quantizer.graph.serialized import serialized


def up_to(model: onnx.ModelProto, tensor: str) -> bytes:
    """The model with ``tensor`` as its only output, serialized: the nodes that it is made of, and no others.

    Args:
        model: whole.
        tensor: of the main graph.
    """
    makers = {name: k for k, node in enumerate(model.graph.node) for name in node.output if name}
    wanted, ahead = set(), [tensor]
    while ahead:
        k = makers.get(ahead.pop())
        if k is not None and k not in wanted:
            wanted.add(k)
            ahead.extend(_read(model.graph.node[k]))
    read = {name for k in wanted for name in _read(model.graph.node[k])} | {tensor}
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    graph = part.graph
    graph.name = model.graph.name or "part"
    graph.node.extend(node for k, node in enumerate(model.graph.node) if k in wanted)
    graph.initializer.extend(held for held in model.graph.initializer if held.name in read)
    graph.input.extend(model.graph.input)
    graph.value_info.extend(known for known in model.graph.value_info if known.name in read)
    graph.output.append(onnx.ValueInfoProto(name=tensor))
    return serialized(part)


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, in its sub-graphs too."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _read(inner)
            yield from (value.name for value in graph.output)
