"""What of a model decides its speed: everything but its numbers."""

from __future__ import annotations

import hashlib

import onnx_ir as ir


def structure_of(model: ir.Model) -> str:
    """Lowercase hex sha256 of the operators, their attributes, and the types and shapes of all constants.

    Two models with the same one run the same kernels on the same shapes, whatever their weights and scales are.

    Args:
        model: with all of its initializers.
    """
    digest = hashlib.sha256()
    for graph in (model.graph, *model.graph.subgraphs()):
        made = {value: f"input {k}" for k, value in enumerate(graph.inputs)}
        for position, node in enumerate(graph):
            words = [node.domain, node.op_type]
            words += [_operand(value, made) for value in node.inputs]
            words += sorted(_attribute(attribute) for attribute in node.attributes.values())
            digest.update(("|".join(words) + "\n").encode())
            made.update({value: f"{position} {k}" for k, value in enumerate(node.outputs)})
        digest.update(("|".join(_operand(value, made) for value in graph.outputs) + "\n").encode())
    return digest.hexdigest()


def _operand(value: ir.Value | None, made: dict[ir.Value, str]) -> str:
    if value is None:
        return ""
    if value in made:
        return made[value]
    tensor = value.const_value
    return f"outer {value.name}" if tensor is None else f"constant {tensor.dtype.name} {list(tensor.shape.numpy())}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return attribute.name  # sub-graphs have their own turn
    if attribute.type is ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{attribute.name} {tensor.dtype.name} {list(tensor.shape.numpy())}"
    return f"{attribute.name} {attribute.value}"
