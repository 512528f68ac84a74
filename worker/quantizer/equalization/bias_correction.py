"""Bias correction in closed form: b += (W - W~) E[x] for every output channel.

W~ is the dequantized weight and E[x] the mean input per channel in the float network, so that rounding the weights
leaves the mean output of the layer where it was (Nagel et al. 2019, Data-Free Quantization, section 4.2). At
zero-padded borders the mean is taken as if the input went on. Nodes without an int32 bias are left alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.graph.values import constant, int_attribute, name_of, node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.statistics.collect import Request
from worker.quantizer.statistics.reducers import ChannelMean


def requests(graph: ir.Graph, plan: QuantizationPlan) -> list[Request]:
    """Statistics needed: the mean input of every node that can be corrected."""
    tensors = {name_of(node.inputs[0]): node.op_type == "Conv" for node in _correctable(graph, plan) if node.inputs[0]}
    return [Request(tensor, ChannelMean(), pooled=has_positions) for tensor, has_positions in tensors.items()]


def correct_biases(graph: ir.Graph, plan: QuantizationPlan, collected: list[Request]) -> int:
    """Recompute the integers of the biases of a filled plan; changed in place.

    Returns:
        Number of corrected nodes.
    """
    means = {
        request.tensor: request.reducer.result() for request in collected if isinstance(request.reducer, ChannelMean)
    }
    count = 0
    for node in _correctable(graph, plan):
        mean = means.get(name_of(node.inputs[0])) if node.inputs[0] is not None else None
        shift = None if mean is None else mean_shift(node, plan, mean)
        entry = plan.biases[node_name(node)]
        bias = constant(node.inputs[2])
        if shift is None or bias is None or entry.quantization is None:
            continue
        entry.integers = entry.quantization.quantize(bias.reshape(-1).astype(np.float64) + shift)
        count += 1
    return count


def without_correction(graph: ir.Graph, plan: QuantizationPlan) -> tuple[QuantizationPlan, list[str]]:
    """The plan as it was before ``correct_biases``, to measure what that gained.

    Returns:
        A plan with biases of its own, and the names of the nodes whose bias differs.
    """
    biases, corrected = dict(plan.biases), []
    for node in _correctable(graph, plan):
        entry = plan.biases[node_name(node)]
        bias = constant(node.inputs[2])
        if bias is None or entry.quantization is None or entry.integers is None:
            continue
        plain = entry.quantization.quantize(bias.reshape(-1).astype(np.float64))
        if not np.array_equal(plain, entry.integers):
            biases[entry.node] = replace(entry, integers=plain)
            corrected.append(entry.node)
    return replace(plan, biases=biases), corrected


def _correctable(graph: ir.Graph, plan: QuantizationPlan) -> list[ir.Node]:
    return [
        node
        for node in graph
        if node.op_type in ("Conv", "Gemm")
        and node_name(node) in plan.biases
        and plan.biases[node_name(node)].reason is None
        and not int_attribute(node, "transA", 0)
    ]


def mean_shift(node: ir.Node, plan: QuantizationPlan, mean: np.ndarray) -> np.ndarray | None:
    """Mean output lost per output channel, float64 [out].

    Args:
        node: Conv or Gemm with a planned weight.
        plan: with integers.
        mean: float64 [in], mean input per channel.
    """
    value = node.inputs[1]
    weight = constant(value)
    planned = plan.weights.get(name_of(value)) if value is not None else None
    if weight is None or planned is None or planned.integers is None:
        return None
    if not isinstance(planned.quantization, IntegerGrid):
        return None
    lost = weight.astype(np.float64) - planned.quantization.dequantize(planned.integers)
    if node.op_type == "Gemm":
        matrix = lost if int_attribute(node, "transB", 0) else lost.T
        shift: np.ndarray = matrix @ mean
        return shift
    groups = int_attribute(node, "group", 1)
    kernel_sums = lost.reshape(groups, lost.shape[0] // groups, lost.shape[1], -1).sum(axis=3)
    shift = np.einsum("goi,gi->go", kernel_sums, mean.reshape(groups, -1)).reshape(-1)
    return shift
