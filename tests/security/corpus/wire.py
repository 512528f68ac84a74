"""Protobuf written by hand, also such that no library writes."""

from __future__ import annotations


def varint(number: int) -> bytes:
    out = bytearray()
    number &= (1 << 64) - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, payload: bytes | str) -> bytes:
    """A text, bytes or a message."""
    data = payload.encode() if isinstance(payload, str) else payload
    return varint(number << 3 | 2) + varint(len(data)) + data


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def node(kind: str, inputs: str = "x", outputs: str = "y", *attributes: bytes, domain: str = "") -> bytes:
    """A NodeProto within its graph; names are divided by spaces."""
    texts = b"".join(field(1, name) for name in inputs.split()) + b"".join(field(2, name) for name in outputs.split())
    inner = texts + field(4, kind) + b"".join(field(5, attribute) for attribute in attributes)
    return field(1, inner + (field(7, domain) if domain else b""))


def tensor_type(*dims: int, elem_type: int = 1) -> bytes:
    shape = b"".join(field(1, number(1, dim)) for dim in dims)
    return field(1, number(1, elem_type) + field(2, shape))


def value(name: str, *dims: int, elem_type: int = 1) -> bytes:
    return field(1, name) + field(2, tensor_type(*dims, elem_type=elem_type))


def tensor(name: str, dims: tuple[int, ...], data_type: int, *rest: bytes) -> bytes:
    return b"".join(number(1, dim) for dim in dims) + number(2, data_type) + field(8, name) + b"".join(rest)


def raw(data: bytes) -> bytes:
    return field(9, data)


def attribute(name: str, kind: int, *rest: bytes) -> bytes:
    return field(1, name) + b"".join(rest) + number(20, kind)


def graph(*parts: bytes, inputs: tuple[bytes, ...] = (), outputs: tuple[bytes, ...] = ()) -> bytes:
    taken = inputs or (value("x", 1, 4),)
    given = outputs or (value("y", 1, 4),)
    ends = b"".join(field(11, item) for item in taken) + b"".join(field(12, item) for item in given)
    return b"".join(parts) + field(2, "g") + ends


def model(*parts: bytes, rest: bytes = b"", opset: int = 17, **ends: tuple[bytes, ...]) -> bytes:
    """A whole model of these parts of its graph."""
    return number(1, 8) + field(7, graph(*parts, **ends)) + field(8, field(1, "") + number(2, opset)) + rest


RELU = node("Relu")
