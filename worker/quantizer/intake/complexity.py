"""How much a model may hold: counted behind the parser, before the engine makes anything of it.

A message of protobuf takes two bytes in a file and hundreds in the engine's graph, and with its functions in the place
of their calls a kilobyte becomes billions of nodes. Networks of today stay a factor of ten below each limit here. What
the parser itself takes, weights and texts are bounded by the size of the file and by the memory of an inspection.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from service.contracts.errors import TooComplexError, UnsupportedModelError
from worker.quantizer.intake.tensors import MAX_ELEMENTS
from worker.quantizer.intake.wire import damaged

MAX_NODES, MAX_MESSAGES = 200_000, 3_000_000
# The runtime has its troubles with deep sub-graphs.
MAX_SUBGRAPH_DEPTH = 8
# Functions that call functions that call functions.
MAX_CALL_DEPTH = 32
# What unfolding functions may add: so many nodes, and so many for each node of the file.
FREE_UNFOLDED_NODES, UNFOLDED_PER_NODE = 10_000, 16
MAX_UNFOLDED_BYTES = 1 << 30
_HINT = "Simplify the model, or split it; what is counted is told with the limits of models in the documentation."

FunctionKey = tuple[str, str, str]


@dataclass
class _Body:
    """The main graph, or a function: what is unfolded where it is called.

    Attributes:
        nodes: those of sub-graphs included.
        size_bytes: in the file.
        calls: of functions, by key.
    """

    nodes: int = 0
    size_bytes: int = 0
    calls: Counter[FunctionKey] = field(default_factory=Counter)


@dataclass(frozen=True)
class Unfolded:
    """Of the main graph, with all functions in the place of their calls.

    Attributes:
        nodes: sub-graphs included.
        size_bytes: of what is put in the place of calls.
        depth: calls within calls.
    """

    nodes: int
    size_bytes: int
    depth: int = 0


def check_complexity(proto: onnx.ModelProto) -> Unfolded:
    """Count what a model holds, and what it would with its functions unfolded.

    Raises:
        TooComplexError: a limit is broken; names it.
        NotOnnxError: a dimension that nothing can have, or a function that is defined twice.
        UnsupportedModelError: functions that call themselves.
    """
    functions: dict[FunctionKey, _Body] = {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        if key in functions:
            raise damaged(f"function {function.name!r} is defined twice", "repetition")
        functions[key] = _Body(size_bytes=function.ByteSize())
    count = _Count(functions.keys())
    count.add(proto)
    main = _Body()
    for top, part in _parts(proto):
        if isinstance(top, onnx.FunctionProto):
            count.walk(top, functions[top.domain, top.name, top.overload])
        else:
            count.walk(top, main if part == "graph" else _Body())
    return _unfold(main, functions, count.nodes)


def _parts(proto: onnx.ModelProto) -> Iterator[tuple[Message, str]]:
    for name, repeated in _message_fields(onnx.ModelProto.DESCRIPTOR):
        if repeated:
            yield from ((message, name) for message in getattr(proto, name))
        elif proto.HasField(name):
            yield getattr(proto, name), name


class _Count:
    """Counts of the whole model; each is held against its limit before its messages are looked at one by one."""

    def __init__(self, functions: Any) -> None:
        self.nodes = self.messages = 0
        self._functions = functions

    def add(self, message: Message) -> None:
        """Count the messages right within one."""
        for name, repeated in _message_fields(message.DESCRIPTOR):
            found = len(getattr(message, name)) if repeated else int(message.HasField(name))
            self.messages += found
            self.nodes += found if name == "node" else 0
            if self.nodes > MAX_NODES:
                raise _too_complex("nodes", self.nodes, MAX_NODES)
            if self.messages > MAX_MESSAGES:
                raise _too_complex("messages", self.messages, MAX_MESSAGES)

    def walk(self, top: Message, body: _Body) -> None:
        """Count all messages within one, which is a part of the model."""
        work: list[tuple[Message, int, str]] = [(top, 0, "")]
        while work:
            message, graphs, node = work.pop()
            if isinstance(message, onnx.GraphProto):
                graphs += 1
                if graphs > MAX_SUBGRAPH_DEPTH + 1:
                    raise _too_complex("subgraph_depth", graphs - 1, MAX_SUBGRAPH_DEPTH, node=node or None)
            elif isinstance(message, onnx.NodeProto):
                node = message.name
                body.nodes += 1
                key = (message.domain, message.op_type, message.overload)
                if key in self._functions:
                    body.calls[key] += 1
            elif isinstance(message, onnx.TensorShapeProto.Dimension) and message.dim_value > MAX_ELEMENTS:
                raise damaged(f"a shape has the dimension {message.dim_value}", "dimension")
            self.add(message)
            for name, repeated in _message_fields(message.DESCRIPTOR):
                if repeated:
                    work += [(inner, graphs, node) for inner in getattr(message, name)]
                elif message.HasField(name):
                    work.append((getattr(message, name), graphs, node))


@cache
def _message_fields(descriptor: Any) -> tuple[tuple[str, bool], ...]:
    """Names of the fields that hold messages, and whether each may hold several."""
    entries = (entry for entry in descriptor.fields if entry.type == FieldDescriptor.TYPE_MESSAGE)
    return tuple((entry.name, entry.is_repeated) for entry in entries)


def _unfold(main: _Body, functions: Mapping[FunctionKey, _Body], nodes: int) -> Unfolded:
    """Count without unfolding; ``nodes`` are those of the file."""
    known: dict[FunctionKey, Unfolded] = {}
    open_calls: list[FunctionKey] = []

    def of(body: _Body) -> Unfolded:
        found = [(count, called(key)) for key, count in body.calls.items()]
        own = body.nodes - body.calls.total()
        return Unfolded(
            own + sum(count * callee.nodes for count, callee in found),
            body.size_bytes + sum(count * callee.size_bytes for count, callee in found),
            1 + max((callee.depth for _, callee in found), default=0),
        )

    def called(key: FunctionKey) -> Unfolded:
        domain, name, _ = key
        if key in open_calls:
            raise UnsupportedModelError(
                f"function {name!r} of domain {domain!r} calls itself",
                hint="Export the model without recursive functions.",
                function=name,
            )
        if key not in known:
            if len(open_calls) >= MAX_CALL_DEPTH:
                raise _too_complex("call_depth", len(open_calls) + 1, MAX_CALL_DEPTH, function=name)
            open_calls.append(key)
            known[key] = of(functions[key])
            open_calls.pop()
            if known[key].depth > MAX_CALL_DEPTH:
                raise _too_complex("call_depth", known[key].depth, MAX_CALL_DEPTH, function=name)
        return known[key]

    for key in functions:  # also those that nothing calls: whoever inlines them goes round in circles as well
        called(key)
    whole = of(main)
    most = max(nodes, min(MAX_NODES, FREE_UNFOLDED_NODES + UNFOLDED_PER_NODE * nodes))
    if whole.nodes > most:
        raise _too_complex("unfolded_nodes", whole.nodes, most)
    if whole.size_bytes > MAX_UNFOLDED_BYTES:
        raise _too_complex("unfolded_bytes", whole.size_bytes, MAX_UNFOLDED_BYTES)
    return whole


def _too_complex(limit: str, found: int, most: int, **where: Any) -> TooComplexError:
    """The error for a limit that is broken; where counting stopped there, ``found`` is the least that there is."""
    words = limit.replace("_", " ")
    return TooComplexError(
        f"the model has more than {most} {words}: {found}, counted before anything is made of it",
        hint=_HINT,
        limit=limit,
        most=most,
        found=found,
        **where,
    )
