"""The message types of onnx.proto as tables: what follows a tag, by the descriptors that onnx parses by."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_VARINTS = {
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT32,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_ENUM,
    FieldDescriptor.TYPE_BOOL,
}
_WIRE_TYPES = dict.fromkeys(_VARINTS, VARINT) | {
    FieldDescriptor.TYPE_FLOAT: FIXED32,
    FieldDescriptor.TYPE_DOUBLE: FIXED64,
    FieldDescriptor.TYPE_STRING: BYTES,
    FieldDescriptor.TYPE_BYTES: BYTES,
    FieldDescriptor.TYPE_MESSAGE: BYTES,
}


class Action(IntEnum):
    """What to do behind a tag; those of the length-delimited wire type come last."""

    VARINT = 0
    FIXED32 = 1
    FIXED64 = 2
    REPEATED_VARINT = 3
    REPEATED_FIXED32 = 4
    REPEATED_FIXED64 = 5
    DIMENSION = 6
    TEXT = 7
    TEXTS = 8
    NAME = 9
    PACKED_VARINT = 10
    PACKED_FIXED32 = 11
    PACKED_FIXED64 = 12
    MESSAGE = 13
    MESSAGES = 14


_SINGLE = {VARINT: Action.VARINT, FIXED32: Action.FIXED32, FIXED64: Action.FIXED64}
_REPEATED = {
    VARINT: Action.REPEATED_VARINT,
    FIXED32: Action.REPEATED_FIXED32,
    FIXED64: Action.REPEATED_FIXED64,
}
_PACKED = {VARINT: Action.PACKED_VARINT, FIXED32: Action.PACKED_FIXED32, FIXED64: Action.PACKED_FIXED64}
# Texts that are no names: they may be long.
_LONG_TEXTS = frozenset({"doc_string", "value", "s", "strings", "string_data", "raw_data"})


@dataclass(frozen=True)
class Rule:
    """What stands behind a tag.

    Attributes:
        action: an Action.
        field: its name.
        kind: of the message that it holds; None: it holds none.
        once: bit of a field that may be there once only; members of a oneof share theirs. 0: it may be repeated.
    """

    action: int
    field: str
    kind: Kind | None = None
    once: int = 0


@dataclass(frozen=True)
class Kind:
    """A message type.

    Attributes:
        name: in onnx.proto, without that of an outer type.
        rules: by tag (field number and wire type).
        numbers: of its fields, with their names.
    """

    name: str
    rules: dict[int, Rule] = field(default_factory=dict)
    numbers: dict[int, str] = field(default_factory=dict)


@cache
def model_kind() -> Kind:
    """ModelProto, and through it all others."""
    return _kind(onnx.ModelProto.DESCRIPTOR, {})


def _kind(descriptor: Any, known: dict[str, Kind]) -> Kind:
    if descriptor.full_name in known:
        return known[descriptor.full_name]
    kind = known[descriptor.full_name] = Kind(descriptor.name)
    bits: dict[str, int] = {}
    for entry in descriptor.fields:
        kind.numbers[entry.number] = entry.name
        for tag, rule in _rules(entry, bits, known):
            kind.rules[tag] = rule
    return kind


def _rules(entry: Any, bits: dict[str, int], known: dict[str, Kind]) -> list[tuple[int, Rule]]:
    wire = _WIRE_TYPES[entry.type]
    tag, repeated = entry.number << 3 | wire, entry.is_repeated
    if entry.type == FieldDescriptor.TYPE_MESSAGE:
        child = _kind(entry.message_type, known)
        if repeated:
            return [(tag, Rule(int(Action.MESSAGES), entry.name, child))]
        oneof = entry.containing_oneof
        bit = bits.setdefault(entry.name if oneof is None else oneof.full_name, 1 << len(bits))
        return [(tag, Rule(int(Action.MESSAGE), entry.name, child, bit))]
    if wire == BYTES:
        action = Action.TEXTS if repeated else Action.TEXT if entry.name in _LONG_TEXTS else Action.NAME
        return [(tag, Rule(int(action), entry.name))]
    if repeated:
        packed = entry.number << 3 | BYTES
        return [(tag, Rule(int(_REPEATED[wire]), entry.name)), (packed, Rule(int(_PACKED[wire]), entry.name))]
    return [(tag, Rule(int(Action.DIMENSION if entry.name == "dim_value" else _SINGLE[wire]), entry.name))]
