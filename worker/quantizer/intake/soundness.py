"""Faults of a model that the runtime accepts but no run survives: NaN in weights, channels that do not fit."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.errors import ModelError, UnsupportedModelError
from worker.quantizer.graph.rewriting import axis_length
from worker.quantizer.graph.values import DEFAULT_DOMAINS, is_constant, node_name
from worker.quantizer.ops.linear import CONVOLUTIONS, channel_axis, linear_view
from worker.quantizer.ops.record import Family
from worker.quantizer.ops.table import operator

# Whatever these multiply or add is a parameter. Elsewhere Inf may be meant: attention masks, limits of Clip.
_PARAMETRIC = (Family.CONVOLUTION, Family.PRODUCT, Family.AFFINE, Family.NORMALIZATION, Family.RECURRENT)
_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})


def check_weights(model: ir.Model) -> None:
    """Refuse NaN and Inf in the weights of a model as uploaded; reads every weight once.

    Raises:
        ModelError: naming the node, the tensor and the index of the first such value.
    """
    seen: set[ir.Value] = set()
    for node in model.graph.all_nodes():
        if operator(node.op_type).family not in _PARAMETRIC or node.domain not in DEFAULT_DOMAINS:
            continue
        for value in node.inputs:
            if value is None or value in seen:
                continue
            seen.add(value)
            index = _first_non_finite(value)
            if index is not None:
                raise ModelError(
                    f"{_words(node)} has a weight {value.name!r} that holds NaN or Inf, first at {index}",
                    hint="Repair the weight (training may have diverged) and export the model again.",
                    node=node.name or None,
                    op_type=node.op_type,
                    tensor=value.name,
                    index=index,
                )


def check_channels(graph: ir.Graph) -> None:
    """Refuse a Conv or ConvTranspose whose weight takes another number of channels than its input has.

    Args:
        graph: prepared main graph, with the shapes that inference found; what is unknown is not judged.

    Raises:
        UnsupportedModelError: naming the node and the weight.
    """
    for node in graph:
        if node.op_type not in CONVOLUTIONS:
            continue
        linear = linear_view(node)
        if linear is None or linear.data is None or linear.weight is None or not is_constant(linear.weight):
            continue
        data, weight = linear.data, linear.weight
        have, taken = axis_length(data, channel_axis(node)), linear.in_channels
        if have is not None and have != taken:
            raise UnsupportedModelError(
                f"node {node_name(node)!r} ({node.op_type}): its weight {weight.name!r} {list(linear.weight_shape)} "
                f"takes {taken} channels, its input {data.name!r} has {have}",
                hint="Export the model again; check that its declared input shape is the one it was trained for.",
                node=node_name(node),
                op_type=node.op_type,
                tensor=weight.name,
            )


def _first_non_finite(value: ir.Value) -> list[int] | None:
    """Index of the first NaN or Inf of a constant; None for anything else."""
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.dtype not in _FLOATS:
        return None
    array = tensor.numpy()
    finite = np.isfinite(array)
    if finite.all():
        return None
    return [int(k) for k in np.unravel_index(int(np.argmin(finite)), array.shape)]


def _words(node: ir.Node) -> str:
    return f"node {node.name!r} ({node.op_type})" if node.name else f"an unnamed {node.op_type} node"
