"""The walk through the wire format of a model (protobuf.dev/programming-guides/encoding), field by field.

Nothing is built of what is met: payloads of weights are stepped over, everything else is counted. A message that is not
large is copied once and walked there, for a mapped file is slow to read byte by byte; that copy is all that is held.
"""

from __future__ import annotations

import mmap
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from service.contracts.errors import NotOnnxError
from worker.quantizer.intake.prescan.limits import (
    MAX_NAME_BYTES,
    MAX_NESTING,
    MAX_SUBGRAPH_DEPTH,
    MOST,
    Counts,
    too_complex,
)
from worker.quantizer.intake.prescan.schema import BYTES, Action, Kind, Rule
from worker.quantizer.intake.prescan.tensors import Tensor, impossible_dimension

Buffer = bytes | mmap.mmap
FunctionKey = tuple[bytes, bytes, bytes]
_COPIED_BYTES = 1 << 20
_RUN_VALUES = 4096
_BLOCK_BYTES = 1 << 20
_MAX_TAG = (1 << 32) - 1
# Plain numbers: the loop compares them millions of times.
_REPEATED_VARINT, _DIMENSION = int(Action.REPEATED_VARINT), int(Action.DIMENSION)
_TEXT, _TEXTS, _NAME, _MESSAGE = (int(action) for action in (Action.TEXT, Action.TEXTS, Action.NAME, Action.MESSAGE))
_PACKED_VARINT, _PACKED_FIXED32 = int(Action.PACKED_VARINT), int(Action.PACKED_FIXED32)
_FIXED_BYTES = {
    int(action): 4 if action in (Action.FIXED32, Action.REPEATED_FIXED32) else 8
    for action in (Action.FIXED32, Action.FIXED64, Action.REPEATED_FIXED32, Action.REPEATED_FIXED64)
}


class Place(NamedTuple):
    """Where a message lies.

    Attributes:
        data: the file, or a copy of a part of it.
        base: of ``data`` within the file, bytes.
        start, end: of the message within ``data``.
    """

    data: Buffer
    base: int
    start: int
    end: int


@dataclass
class Part:
    """The main graph, or a function: what is unfolded where it is called.

    Attributes:
        nodes: those of sub-graphs included.
        size_bytes: in the file.
        calls: of functions, by key.
    """

    nodes: int = 0
    size_bytes: int = 0
    calls: Counter[FunctionKey] = field(default_factory=Counter)


class Walk:
    """Walks messages and counts; see the module's head.

    Args:
        functions: keys of the model's functions, whose calls are counted.

    Attributes:
        counts: of everything.
        part: where the walk is; in the end, the main graph.
        parts: the functions.
    """

    def __init__(self, functions: frozenset[FunctionKey] = frozenset()) -> None:
        self.counts = Counts()
        self.part = Part()
        self.parts: dict[FunctionKey, Part] = {}
        self._functions = functions

    def message(self, place: Place, kind: Kind, nesting: int, graphs: int, node: Place | None = None) -> None:
        """Walk one message and everything in it.

        Args:
            place: of its payload.
            kind: of it.
            nesting: messages around it.
            graphs: graphs around it.
            node: the innermost one around it.

        Raises:
            NotOnnxError: it is damaged.
            ModelError: a tensor whose bytes do not match its shape.
            TooComplexError: a limit is broken.
        """
        offset = place.base + place.start
        if kind.name == "GraphProto":
            graphs += 1
            if graphs > MAX_SUBGRAPH_DEPTH + 1:
                name = None if node is None else node_name(node)
                raise too_complex("subgraph_depth", graphs - 1, MAX_SUBGRAPH_DEPTH, offset, node=name)
        elif kind.name == "NodeProto":
            node = place
            self._count_node(place)
        if nesting > MAX_NESTING:
            raise too_complex("nesting", nesting, MAX_NESTING, offset)
        if place.end - place.start <= _COPIED_BYTES and not isinstance(place.data, bytes):
            place = Place(place.data[place.start : place.end], offset, 0, place.end - place.start)
        outer = self.part
        if kind.name == "FunctionProto":
            self.part = self.parts.setdefault(function_key(place), Part(size_bytes=place.end - place.start))
        try:
            self._fields(place, kind, nesting, graphs, node)
        except IndexError:
            raise damaged("a field reaches beyond its message", "length", place.base + place.end) from None
        self.part = outer

    def _count_node(self, place: Place) -> None:
        self.part.nodes += 1
        if self._functions:
            key = call_key(place)
            if key in self._functions:
                self.part.calls[key] += 1

    def _fields(self, place: Place, kind: Kind, nesting: int, graphs: int, node: Place | None) -> None:
        data, base, at, end = place
        rules, counts = kind.rules, self.counts
        tensor = Tensor() if kind.name == "TensorProto" else None
        seen = fields = 0
        room = MOST["fields"] - counts.totals["fields"]
        while at < end:
            fields += 1
            if fields > room:
                raise too_complex("fields", MOST["fields"] + 1, MOST["fields"], base + at)
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = varint(place, at - 1)
            rule = rules.get(tag)
            if rule is None:
                at = _unknown(place, kind, tag, at)
                continue
            action = rule.action
            if action >= _TEXT:
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = varint(place, at - 1)
                start, at = at, at + size
                if at > end:
                    raise _too_long(place, rule, at)
                if action >= _MESSAGE:
                    if rule.once & seen:
                        raise damaged(f"field {rule.field!r} is given twice", "repetition", base + start, rule.field)
                    seen |= rule.once
                    child = rule.kind
                    assert child is not None  # noqa: S101 - see schema
                    counts.message(child.name, base + start)
                    self.message(Place(data, base, start, at), child, nesting + 1, graphs, node)
                    room = MOST["fields"] - counts.totals["fields"]
                elif action >= _PACKED_VARINT:
                    found = _packed(data, start, at, rule)
                    if tensor is not None:
                        tensor.add(rule.field, found, data, start, at)
                    counts.add("elements", found, base + start)
                else:
                    self._text(place, rule, start, at, tensor)
            elif action in _FIXED_BYTES:
                start, at = at, at + _FIXED_BYTES[action]
                if action >= _REPEATED_VARINT:
                    run = _run(data, start - 1, end, tag, at - start)
                    at += run * (at - start + 1)
                    fields += run
                    counts.add("elements", run + 1, base + start)
                    if tensor is not None:
                        tensor.add(rule.field, run + 1, data, start, at)
                if at > end:
                    raise _too_long(place, rule, at)
            else:
                value = data[at]
                at += 1
                if value > 0x7F:
                    value, at = varint(place, at - 1)
                if at > end:
                    raise _too_long(place, rule, at)
                if action == _REPEATED_VARINT:
                    counts.add("elements", 1, base + at)
                    if tensor is not None:
                        tensor.add_one(rule.field, value)
                elif action == _DIMENSION:
                    if impossible_dimension(value):
                        raise damaged(f"a shape has the dimension {value}", "dimension", base + at, "dim_value")
                elif tensor is not None:
                    tensor.set(rule.field, value)
        counts.add("fields", fields, base + end)
        if tensor is not None:
            tensor.check(base + place.start)

    def _text(self, place: Place, rule: Rule, start: int, end: int, tensor: Tensor | None) -> None:
        offset, size = place.base + start, end - start
        if tensor is not None and rule.field in ("raw_data", "name"):
            if rule.field == "raw_data":  # counted by the file alone
                tensor.raw_bytes = size
                return
            tensor.name = bytes(place.data[start : min(end, start + MAX_NAME_BYTES)])
        if rule.action == _NAME and size > MAX_NAME_BYTES:
            raise too_complex("bytes_of_a_name", size, MAX_NAME_BYTES, offset, field=rule.field)
        if rule.action == _TEXTS:
            self.counts.add("strings", 1, offset)
            if tensor is not None:
                tensor.add_one(rule.field, 0)
        self.counts.add("text_bytes", size, offset)


def varint(place: Place, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends.

    Raises:
        NotOnnxError: it takes more than ten bytes, or 64 bits.
        IndexError: it is cut short.
    """
    data, start = place.data, at
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                raise damaged("a number has more than 64 bits", "varint", place.base + start)
            return value, at
        shift += 7
        if shift > 63:
            raise damaged("a number takes more than ten bytes", "varint", place.base + start)


def call_key(node: Place) -> FunctionKey:
    """Domain, name and overload of what a node calls."""
    found = texts_of(node, {7, 4, 8})
    return found.get(7, b""), found.get(4, b""), found.get(8, b"")


def function_key(function: Place) -> FunctionKey:
    """Domain, name and overload of a function, by which nodes call it."""
    found = texts_of(function, {10, 1, 13})
    return found.get(10, b""), found.get(1, b""), found.get(13, b"")


def node_name(node: Place) -> str | None:
    """Name of a node, None if it has none."""
    return texts_of(node, {3}).get(3, b"").decode(errors="replace") or None


def texts_of(place: Place, wanted: set[int]) -> dict[int, bytes]:
    """Texts in a message by field number; the last one counts, and none is longer than a name may be."""
    found: dict[int, bytes] = {}
    at = place.start
    while at < place.end:
        tag, at = varint(place, at)
        if tag & 7 != BYTES:
            at = _skip(place, tag, at)
            continue
        size, at = varint(place, at)
        if tag >> 3 in wanted:
            found[tag >> 3] = bytes(place.data[at : at + min(size, MAX_NAME_BYTES)])
        at += size
    return found


def damaged(why: str, rule: str, offset: int, field: str | None = None) -> NotOnnxError:
    """The error for bytes that no writer of ONNX makes.

    Args:
        why: in words.
        rule: of the wire format or of ONNX that is broken.
        offset: in the file.
        field: of onnx.proto.
    """
    return NotOnnxError(
        f"the file is damaged: {why} (at byte {offset})",
        hint="Export the model again and upload it anew.",
        rule=rule,
        offset=offset,
        field=field,
    )


def _unknown(place: Place, kind: Kind, tag: int, at: int) -> int:
    """Step over a field that onnx.proto does not have; a known one of another wire type is refused."""
    number, wire = tag >> 3, tag & 7
    if tag > _MAX_TAG or number == 0 or wire not in (0, 1, 2, 5):
        raise damaged(f"{tag} is no tag of a field of {kind.name}", "tag", place.base + at)
    if number in kind.numbers:
        name = kind.numbers[number]
        raise damaged(f"field {name!r} of {kind.name} has wire type {wire}", "wire-type", place.base + at, name)
    return _skip(place, tag, at)


def _skip(place: Place, tag: int, at: int) -> int:
    wire = tag & 7
    if wire == 0:
        _, at = varint(place, at)
    elif wire == BYTES:
        size, at = varint(place, at)
        at += size
    else:
        at += 8 if wire == 1 else 4
    if at > place.end:
        raise damaged("a field reaches beyond its message", "length", place.base + place.end)
    return at


def _too_long(place: Place, rule: Rule, at: int) -> NotOnnxError:
    why = f"field {rule.field!r} reaches {at - place.end} bytes beyond its message"
    return damaged(why, "length", place.base + place.end, rule.field)


def _run(data: Buffer, at: int, end: int, tag: int, size: int) -> int:
    """How many more values of a repeated field follow the one whose tag stands at ``at``, all written alike."""
    if tag > 0x7F:
        return 0
    step, run = size + 1, 0
    at += step
    while at + step <= end and data[at] == tag:
        count = min(_RUN_VALUES, (end - at) // step)
        same = np.frombuffer(data[at : at + count * step], np.uint8)[::step] == tag
        found = count if same.all() else int(same.argmin())
        run, at = run + found, at + found * step
        if found < count:
            break
    return run


def _packed(data: Buffer, start: int, end: int, rule: Rule) -> int:
    """Values in a packed field.

    Raises:
        NotOnnxError: its length is no multiple of a value's.
    """
    if rule.action == _PACKED_VARINT:
        blocks = range(start, end, _BLOCK_BYTES)
        return sum(
            int(np.count_nonzero(np.frombuffer(data[at : min(end, at + _BLOCK_BYTES)], np.uint8) < 0x80))
            for at in blocks
        )
    size = 4 if rule.action == _PACKED_FIXED32 else 8
    if (end - start) % size:
        raise damaged(f"packed field {rule.field!r} holds a part of a value", "packed", start, rule.field)
    return (end - start) // size
