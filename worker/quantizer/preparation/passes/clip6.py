"""Clip(0, 6) becomes Relu: the one pass that changes what a model computes, where values exceed 6."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import Reason
from worker.quantizer.graph.regions import OUTSIDE_REGIONS, region_of
from worker.quantizer.graph.rewriting import INPUT_NOT_FLOAT32, Editor, Rewrite, rewrites, scalar
from worker.quantizer.graph.values import is_float32, node_name


@rewrites("Clip", what="Clip(0, 6) nodes became Relu")
def clip6_to_relu(clip: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Clip with the constant limits 0 and 6 -> Relu."""
    limits = [scalar(value) for value in clip.inputs[1:3]]
    if limits != [0.0, 6.0]:
        return None
    if not is_float32(clip.inputs[0]):
        return INPUT_NOT_FLOAT32()
    if editor.in_regions and region_of(clip) is None:
        return OUTSIDE_REGIONS()
    relu = editor.node("Relu", [clip.inputs[0]], node_name(clip))
    return Rewrite([clip], [relu], [(clip.outputs[0], relu.outputs[0])])
