"""What a model may hold: counted as onnx's parser finds it, each limit told by its name, damage by a rule."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from service.contracts.errors import ModelError, NotOnnxError, QuantmillError, TooComplexError, UnsupportedModelError
from tests.support.data import required_data_dir, requires_data
from tests.support.source import ROOT
from tests.unit.quantizer.intake.random_protos import counted, models
from worker.quantizer.intake import complexity, loading
from worker.quantizer.intake.complexity import check_complexity
from worker.quantizer.intake.loading import parse_proto


@given(model=models())
def test_counts_are_those_of_the_parser(model: onnx.ModelProto) -> None:
    kinds = counted(model)
    nodes = kinds["NodeProto"]
    with pytest.MonkeyPatch.context() as patch:
        for messages, most_nodes, limit in (
            (kinds.total(), nodes, None),
            (kinds.total() - 1, nodes, "messages"),
            (kinds.total(), nodes - 1, "nodes"),
        ):
            patch.setattr(complexity, "MAX_MESSAGES", messages)
            patch.setattr(complexity, "MAX_NODES", most_nodes)
            try:
                check_complexity(model)
            except NotOnnxError as error:
                assert error.where["rule"] in {"dimension", "repetition"}
            except UnsupportedModelError as error:
                assert error.where.get("limit") in {limit, "call_depth", None}
            else:
                assert limit is None or (limit == "nodes" and nodes == 0)


@given(model=models(), data=st.data())
def test_changed_bytes_end_in_a_typed_error_or_in_a_model(model: onnx.ModelProto, data: st.DataObject) -> None:
    raw = bytearray(model.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        cut = data.draw(st.sampled_from([0, 0, 0, 1]))
        raw[at : at + 1 + cut] = data.draw(st.binary(min_size=1, max_size=3))
    read(bytes(raw))


@given(st.binary(max_size=300))
def test_any_bytes_end_in_a_typed_error_or_in_a_model(raw: bytes) -> None:
    read(raw)
    read(b"\x08\x08\x3a" + varint(len(raw)) + raw)


def read(raw: bytes) -> None:
    try:
        parse_proto(raw)
    except QuantmillError as error:
        assert error.code in {"not-onnx", "too-complex", "invalid-model", "unsupported-model"}


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
        (model_of(NODE + b"\x0a\x05ab"), "parser"),
        (model_of(field(1, field(5, b"\x15\0\0"))), "parser"),
        (model_of(field(1, b"\x0b\x0c\x0c")), "parser"),
        (model_of(field(1, b"\0\0")), "parser"),
        (model_of(NODE, field(7, NODE)), "repetition"),
        (model_of(NODE, field(25, field(1, b"F")) * 2), "repetition"),
        (model_of(field(11, field(2, field(1, field(2, field(1, b"\x08" + varint(1 << 62))))))), "dimension"),
        (model_of(NODE)[:-1], "length"),
        (b"\x08\x08", "outermost-fields"),
    ],
)  # fmt: skip
def test_damage_is_told_by_rule(data: bytes, rule: str) -> None:
    with pytest.raises(NotOnnxError) as caught:
        parse_proto(data)
    assert caught.value.where["rule"] == rule
    assert caught.value.hint


def test_a_parser_without_memory_says_nothing_of_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    class Poor:
        def ParseFromString(self, data: bytes) -> None:
            raise loading.DecodeError("Error parsing message with type 'onnx.ModelProto': Arena alloc failed")

    monkeypatch.setattr(loading.onnx, "ModelProto", Poor)
    with pytest.raises(MemoryError):
        parse_proto(model_of(NODE))


def test_a_shape_of_gigabytes_without_data_is_refused() -> None:
    huge = TensorProto(name="w\n", data_type=TensorProto.FLOAT, dims=[1 << 33])
    with pytest.raises(ModelError) as caught:
        parse_proto(model_of(NODE + field(5, huge.SerializeToString())))
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
    found = check_complexity(model)
    assert found.nodes == 2 * (3 + (1 + 2 * (3 + 1)) + 1) + (1 + 2 * (3 + 1))
    assert found.size_bytes > 10 * len(model.functions[0].SerializeToString())


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=8))
def test_unfolding_is_counted_as_it_is_done(calls: list[list[int]]) -> None:
    bodies = [[call("Relu", ""), *(call(f"F{k}") for k in row if k < number)] for number, row in enumerate(calls)]
    model = with_functions(*bodies, main=[call(f"F{len(bodies) - 1}")])

    def unfolded(nodes: list[onnx.NodeProto]) -> int:
        return sum(unfolded(bodies[int(node.op_type[1:])]) if node.domain else 1 for node in nodes)

    assert check_complexity(model).nodes == unfolded(list(model.graph.node))


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
            check_complexity(model)
        assert caught.value.where["limit"] == limit
        assert limit != "unfolded_nodes" or caught.value.where["found"] == 1 << 16
    check_complexity(fan(12))

    for called in ("F0", "Relu"):  # in a circle, whether called or not
        model = with_functions([call("F1")], [call("F0")], main=[call(called, "f" if called == "F0" else "")])
        with pytest.raises(UnsupportedModelError, match="calls itself"):
            check_complexity(model)


@requires_data
@pytest.mark.long
def test_real_models_keep_far_from_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complexity, "MAX_NODES", complexity.MAX_NODES // 10)
    monkeypatch.setattr(complexity, "MAX_MESSAGES", complexity.MAX_MESSAGES // 10)
    paths = sorted(required_data_dir().rglob("*.onnx"))
    for path in paths:
        loading.read_proto(path)
    assert len(paths) > 10


def test_the_documentation_names_each_limit_with_its_number() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    most = {"nodes": complexity.MAX_NODES, "messages": complexity.MAX_MESSAGES}
    most |= {"subgraph_depth": complexity.MAX_SUBGRAPH_DEPTH, "call_depth": complexity.MAX_CALL_DEPTH}
    most |= {"unfolded_bytes": complexity.MAX_UNFOLDED_BYTES}
    assert not [name for name, number in most.items() if f"| `{name}` | {number} |" not in page]
    assert f"| {complexity.FREE_UNFOLDED_NODES} and {complexity.UNFOLDED_PER_NODE} per node of the file" in page
