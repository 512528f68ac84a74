"""What a target would run on integers, told before anything is quantized and without data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from service.contracts.config import QuantizationConfig
from service.contracts.inspection import Inspection, NodeInspection
from service.contracts.preparation import fixed_inputs
from service.contracts.version import VERSION
from worker.quantizer.graph.loading import load_model
from worker.quantizer.graph.prepare import Prepared, prepare
from worker.quantizer.graph.values import node_name
from worker.quantizer.intake import inspect_model
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import check_selectors
from worker.quantizer.plan.subgraphs import ACTIVATIONS_IN_FLOAT, IN_FLOAT
from worker.quantizer.plan.targets import edit_graph
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.provenance import fates, outline
from worker.quantizer.recipes.registry import RECIPES, wanted_opset
from worker.quantizer.soundness import check_channels

_QUANTIZED = {
    "static": "run quantized",
    "dynamic": "run quantized",
    "weights_only": "get quantized weights",
    "float16": "run in float16",
}


_SHAPES = "Nothing: it computes shapes or indices; with preparation.fixed_shapes it may fold away."
_UNROLL = "Export the model without control flow, for instance by unrolling its loops"
# Words of a reason, and what helps against it; the first that fits counts.
_HINTS = (
    ("operators of domain", "Export the model with standard ONNX operators."),
    (IN_FLOAT, f"{_UNROLL}; or set subgraphs to weights, for modes static and weights_only."),
    (ACTIVATIONS_IN_FLOAT, f"{_UNROLL}."),
    ("its weight is not constant", "Fold the weight into a constant before the export."),
    ("holds NaN or Inf", "Look for the training fault that left NaN or Inf in the weights."),
    ("its output is double", "Export the model in float32."),
    ("its output is int", _SHAPES),
    ("has no integer kernel for Shape", _SHAPES),
    ("has no integer kernel for ConstantOfShape", _SHAPES),
    ("the type of its output is unknown", "Run shape inference on the model, or export it with static shapes."),
    ("its limits are not constant", "Give the node constant limits."),
    ("pads with a value other than 0", "Pad with 0, or let the next convolution pad."),
    ("cubic interpolation", "Resize with mode linear or nearest."),
    ("no quantized node before it takes", "Let the activation function follow a convolution directly."),
    ("its input is read elsewhere too", "Read the result of the activation function in both places."),
    ("no quantized node feeds it", "Nothing: it lies where the network is float anyway."),
    ("no quantized node reads its result", "Nothing: it lies where the network is float anyway."),
    ("one operand is a constant", "Fold the constant into the layer before or after the node."),
    ("Softmax stays in float", "Nothing: in integers it would lose small probabilities."),
    ("recurrent layers", "Use mode dynamic or weights_only for them."),
    ("normalization stays in float", "Use BatchNormalization, which folds into convolutions."),
    ("only HardSigmoid with alpha 1/6", "Use HardSigmoid with alpha 1/6 and beta 1/2."),
    ("it only feeds", "Use BatchNormalization in place of a normalization written out."),
    ("scores", "Switch the target option float_heads off to quantize it all the same."),
    ("both operands of this MatMul", "Switch the target option matmul_constant_b_only off to quantize it."),
    ("leaves it to the CPU", "Use Relu, HardSigmoid or HardSwish in its place."),
    ("has no integer kernel for", "Replace the operator by one that the target knows, or leave it in float."),
)


def inspect_file(path: Path, config: QuantizationConfig, *, threads: int) -> Inspection:
    """Say for every node of a model what ``config`` would make of it on its target.

    Args:
        path: the .onnx file; external data lies in its folder.
        config: resolved recipe; everything in it that needs data is passed over.
        threads: threads that the runtime may use.

    Raises:
        ModelError: the model cannot be used, or is quantized already.
        InvalidConfigError: the config names nodes, inputs or shapes that the model does not have.
    """
    summary = inspect_model(path, threads=threads, list_nodes=False)
    fixed_inputs(summary.inputs, config.preparation)
    nodes, plan = inspect_nodes(load_model(path), config)
    quantized = sum(node.quantized for node in nodes)
    stored = sum(node.activation_reason is not None for node in nodes)
    return Inspection(
        target=config.target,
        mode=config.mode,
        model_sha256=summary.sha256,
        engine_version=VERSION,
        summary=f"{quantized - stored} of {len(nodes)} nodes {_QUANTIZED[config.mode]} on {config.target}"
        + (f", and {stored} inside sub-graphs get quantized weights." if stored else "."),
        node_count=len(nodes),
        quantized_count=quantized,
        nodes=nodes,
        notes=tuple(dict.fromkeys(plan.notes)),
    )


def inspect_nodes(model: ir.Model, config: QuantizationConfig) -> tuple[tuple[NodeInspection, ...], QuantizationPlan]:
    """The nodes of the prepared model by the planner of the config's mode, and the plan itself.

    Args:
        model: float model, changed or replaced.
        config: resolved recipe.

    Raises:
        AlreadyQuantizedError: the model holds quantized operators.
        InvalidConfigError: a selector names a node or an operator that is not there.
        UnsupportedModelError: the model cannot be prepared.
    """
    uploaded = [(node.name, node.op_type) for node in model.graph.all_nodes()]
    before = outline(model.graph)
    prepared = prepare(
        model, config.preparation, opset=wanted_opset(config), subgraph_weights=config.subgraphs == "weights"
    )
    check_channels(prepared.graph)
    notes = check_selectors(
        config,
        [*uploaded, *prepared.op_types.items()],
        prepared.known_nodes(),
        Matcher(prepared.graph, prepared.op_types),
        fates(before, prepared.graph),
    )
    edits = edit_graph(prepared.graph, config, prepared.op_types)
    plan = RECIPES[config.mode].plan(prepared.graph, config, prepared.op_types)
    plan.notes += notes
    replaced = {decision.where: f"{decision.what}: {decision.why}" for decision in edits}
    return tuple(_nodes(prepared, plan, replaced)), plan


def _nodes(prepared: Prepared, plan: QuantizationPlan, replaced: dict[str, str]) -> Iterator[NodeInspection]:
    for node in prepared.graph.all_nodes():
        entry = plan.nodes[node_name(node)]
        yield NodeInspection(
            name=entry.name,
            op=prepared.op_types.get(entry.name, entry.op_type),
            quantized=entry.quantized,
            reason=entry.reason or replaced.get(entry.name),
            activation_reason=entry.activation_reason,
            hint=_hint(entry.reason),
        )


def _hint(reason: str | None) -> str | None:
    if reason is None:
        return None
    if reason.startswith(("excluded by", "not named by")):
        return "Change include or exclude."
    return next((hint for words, hint in _HINTS if words in reason), "") or None


__all__ = ["Inspection", "NodeInspection", "inspect_file", "inspect_nodes"]
