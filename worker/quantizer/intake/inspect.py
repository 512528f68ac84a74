"""Validation of uploaded models: a bounded look at the bytes, then the runtime's verdict.

The runtime is the judge of what is supported. onnx's own checker is not asked: it refuses models that run (outputs
without a shape, nodes out of order) and lets pass what must not (a shape of gigabytes without data).
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from service.contracts.compatibility import model_notes
from service.contracts.errors import AlreadyQuantizedError, ModelError, UnsupportedModelError
from service.contracts.model import MAX_NODE_NAME_CHARACTERS, MAX_NODE_NAMES, ModelSummary, TensorInfo
from worker.quantizer.graph import sizes
from worker.quantizer.graph.rewriting import axis_length
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, node_name
from worker.quantizer.intake.loading import (
    check_representable,
    external_files,
    file_sha256,
    parse_proto,
    read_file,
    tensors_of,
    to_ir,
)
from worker.quantizer.intake.work import work_of
from worker.quantizer.ops.linear import CONVOLUTIONS, channel_axis, linear_view
from worker.quantizer.ops.table import Family, operator
from worker.quantizer.preparation.prepare import prepare
from worker.quantizer.runtime.check import RuntimeRefusalError, check_runtime
from worker.quantizer.runtime.session import Session
from worker.quantizer.runtime.timing import forward_pass

__all__ = ["Uploaded", "inspect_model", "open_model", "summarize_model"]


# Faults of a model that the runtime accepts but no run survives: NaN in weights, channels that do not fit.

# Whatever these multiply or add is a parameter. Elsewhere Inf may be meant: attention masks, limits of Clip.
_PARAMETRIC = (Family.CONVOLUTION, Family.PRODUCT, Family.AFFINE, Family.NORMALIZATION, Family.RECURRENT)
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


def check_weights(model: ir.Model) -> None:
    """Refuse NaN and Inf in the weights of a model as uploaded; reads every weight once.

    Raises:
        ModelError: naming the node, the tensor and the index of the first such value.
    """
    seen: set[ir.Value] = set()
    for node in model.graph.all_nodes():
        if operator(node.op_type).family not in _PARAMETRIC or node.domain not in DEFAULT_DOMAINS:
            continue
        for value in node.inputs:
            if value is None or value in seen:
                continue
            seen.add(value)
            index = _first_non_finite(value)
            if index is not None:
                raise ModelError(
                    f"{_words(node)} has a weight {value.name!r} that contains NaN or Inf, first at {index}",
                    hint="Repair the weight (training may have diverged) and export the model again.",
                    node=node.name or None,
                    op_type=node.op_type,
                    tensor=value.name,
                    index=index,
                )


def check_channels(graph: ir.Graph) -> None:
    """Refuse a Conv or ConvTranspose whose weight takes another number of channels than its input has.

    Args:
        graph: prepared main graph, with the shapes that inference found; what is unknown is not judged.

    Raises:
        UnsupportedModelError: naming the node and the weight.
    """
    for node in graph:
        if node.op_type not in CONVOLUTIONS:
            continue
        linear = linear_view(node)
        if linear is None or linear.data is None or linear.weight is None or not is_constant(linear.weight):
            continue
        data, weight = linear.data, linear.weight
        have, taken = axis_length(data, channel_axis(node)), linear.in_channels
        if have is not None and have != taken:
            raise UnsupportedModelError(
                f"node {node_name(node)!r} ({node.op_type}): its weight {weight.name!r} {list(linear.weight_shape)} "
                f"takes {taken} channels, its input {data.name!r} has {have}",
                hint="Export the model again; check that its declared input shape is the one it was trained for.",
                node=node_name(node),
                op_type=node.op_type,
                tensor=weight.name,
            )


def _first_non_finite(value: ir.Value) -> list[int] | None:
    """Index of the first NaN or Inf of a constant; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in _FLOATS:
        return None
    array = tensor.numpy()
    finite = np.isfinite(array)
    if finite.all():
        return None
    return [int(k) for k in np.unravel_index(int(np.argmin(finite)), array.shape)]


def _words(node: ir.Node) -> str:
    return f"node {node.name!r} ({node.op_type})" if node.name else f"an unnamed {node.op_type} node"


# Domains whose operators onnxruntime's CPU build knows.
KNOWN_DOMAINS = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft"})
_EXPORT_AGAIN = "Export the model again with standard ONNX operators and an opset that this runtime supports."
_SAME_NAMES = "ONNX allows it, this runtime does not: give every node a unique name, or none."


@dataclass(frozen=True)
class Uploaded:
    """An uploaded model, read and parsed once; the runtime has not seen it yet."""

    path: Path  # the .onnx file; external data lies in its folder
    proto: onnx.ModelProto  # as parsed
    model: ir.Model  # the same in the engine's form; shares the bytes of its weights with ``proto``
    summary: ModelSummary  # its facts, without the names that selectors may use

    def session(self, *, threads: int, what: str, model: ir.Model | None = None) -> Session:
        """A session of the model, or of ``model`` that was made of it.

        Raises:
            UnsupportedModelError: the runtime refuses the model; names the node where it can.
            ResourceLimitError: the runtime needs more memory than it may have.
        """
        try:
            return Session(self.model if model is None else model, threads=threads, what=what, uploaded=True)
        except UnsupportedModelError:
            if model is None or model is self.model:
                self.judge(threads=threads)  # says the same with the node's name
            raise

    def judge(self, *, threads: int, optimized: bool = False) -> ort.InferenceSession:
        """Let the runtime read the file, and nothing else; gives its session.

        Raises:
            UnsupportedModelError: the runtime refuses the model; names the node where it can.
            ResourceLimitError: the runtime needs more memory than it may have.
        """
        heavy = self.summary.size_bytes > sizes.WEIGHT_BYTES
        return _ask_runtime(self.path, self.proto, threads=threads, optimized=optimized, heavy=heavy)


def open_model(path: Path) -> Uploaded:
    """Read, check and parse an uploaded model; what the runtime makes of it is asked by whoever needs a session.

    Args:
        path: the .onnx file; external data lies in its folder.

    Raises:
        NotOnnxError: not an ONNX file, empty, or cut short.
        ExternalDataError: external data missing, too short, or outside the folder.
        ModelError: damaged tensors, or weights that hold NaN or Inf.
        UnsupportedModelError: no nodes, too many or too deep, or unknown operators.
    """
    data = read_file(path)
    proto = parse_proto(data)
    check_representable(proto)
    check_structure(proto)
    summary = summarize_model(proto, path, sha256=hashlib.sha256(data).hexdigest())
    try:
        model = to_ir(proto, path.parent)
    except UnsupportedModelError:
        _ask_runtime(path, proto, threads=1, optimized=False)  # may name the node
        raise
    check_weights(model)
    return Uploaded(path, proto, model, summary)


def inspect_model(path: Path, *, threads: int, timed: bool = False) -> ModelSummary:
    """Check an uploaded model, ask the runtime, and say what is in it and how a config may call its nodes.

    Args:
        path: the .onnx file; external data lies in its folder.
        threads: threads that the runtime may use.
        timed: run it as well, and tell how long that takes.

    Raises:
        ModelError: as ``open_model``.
        UnsupportedModelError: refused by the runtime, or by the preparation; names the node where there is one.
        ResourceLimitError: the runtime needs more memory than it may have.
    """
    uploaded = open_model(path)
    session = uploaded.judge(threads=threads, optimized=True)
    summary = _with_names(uploaded)
    # How often a body runs is told by values: on made-up ones it means nothing.
    repeats = any(operator(op_type).repeats_body for op_type in summary.op_counts)
    if not timed or summary.work is None or repeats:
        return summary
    forward = forward_pass(session, summary.work, threads=threads)
    return summary.model_copy(update={"work": summary.work.model_copy(update={"forward": forward})})


def _with_names(uploaded: Uploaded) -> ModelSummary:
    """The summary with the names and operators that selectors may use; a quantized model is never prepared.

    Raises:
        UnsupportedModelError: the model cannot be prepared, or its channels do not fit: no job could use it.
    """
    summary, proto = uploaded.summary, uploaded.proto
    try:
        prepared = prepare(uploaded.model)
    except AlreadyQuantizedError:
        return summary
    check_channels(prepared.graph)
    known = [*prepared.op_types.items(), *prepared.known_nodes()]
    names = dict.fromkeys([*(node.name for node in _nodes(proto) if node.name), *(name for name, _ in known)])
    op_types = {op_type for _, op_type in known} - summary.op_counts.keys()
    few = len(names) <= MAX_NODE_NAMES and sum(map(len, names)) <= MAX_NODE_NAME_CHARACTERS
    return summary.model_copy(
        update={
            "node_names": tuple(names) if few else None,
            "prepared_op_types": tuple(sorted(op_types)),
            "work": work_of(prepared.graph),
        }
    )


def _ask_runtime(
    path: Path, proto: onnx.ModelProto, *, threads: int, optimized: bool, heavy: bool = False
) -> ort.InferenceSession:
    try:
        return check_runtime(path, threads=threads, optimized=optimized, heavy=heavy)
    except RuntimeRefusalError as refusal:
        raise _with_node(refusal, proto) from None


def _with_node(refusal: RuntimeRefusalError, proto: onnx.ModelProto) -> UnsupportedModelError:
    """The refusal as a user reads it, with the node's name as far as the runtime's message allows to find it."""
    found = next((node for node in _nodes(proto) if refusal.is_about(node)), None)
    return UnsupportedModelError(
        f"{refusal.runtime} refuses {'the model' if found is None else _describe(found)}: {refusal.reason}",
        hint=_SAME_NAMES if refusal.names_twice else _EXPORT_AGAIN,
        node=(found.name or None) if found is not None else None,
        op_type=found.op_type if found is not None else None,
        domain=found.domain if found is not None and found.domain else None,
    )


def summarize_model(proto: onnx.ModelProto, path: Path, *, sha256: str) -> ModelSummary:
    """Facts of a parsed model, whose file at ``path`` has this ``sha256``.

    ``sha256`` is that of the file; with external data it is that of the lines ``<sha256>  <location>`` of all files,
    the model's own with an empty location first, the others sorted.

    Raises:
        ExternalDataError: external data missing, too short, or outside the folder.
    """
    files = external_files(proto, path.parent)
    digests = {"": sha256} | {location: file_sha256(file) for location, file in files.items()}
    lines = "".join(f"{digest}  {location}\n" for location, digest in digests.items())
    nodes = list(_nodes(proto))
    inputs, outputs = tensor_infos(proto)
    op_counts = dict(sorted(Counter(node.op_type for node in nodes).items()))
    return ModelSummary(
        ir_version=proto.ir_version,
        opset={entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        producer=" ".join(filter(None, (proto.producer_name, proto.producer_version))),
        inputs=inputs,
        outputs=outputs,
        node_count=len(nodes),
        op_counts=op_counts,
        notes=model_notes(op_counts),
        parameter_count=sum(math.prod(tensor.dims) for tensor in tensors_of(proto) if _is_weight(tensor)),
        size_bytes=sum(file.stat().st_size for file in (path, *files.values())),
        sha256=sha256 if not files else hashlib.sha256(lines.encode()).hexdigest(),
    )


def tensor_infos(proto: onnx.ModelProto) -> tuple[tuple[TensorInfo, ...], tuple[TensorInfo, ...]]:
    """What a model takes and what it returns; weights that are listed as inputs are none."""
    weights = {tensor.name for tensor in proto.graph.initializer}
    taken = (_tensor_info(value) for value in proto.graph.input if value.name not in weights)
    return tuple(taken), tuple(_tensor_info(value) for value in proto.graph.output)


def _tensor_info(value: onnx.ValueInfoProto) -> TensorInfo:
    if value.type.WhichOneof("value") != "tensor_type":
        return TensorInfo(name=value.name, dtype="other", shape=None)
    tensor = value.type.tensor_type
    shape = None
    if tensor.HasField("shape"):
        shape = tuple(_axis(dimension) for dimension in tensor.shape.dim)
    return TensorInfo(name=value.name, dtype=_dtype_word(tensor.elem_type), shape=shape)


def _axis(dimension: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dimension.HasField("dim_value"):
        return dimension.dim_value if dimension.dim_value >= 0 else None  # some exporters write -1 for dynamic
    return dimension.dim_param or None


def _dtype_word(elem_type: int) -> str:
    try:
        dtype = ir.DataType(elem_type)
    except ValueError:
        return "other"
    if dtype == ir.DataType.STRING:
        return "string"
    return "other" if dtype == ir.DataType.UNDEFINED else dtype.numpy().name


def _is_weight(tensor: onnx.TensorProto) -> bool:
    """True for floats and for integers of at most 8 bits; wider integers are shapes and indices."""
    dtype = ir.DataType(tensor.data_type)
    return dtype.is_floating_point() or (dtype.is_integer() and dtype.bitwidth <= 8)


def check_structure(proto: onnx.ModelProto) -> None:
    """Refuse what must not reach the runtime: no nodes, unknown domains."""
    if not proto.graph.node:
        raise UnsupportedModelError("the model has no nodes", hint="Use a model that computes something.")
    functions = {(function.domain, function.name): function for function in proto.functions}
    for node in _nodes(proto):
        if node.domain not in KNOWN_DOMAINS and (node.domain, node.op_type) not in functions:
            raise UnsupportedModelError(
                f"{_describe(node)} is of operator domain {node.domain!r}, which this service cannot execute",
                hint="Export the model with standard ONNX operators, without custom ones.",
                node=node.name or None,
                op_type=node.op_type,
                domain=node.domain,
            )


def _nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of sub-graphs and functions too."""
    for part in (proto.graph, *proto.functions):
        work = list(reversed(part.node))
        while work:
            node = work.pop()
            yield node
            for attribute in node.attribute:
                graphs = [*attribute.graphs, attribute.g] if attribute.HasField("g") else attribute.graphs
                work += [inner for graph in graphs for inner in graph.node]


def _describe(node: onnx.NodeProto) -> str:
    """Names a node so that a user can find it, also when it has no name."""
    if node.name:
        return f"node {node.name!r} ({node.op_type})"
    output = node.output[0] if node.output else ""
    return f"the unnamed {node.op_type} node with output {output!r}"
