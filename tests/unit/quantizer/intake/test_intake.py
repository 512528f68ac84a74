"""Uploaded models: facts of good ones; code, place and next step of bad ones."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from service.contracts.errors import ModelError, NotOnnxError, TooComplexError, UnsupportedModelError
from service.contracts.model import MatrixKind, ModelSummary, TensorInfo, Work
from tests.unit.quantizer.intake.test_complexity import varint
from tests.unit.quantizer.toolbox import make_model
from worker.quantizer.intake import inspect as intake
from worker.quantizer.intake import loading
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.intake.loading import load_model


def tensor(name: str, shape: Any = (1, 3), dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, *shape: int) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.ones(shape, np.float32), name)


def model_of(
    *nodes: onnx.NodeProto, inputs: Any = None, outputs: Any = None, weights: Any = (), domains: Any = (), **more: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "net", inputs or [tensor("x")], outputs or [tensor("y", None)], list(weights))
    imports = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="test", **more)


def relu(source: str = "x", target: str = "y", name: str = "r") -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=name)


def saved(folder: Path, model: onnx.ModelProto | bytes) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
    return path


def inspect(folder: Path, model: onnx.ModelProto | bytes) -> ModelSummary:
    return inspect_model(saved(folder, model), threads=1)


def test_the_summary_of_a_good_model(tmp_path: Path) -> None:
    model = model_of(
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="fc"),
        relu("h", "y"),
        helper.make_node("Shape", ["h"], ["size"]),
        inputs=[tensor("x", ["batch", 3]), tensor("w", [3, 4])],  # old exporters list weights as inputs
        outputs=[tensor("y", [None, 4]), tensor("size", [2], TensorProto.INT64)],
        weights=[weight("w", 3, 4), weight("b", 4)],
    )
    path = saved(tmp_path, model)
    summary = inspect_model(path, threads=1)
    assert summary == ModelSummary(
        ir_version=8,
        opset={"ai.onnx": 17},
        producer="test",
        inputs=(TensorInfo(name="x", dtype="float32", shape=("batch", 3)),),
        outputs=(
            TensorInfo(name="y", dtype="float32", shape=(None, 4)),
            TensorInfo(name="size", dtype="int64", shape=(2,)),
        ),
        node_count=3,
        op_counts={"Gemm": 1, "Relu": 1, "Shape": 1},
        parameter_count=16,
        size_bytes=path.stat().st_size,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        node_names=("fc", "r", "Shape_2"),
        prepared_op_types=(),
        work=Work(
            multiply_adds=12,
            activation_bytes=4 * (4 + 4 + 2),
            largest_activation_bytes=16,
            nodes=3,
            matrices=(MatrixKind(groups=1, outputs=4, inputs=3, count=1),),
        ),
    )


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (TensorProto.BFLOAT16, "bfloat16"),
        (TensorProto.DOUBLE, "float64"),
        (TensorProto.BOOL, "bool"),
        (TensorProto.STRING, "string"),
    ],
)
def test_dtypes_are_numpy_words(tmp_path: Path, dtype: int, word: str) -> None:
    ends = {"inputs": [tensor("x", (-1, 2), dtype)], "outputs": [tensor("y", (-1, 2), dtype)]}
    summary = inspect(tmp_path, model_of(helper.make_node("Identity", ["x"], ["y"]), **ends))
    assert summary.inputs == (TensorInfo(name="x", dtype=word, shape=(None, 2)),)  # a negative axis is dynamic


def test_functions_and_sequences_are_known(tmp_path: Path) -> None:
    function = helper.make_function("my.lib", "Twice", ["a"], ["b"], [relu("a", "b")], [helper.make_opsetid("", 17)])
    model = model_of(
        helper.make_node("Twice", ["x"], ["t"], domain="my.lib"),
        helper.make_node("SequenceConstruct", ["t", "t"], ["y"]),
        outputs=[helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)],
        domains=["my.lib"],
        functions=[function],
    )
    summary = inspect(tmp_path, model)
    assert summary.op_counts == {"Relu": 1, "SequenceConstruct": 1, "Twice": 1}
    assert summary.opset == {"ai.onnx": 17, "my.lib": 1}
    assert summary.outputs[0] == TensorInfo(name="y", dtype="other", shape=None)


def test_nodes_out_of_order_are_accepted_and_sorted(tmp_path: Path) -> None:
    path = saved(tmp_path, model_of(relu("h", "y", "second"), relu("x", "h", "first")))
    assert inspect_model(path, threads=1).node_count == 2
    assert [node.name for node in load_model(path).graph] == ["first", "second"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"hello, world\n" * 40, "not an ONNX model"),
        (b"\x89PNG\r\n\x1a\n" + bytes(200), "not an ONNX model"),
        (b"\x08\x08", "not an ONNX model"),  # an ir_version and nothing else
        (b"{}", "not an ONNX model"),
        (b"", "empty"),
        (None, "No such file"),
    ],
)
def test_other_files_are_not_onnx(tmp_path: Path, content: bytes | None, says: str) -> None:
    with pytest.raises(NotOnnxError, match=says) as caught:
        inspect_model(tmp_path / "none.onnx" if content is None else saved(tmp_path, content), threads=1)
    assert caught.value.code == "not-onnx"
    assert caught.value.hint or content is None


def test_every_truncation_says_so(tmp_path: Path) -> None:
    data = model_of(
        helper.make_node("Gemm", ["x", "w"], ["y"]), inputs=[tensor("x", (1, 16))], weights=[weight("w", 16, 32)]
    ).SerializeToString()
    graph_starts = data.index(b"\x3a")
    for keep in range(graph_starts + 3, len(data) - 30, 97):
        with pytest.raises(NotOnnxError, match=r"truncated: \d+ bytes are missing at its end, in field 'graph'"):
            inspect(tmp_path, data[:keep])
    for keep in range(1, len(data)):
        with pytest.raises(ModelError):
            loading.read_proto(saved(tmp_path, data[:keep]))
            inspect(tmp_path, data[:keep])


def test_a_file_larger_than_protobuf_can_hold(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(NotOnnxError, match="the limit of an ONNX file is 2147483647") as caught:
        inspect_model(path, threads=1)
    assert caught.value.hint == "Store the weights as external data."


@pytest.mark.parametrize(
    ("place", "change", "says"),
    [
        ("initializer", lambda t: t.dims.append(7), "needs 84 bytes, the file contains 12"),
        ("attribute", lambda t: setattr(t, "raw_data", t.raw_data + b"\0"), "the file contains 13"),
        ("sub-graph", lambda t: t.dims.append(-1), "impossible shape"),
        ("function", lambda t: t.dims.extend([1 << 40, 1 << 40]), "impossible shape"),
        ("initializer", lambda t: setattr(t, "data_type", 0), "undefined"),
        ("sub-graph", lambda t: setattr(t, "data_type", 99), "unknown data type 99"),
        ("initializer", lambda t: setattr(t, "data_type", TensorProto.STRING), "strings cannot be raw bytes"),
    ],
)
def test_damaged_tensors_are_found_wherever_they_are(
    tmp_path: Path, place: str, change: Callable[[onnx.TensorProto], None], says: str
) -> None:
    bad = weight("w", 3)
    change(bad)
    constant = helper.make_node("Constant", [], ["w"], value=bad)
    add = helper.make_node("Add", ["x", "w"], ["y"])
    body = helper.make_graph([constant, add], "body", [], [tensor("y")])
    branches = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    function = helper.make_function("f", "F", ["x"], ["y"], [constant, add], [helper.make_opsetid("", 17)])
    model = {
        "initializer": lambda: model_of(add, weights=[bad]),
        "attribute": lambda: model_of(constant, add),
        "sub-graph": lambda: model_of(branches, inputs=[tensor("x"), tensor("c", (), TensorProto.BOOL)]),
        "function": lambda: model_of(
            helper.make_node("F", ["x"], ["y"], domain="f"), domains=["f"], functions=[function]
        ),
    }[place]()
    with pytest.raises(ModelError, match=says) as caught:
        inspect(tmp_path, model)
    assert caught.value.where["tensor"] == "w"


def test_four_bit_and_typed_tensors_are_counted_right(tmp_path: Path) -> None:
    packed = TensorProto(name="q", data_type=TensorProto.INT4, dims=[3], raw_data=b"\x21\x03")
    typed = helper.make_tensor("i", TensorProto.INT4, [3], [1, 2, 3])
    halves = helper.make_tensor("h", TensorProto.FLOAT16, [2], [1.0, 2.0])
    wide = helper.make_tensor("c", TensorProto.COMPLEX64, [2], [1 + 2j, 3 + 4j])
    text = helper.make_tensor("s", TensorProto.STRING, [2], [b"a", b"b"])
    none = helper.make_tensor("n", TensorProto.FLOAT, [0], [])
    loading.parse_proto(model_of(relu(), weights=[packed, typed, halves, wide, text, none]).SerializeToString())


def nested(depth: int) -> onnx.ModelProto:
    node = helper.make_node("Identity", ["x"], ["z0"], name="core")
    for level in range(depth):
        body = helper.make_graph([node], f"g{level}", [], [tensor(f"z{level}")])
        node = helper.make_node("If", ["c"], [f"z{level + 1}"], then_branch=body, else_branch=body, name=f"if{level}")
    node.output[0] = "y"
    return model_of(node, inputs=[tensor("x"), tensor("c", (), TensorProto.BOOL)])


def test_sub_graph_depth_is_bounded(tmp_path: Path) -> None:
    assert inspect(tmp_path, nested(3)).op_counts["If"] == 7
    with pytest.raises(TooComplexError) as caught:
        inspect(tmp_path, nested(9))
    assert caught.value.where["limit"] == "subgraph_depth"
    assert caught.value.where["node"] == "if0"
    inner = b"\x0a\x00"
    for _ in range(60):  # node { attribute { g { ... } } }, deeper than the parser goes
        for tag in (b"\x32", b"\x2a", b"\x0a"):
            inner = tag + varint(len(inner)) + inner
    with pytest.raises(NotOnnxError, match="nested too deep"):
        inspect(tmp_path, b"\x08\x08\x3a" + varint(len(inner)) + inner)


@pytest.mark.parametrize(
    ("body", "says", "where"),
    [
        ("", "no nodes", {}),
        (
            "[n1] y = acme.Blur(x)",
            r"node 'n1' \(Blur\) is of operator domain 'acme'",
            {"node": "n1", "op_type": "Blur", "domain": "acme"},
        ),
        ("y = acme.Blur(x)", "the unnamed Blur node with output 'y'", {"op_type": "Blur", "domain": "acme"}),
        ("[n1] y = Foo(x)", r"refuses node 'n1' \(Foo\): No Op registered for Foo", {"node": "n1", "op_type": "Foo"}),
        ("[conv1] y = Conv(x)", "input size 1 not in range", {"node": "conv1", "op_type": "Conv"}),
        ("[r] y = Relu(q)", "'q' is not a graph input", {"node": "r", "op_type": "Relu"}),
        ("[mm] y = MatMul(x, w)", "Incompatible dimensions", {"node": "mm", "op_type": "MatMul"}),
        (
            "a = Cast<to=16>(x) [erf1] b = Erf(a) y = Cast<to=1>(b)",
            "Could not find an implementation for Erf",
            {"node": "erf1", "op_type": "Erf"},
        ),
        ("[a] y = Relu(x) [b] y = Relu(x)", r"Duplicate definition of name \(y\)", {}),
        ("y = Add(x, b) b = Relu(y)", "not acyclic", {}),
        ("<opset: 99> y = Relu(x)", "Opset 99", {}),
        ("<ir_version: 99> y = Relu(x)", "IR version: 99", {}),
        ("<map> y = Relu(x)", "'y' is a map", {"value": "y"}),
        ("<sparse> y = Add(x, s)", "'s' is stored as a sparse tensor", {"tensor": "s"}),
    ],
)
def test_unsupported_models_name_node_and_reason(tmp_path: Path, body: str, says: str, where: dict[str, str]) -> None:
    number = 99 if "99" in body else None
    text = f"(float[1,3] x) => (float[1,3] y) {{ {body.rpartition('> ')[2] if body.startswith('<') else body} }}"
    weights = {"w": np.ones((4, 5), np.float32)} if "w)" in body else {}
    model = make_model(text, weights, ir_version=number if "ir_version" in body else 8)
    model.opset_import.append(helper.make_opsetid("acme", 1))
    if "opset" in body:
        model.opset_import[0].version = 99
    if "map" in body:
        model.graph.output[0].CopyFrom(helper.make_value_info("y", helper.make_map_type_proto(7, tensor("v").type)))
    if "sparse" in body:
        places = helper.make_tensor("i", TensorProto.INT64, [1], [0])
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(weight("s", 1), places, [3]))
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        inspect(tmp_path, model)
    assert caught.value.where == where
    assert caught.value.hint
    assert str(tmp_path) not in caught.value.detail
    assert "onnxruntime_src" not in caught.value.detail


@pytest.mark.slow
def test_random_damage_never_escapes_the_error_tree(tmp_path: Path) -> None:
    """The runtime is left out: it is native code, and it is asked in a process of its own."""
    body = helper.make_graph([relu("x", "z")], "body", [], [tensor("z")])
    data = model_of(
        helper.make_node("Gemm", ["x", "w"], ["h"], name="fc"),
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        inputs=[tensor("x", ["batch", 3]), tensor("c", (), TensorProto.BOOL)],
        weights=[weight("w", 3, 4)],
    ).SerializeToString()
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(data)
        for _ in range(generator.integers(1, 4)):
            damaged[generator.integers(len(damaged))] = generator.integers(256)
        path = saved(tmp_path, bytes(damaged))
        try:
            proto = loading.read_proto(path)
            intake.check_structure(proto)
            intake.summarize_model(proto, path, sha256="0")
            loading.to_ir(proto, tmp_path)
        except ModelError:
            refused += 1
    assert refused > 150


def test_the_names_by_which_a_config_may_call_nodes(tmp_path: Path) -> None:
    model = model_of(
        helper.make_node("MatMul", ["x", "w"], ["m"], name="dense"),
        helper.make_node("Add", ["m", "b"], ["a"], name="bias"),
        helper.make_node("Relu", ["a"], ["y"]),
        weights=[weight("w", 3, 4), weight("b", 4)],
    )
    summary = inspect(tmp_path, model)
    assert summary.node_names == ("dense", "bias", "Relu_2")
    assert summary.prepared_op_types == ("Gemm",)
    assert intake.open_model(tmp_path / "model.onnx").summary.node_names is None


def test_names_are_not_listed_where_there_are_too_many_or_none_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized = make_model(
        "(float[1,3] x) => (float[1,3] y) { q = QuantizeLinear(x, s) y = DequantizeLinear(q, s) }", {"s": np.float32(1)}
    )
    assert inspect(tmp_path, quantized).op_counts == {"DequantizeLinear": 1, "QuantizeLinear": 1}
    assert inspect(tmp_path, quantized).node_names is None
    three = model_of(relu("x", "a", "one"), relu("a", "b", "two"), relu("b", "y", "three"))
    for bound in ("MAX_NODE_NAMES", "MAX_NODE_NAME_CHARACTERS"):
        with monkeypatch.context() as patch:
            patch.setattr(intake, bound, 2)
            summary = inspect(tmp_path, three)
        assert (summary.node_count, summary.node_names) == (3, None)


def test_a_model_that_cannot_be_prepared_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise UnsupportedModelError("opset 9 lacks per-axis quantization", opset=9)

    monkeypatch.setattr(intake, "prepare", refuse)
    with pytest.raises(UnsupportedModelError, match="opset 9 lacks per-axis quantization"):
        inspect(tmp_path, model_of(relu()))
