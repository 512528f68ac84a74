"""Brings a float model into the form that all later steps rely on.

Afterwards: every node and value has a name, weights are initializers that no caller can override, functions are
inlined, constants are folded, tensors are float32 instead of float16, affine followers are folded into the linear
node before them, and the opset is at least 17 where the model could be lifted. Each pass reports what it did, or why
it did nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx
import onnx.version_converter
import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewriteRuleSet
from onnxscript.rewriter.rules.common import matmul_add_to_gemm_rule

from service.contracts.errors import AlreadyQuantizedError, UnsupportedModelError
from service.contracts.report import PreparationStep
from worker.quantizer.graph.affine import fold_affine
from worker.quantizer.graph.halfs import float16_to_float32, holds_float16
from worker.quantizer.graph.values import DEFAULT_DOMAINS, Names, name_of, node_name

WANTED_OPSET = 17
# QuantizeLinear and DequantizeLinear know an axis from opset 13 on.
LOWEST_OPSET = 13
LOWEST_IR_VERSION = 8
_QUANTIZED_OPS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger")
_FOLD_INPUT_BYTES = 64 * 2**20
_FOLD_OUTPUT_BYTES = 64 * 2**20


@dataclass
class Prepared:
    """A prepared model and what was done to it.

    Attributes:
        model: the model.
        steps: what each pass did.
        op_types: operator of every node by name as the user knows it, before the passes that change nodes.
        output_shapes: of the graph outputs as declared, which shape inference may have made narrower.
    """

    model: ir.Model
    steps: list[PreparationStep] = field(default_factory=list)
    op_types: dict[str, str] = field(default_factory=dict)
    output_shapes: list[ir.Shape | None] = field(default_factory=list)

    @property
    def graph(self) -> ir.Graph:
        """The main graph."""
        return self.model.graph

    def known_nodes(self) -> list[tuple[str, str]]:
        """(name, op_type) of every node, sub-graphs included; twice where preparation changed the operator."""
        now = [(node_name(node), node.op_type) for node in self.graph.all_nodes()]
        return [*now, *((name, self.op_types[name]) for name, _ in now if name in self.op_types)]

    def restore_interface(self, model: ir.Model) -> None:
        """Give the outputs of ``model``, emitted from this one, the shapes that the user declared."""
        for value, shape in zip(model.graph.outputs, self.output_shapes, strict=True):
            if shape is not None:
                value.shape = shape


def prepare(model: ir.Model) -> Prepared:
    """Prepare ``model``, which is changed or replaced.

    Raises:
        AlreadyQuantizedError: the model holds quantized operators; names the first.
        UnsupportedModelError: the opset is below 13 and cannot be lifted.
    """
    _refuse_quantized(model)
    prepared = Prepared(model)
    passes: list[tuple[str, Callable[[ir.Model], tuple[ir.Model, bool, str]]]] = [
        ("inline_functions", _inline_functions),
        ("name_everything", _name_everything),
        ("repair_shapes", _repair_shapes),
        ("float16_to_float32", _widen_float16),
        ("lift_opset", _lift_opset),
        ("fold_constants", _fold_constants),
        ("matmul_add_to_gemm", _matmul_add_to_gemm),
        ("fold_affine", _fold_affine),
        ("remove_dead_code", _remove_dead_code),
        ("infer_shapes", _infer_shapes),
    ]
    for name, apply in passes:
        prepared.model, applied, detail = apply(prepared.model)
        prepared.steps.append(PreparationStep(name=name, applied=applied, detail=detail))
        if name == "name_everything":
            prepared.op_types = {node_name(node): node.op_type for node in prepared.graph.all_nodes()}
        if name == "repair_shapes":
            prepared.output_shapes = [value.shape and value.shape.copy() for value in prepared.graph.outputs]
    return prepared


def _refuse_quantized(model: ir.Model) -> None:
    parts: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for part in parts:
        for node in ir.traversal.RecursiveGraphIterator(part):
            if node.op_type in _QUANTIZED_OPS or node.op_type.startswith("QLinear"):
                who = f"node {node.name!r}" if node.name else f"the unnamed node with output {_first_output(node)!r}"
                raise AlreadyQuantizedError(
                    f"{who} is a {node.op_type}: the model is quantized already",
                    hint="Upload the float model that it was made from.",
                    node=node.name or None,
                    op_type=node.op_type,
                )


def _inline_functions(model: ir.Model) -> tuple[ir.Model, bool, str]:
    count = len(model.functions)
    if not count:
        return model, False, "the model has no functions"
    common.InlinePass()(model)
    return model, True, f"{count} functions inlined"


def _name_everything(model: ir.Model) -> tuple[ir.Model, bool, str]:
    for graph in (model.graph, *model.graph.subgraphs()):
        for k, node in enumerate(graph):
            if not node.name:
                node.name = f"{node.op_type}_{k}"
    omitted = [value for node in model.graph.all_nodes() for value in node.outputs if not value.name]
    modified = common.NameFixPass()(model).modified
    _distinguish_nodes(model.graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveInitializersFromInputsPass()(model)
    for value in omitted:
        if not value.uses():  # an optional output that is not wanted has no name; the pass gave it one
            value.name = ""
    return model, True, "names made unique" if modified else "constants became initializers"


def _distinguish_nodes(graph: ir.Graph) -> None:
    """Let no two nodes share a name, across sub-graphs either; the main graph's keep theirs."""
    inner = [node for node in graph.all_nodes() if node.graph is not graph]
    names = Names(graph)
    seen = {node_name(node) for node in graph}
    for node in inner:
        if node_name(node) in seen:
            node.name = names.free(node_name(node))
        seen.add(node_name(node))


def _first_output(node: ir.Node) -> str:
    """Name of the first output that is not omitted."""
    return next((value.name for value in node.outputs if value.name), "")


def _repair_shapes(model: ir.Model) -> tuple[ir.Model, bool, str]:
    """Some exporters write -1 for an unknown dimension, which converters and shape inference take for a size."""
    repaired = 0
    values = [*model.graph.inputs, *model.graph.outputs, *(v for node in model.graph.all_nodes() for v in node.outputs)]
    for value in values:
        if value.shape is not None and any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            value.shape = ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in value.shape])
            repaired += 1
    return model, repaired > 0, f"{repaired} shapes with negative dimensions made dynamic"


def _widen_float16(model: ir.Model) -> tuple[ir.Model, bool, str]:
    if not holds_float16(model):
        return model, False, "the model holds no float16"
    return model, True, f"{float16_to_float32(model)} float16 constants widened to float32"


def _lift_opset(model: ir.Model) -> tuple[ir.Model, bool, str]:
    opset = next((model.graph.opset_imports[d] for d in DEFAULT_DOMAINS if d in model.graph.opset_imports), None)
    if opset is None:
        return model, False, "the model uses no standard operators"
    if opset >= WANTED_OPSET:
        return model, False, f"opset is {opset}"
    names = {_first_output(node): node_name(node) for node in model.graph.all_nodes()}
    # Below IR version 4 every initializer had to be an input, and the converter insists on it.
    model.ir_version = max(model.ir_version or 0, LOWEST_IR_VERSION)
    try:
        lifted = ir.from_proto(onnx.version_converter.convert_version(ir.to_proto(model), WANTED_OPSET))
    except (RuntimeError, ValueError) as error:  # the converter's own refusals; ConvertError is a RuntimeError
        reason = str(error).strip().splitlines()[-1].rsplit(" failed: ", 1)[-1][:300]
        if opset < LOWEST_OPSET:
            raise UnsupportedModelError(
                f"opset {opset} lacks per-axis quantization and could not be lifted to {WANTED_OPSET}: {reason}",
                hint=f"Export the model anew with opset {WANTED_OPSET} or later.",
                opset=opset,
            ) from error
        return model, False, f"opset stays {opset}; the converter refused: {reason}"
    for node in lifted.graph.all_nodes():
        node.name = names.get(_first_output(node), node.name)
    _name_everything(lifted)
    return lifted, True, f"opset {opset} lifted to {WANTED_OPSET}"


def _fold_constants(model: ir.Model) -> tuple[ir.Model, bool, str]:
    before = model.graph.num_nodes()
    fold_constants_ir(
        model,
        onnx_shape_inference=True,
        input_size_limit=_FOLD_INPUT_BYTES,
        output_size_limit=_FOLD_OUTPUT_BYTES,
    )
    _forget_dropped_branches(model.graph)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    if not any(True for _ in model.graph.subgraphs()):  # the pass cannot see reads across graphs
        _remove_identities(model.graph)
    common.RemoveUnusedNodesPass()(model)
    removed = before - model.graph.num_nodes()
    return model, removed > 0, f"{removed} nodes folded away"


def _forget_dropped_branches(graph: ir.Graph) -> None:
    """An If of a constant condition is gone, but the nodes of its other branch still count as readers."""
    there = set(graph.all_nodes())
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in there for value in node.outputs)]
    for value in values:
        for usage in list(value.uses()):
            if usage.node not in there:
                usage.node.replace_input_with(usage.idx, None)


def _remove_identities(graph: ir.Graph) -> None:
    """onnx-ir's own pass merges two graph outputs into one where an Identity stands between them."""
    for node in list(graph):
        source, result = node.inputs[0] if node.inputs else None, node.outputs[0]
        if node.op_type != "Identity" or node.domain not in DEFAULT_DOMAINS or source is None:
            continue
        is_output = result.is_graph_output()
        if is_output and (source.is_graph_output() or source.producer() is None):
            continue
        name = name_of(result)
        source.type, source.shape = source.type or result.type, source.shape or result.shape
        ir.convenience.replace_all_uses_with(result, source, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        if is_output:
            source.name = name


def _matmul_add_to_gemm(model: ir.Model) -> tuple[ir.Model, bool, str]:
    matmuls = {name_of(node.outputs[0]): node for node in model.graph if node.op_type == "MatMul"}
    names = {}
    for value, node in matmuls.items():
        for reader in node.outputs[0].consumers():
            names[name_of(reader.outputs[0])] = node_name(node)
        names[value] = node_name(node)
    count = RewriteRuleSet([matmul_add_to_gemm_rule]).apply_to_model(model)
    for node in model.graph:
        if node.op_type == "Gemm" and node.outputs[0].name in names:
            node.name = names[node.outputs[0].name]  # the MatMul's name, by which users know the layer
    _name_everything(model)
    return model, count > 0, f"{count} MatMul + Add pairs became Gemm"


def _fold_affine(model: ir.Model) -> tuple[ir.Model, bool, str]:
    outcome = fold_affine(model.graph)
    detail = f"{len(outcome.folded)} nodes folded into the linear node before them"
    for name, reason in sorted(outcome.left.items()):
        detail += f"; {name} stays: {reason}"
    return model, bool(outcome.folded), detail


def _remove_dead_code(model: ir.Model) -> tuple[ir.Model, bool, str]:
    before = model.graph.num_nodes()
    common.RemoveUnusedNodesPass()(model)
    common.RemoveUnusedOpsetsPass()(model)
    removed = before - model.graph.num_nodes()
    return model, removed > 0, f"{removed} nodes removed"


def _infer_shapes(model: ir.Model) -> tuple[ir.Model, bool, str]:
    modified = common.ShapeInferencePass()(model).modified
    unknown = sum(1 for node in model.graph for value in node.outputs if value.name and value.dtype is None)
    return model, modified, f"{unknown} tensors of unknown type" if unknown else "all tensor types known"
