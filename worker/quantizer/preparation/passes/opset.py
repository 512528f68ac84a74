"""Lifts the standard operators to the opset that emission needs, or to the one asked for."""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir as ir

from service.contracts.errors import InvalidConfigError, UnsupportedModelError
from service.contracts.preparation import PreparationSpec
from service.contracts.reason import declare
from worker.quantizer.graph.metadata import Metadata
from worker.quantizer.graph.outcome import PassOutcome
from worker.quantizer.graph.rewriting import opset_of
from worker.quantizer.graph.skeleton import Skeleton
from worker.quantizer.graph.values import node_name
from worker.quantizer.preparation.passes.lifting import before_conversion, undo_groups
from worker.quantizer.preparation.passes.names import first_output, name_everything

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
    skeleton = Skeleton(model)
    try:
        lifted = ir.from_proto(onnx.version_converter.convert_version(skeleton.proto, wanted))
    except (RuntimeError, ValueError) as error:  # the converter's own refusals; ConvertError is a RuntimeError
        refusal = str(error).strip().splitlines()[-1].rsplit(" failed: ", 1)[-1][:300]
        if spec.opset is not None:
            raise InvalidConfigError(
                f"the model cannot be lifted from opset {opset} to {wanted}: {refusal}",
                pointer=_POINTER,
                hint=f"Export the model anew with opset {wanted}"
                + (", or leave opset out." if opset >= lowest else f", or with {lowest} or later and leave opset out."),
            ) from error
        if opset < LOWEST_OPSET:
            raise UnsupportedModelError(
                f"opset {opset} lacks per-axis quantization and could not be lifted to {wanted}: {refusal}",
                hint=f"Export the model anew with opset {lowest} or later.",
                opset=opset,
            ) from error
        undo_groups(model)
        return PassOutcome(model, CONVERTER_REFUSED(opset=opset, refusal=refusal))
    skeleton.restore(lifted)
    after(lifted)
    for node in lifted.graph.all_nodes():
        node.name = names.get(first_output(node), node.name)
    metadata.restore(lifted.graph)
    name_everything(lifted)
    return PassOutcome(lifted, f"opset {opset} lifted to {wanted}")


def _check_wanted(opset: int, wanted: int, needed: int) -> None:
    if wanted < needed and needed > WANTED_OPSET:
        raise InvalidConfigError(
            f"opset {wanted} lacks the types of this config, which need {needed}",
            pointer=_POINTER,
            hint=f"Ask for {max(needed, opset)} or later, or leave opset out.",
        )
    newest = onnx.defs.onnx_opset_version()
    if wanted < opset:
        raise InvalidConfigError(
            f"the model has opset {opset}; it cannot be brought down to {wanted}",
            pointer=_POINTER,
            hint=f"Ask for {opset} or later, leave opset out, or export the model with opset {wanted}.",
        )
    if wanted > newest:
        raise InvalidConfigError(
            f"opset {wanted} is not known here; the newest is {newest}", pointer=_POINTER, hint=f"Ask for {newest}."
        )
