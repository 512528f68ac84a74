"""How much a model may hold, counted behind the parser; and whether a file is ONNX at all, cut short or whole.

A message of protobuf takes two bytes in a file and hundreds in the engine's graph, and with its functions in the place
of their calls a kilobyte becomes billions of nodes. Networks of today stay a factor of ten below each limit here. What
the parser itself takes, weights and texts are bounded by the size of the file and by the memory of an inspection.
"""

from __future__ import annotations

import mmap
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from service.contracts.errors import NotOnnxError, TooComplexError, UnsupportedModelError
from worker.quantizer.intake.external_data import MAX_ELEMENTS

# The outermost fields of an ONNX file: tells one that is cut short from one that is no ONNX file at all.

_MODEL_FIELDS = {field.number: field.name for field in onnx.ModelProto.DESCRIPTOR.fields}
_GRAPH, _METADATA = 7, 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class BadTagError(Exception):
    """A field number or wire type that protobuf does not have."""


class CutShortError(Exception):
    """A field reaches beyond the end of its message.

    Attributes:
        name: of the field, of those of ModelProto; None: there is none of its number.
        missing: bytes.
    """

    def __init__(self, field: int, missing: int) -> None:
        super().__init__(field, missing)
        self.name = _MODEL_FIELDS.get(field)
        self.missing = missing


def model_metadata(data: bytes | mmap.mmap) -> dict[str, str]:
    """The entries of ``metadata_props``, without parsing or copying anything else of the model.

    Args:
        data: the whole file; may be mapped into memory.

    Raises:
        NotOnnxError: no ONNX file, or one that is cut short.
    """
    view = memoryview(data)
    try:
        fields = list(model_fields(view))
        if not any(field == _GRAPH for field, *_ in fields):
            raise not_onnx()
        found = [view[start:end].tobytes() for field, start, end in fields if field == _METADATA]
        entries = [onnx.StringStringEntryProto.FromString(item) for item in found]
    except (BadTagError, CutShortError, DecodeError):
        raise not_onnx() from None
    finally:
        view.release()
    return {entry.key: entry.value for entry in entries}


def check_outline(data: bytes) -> None:
    """Refuse a file that is cut short, or of another kind, in words that its owner can use.

    Raises:
        NotOnnxError: the outermost fields are not those of a whole ONNX file.
    """
    try:
        graphs = sum(number == _GRAPH for number, _, _ in model_fields(data))
    except BadTagError:
        raise not_onnx() from None
    except CutShortError as error:
        if error.name is None:
            raise not_onnx() from None
        raise NotOnnxError(
            f"the file is truncated: {error.missing} bytes are missing at its end, in field {error.name!r}",
            hint="Use the original file: compare size and sha256 with it.",
            rule="length",
            field=error.name,
            offset=len(data),
        ) from None
    if not graphs:
        raise not_onnx()
    if graphs > 1:
        raise damaged("field 'graph' is given twice", "repetition")


def model_fields(data: bytes | memoryview | mmap.mmap) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the payload of every field of a model.

    Raises:
        BadTagError: of another message, or of none.
        CutShortError: the file ends within a field.
    """
    for number, start, end in _fields(data, 0, len(data)):
        if number not in _MODEL_FIELDS:
            raise BadTagError
        yield number, start, end


def not_onnx() -> NotOnnxError:
    """The error for a file of another kind."""
    return NotOnnxError(
        "the file is not an ONNX model",
        hint="Use a model exported to ONNX (for PyTorch: torch.onnx.export), not a checkpoint or an archive.",
        rule="outermost-fields",
    )


def damaged(why: str, rule: str) -> NotOnnxError:
    """The error for bytes that no writer of ONNX makes.

    Args:
        why: in words.
        rule: of the wire format or of ONNX that is broken.
    """
    return NotOnnxError(f"the file is damaged: {why}", hint="Export the model again and upload it again.", rule=rule)


def _fields(data: bytes | memoryview | mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Number, start and end of the payload of every field of the message at [at, end)."""
    while at < end:
        tag, at = _varint(data, at, end, 0)
        field, kind = tag >> 3, tag & 7
        if field == 0:
            raise BadTagError
        if kind == _BYTES:
            size, at = _varint(data, at, end, field)
        elif kind == _VARINT:
            _, stop = _varint(data, at, end, field)
            size = stop - at
        elif kind == _FIXED64:
            size = 8
        elif kind == _FIXED32:
            size = 4
        else:
            raise BadTagError
        if at + size > end:
            raise CutShortError(field, at + size - end)
        yield field, at, at + size
        at += size


def _varint(data: bytes | memoryview | mmap.mmap, at: int, end: int, field: int) -> tuple[int, int]:
    value = shift = 0
    while at < end:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise BadTagError
    raise CutShortError(field, 1)


MAX_NODES, MAX_MESSAGES = 200_000, 3_000_000
# The runtime has its troubles with deep sub-graphs.
MAX_SUBGRAPH_DEPTH = 8
# Functions that call functions that call functions.
MAX_CALL_DEPTH = 32
# What unfolding functions may add: so many nodes, and so many for each node of the file.
FREE_UNFOLDED_NODES, UNFOLDED_PER_NODE = 10_000, 16
MAX_UNFOLDED_BYTES = 1 << 30
_HINT = "Simplify or split the model; the documentation lists the limits of models."
# Messages that hold none, or none that count; to list the fields of a tensor would be to copy its bytes.
_LEAVES = frozenset({"OperatorSetIdProto", "StringStringEntryProto", "TensorProto"})
FunctionKey = tuple[str, str, str]


@dataclass
class _GraphBody:
    """The main graph, or a function: what is unfolded where it is called."""

    nodes: int = 0  # those of sub-graphs included
    size_bytes: int = 0  # in the file
    calls: Counter[FunctionKey] = field(default_factory=Counter)  # of functions, by key


@dataclass(frozen=True)
class Unfolded:
    """Of the main graph, with all functions in the place of their calls."""

    nodes: int  # sub-graphs included
    size_bytes: int  # of what is put in the place of calls
    depth: int = 0  # calls within calls


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
        f"the model has more than {most} {words}: {found}",
        hint=_HINT,
        limit=limit,
        most=most,
        found=found,
        **where,
    )
