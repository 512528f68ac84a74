"""Loads ONNX files as hostile input: what they hold is counted and checked, and external data is confined."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from service.contracts.errors import NotOnnxError, UnsupportedModelError
from service.contracts.model import ModelSummary
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.complexity import check_complexity, check_outline, damaged, not_onnx
from worker.quantizer.intake.external_data import ExternalFiles, attach, check_tensor, is_external
from worker.quantizer.preparation.prepare import undo_quantization

MAX_FILE_BYTES = (1 << 31) - 1  # protobuf's own limit


def load_model(path: Path) -> ir.Model:
    """Load a model with its external data attached; external weights are mapped, not read.

    Args:
        path: the .onnx file; external data lies in its folder.

    Raises:
        NotOnnxError: not an ONNX file, or cut short.
        ExternalDataError: external data missing, too short, or outside the folder.
        ModelError: a tensor whose bytes do not match its shape.
        UnsupportedModelError: valid ONNX that the graph library cannot represent.
    """
    return to_ir(read_proto(path), path.parent)


def read_proto(path: Path) -> onnx.ModelProto:
    """Parse the .onnx file without touching external data.

    Raises:
        QuantmillError: as ``read_file`` and ``parse_proto``.
    """
    return parse_proto(read_file(path))


def read_file(path: Path) -> bytes:
    """The bytes of the .onnx file.

    Raises:
        NotOnnxError: missing, empty or too large.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise NotOnnxError(
                f"the file has {size} bytes; the limit of an ONNX file is {MAX_FILE_BYTES}",
                hint="Store the weights as external data.",
            )
        return path.read_bytes()
    except OSError as error:
        raise NotOnnxError(f"the model cannot be read: {error.strerror}") from None


def parse_proto(data: bytes) -> onnx.ModelProto:
    """Parse the bytes of an .onnx file without touching external data.

    Raises:
        NotOnnxError: empty, cut short, damaged, or not an ONNX file.
        ModelError: a tensor whose bytes do not match its shape.
        TooComplexError: more of something than is accepted; names it.
        UnsupportedModelError: functions that call themselves.
        MemoryError: the parser got none.
    """
    if not data:
        raise NotOnnxError(
            "the model file is empty", hint="Export the model to ONNX again (for PyTorch: torch.onnx.export)."
        )
    check_outline(data)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        if "alloc" in str(error):  # as the parser tells that it got no memory
            raise MemoryError(str(error)) from None
        raise damaged("it cannot be decoded as an ONNX model, or is nested too deep", "parser") from None
    if not proto.ir_version or not proto.HasField("graph"):
        raise not_onnx()
    check_complexity(proto)
    _check_text(proto)
    for tensor in tensors_of(proto):
        check_tensor(tensor)
    return proto


def _check_text(proto: onnx.ModelProto) -> None:
    """Refuse names that are not UTF-8, which the parser hands out as bytes."""
    for word in _words(proto):
        if not isinstance(word, str):
            raise NotOnnxError(
                f"the file is damaged: it contains a name that is not UTF-8 text ({word!r})",
                hint="Export the model again and upload it again.",
            )


def _words(proto: onnx.ModelProto) -> Iterator[object]:
    yield from (proto.producer_name, proto.producer_version)
    for part in (proto, *proto.functions):
        yield from (entry.domain for entry in part.opset_import)
    for function in proto.functions:
        yield from (function.name, function.domain, *function.input, *function.output, *function.attribute)
    for graph in graphs_of(proto):
        yield graph.name
        for value in (*graph.input, *graph.output, *graph.value_info):
            yield value.name
            yield from (axis.dim_param for axis in value.type.tensor_type.shape.dim)
    for tensor in tensors_of(proto):
        yield tensor.name
        yield from (text for entry in tensor.external_data for text in (entry.key, entry.value))
    for node in nodes_of(proto):
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (text for attribute in node.attribute for text in (attribute.name, attribute.ref_attr_name))


def to_ir(proto: onnx.ModelProto, folder: Path) -> ir.Model:
    """Turn a parsed model into onnx-ir form with the external data of ``folder`` attached.

    Raises:
        ExternalDataError: external data missing, too short, or outside the folder.
        UnsupportedModelError: the graph library cannot represent the model.
    """
    check_representable(proto)
    files = ExternalFiles(folder)
    for tensor in tensors_of(proto):
        if is_external(tensor):
            files.check(tensor)
    try:
        model = ir.from_proto(proto)
    except (ir.serde.SerdeError, NotImplementedError, ValueError, TypeError, KeyError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise UnsupportedModelError(
            f"the model contains something that cannot be represented: {cause}",
            hint="Export the model again with a current exporter and opset.",
        ) from None
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        attach(graph, files)
        _sort(graph)
    return model


def _sort(graph: ir.Graph) -> None:
    """Put nodes in topological order, which runtimes do not ask for; a graph in order stays as it is."""
    try:
        graph.sort()
    except ValueError:
        raise UnsupportedModelError(
            f"graph {graph.name!r} has a cycle", hint="Export the model again; ONNX graphs are acyclic."
        ) from None


def check_representable(proto: onnx.ModelProto) -> None:
    """Refuse by name what the graph library cannot hold.

    Raises:
        UnsupportedModelError: maps, sparse tensors.
    """
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        kind = value.type
        while kind.WhichOneof("value") in ("sequence_type", "optional_type"):
            kind = getattr(kind, str(kind.WhichOneof("value"))).elem_type
        if kind.WhichOneof("value") in ("map_type", "sparse_tensor_type"):
            word = "a map" if kind.HasField("map_type") else "a sparse tensor"
            raise UnsupportedModelError(
                f"value {value.name!r} is {word}; only tensors are supported",
                hint="Export with tensor outputs; scikit-learn converters need the option zipmap=False.",
                value=value.name,
            )
    for graph in graphs_of(proto):
        if graph.sparse_initializer:
            name = graph.sparse_initializer[0].values.name
            raise UnsupportedModelError(
                f"weight {name!r} is stored as a sparse tensor", hint="Store it as a dense initializer.", tensor=name
            )


def external_files(proto: onnx.ModelProto, folder: Path) -> dict[str, Path]:
    """The external data files that a model refers to, by location, each one checked.

    Raises:
        ExternalDataError: external data missing, too short, or outside the folder.
    """
    files = ExternalFiles(folder)
    for tensor in tensors_of(proto):
        if is_external(tensor):
            files.check(tensor)
    return {location: folder / location for location in sorted(files.locations)}


def tensors_of(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor of the model: initializers and attributes, of sub-graphs and functions too."""
    for graph in graphs_of(proto):
        yield from graph.initializer
    for node in nodes_of(proto):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def nodes_of(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node of the model, those of sub-graphs and functions too."""
    for part in (*graphs_of(proto), *proto.functions):
        yield from part.node


def graphs_of(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every sub-graph, those of functions included."""
    yield proto.graph
    nodes = [*proto.graph.node, *(node for function in proto.functions for node in function.node)]
    while nodes:
        for attribute in nodes.pop().attribute:
            for graph in (*attribute.graphs, *((attribute.g,) if attribute.HasField("g") else ())):
                yield graph
                nodes.extend(graph.node)


def uploaded_bytes(path: Path, summary: ModelSummary, undo: bool) -> bytes:
    """The file as it is; read anew and written whole if it keeps data in other files, or has its pairs taken off.

    Args:
        path: of the ONNX file.
        summary: of it.
        undo: take its Q/DQ pairs off.
    """
    if path.stat().st_size == summary.size_bytes:
        return path.read_bytes()
    model = load_model(path)
    return to_bytes(undo_quantization(model).model if undo else model)


def file_sha256(path: Path) -> str:
    """Digest of a file in lowercase hex, read by blocks.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
