"""Lifts operators by own rules where onnx's version converter (1.23) changes what they compute.

Upsample, Resize below opset 11    are asymmetric; nearest takes the sample below, that above where it shrinks
(onnxruntime's kernel); Resize-11 is told otherwise by its defaults
Hardmax below opset 13             takes all axes from its own on as one
GroupNormalization below opset 21  has scales and biases per group, then per channel
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.rewriting import axis_length
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    int_attribute,
    node_name,
    string_attribute,
    take_place,
)
from worker.quantizer.preparation.passes.shapes import infer_shapes

_APART = "quantmill.lifting"  # the converter passes over operators of other domains


def before_conversion(model: ir.Model, opset: int, wanted: int) -> Callable[[ir.Model], None]:
    """Prepare ``model``, which is changed, for the converter.

    Returns:
        What is to be done with the lifted model.
    """
    if any(node.op_type in ("Hardmax", "GroupNormalization") for node in model.graph.all_nodes()):
        infer_shapes(model)
    for node in list(model.graph.all_nodes()):
        if node.domain not in DEFAULT_DOMAINS or not isinstance(node.graph, ir.Graph):
            continue
        if node.op_type in ("Upsample", "Resize") and opset < 11 <= wanted:
            _resize(node, node.graph)
        elif node.op_type == "Hardmax" and opset < 13 <= wanted:
            _flatten(node)
        elif node.op_type == "GroupNormalization" and opset < 21 <= wanted:
            _repeat(node, node.graph)
    if any(node.domain == _APART for node in model.graph.all_nodes()):
        model.graph.opset_imports[_APART] = 1

    def after(lifted: ir.Model) -> None:
        for node in lifted.graph.all_nodes():
            if node.domain == _APART:
                node.domain = ""
        lifted.graph.opset_imports.pop(_APART, None)

    return after


def undo_groups(model: ir.Model) -> None:
    """Give a model that is not lifted after all its scales per group back; below opset 13 it is refused instead."""
    for node in model.graph.all_nodes():
        if node.domain == _APART:
            node.domain = ""
            for k in (1, 2):
                node.replace_input_with(k, node.meta.pop(f"per_group_{k}"))
    model.graph.opset_imports.pop(_APART, None)


def _resize(node: ir.Node, graph: ir.Graph) -> None:
    """Upsample and Resize of old as a Resize of opset 11 and later."""
    mode = string_attribute(node, "mode", "nearest")
    scales = node.inputs[1] if len(node.inputs) > 1 else None
    if scales is None:
        given = np.asarray(node.attributes["scales"].as_floats(), np.float32)
        scales = add_initializer(graph, Names(graph).free(f"{node_name(node)}_scales"), given)
    attributes = {"mode": mode, "coordinate_transformation_mode": "asymmetric"}
    if mode == "nearest":
        known = constant(scales)
        attributes["nearest_mode"] = "ceil" if known is not None and (known < 1).any() else "floor"
    inputs = [node.inputs[0], None, scales]
    made = ir.node("Resize", inputs, attributes=attributes, domain=_APART, name=node.name)
    take_place(node, [made], made.outputs[0])


def _flatten(node: ir.Node) -> None:
    """Hardmax along an inner axis: of a matrix of two axes, that gets its shape back."""
    value, axis = node.inputs[0], int_attribute(node, "axis", 1)
    rank = len(value.shape) if value is not None and value.shape is not None else None
    if value is None or rank is None or axis % rank == rank - 1:
        return
    shape = ir.node("Shape", [value])
    flat = ir.node("Flatten", [value], attributes={"axis": axis % rank})
    hard = ir.node("Hardmax", [flat.outputs[0]], attributes={"axis": 1}, name=node_name(node))
    back = ir.node("Reshape", [hard.outputs[0], shape.outputs[0]])
    take_place(node, [shape, flat, hard, back], back.outputs[0])


def _repeat(node: ir.Node, graph: ir.Graph) -> None:
    """Give a GroupNormalization scales and biases per channel, if they and the channels are known."""
    value = node.inputs[0]
    channels = axis_length(value, 1) if value is not None else None
    arrays = [array for array in map(constant, node.inputs[1:3]) if array is not None]
    if channels is None or len(arrays) < 2:
        return
    node.domain, names = _APART, Names(graph)
    for k, array in enumerate(arrays, 1):
        each = np.repeat(array, channels // array.size)
        node.meta[f"per_group_{k}"] = node.inputs[k]
        node.replace_input_with(k, add_initializer(graph, names.free(f"{node_name(node)}_per_channel"), each))
