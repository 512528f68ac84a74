"""The look at a model's bytes before they are parsed: it counts what onnx's parser finds, and has rules with names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from service.contracts.errors import ModelError, NotOnnxError, QuantmillError, TooComplexError, UnsupportedModelError
from tests.support.data import required_data_dir, requires_data
from tests.support.source import ROOT
from tests.unit.quantizer.intake.random_protos import counted, models
from worker.quantizer.intake.prescan import limits, walk
from worker.quantizer.intake.prescan.limits import MOST, MOST_OF_A_KIND
from worker.quantizer.intake.prescan.scan import Scanned, mapped, scan_model


def agrees(scanned: Scanned, proto: onnx.ModelProto) -> None:
    kinds, totals = counted(proto)
    assert scanned.kinds == kinds
    assert {name: scanned.totals[name] for name in ("elements", "strings")} == {
        name: totals[name] for name in ("elements", "strings")
    }
    assert scanned.totals["messages"] == kinds.total()


@given(model=models())
def test_counts_are_those_of_the_parser(model: onnx.ModelProto) -> None:
    data = model.SerializeToString()
    try:
        scanned = scan_model(data)
    except NotOnnxError as error:
        # onnx knows no bound of a dimension; ours is a rule with a name
        assert error.where["rule"] == "dimension"
        return
    agrees(scanned, onnx.load_from_string(data))


@given(model=models(), data=st.data())
def test_what_the_parser_takes_and_the_look_refuses_breaks_a_named_rule(
    model: onnx.ModelProto, data: st.DataObject
) -> None:
    raw = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        cut = data.draw(st.sampled_from([0, 0, 0, 1]))
        raw[at : at + 1 + cut] = data.draw(st.binary(min_size=1, max_size=3))
    held_against_the_parser(bytes(raw))


@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_typed_error_or_in_counts(raw: bytes) -> None:
    held_against_the_parser(raw)
    held_against_the_parser(b"\x08\x08\x3a" + varint(len(raw)) + raw)


def held_against_the_parser(raw: bytes) -> None:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(raw)
    except DecodeError:
        proto = None
    try:
        scanned = scan_model(raw)
    except QuantmillError as error:
        assert error.code in {"not-onnx", "too-complex", "invalid-model", "unsupported-model"}
        assert error.where.keys() & {"rule", "limit", "tensor", "function"}
        return
    if proto is not None and not unknown(proto):
        agrees(scanned, proto)


def unknown(proto: onnx.ModelProto) -> bool:
    """True if bytes were kept that the parser has no field for, or one field of a oneof took another's place."""
    return len(proto.SerializeToString()) != proto.ByteSize()


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def model_of(graph: bytes, rest: bytes = b"") -> bytes:
    return b"\x08\x08" + field(7, graph) + rest


NODE = field(1, field(4, b"Relu"))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (model_of(NODE + b"\x0a\x05ab"), "length"),
        (model_of(field(1, b"\x0a\x80")), "length"),
        (model_of(field(1, field(5, b"\x15\0\0"))), "length"),
        (model_of(field(1, field(5, b"\x18"))), "length"),
        (model_of(NODE + b"\x08\x01"), "wire-type"),
        (model_of(field(1, b"\x1d\0\0\0\0")), "wire-type"),
        (model_of(field(1, b"\x0b\x0c")), "tag"),
        (model_of(field(1, b"\0\0")), "tag"),
        (model_of(field(1, b"\x0e\0")), "tag"),
        (model_of(b"\xfa\xff\xff\xff\x7f\0"), "tag"),
        (model_of(field(1, field(5, b"\x18" + b"\xff" * 10 + b"\0"))), "varint"),
        (model_of(NODE, field(7, NODE)), "repetition"),
        (model_of(field(1, field(5, field(6, NODE) + field(6, NODE)))), "repetition"),
        (model_of(field(11, field(2, field(1, b"") + field(1, b"")))), "repetition"),
        (model_of(field(11, field(2, field(1, b"") + field(4, b"")))), "repetition"),
        (model_of(NODE, field(25, field(1, b"F")) * 2), "repetition"),
        (model_of(field(1, field(5, field(7, b"\0\0\0")))), "packed"),
        (model_of(field(11, field(2, field(1, field(2, field(1, b"\x08" + varint(1 << 62))))))), "dimension"),
        (b"\x08\x08", "outermost-fields"),
        (b"", "outermost-fields"),
    ],
)  # fmt: skip
def test_damage_is_told_by_rule_and_offset(data: bytes, rule: str) -> None:
    with pytest.raises(NotOnnxError) as caught:
        scan_model(data)
    assert caught.value.where["rule"] == rule
    assert 0 <= caught.value.where.get("offset", 0) <= len(data)


@pytest.mark.parametrize("padding", [1, 3])
def test_numbers_may_be_written_at_length(padding: int) -> None:
    """A writer may leave room for a length that it learns later; the parser takes it, and so does the look."""
    tail = b"\x80" * padding + b"\0"
    data = b"\x08\x88" + tail + b"\x3a" + bytes([len(NODE) | 0x80]) + tail + NODE
    agrees(scan_model(data), onnx.load_from_string(data))


def attribute_of(count: int, *, packed: bool) -> bytes:
    if packed:
        return field(1, field(5, field(7, np.ones(count, "<f4").tobytes()) + field(8, b"\x85\x01" * count)))
    return field(1, field(5, (b"\x3d" + bytes(4)) * count + b"\x40\x85\x01" * count))


@pytest.mark.parametrize("count", [0, 1, 4095, 4097, 9000])
def test_packed_or_not_values_are_counted_alike(count: int) -> None:
    for packed in (False, True):
        data = model_of(attribute_of(count, packed=packed))
        scanned = scan_model(data)
        assert scanned.totals["elements"] == 2 * count
        agrees(scanned, onnx.load_from_string(data))


def function_of(number: int) -> bytes:
    return field(25, field(1, b"%d" % number))


MANY: dict[str, tuple[bytes, Callable[[bytes], bytes]]] = {
    "nodes": (b"\x0a\0", model_of), "attributes": (b"\x2a\0", lambda many: model_of(field(1, many))),
    "value_infos": (b"\x6a\0", model_of), "tensors": (field(5, b"\x10\x01\x4a\x04\0\0\0\0"), model_of),
    "functions": (b"x", lambda many: model_of(NODE, b"".join(map(function_of, range(len(many)))))),
    "graphs": (b"\x5a\0", lambda many: model_of(field(1, field(5, many)))),
    "dimensions": (b"\x0a\0", lambda many: model_of(field(11, field(2, field(1, field(2, many)))))),
    "metadata_entries": (b"\x72\0", lambda many: model_of(NODE, many)),
    "strings": (b"\x0a\0", lambda many: model_of(field(1, many))),
    "OperatorSetIdProto": (b"\x42\0", lambda many: model_of(NODE, many)),
    "elements": (b"\1", lambda many: model_of(field(1, field(5, field(8, many))))),
    "text_bytes": (b"x", lambda many: model_of(field(1, field(6, many)))),
    "fields": (b"\x08\x08", lambda many: many + model_of(NODE)),
}  # fmt: skip


@pytest.mark.parametrize("limit", MANY)
def test_each_limit_is_told_with_the_number_that_broke_it(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits are lowered here; that they hold as they are is shown under a limit of memory elsewhere."""
    most = 1000
    kind = next((kind for kind, (name, _) in MOST_OF_A_KIND.items() if name == limit), None)
    if limit in MOST:
        monkeypatch.setitem(MOST, limit, most)
    elif kind is not None:
        monkeypatch.setitem(MOST_OF_A_KIND, kind, (limit, most))
    else:
        monkeypatch.setattr(limits, "_MOST_OF_OTHERS", most)
    unit, around = MANY[limit]
    scan_model(around(unit * (most - 10)))
    with pytest.raises(TooComplexError) as caught:
        scan_model(around(unit * (most + 1)))
    where = caught.value.where
    assert (where["limit"], where["most"]) == (limit, most)
    assert where["found"] > most
    assert str(most) in caught.value.detail
    assert caught.value.hint
    assert where["offset"] > 0


def test_names_nesting_messages_and_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    scan_model(model_of(field(1, field(3, b"x" * limits.MAX_NAME_BYTES) + field(6, b"x" * 10**6))))
    kind = b""
    for _ in range(60):
        kind = field(4, field(1, kind))  # a sequence of sequences
    monkeypatch.setitem(MOST, "messages", 1000)
    for limit, data in (
        ("bytes_of_a_name", model_of(field(1, field(3, b"x" * (limits.MAX_NAME_BYTES + 1))))),
        ("nesting", model_of(field(11, field(2, kind)))),
        ("messages", model_of(b"\x0a\0" * 600 + b"\x6a\0" * 600)),
        ("messages", model_of(NODE, b"\x72\0" * 1200)),
    ):
        with pytest.raises(TooComplexError) as caught:
            scan_model(data)
        assert caught.value.where["limit"] == limit
    huge = TensorProto(name="w\n", data_type=TensorProto.FLOAT, dims=[1 << 33])
    with pytest.raises(ModelError) as caught:
        scan_model(model_of(NODE + field(5, huge.SerializeToString())))
    assert (caught.value.code, caught.value.where["tensor"]) == ("invalid-model", "w\n")


def call(name: str, domain: str = "f") -> onnx.NodeProto:
    return helper.make_node(name, ["a"], ["b"], domain=domain)


def with_functions(*bodies: list[onnx.NodeProto], main: list[onnx.NodeProto]) -> onnx.ModelProto:
    functions = [
        helper.make_function(
            "f", f"F{k}", ["a"], ["b"], body, [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
        )
        for k, body in enumerate(bodies)
    ]
    graph = helper.make_graph(main, "net", [], [])
    return helper.make_model(graph, functions=functions)


def test_nodes_are_counted_where_functions_are_unfolded() -> None:
    branch = helper.make_graph([call("F0"), call("Relu", "")], "branch", [], [])
    both = helper.make_node("If", ["c"], ["b"], then_branch=branch, else_branch=branch)
    model = with_functions([call("Relu", "")] * 3, [call("F0"), both, call("Sin", "")], main=[call("F1")] * 2 + [both])
    scanned = scan_model(model.SerializeToString())
    assert scanned.unfolded.nodes == 2 * (3 + (1 + 2 * (3 + 1)) + 1) + (1 + 2 * (3 + 1))
    assert scanned.unfolded.size_bytes > 10 * len(model.functions[0].SerializeToString())


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8))
def test_unfolding_is_counted_as_it_is_done(calls: list[list[int]]) -> None:
    bodies = [[call("Relu", ""), *(call(f"F{k}") for k in row if k < number)] for number, row in enumerate(calls)]
    model = with_functions(*bodies, main=[call(f"F{len(bodies) - 1}")])

    def unfolded(nodes: list[onnx.NodeProto]) -> int:
        return sum(unfolded(bodies[int(node.op_type[1:])]) if node.domain else 1 for node in nodes)

    assert scan_model(model.SerializeToString()).unfolded.nodes == unfolded(list(model.graph.node))


def fan(levels: int, *, payload: int = 0) -> onnx.ModelProto:
    first = call("Relu", "")
    first.doc_string = "x" * payload
    return with_functions([first], *([call(f"F{k}")] * 2 for k in range(levels)), main=[call(f"F{levels}")])


def test_a_kilobyte_does_not_become_65536_nodes() -> None:
    assert len(fan(16).SerializeToString()) < 1500
    chain = [[call("Relu", "")], *([call(f"F{k}")] for k in range(40))]
    broken = {
        "unfolded_nodes": fan(16),
        "unfolded_bytes": fan(12, payload=1 << 19),
        "call_depth": with_functions(*chain, main=[call("F40")]),
    }
    for limit, model in broken.items():
        with pytest.raises(TooComplexError) as caught:
            scan_model(model.SerializeToString())
        assert caught.value.where["limit"] == limit
        assert limit != "unfolded_nodes" or caught.value.where["found"] == 1 << 16
    scan_model(fan(12).SerializeToString())

    for called in ("F0", "Relu"):  # in a circle, whether called or not
        model = with_functions([call("F1")], [call("F0")], main=[call(called, "f" if called == "F0" else "")])
        with pytest.raises(UnsupportedModelError, match="calls itself"):
            scan_model(model.SerializeToString())


def test_payloads_are_stepped_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a gigabyte of weights, which are holes in a file here, no page but the first few is read."""
    size = 1 << 30
    tensor_head = b"\x08" + varint(size // 4) + b"\x10\x01\x42\x01w\x4a" + varint(size)
    tensor_bytes = len(tensor_head) + size
    graph_head = NODE + b"\x2a" + varint(tensor_bytes)
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(b"\x08\x08\x3a" + varint(len(graph_head) + tensor_bytes) + graph_head + tensor_head)
        file.truncate(file.tell() + size)
    copied: list[int] = []
    place = walk.Place

    def noted(data: walk.Buffer, *rest: int) -> walk.Place:
        if isinstance(data, bytes):
            copied.append(len(data))
        return place(data, *rest)

    monkeypatch.setattr(walk, "Place", noted)
    with mapped(path) as data:
        scanned = scan_model(data)
    assert scanned.kinds["TensorProto"] == 1
    assert sum(copied) < 1000
    os.truncate(path, path.stat().st_size - 1)
    with mapped(path) as data, pytest.raises(NotOnnxError, match="1 bytes are missing"):
        scan_model(data)


@requires_data
@pytest.mark.long
def test_real_models_keep_far_from_every_limit() -> None:
    found = 0
    for path in sorted(required_data_dir().rglob("*.onnx")):
        with mapped(path) as data:
            scanned = scan_model(data)
        agrees(scanned, onnx.load(path, load_external_data=False))
        found += 1
        for kind, count in scanned.kinds.items():
            assert count < MOST_OF_A_KIND.get(kind, ("", 500_000))[1] // 10
    assert found > 10


def test_the_documentation_names_each_limit_with_its_number() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    most = dict(MOST_OF_A_KIND.values()) | MOST | {"subgraph_depth": limits.MAX_SUBGRAPH_DEPTH}
    most |= {"nesting": limits.MAX_NESTING, "call_depth": limits.MAX_CALL_DEPTH}
    most |= {"bytes_of_a_name": limits.MAX_NAME_BYTES, "unfolded_bytes": limits.MAX_UNFOLDED_BYTES}
    assert not [name for name, number in most.items() if f"| `{name}` | {number} |" not in page]
    assert f"| {limits.FREE_UNFOLDED_NODES} and {limits.UNFOLDED_PER_NODE} per node of the file" in page
