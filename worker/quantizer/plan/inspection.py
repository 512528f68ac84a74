"""What a target would run on integers, told before anything is quantized and without data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from service.contracts.config import TargetName, parse_config
from worker.quantizer.graph.prepare import prepare
from worker.quantizer.graph.values import node_name
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.targets import edit_graph


@dataclass(frozen=True)
class NodeInspection:
    """What becomes of one node of the prepared model.

    Attributes:
        name: as uploaded, where it had a name.
        op_type: as uploaded.
        runs_quantized: whether it computes on integers.
        reason: why not; for a node that does, what it is replaced by, else empty.
        hint: what would let it run on integers, or help otherwise; empty if nothing is to be done.
    """

    name: str
    op_type: str
    runs_quantized: bool
    reason: str
    hint: str


# Words of a reason, and what helps against it; the first that fits counts.
_HINTS = (
    ("operators of domain", "Export the model with standard ONNX operators."),
    ("nodes inside sub-graphs", "Export the model without control flow, for instance by unrolling its loops."),
    ("its weight is not constant", "Fold the weight into a constant before the export."),
    ("holds NaN or Inf", "Look for the training fault that left NaN or Inf in the weights."),
    ("its output is double", "Export the model in float32."),
    ("its output is int", ""),
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


def inspect_for_target(
    model: ir.Model, target: TargetName, options: Mapping[str, bool] | None = None
) -> list[NodeInspection]:
    """Say for every node of the prepared model whether ``target`` runs it on integers, by the rules of the planner.

    Args:
        model: float model; it stays as it is.
        target: name of the target.
        options: options of the target that differ from their defaults.

    Raises:
        InvalidConfigError: the target has no such option.
        AlreadyQuantizedError: the model holds quantized operators.
        UnsupportedModelError: the model cannot be prepared.
    """
    config = parse_config({"target": target, "target_options": dict(options or {})})
    prepared = prepare(model.clone())
    edits = {decision.where: decision for decision in edit_graph(prepared.graph, config, prepared.op_types)}
    plan = build_plan(prepared.graph, config, prepared.op_types)
    found = []
    for node in prepared.graph.all_nodes():
        entry = plan.nodes[node_name(node)]
        edit = edits.get(entry.name)
        reason = entry.reason or (f"{edit.what}: {edit.why}" if edit is not None else "")
        op_type = prepared.op_types.get(entry.name, entry.op_type)
        found.append(NodeInspection(entry.name, op_type, entry.quantized, reason, _hint(entry.reason)))
    return found


def _hint(reason: str | None) -> str:
    if reason is None:
        return ""
    if reason.startswith(("excluded by", "not named by")):
        return "Change include or exclude."
    return next((hint for words, hint in _HINTS if words in reason), "")


__all__ = ["NodeInspection", "inspect_for_target"]
