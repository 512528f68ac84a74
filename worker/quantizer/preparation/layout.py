"""NHWC at the interface of an emitted model: 4-D inputs take [N, H, W, C], and a Transpose makes [N, C, H, W] of them.

The change is made last, on the emitted model: everything before works on the layout that the float model was made for,
and so does the comparison with it (see ``NhwcSession``).
"""

from __future__ import annotations

from collections.abc import Collection

import onnx
import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.values import Names, name_of

INPUT_IS_OUTPUT = declare("input-is-output", "it is an output too")
INPUT_NOT_4D = declare("input-not-4d", "it does not have 4 axes")

TO_NCHW = (0, 3, 1, 2)
TO_NHWC = (0, 2, 3, 1)


def four_dimensional_inputs(model: ir.Model) -> tuple[str, ...]:
    """Names of the inputs that can take NHWC; one that is an output too cannot."""
    return tuple(name_of(value) for value in model.graph.inputs if _is_image(value) and not value.is_graph_output())


def announce(model: ir.Model) -> PassOutcome:
    """Say which inputs will take NHWC; nothing is changed yet."""
    names = four_dimensional_inputs(model)
    left = {
        name_of(value): INPUT_IS_OUTPUT() if _is_image(value) else INPUT_NOT_4D()
        for value in model.graph.inputs
        if name_of(value) not in names
    }
    return PassOutcome.counted(model, len(names), "inputs of the quantized model take NHWC", left=left)


def _is_image(value: ir.Value) -> bool:
    return value.shape is not None and len(value.shape) == 4


def take_nhwc(data: bytes, inputs: Collection[str]) -> bytes:
    """The serialized model with the inputs of these names in NHWC; ``data`` itself if there are none."""
    if not inputs:
        return data
    model = ir.from_proto(onnx.load_from_string(data))
    turn_inputs(model, inputs)
    return to_bytes(model)


def turn_inputs(model: ir.Model, inputs: Collection[str]) -> None:
    """Let the inputs of these names take NHWC."""
    graph = model.graph
    names = Names(graph)
    for k, value in enumerate(graph.inputs):
        if value.name not in inputs:
            continue
        name = name_of(value)
        images = ir.Value(name=name, type=value.type)
        if value.shape is not None:
            images.shape = ir.Shape([value.shape.dims[axis] for axis in TO_NHWC])
        value.name = names.free(f"{name}_NCHW")
        transpose = ir.node("Transpose", [images], attributes={"perm": TO_NCHW}, name=names.free(f"{name}_Transpose"))
        made = transpose.outputs[0]
        graph.inputs[k] = images
        ir.convenience.replace_all_uses_with(value, made)
        made.name, made.type, made.shape = value.name, value.type, value.shape
        graph.insert_before(graph[0], transpose)
