"""A BatchNormalization that could not be folded becomes a depthwise 1x1 Conv: y_c = s_c x_c + t_c."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.rewriting import (
    INPUT_NOT_FLOAT32,
    RANK_UNKNOWN,
    Attribute,
    Editor,
    Rewrite,
    rank_of,
    rewrites,
)
from worker.quantizer.graph.values import constant, is_float32, name_of, node_name
from worker.quantizer.preparation.affine import PARAMETERS_NOT_PER_CHANNEL, batchnorm_affine

NO_POSITIONS = declare("no-positions", "its input has {rank} axes; a Conv needs positions")
CONV_NOT_FINITE = declare("conv-not-finite", "the weight or bias would not be finite")


@rewrites("BatchNormalization", what="BatchNormalization nodes became Conv")
def batch_norm_to_conv(norm: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """BatchNormalization over images, sequences or volumes -> Conv with one 1x1 filter per channel."""
    source = norm.inputs[0]
    rank = rank_of(source)
    if source is None or rank is None:
        return RANK_UNKNOWN()
    if rank < 3:
        return NO_POSITIONS(rank=rank)
    if not is_float32(source):
        return INPUT_NOT_FLOAT32()
    gamma = constant(norm.inputs[1])
    if gamma is None:
        return PARAMETERS_NOT_PER_CHANNEL()
    affine = batchnorm_affine(norm, int(gamma.size))
    if isinstance(affine, Reason):
        return affine
    scale = np.ones_like(affine.offset) if affine.scale is None else affine.scale
    with np.errstate(over="ignore"):  # judged below
        weight, bias = scale.astype(np.float32), affine.offset.astype(np.float32)
    if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
        return CONV_NOT_FINITE()
    stem = name_of(norm.outputs[0])
    values = [
        editor.constant(f"{stem}_weight", weight.reshape(-1, *[1] * (rank - 1))),
        editor.constant(f"{stem}_bias", bias),
    ]
    attributes: dict[str, Attribute] = {"group": int(gamma.size), "kernel_shape": [1] * (rank - 2)}
    conv = editor.node("Conv", [source, *values], node_name(norm), attributes)
    return Rewrite([norm], [conv], [(norm.outputs[0], conv.outputs[0])])
