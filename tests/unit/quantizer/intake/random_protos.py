"""Random messages of onnx.proto, drawn by its descriptors: valid for a parser, whatever they mean."""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor as Field
from hypothesis import strategies as st

_TEXT = st.text("abcé\0", max_size=5)
_INTEGERS = st.one_of(st.integers(0, 300), st.integers(-(2**31), 2**31 - 1))
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    Field.TYPE_INT64: st.one_of(_INTEGERS, st.integers(-(2**63), 2**40)), Field.TYPE_INT32: _INTEGERS,
    Field.TYPE_UINT64: st.integers(0, 2**64 - 1), Field.TYPE_FLOAT: st.floats(width=32, allow_nan=False),
    Field.TYPE_DOUBLE: st.floats(allow_nan=False), Field.TYPE_STRING: _TEXT, Field.TYPE_BYTES: st.binary(max_size=5),
}  # fmt: skip
# (data type, the field where it is kept if it is not raw, bytes of an element)
_KINDS = [
    (1, "float_data", 4), (7, "int64_data", 8), (11, "double_data", 8), (2, "int32_data", 1), (13, "uint64_data", 8),
    (12, "uint64_data", 4),
]  # fmt: skip
_DEEPEST = 6


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Models that hold a bit of everything."""
    model = onnx.ModelProto()
    _fill(draw, model, 0)
    model.ir_version = 8
    model.graph.name = "net"
    for number, function in enumerate(model.functions):
        function.name, function.domain = f"F{number}", "no such domain is called"
    return model


def _fill(draw: st.DrawFn, message: Any, depth: int) -> None:
    if isinstance(message, onnx.TensorProto):
        _fill_tensor(draw, message)
        return
    fields = list(message.DESCRIPTOR.fields)
    for field in draw(st.lists(st.sampled_from(fields), max_size=4, unique_by=lambda field: field.number)):
        oneof = field.containing_oneof
        if oneof is not None and message.WhichOneof(oneof.name):
            continue
        _put(draw, message, field, depth)


def _put(draw: st.DrawFn, message: Any, field: Any, depth: int) -> None:
    if field.type == Field.TYPE_MESSAGE:
        if depth >= _DEEPEST:
            return
        if not field.is_repeated:
            inner = getattr(message, field.name)
            inner.SetInParent()
            _fill(draw, inner, depth + 1)
            return
        for _ in range(draw(st.integers(0, 3))):
            _fill(draw, getattr(message, field.name).add(), depth + 1)
    elif field.type == Field.TYPE_ENUM:
        setattr(message, field.name, draw(st.sampled_from([value.number for value in field.enum_type.values])))
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(_SCALARS[field.type], max_size=9)))
    else:
        setattr(message, field.name, draw(_SCALARS[field.type]))


def _fill_tensor(draw: st.DrawFn, tensor: onnx.TensorProto) -> None:
    tensor.data_type, place, size = draw(st.sampled_from(_KINDS))
    tensor.dims.extend(draw(st.lists(st.integers(0, 4), max_size=3)))
    tensor.name = draw(_TEXT)
    count = 1
    for axis in tensor.dims:
        count *= axis
    if draw(st.booleans()):
        tensor.raw_data = bytes(count * size)
    elif draw(st.booleans()):
        getattr(tensor, place).extend([1] * count)
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.data")


def counted(message: Any) -> Counter[str]:
    """Messages by type of a parsed message, those within tensors left out, and itself."""
    kinds: Counter[str] = Counter()
    work = [message]
    while work:
        for field, value in work.pop().ListFields():
            if field.type == Field.TYPE_MESSAGE:
                inner = list(value) if field.is_repeated else [value]
                kinds[field.message_type.name] += len(inner)
                work += inner if field.message_type.name != "TensorProto" else []
    return kinds
