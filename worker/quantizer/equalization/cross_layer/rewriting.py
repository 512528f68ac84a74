"""Writes factors, zeros and shifts into the constants of the layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from worker.quantizer.equalization.cross_layer.dataflow import Flow
from worker.quantizer.equalization.cross_layer.layers import Layer
from worker.quantizer.graph.values import Names, constant, name_of, node_name
from worker.quantizer.preparation.affine import replace_constant


def scale_layers(graph: ir.Graph, flow: Flow, factors: np.ndarray) -> list[str]:
    """Multiply every channel by its group's factor; the graph is changed in place.

    Args:
        graph: that of ``flow``.
        flow: see there.
        factors: float64 [groups], positive.

    Returns:
        Names of the nodes whose constants have changed.
    """
    names, changed = Names(graph), []
    for layer in flow.layers:
        out = factors[layer.outputs]
        if (out == 1.0).all() and (factors[layer.inputs] == 1.0).all():
            continue
        ratio = factors[layer.rows] / factors[layer.columns]
        if layer.is_linear:
            _put(graph, layer.node, 1, layer.weight * _kernels(ratio, layer.weight), names)
            _scale(graph, layer.node, 2, out, names)
        else:
            for index, factor in ((1, ratio.reshape(-1)), (2, out), (3, factors[layer.inputs])):
                _scale(graph, layer.node, index, factor, names)
        changed.append(node_name(layer.node))
    for term in flow.terms:
        array, factor = constant(term.node.inputs[term.index]), factors[term.channels]
        if array is not None and not (factor == 1.0).all():
            _put(graph, term.node, term.index, array * factor, names)
            changed.append(node_name(term.node))
    return changed


def cut_off(graph: ir.Graph, flow: Flow, silent: np.ndarray) -> list[str]:
    """Zero all weights and biases of silent groups; the graph is changed in place.

    Args:
        graph: that of ``flow``.
        flow: see there.
        silent: bool [groups].

    Returns:
        Names of the nodes whose constants have changed.
    """
    names, changed = Names(graph), []
    for layer in flow.layers:
        if not (silent[layer.outputs].any() or silent[layer.inputs].any()):
            continue
        kept = ~(silent[layer.rows] | silent[layer.columns])
        _put(graph, layer.node, 1, layer.weight * _kernels(kept, layer.weight), names)
        _scale(graph, layer.node, 2, ~silent[layer.outputs], names)
        changed.append(node_name(layer.node))
    for term in flow.terms:
        array, mute = constant(term.node.inputs[term.index]), silent[term.channels]
        if array is not None and mute.any():
            _put(graph, term.node, term.index, array * ~mute, names)
            changed.append(node_name(term.node))
    return changed


def put_bias(graph: ir.Graph, layer: Layer, bias: np.ndarray, names: Names) -> None:
    """Give the layer this bias, [out]; it need not have had one."""
    value = layer.node.inputs[2] if len(layer.node.inputs) > 2 else None
    shape = bias.shape if value is None or value.shape is None else tuple(int(dim) for dim in value.shape.numpy())
    weight = layer.node.inputs[1]
    stem = f"{name_of(weight)}_bias" if value is None and weight is not None else ""
    _put(graph, layer.node, 2, bias.reshape(shape), names, stem=stem)


def _kernels(factors: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """With an axis for each of the weight's; a vector of weights is one of columns."""
    if weight.ndim == 1:
        return factors.reshape(-1)
    return factors.reshape(*factors.shape, *[1] * (weight.ndim - 2))


def _scale(graph: ir.Graph, node: ir.Node, index: int, factor: np.ndarray, names: Names) -> None:
    array = constant(node.inputs[index]) if len(node.inputs) > index else None
    if array is not None:
        _put(graph, node, index, array * factor.reshape(array.shape), names)


def _put(graph: ir.Graph, node: ir.Node, index: int, array: np.ndarray, names: Names, *, stem: str = "") -> None:
    value = node.inputs[index] if index < len(node.inputs) else None
    name = name_of(value) if value is not None else stem
    replace_constant(graph, node, index, name, np.asarray(array, np.float32), names)
