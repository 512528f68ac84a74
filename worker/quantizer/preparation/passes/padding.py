"""Pad says what to add to every axis, for whatever moves a Pad knows nothing of its input ``axes`` (opset 18).

onnxruntime 1.31 pushes a Transpose through such a Pad as if it had pads for all axes, and then reads beyond them
(transpose_optimization).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import RANK_UNKNOWN, Editor, Rewrite, rank_of, rewrites
from worker.quantizer.graph.values import constant, node_name

AXES_NOT_CONSTANT = declare("axes-not-constant", "its axes are no constant")


@rewrites("Pad", what="Pad nodes got pads for all axes")
def pads_of_all_axes(pad: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Pad with ``axes`` -> Pad with 0 for those that it left out; pads known at run time alone are put into zeros."""
    axes = pad.inputs[3] if len(pad.inputs) > 3 else None
    if axes is None or pad.inputs[1] is None:
        return None
    rank, chosen, given = rank_of(pad.inputs[0]), constant(axes), constant(pad.inputs[1])
    if rank is None:
        return RANK_UNKNOWN()
    if chosen is None:
        return AXES_NOT_CONSTANT()
    name, zeros = node_name(pad), np.zeros(2 * rank, np.int64)
    places = np.concatenate([chosen % rank, chosen % rank + rank]).astype(np.int64)
    made = []
    if given is not None:
        zeros[places] = given
        pads = editor.constant(f"{name}_pads", zeros)
    else:
        inputs = [editor.constant(f"{name}_zeros", zeros), editor.constant(f"{name}_places", places), pad.inputs[1]]
        made.append(editor.node("ScatterElements", inputs, editor.name(f"{name}_pads"), dtype=ir.DataType.INT64))
        pads = made[0].outputs[0]
        pads.shape = ir.Shape([2 * rank])
    mode = {"mode": pad.attributes["mode"].as_string()} if "mode" in pad.attributes else {}
    whole = editor.node("Pad", [pad.inputs[0], pads, pad.inputs[2]], name, mode, pad.outputs[0].dtype)
    return Rewrite([pad], [*made, whole], [(pad.outputs[0], whole.outputs[0])])
