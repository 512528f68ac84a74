"""Hostile models: damaged protobuf, bombs, tensors that lie, graphs that ask for more than anybody has."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tests.security.corpus import wire
from tests.security.corpus.case import READY, Case, Content
from tests.security.corpus.wire import RELU, attribute, field, graph, model, node, number, raw, tensor, value, varint

FIVE_MILLION = 5_000_000
INT64, FLOAT, BOOL, STRING = 7, 1, 9, 8
NOT_ONNX, DAMAGED, COMPLEX, UNSUPPORTED = "not-onnx", "invalid-model", "too-complex", "unsupported-model"


def case(name: str, data: bytes | Callable[[], bytes], code: str, limit: str | None = None) -> Case:
    """Of one file; a large one is made when it is needed."""
    content: Content = data if isinstance(data, bytes) else lambda path: path.write_bytes(data())
    return Case(name, "model", {"model.onnx": content}, code, limit)


def constant(name: str, *values: int) -> bytes:
    data = struct.pack(f"<{len(values)}q", *values)
    return field(5, tensor(name, (len(values),), INT64, raw(data)))


def floats(name: str, *values: float, dims: tuple[int, ...] | None = None) -> bytes:
    return field(
        5, tensor(name, (len(values),) if dims is None else dims, FLOAT, raw(struct.pack(f"<{len(values)}f", *values)))
    )


SUM = node("ReduceSum", "c", "r", attribute("keepdims", 2, number(3, 0)))
ADD = node("Add", "x r", "y")


def made_of(*parts: bytes) -> bytes:
    """A model that adds to its input the sum of a constant ``c``, which the parts compute."""
    return model(*parts, SUM, ADD)


# --- not a model, or damaged -----------------------------------------------------------------------------------------

WHOLE = model(RELU)
DAMAGE: list[Case] = [
    case("empty", b"", NOT_ONNX),
    case("zeros", bytes(1000), NOT_ONNX),
    case("no-graph", number(1, 8), NOT_ONNX),
    case("no-ir-version", field(7, graph(RELU)), NOT_ONNX),
    case("empty-graph", number(1, 8) + field(7, b""), UNSUPPORTED),
    case("cut-in-half", WHOLE[: len(WHOLE) // 2], NOT_ONNX),
    case("overlong-varint-that-is-right", number(1, 8).replace(b"\x08\x08", b"\x08\x88\x80\0") + WHOLE[2:], READY),
    case("length-of-four-gigabytes", model(RELU + b"\x0a\xff\xff\xff\xff\x0f"), NOT_ONNX),
    case("length-lies-by-one", model(field(1, b"\x0a\x02x")), NOT_ONNX),
    case("two-graphs", WHOLE + field(7, graph(RELU)), NOT_ONNX),
    case("unknown-field-in-the-model", WHOLE + field(99, b"x"), NOT_ONNX),
    case("unknown-field-in-a-node", model(node("Relu")[:0] + field(1, RELU[2:] + field(99, b"x" * 100))), READY),
    case("invalid-utf8-in-a-node", model(field(1, field(1, "x") + field(2, "y") + field(4, "Relu") + field(3, b"\xff\xfe"))), NOT_ONNX),  # noqa: E501
    case("surrogates-in-a-name", model(RELU, floats("w", 1.0).replace(b"w", b"\xed\xa0\x80")[:0] + field(5, tensor("w", (), FLOAT, raw(bytes(4)), field(8, b"\xed\xa0\x80")))), NOT_ONNX),  # noqa: E501
    case("unknown-operator", model(node("Frobnicate")), UNSUPPORTED),
    case("unknown-domain", model(node("Relu", domain="evil.example")), UNSUPPORTED),
    case("cycle-of-nodes", model(node("Relu", "b", "a"), node("Relu", "a", "b"), node("Add", "x a", "y")), UNSUPPORTED),
]  # fmt: skip

# --- many of one thing ----------------------------------------------------------------------------------------------

CALL_F = field(8, field(1, "f") + number(2, 1))


def function(name: str, *nodes: bytes) -> bytes:
    opsets = field(9, field(1, "") + number(2, 17)) + field(9, field(1, "f") + number(2, 1))
    body = field(1, name) + field(4, "a") + field(5, "b") + b"".join(field(7, item[2:]) for item in nodes)
    return field(25, body + opsets + field(10, "f"))


def call(name: str, source: str = "a", target: str = "b") -> bytes:
    return node(name, source, target, domain="f")


def fan(levels: int, width: int = 2) -> bytes:
    functions = [function("F0", node("Relu", "a", "b"))]
    for level in range(1, levels + 1):
        names = ["a", *(f"m{k}" for k in range(width - 1)), "b"]
        functions.append(function(f"F{level}", *(call(f"F{level - 1}", names[k], names[k + 1]) for k in range(width))))
    return model(call(f"F{levels}", "x", "y"), rest=CALL_F + b"".join(functions))


def circle(length: int) -> bytes:
    functions = [function(f"F{k}", call(f"F{(k + 1) % length}")) for k in range(length)]
    return model(call("F0", "x", "y"), rest=CALL_F + b"".join(functions))


def nests(depth: int) -> bytes:
    """If within If, each with two branches of which one is deep."""
    inner = node("Identity", "x", "z")
    for _ in range(depth):
        body = inner + field(2, "b") + field(12, value("z"))
        inner = node(
            "If",
            "t",
            "z",
            attribute("then_branch", 5, field(6, body)),
            attribute("else_branch", 5, field(6, node("Identity", "x", "z") + field(2, "e") + field(12, value("z")))),
        )
    return model(field(5, tensor("t", (), BOOL, raw(b"\1"))), inner, node("Identity", "z", "y"))


def types(depth: int) -> bytes:
    kind = wire.tensor_type(1)
    for _ in range(depth):
        kind = field(4, field(1, kind))
    return model(RELU, inputs=(value("x", 1, 4), field(1, "s") + field(2, kind)))


MANY: list[Case] = [
    case("five-million-nodes", lambda: model(b"\x0a\0" * FIVE_MILLION), COMPLEX, "nodes"),
    case("five-million-attributes", lambda: model(field(1, field(4, "Relu") + b"\x2a\0" * FIVE_MILLION)), COMPLEX, "messages"),  # noqa: E501
    case("five-million-annotations", lambda: model(RELU, b"\x72\0" * FIVE_MILLION), COMPLEX, "messages"),
    case("five-million-opsets", lambda: model(RELU, rest=b"\x42\0" * FIVE_MILLION), COMPLEX, "messages"),
    case("five-million-types", lambda: model(field(1, field(5, b"\x7a\0" * FIVE_MILLION))), COMPLEX, "messages"),
    case("five-million-strings", lambda: model(field(1, field(5, b"\x4a\0" * FIVE_MILLION))), COMPLEX),
    case("five-million-fields", lambda: b"\x08\x08" * FIVE_MILLION + WHOLE, READY),
    case("twenty-million-numbers-in-a-node", lambda: model(field(1, field(5, b"\x18\x01" * 20_000_000))), UNSUPPORTED),
    case("nodes-within-training", lambda: model(RELU, rest=field(20, field(1, b"\x0a\0" * 300_000))), COMPLEX, "nodes"),
    case("metadata-within-nodes", lambda: model(*[field(1, field(4, "Relu") + b"\x4a\0" * 30)] * 100_000), COMPLEX, "messages"),  # noqa: E501
    case("functions-of-2^30-nodes", lambda: fan(30), COMPLEX, "unfolded_nodes"),
    case("functions-forty-deep", lambda: fan(40, 1), COMPLEX, "call_depth"),
    case("function-that-calls-itself", lambda: circle(1), UNSUPPORTED),
    case("thirty-functions-in-a-circle", lambda: circle(30), UNSUPPORTED),
    case("function-defined-twice", lambda: model(call("F0", "x", "y"), rest=CALL_F + function("F0", node("Relu", "a", "b")) * 2), NOT_ONNX),  # noqa: E501
    case("ifs-nine-deep", lambda: nests(9), COMPLEX, "subgraph_depth"),
    case("types-ten-thousand-deep", lambda: types(10_000), NOT_ONNX),
]  # fmt: skip

# --- tensors that lie ------------------------------------------------------------------------------------------------


def lying(name: str, content: bytes, code: str = DAMAGED) -> Case:
    return case(f"tensor-{name}", model(field(5, content), node("Add", "x w", "y")), code)


def typed(name: str, data_type: int, number_of_field: int, data: bytes, dims: tuple[int, ...] = (4,)) -> Case:
    return lying(name, tensor("w", dims, data_type, field(number_of_field, data)))


FOUR = raw(bytes(16))
TENSORS: list[Case] = [
    lying("of-32-gigabytes", tensor("w", (1 << 33,), FLOAT)),
    lying("of-2^64-and-four-elements", tensor("w", (1 << 32, 1 << 32), FLOAT, FOUR)),
    lying("of-a-negative-dimension", tensor("w", (-4,), FLOAT, FOUR)),
    lying("of-the-smallest-dimension", tensor("w", (-(1 << 63),), FLOAT, FOUR)),
    lying("of-nothing-and-too-much", tensor("w", (0, 1 << 62), FLOAT)),
    lying("of-rank-a-million", tensor("w", (1,) * 1_000_000, FLOAT, raw(bytes(4)))),
    lying("with-dims-packed-and-not", tensor("w", (2,), FLOAT, field(1, varint(2) + varint(9)), FOUR)),
    lying("with-a-byte-too-few", tensor("w", (4,), FLOAT, raw(bytes(15)))),
    lying("with-a-byte-too-many", tensor("w", (4,), FLOAT, raw(bytes(17)))),
    lying("without-data", tensor("w", (4,), FLOAT)),
    lying("with-data-given-twice", tensor("w", (4,), FLOAT, FOUR, raw(b""))),
    lying("of-type-99", tensor("w", (4,), 99, FOUR)),
    lying("of-raw-strings", tensor("w", (4,), STRING, FOUR)),
    lying("of-raw-zero-and-floats", tensor("w", (4,), FLOAT, field(4, bytes(16)), raw(b""))),
    typed("with-floats-in-the-wrong-field", FLOAT, 10, bytes(32)),
    typed("with-three-packed-floats", FLOAT, 4, bytes(12)),
    typed("with-a-billion-of-four-integers", INT64, 7, b"\1" * 4, (1_000_000_000,)),
    lying("of-four-bits-too-short", tensor("w", (9,), 22, raw(bytes(4)))),
    case("sparse-weight", model(RELU, field(15, field(1, tensor("s", (1,), FLOAT, raw(bytes(4)))) + field(2, tensor("", (1,), INT64, raw(bytes(8)))) + number(3, 1 << 40))), UNSUPPORTED),  # noqa: E501
    case("nan-weight", model(floats("w", *[float("nan")] * 16, dims=(4, 4)), node("MatMul", "x w", "y")), DAMAGED),
    case("weights-of-1e38", model(floats("w", *[3e38] * 16, dims=(4, 4)), node("MatMul", "x w", "y")), READY),
    case("nan-scale", model(floats("s", float("nan")), field(5, tensor("z", (1,), 2, raw(b"\0"))), node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")), READY),  # noqa: E501
    case("input-of-2^62", model(RELU, inputs=(value("x", 1 << 62),)), NOT_ONNX),
    case("input-of-2^40-by-2^40", model(RELU, inputs=(value("x", 1 << 40, 1 << 40),), outputs=(value("y", 1, 4),)), READY),  # noqa: E501
    case("input-of-minus-one", model(RELU, inputs=(value("x", -1, 4),), outputs=(field(1, "y") + field(2, field(1, number(1, 1))),)), READY),  # noqa: E501
    case("input-of-type-99", model(RELU, inputs=(value("x", 1, 4, elem_type=99),)), UNSUPPORTED),
]  # fmt: skip

# --- graphs that ask for much ----------------------------------------------------------------------------------------


def chain(kind: str, count: int, *attributes: bytes) -> bytes:
    steps = [node(kind, f"c{k} c{k}", f"c{k + 1}" if k + 1 < count else "c", *attributes) for k in range(count)]
    return b"".join(steps)


BODY = (
    node("Identity", "k", "l")
    + node("Add", "v v", "w")
    + field(2, "b")
    + field(11, value("i", elem_type=INT64))
    + field(11, value("k", elem_type=BOOL))
    + field(11, value("v", 1, 4))
    + field(12, value("l", elem_type=BOOL))
    + field(12, value("w", 1, 4))
)
TRUE = field(5, tensor("t", (), BOOL, raw(b"\1")))
FOREVER = field(5, tensor("n", (), INT64, raw(struct.pack("<q", 1 << 62))))
AXIS0 = attribute("axis", 2, number(3, 0))
ONE = floats("one", 1.0)
GRAPHS: list[Case] = [
    case("68-bytes-that-ask-for-32-gigabytes", made_of(constant("s", 1 << 33), node("ConstantOfShape", "s", "c")), READY),  # noqa: E501
    case("doubling-by-concat", made_of(floats("c0", 1.0), chain("Concat", 40, AXIS0)), READY),
    case("expand-to-64-gigabytes", made_of(ONE, constant("s", 1 << 34), node("Expand", "one s", "c")), READY),
    case("range-to-64-gigabytes", made_of(floats("a", 0.0, dims=()), floats("b", 1.6e10, dims=()), floats("d", 1.0, dims=()), node("Range", "a b d", "c")), READY),  # noqa: E501
    case("one-hot-of-2^40", made_of(constant("i", 0), constant("s", 1 << 40), floats("v", 0.0, 1.0), node("OneHot", "i s v", "c")), READY),  # noqa: E501
    case("resize-by-a-million", made_of(floats("i", 1.0, dims=(1, 1, 1, 1)), floats("f", 1.0, 1.0, 1e6, 1e6), node("Resize", "i  f".replace("  ", " i "), "c")), READY),  # noqa: E501
    case("loop-of-2^62", model(TRUE, FOREVER, node("Loop", "n t x", "y", attribute("body", 5, field(6, BODY)))), READY),
    case("loop-of-2^62-over-constants", made_of(TRUE, FOREVER, floats("z", 1.0, 1.0, 1.0, 1.0, dims=(1, 4)), node("Loop", "n t z", "c", attribute("body", 5, field(6, BODY)))), READY),  # noqa: E501
    case("outer-sum-of-4-gigabytes", made_of(floats("a", *np.ones(1 << 15), dims=(1 << 15, 1)), floats("b", *np.ones(1 << 15), dims=(1, 1 << 15)), node("Add", "a b", "c")), READY),  # noqa: E501
    case("random-of-16-gigabytes", made_of(node("RandomNormal", "", "c", attribute("shape", 7, number(8, 1 << 32)))), READY),  # noqa: E501
    case("split-of-2^40", model(constant("one", 1), node("SplitToSequence", "x one", "s"), node("ConcatFromSequence", "s", "y", AXIS0), inputs=(value("x", 1 << 40),), outputs=(field(1, "y") + field(2, field(1, number(1, 1))),)), UNSUPPORTED),  # noqa: E501
]  # fmt: skip

ALL = [*DAMAGE, *MANY, *TENSORS, *GRAPHS]

WEIGHTED = model(floats("w", *[1.0] * 16, dims=(4, 4)), node("MatMul", "x w", "y"))
SECRET = b"what lies outside of the upload"
