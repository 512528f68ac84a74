"""What rounding the weights takes from the mean of a layer, in closed form: (W - W~) E[x] for every output channel.

W~ is the dequantized weight and E[x] the mean input per channel in the float network (Nagel et al. 2019, Data-Free
Quantization, section 4.2). At zero-padded borders the mean is taken as if the input went on.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.bias_correction.places import represented
from worker.quantizer.graph.values import constant, float_attribute, int_attribute, name_of
from worker.quantizer.plan.types import QuantizationPlan


def mean_shift(node: ir.Node, plan: QuantizationPlan, mean: np.ndarray) -> np.ndarray | None:
    """Mean output lost per output channel, float64 [out]; None if the weight is no constant of the plan.

    Args:
        node: Conv, ConvTranspose, Gemm or MatMul with a planned weight.
        plan: filled.
        mean: float64 [in], mean input per channel.
    """
    value = node.inputs[1]
    weight = constant(value)
    planned = plan.weights.get(name_of(value)) if value is not None else None
    if weight is None or planned is None or planned.quantization is None:
        return None
    lost = weight.astype(np.float64) - represented(weight, planned)
    if node.op_type == "MatMul":
        return np.asarray(mean @ lost) if lost.ndim == 2 else None
    if node.op_type == "Gemm":
        matrix = lost if int_attribute(node, "transB", 0) else lost.T
        return np.asarray(float_attribute(node, "alpha", 1.0) * (matrix @ mean))
    groups = int_attribute(node, "group", 1)
    if node.op_type == "Conv":
        kernel_sums = lost.reshape(groups, lost.shape[0] // groups, lost.shape[1], -1).sum(axis=3)
        return np.asarray(np.einsum("goi,gi->go", kernel_sums, mean.reshape(groups, -1)).reshape(-1))
    # every output position meets one in so many taps of the kernel
    kernel_sums = lost.reshape(groups, lost.shape[0] // groups, lost.shape[1], -1).sum(axis=3) / _stride(node)
    return np.asarray(np.einsum("gio,gi->go", kernel_sums, mean.reshape(groups, -1)).reshape(-1))


def _stride(node: ir.Node) -> int:
    found = node.attributes.get("strides")
    return 1 if found is None else math.prod(found.as_ints())
