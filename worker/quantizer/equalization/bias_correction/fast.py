"""What rounding the weights takes from the mean of a layer, in closed form: (W - W~) E[x] for every output channel.

W~ is the dequantized weight and E[x] the mean input per channel in the float network (Nagel et al. 2019, Data-Free
Quantization, section 4.2). At zero-padded borders the mean is taken as if the input went on.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from worker.quantizer.operators.linear import linear_view
from worker.quantizer.plan.parameters import Parameters


def mean_shift(node: ir.Node, parameters: Parameters, mean: np.ndarray) -> np.ndarray | None:
    """Mean output lost per output channel, float64 [out]; None if the weight is no constant that is rounded.

    Args:
        node: Conv, ConvTranspose, Gemm or MatMul with a planned weight.
        parameters: of a filled plan.
        mean: float64 [in], mean input per channel.
    """
    linear = linear_view(node)
    weight = parameters.of(node, 1)
    if linear is None or linear.stacked or weight is None or weight.grid is None:
        return None
    lost = linear.matrix(weight.original.astype(np.float64) - weight.present)
    sums = lost.reshape(*lost.shape[:2], -1, math.prod(linear.kernel)).sum(axis=3)
    if node.op_type == "ConvTranspose":  # every output position meets one in so many taps of the kernel
        sums = sums / math.prod(linear.window.strides)
    made = np.einsum("goi,gi->go", sums, mean.reshape(linear.groups, -1)).reshape(-1)
    return np.asarray(linear.alpha * made)
