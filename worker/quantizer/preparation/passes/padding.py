"""Pad says what to add to every axis, for whatever moves a Pad knows nothing of its input ``axes`` (opset 18).

onnxruntime 1.31 pushes a Transpose through such a Pad as if it had pads for all axes, and then reads beyond them
(transpose_optimization).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import RANK_UNKNOWN, Editor, Rewrite, only_reader, rank_of, rewrites, scalar
from worker.quantizer.graph.values import constant, int_attribute, node_name, plain_attributes, string_attribute

NOT_ITS_PADS = declare("not-pads-of-pool", "the MaxPool behind it cannot take its pads over")
# A filling that is no value but says that none is there.
_NOTHING = -1e4

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


@rewrites("Pad", what="Pad nodes became pads of the MaxPool behind them")
def pads_of_max_pool(pad: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """Pad with -1e4 or less, then MaxPool -> MaxPool with these pads, which count for nothing there.

    On integers the filling would take the whole range.
    """
    pool = only_reader(pad.outputs[0], "MaxPool")
    filling = scalar(pad.inputs[2]) if len(pad.inputs) > 2 else None
    if pool is None or filling is None or not filling <= _NOTHING:
        return None
    given, kernel = constant(pad.inputs[1]), list(pool.attributes["kernel_shape"].as_ints())
    if given is None or given.size != 2 * (2 + len(kernel)) or len(pool.outputs) > 1 or not _takes_pads(pad, pool):
        return NOT_ITS_PADS()
    begins, ends = np.split(given.astype(np.int64), 2)
    own = pool.attributes["pads"].as_ints() if "pads" in pool.attributes else [0] * (2 * len(kernel))
    pads = np.concatenate([begins[2:], ends[2:]]) + np.asarray(own)
    inside = np.concatenate([begins[:2], ends[:2]])
    # A window of pads alone would have no value.
    if inside.any() or min(*begins, *ends) < 0 or (pads >= np.tile(kernel, 2)).any():
        return NOT_ITS_PADS()
    attributes = {**plain_attributes(pool), "pads": pads.tolist()}
    made = editor.node("MaxPool", [pad.inputs[0]], node_name(pool), attributes, pool.outputs[0].dtype)
    return Rewrite([pad, pool], [made], [(pool.outputs[0], made.outputs[0])])


def _takes_pads(pad: ir.Node, pool: ir.Node) -> bool:
    """True if the pool counts its windows from the pads that it is given, and skips no value."""
    dilations = pool.attributes["dilations"].as_ints() if "dilations" in pool.attributes else ()
    return (
        string_attribute(pad, "mode", "constant") == "constant"
        and string_attribute(pool, "auto_pad", "NOTSET") == "NOTSET"
        and not int_attribute(pool, "ceil_mode", 0)
        and all(dilation == 1 for dilation in dilations)
    )
