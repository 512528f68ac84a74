"""How much a model may hold: counted behind the parser, before the engine makes anything of it.

A message of protobuf takes two bytes in a file and hundreds in the engine's graph, and with its functions in the place
of their calls a kilobyte becomes billions of nodes. Networks of today stay a factor of ten below each limit here. What
the parser itself takes, weights and texts are bounded by the size of the file and by the memory of an inspection.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
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

# Messages that hold none, or none that count; to list the fields of a tensor would be to copy its bytes.
_LEAVES = frozenset({"OperatorSetIdProto", "StringStringEntryProto", "TensorProto"})

FunctionKey = tuple[str, str, str]


@dataclass
class _GraphBody:
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
    functions: dict[FunctionKey, _GraphBody] = {}
    for function in proto.functions:
        key = (function.domain, function.name, function.overload)
        if key in functions:
            raise damaged(f"function {function.name!r} is defined twice", "repetition")
        functions[key] = _GraphBody(size_bytes=function.ByteSize())
    count, main = _MessageCounter(functions.keys()), _GraphBody()
    for name, message in list(count.inner(proto)):  # the shallow ones are counted first
        body = main if name == "graph" else _GraphBody()
        if isinstance(message, onnx.FunctionProto):
            body = functions[message.domain, message.name, message.overload]
        count.walk(message, body)
    return _unfold(main, functions, count.nodes)


class _MessageCounter:
    """Counts of the whole model; each is held against its limit before its messages are looked at one by one.

    Args:
        functions: keys of the model's functions, whose calls are counted.
    """

    def __init__(self, functions: Set[FunctionKey]) -> None:
        self.nodes = self.messages = 0
        self._functions = functions

    def inner(self, message: Message) -> Iterator[tuple[str, Message]]:
        """Count the messages right within one; gives those that may hold others, with the names of their fields."""
        for entry, value in message.ListFields():
            if entry.type != FieldDescriptor.TYPE_MESSAGE:
                continue
            found = len(value) if entry.is_repeated else 1
            self.messages += found
            self.nodes += found if entry.message_type.name == "NodeProto" else 0
            if self.nodes > MAX_NODES:
                raise _too_complex("nodes", self.nodes, MAX_NODES)
            if self.messages > MAX_MESSAGES:
                raise _too_complex("messages", self.messages, MAX_MESSAGES)
            if entry.message_type.name not in _LEAVES:
                for one in value if entry.is_repeated else (value,):
                    yield entry.name, one

    def walk(self, top: Message, body: _GraphBody) -> None:
        """Count all messages within one, which is a part of the model."""
        work: deque[tuple[Message, int, str]] = deque([(top, 0, "")])
        while work:
            message, graphs, node = work.popleft()
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
            work.extend([(inner, graphs, node) for _, inner in self.inner(message)])


def _unfold(main: _GraphBody, functions: Mapping[FunctionKey, _GraphBody], nodes: int) -> Unfolded:
    """Count without unfolding; ``nodes`` are those of the file."""
    known: dict[FunctionKey, Unfolded] = {}
    open_calls: list[FunctionKey] = []

    def of(body: _GraphBody) -> Unfolded:
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
