"""Writes factors, zeros and shifts into the constants of the layers."""

from __future__ import annotations

from collections.abc import Callable

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

    def of(layer: Layer) -> dict[int, np.ndarray]:
        ratio, out = factors[layer.rows] / factors[layer.columns], factors[layer.outputs]
        return {1: ratio, 2: out} if layer.is_linear else {1: ratio, 2: out, 3: factors[layer.inputs]}

    return _multiply(graph, flow, factors, of)


def cut_off(graph: ir.Graph, flow: Flow, silent: np.ndarray) -> list[str]:
    """Zero all weights and biases of silent groups, bool [groups]; otherwise as ``scale_layers``."""
    kept = ~silent
    return _multiply(
        graph, flow, kept, lambda layer: {1: kept[layer.rows] & kept[layer.columns], 2: kept[layer.outputs]}
    )


def _multiply(
    graph: ir.Graph, flow: Flow, factors: np.ndarray, of: Callable[[Layer], dict[int, np.ndarray]]
) -> list[str]:
    """Multiply the constants of the layers by what ``of`` gives by input, and terms by the factors of their groups."""
    names, changed = Names(graph), []
    for layer in flow.layers:
        if (factors[layer.outputs] == 1.0).all() and (factors[layer.inputs] == 1.0).all():
            continue
        for index, factor in of(layer).items():
            array = constant(layer.node.inputs[index]) if len(layer.node.inputs) > index else None
            if array is not None:
                own = _kernels(factor, array) if index == 1 else factor.reshape(array.shape)
                _put(graph, layer.node, index, array * own, names)
        changed.append(node_name(layer.node))
    for term in flow.terms:
        array, factor = constant(term.node.inputs[term.index]), factors[term.channels]
        if array is not None and not (factor == 1.0).all():
            _put(graph, term.node, term.index, array * factor, names)
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


def _put(graph: ir.Graph, node: ir.Node, index: int, array: np.ndarray, names: Names, *, stem: str = "") -> None:
    value = node.inputs[index] if index < len(node.inputs) else None
    name = name_of(value) if value is not None else stem
    replace_constant(graph, node, index, name, np.asarray(array, np.float32), names)
