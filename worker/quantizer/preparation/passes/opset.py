"""Lifts operators to the opset that emission needs; by rules of ours where onnx's converter (1.23) is wrong."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.version_converter
import onnx_ir as ir

from service.contracts.errors import InvalidConfigError, UnsupportedModelError
from service.contracts.preparation import PreparationSpec
from service.contracts.reason import declare
from worker.quantizer.graph.metadata import Metadata
from worker.quantizer.graph.rewriting import PassOutcome, axis_length, opset_of
from worker.quantizer.graph.serialized import WeightlessProto
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    add_initializer,
    constant,
    input_of,
    int_attribute,
    node_name,
    string_attribute,
    take_place,
)
from worker.quantizer.preparation.passes.shapes import first_output, infer_shapes, name_everything

# Lifts operators by own rules where onnx's version converter (1.23) changes what they compute.
#
# Upsample, Resize below opset 11 are asymmetric; nearest takes the sample below, that above where it shrinks
# (onnxruntime's kernel); Resize-11 is told otherwise by its defaults Hardmax below opset 13 takes all axes from its own
# on as one GroupNormalization below opset 21 has scales and biases per group, then per channel
#
# Squeeze, Unsqueeze and Slice below opset 11 have no axes that count from the end, says onnx: its inference gives their
# results, and what comes behind, other shapes than onnxruntime does

_APART = "quantmill.lifting"  # the converter passes over operators of other domains


def before_conversion(model: ir.Model, opset: int, wanted: int) -> Callable[[ir.Model], None]:
    """Prepare ``model``, which is changed, for the converter.

    Returns:
        What is to be done with the lifted model.
    """
    if opset < 11 <= wanted:
        _take_axes_from_the_end(model)
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


def _take_axes_from_the_end(model: ir.Model) -> None:
    """Bring such operators into the form of opset 13; the shapes that are known of what they have made are none."""
    found = [
        node
        for node in model.graph.all_nodes()
        if node.op_type in ("Squeeze", "Unsqueeze", "Slice") and node.domain in DEFAULT_DOMAINS
        if "axes" in node.attributes and min(node.attributes["axes"].as_ints(), default=0) < 0
    ]
    if found:
        for value in (value for node in model.graph.all_nodes() for value in node.outputs):
            value.shape = value.shape if value.is_graph_output() else None
    for node in found:
        if not isinstance(node.graph, ir.Graph):
            continue
        operands = ("starts", "ends", "axes") if node.op_type == "Slice" else ("axes",)
        names = Names(node.graph)
        inputs = [
            add_initializer(
                node.graph, names.free(f"{node_name(node)}_{key}"), np.asarray(node.attributes[key].as_ints(), np.int64)
            )
            for key in operands
        ]
        made = ir.node(node.op_type, [node.inputs[0], *inputs], domain=_APART, name=node.name)
        take_place(node, [made], made.outputs[0])


def _resize(node: ir.Node, graph: ir.Graph) -> None:
    """Upsample and Resize of old as a Resize of opset 11 and later."""
    mode = string_attribute(node, "mode", "nearest")
    scales = input_of(node, 1)
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
    axis, last = (axis, -1) if rank is None else (axis % rank, rank - 1)
    if value is None or axis == last:
        return
    shape = ir.node("Shape", [value])
    flat = ir.node("Flatten", [value], attributes={"axis": axis})
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


NO_STANDARD_OPERATORS = declare("no-standard-operators", "the model uses no standard operators")
OPSET_KEPT = declare("opset-kept", "opset is {opset}")
CONVERTER_REFUSED = declare("opset-converter-refused", "opset stays {opset}; the converter refused: {refusal}")
WANTED_OPSET = 17
# QuantizeLinear and DequantizeLinear know an axis from opset 13 on.
LOWEST_OPSET = 13
LOWEST_IR_VERSION = 8
_POINTER = "/config/preparation/opset"


def lift_opset(model: ir.Model, spec: PreparationSpec, needed: int, lowest: int = LOWEST_OPSET) -> PassOutcome:
    """Convert the standard operators to ``spec.opset``, by default to ``needed`` where they are older.

    Args:
        model: left as it is where it cannot be lifted and need not be.
        spec: its opset may lie below ``needed`` only if that is no more than 17, a wish.
        needed: the opset that the recipe's integer types take.
        lowest: the opset that the recipe can do with, where operators of onnxruntime's own stand in for newer ones.

    Raises:
        InvalidConfigError: the opset asked for is older than the model's, unknown, or out of the converter's reach.
        UnsupportedModelError: nothing is asked for, but the model's opset is below 13 and cannot be lifted.
    """
    opset = opset_of(model)
    if opset is None:
        return PassOutcome(model, NO_STANDARD_OPERATORS())
    wanted = needed if spec.opset is None else spec.opset
    if spec.opset is not None:
        _check_wanted(opset, spec.opset, needed)
    if opset >= wanted:
        return PassOutcome(model, OPSET_KEPT(opset=opset))
    after = before_conversion(model, opset, wanted)
    names = {first_output(node): node_name(node) for node in model.graph.all_nodes()}
    metadata = Metadata(model.graph)  # the converter drops it
    # Below IR version 4 every initializer had to be an input, and the converter insists on it.
    model.ir_version = max(model.ir_version or 0, LOWEST_IR_VERSION)
    weightless = WeightlessProto(model)
    try:
        lifted = ir.from_proto(onnx.version_converter.convert_version(weightless.proto, wanted))
    except (RuntimeError, ValueError) as error:  # the converter's own refusals; ConvertError is a RuntimeError
        refusal = str(error).strip().splitlines()[-1].rsplit(" failed: ", 1)[-1][:300]
        if spec.opset is not None:
            raise InvalidConfigError(
                f"the model cannot be converted from opset {opset} to {wanted}: {refusal}",
                pointer=_POINTER,
                hint=f"Export the model again with opset {wanted}"
                + (", or leave opset out." if opset >= lowest else f", or with {lowest} or later and leave opset out."),
            ) from error
        if opset < LOWEST_OPSET:
            raise UnsupportedModelError(
                f"opset {opset} lacks per-axis quantization and could not be converted to {wanted}: {refusal}",
                hint=f"Export the model again with opset {lowest} or later.",
                opset=opset,
            ) from error
        undo_groups(model)
        return PassOutcome(model, CONVERTER_REFUSED(opset=opset, refusal=refusal))
    weightless.restore(lifted)
    after(lifted)
    for node in lifted.graph.all_nodes():
        node.name = names.get(first_output(node), node.name)
    metadata.restore(lifted.graph)
    name_everything(lifted)
    return PassOutcome(lifted, f"opset {opset} converted to {wanted}")


def _check_wanted(opset: int, wanted: int, needed: int) -> None:
    if wanted < needed and needed > WANTED_OPSET:
        raise InvalidConfigError(
            f"opset {wanted} lacks the types of this config, which need {needed}",
            pointer=_POINTER,
            hint=f"Request {max(needed, opset)} or later, or leave opset out.",
        )
    newest = onnx.defs.onnx_opset_version()
    if wanted < opset:
        raise InvalidConfigError(
            f"the model has opset {opset}; it cannot be converted down to {wanted}",
            pointer=_POINTER,
            hint=f"Request {opset} or later, leave opset out, or export the model with opset {wanted}.",
        )
    if wanted > newest:
        raise InvalidConfigError(
            f"opset {wanted} is not supported; the newest is {newest}", pointer=_POINTER, hint=f"Request {newest}."
        )
