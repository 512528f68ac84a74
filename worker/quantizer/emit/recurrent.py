"""Recurrent layers on integers: onnxruntime's com.microsoft.DynamicQuantizeLSTM.

    X, W, R, B, sequence_lens, initial_h, initial_c, P, W_scale, W_zero_point, R_scale, R_zero_point -> Y, Y_h, Y_c

W is int8 or uint8 [directions, inputs, 4 * hidden] and R [directions, hidden, 4 * hidden], both transposed against
LSTM's. Scales and zero points are [directions] or [directions, 4 * hidden]. With several scales to a direction int8 has
its zero points at 0, and uint8 has one zero point. Activations are rounded to uint8 by the range of each matrix.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from worker.quantizer.graph.values import Names, add_initializer, name_of, node_name
from worker.quantizer.numerics.granularity import PER_TENSOR
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.weights import recurrent_weights
from worker.quantizer.plan.parameters import Parameter, Parameters
from worker.quantizer.plan.types import QuantizationPlan

_DOMAIN = "com.microsoft"
# Behind W and R: B, sequence_lens, initial_h, initial_c, P.
_FIRST_KEPT, _KEPT = 3, 5


def write_dynamic_lstm(model: ir.Model, node: ir.Node, plan: QuantizationPlan, names: Names) -> None:
    """Replace an LSTM by one that computes on integers; name, outputs and their names stay.

    Args:
        model: changed in place.
        node: LSTM of the main graph, layout 0, whose W and R are planned.
        plan: filled.
        names: in use.

    Raises:
        EngineError: the plan was not filled.
    """
    graph, parameters = model.graph, Parameters(model.graph, plan)
    weights: list[ir.Value] = []
    scales: list[ir.Value] = []
    for value in recurrent_weights(node):
        if value is None:
            raise EngineError(f"node {node.name!r} lacks a weight", node=node.name)
        stem = f"{name_of(value)}_of_{node_name(node)}"
        integers, scale, zero_point = _operands(name_of(value), parameters.weight(name_of(value)))
        weights.append(add_initializer(graph, names.free(f"{stem}_quantized"), integers))
        scales.append(add_initializer(graph, names.free(f"{stem}_scale"), scale))
        scales.append(add_initializer(graph, names.free(f"{stem}_zero_point"), zero_point))
    kept = list(node.inputs[_FIRST_KEPT:])
    kept += [None] * (_KEPT - len(kept))
    attributes = [attribute for name, attribute in node.attributes.items() if name != "layout"]
    made = ir.Node(
        _DOMAIN,
        "DynamicQuantizeLSTM",
        [node.inputs[0], *weights, *kept, *scales],
        attributes,
        num_outputs=len(node.outputs),
        name=node_name(node),
    )
    model.opset_imports.setdefault(_DOMAIN, 1)
    graph.insert_before(node, made)
    called = [old.name for old in node.outputs]
    for old, new in zip(node.outputs, made.outputs, strict=True):
        new.type, new.shape = old.type, old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=old.is_graph_output())
    graph.remove(node, safe=True)
    for new, name in zip(made.outputs, called, strict=True):
        new.name = name


def _operands(initializer: str, weight: Parameter) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integers, scales and zero points of one weight as the operator takes them."""
    grid, integers = weight.grid, weight.integers
    if not isinstance(grid, IntegerGrid) or integers is None:
        raise EngineError(f"weight {initializer!r} was planned but not filled", tensor=initializer)

    def spread(array: np.ndarray) -> np.ndarray:
        whole = np.broadcast_to(grid.granularity.spread(array, integers.shape), integers.shape)
        return np.ascontiguousarray(whole[:, 0, 0] if grid.granularity == PER_TENSOR else whole[:, :, 0])

    turned = np.ascontiguousarray(integers.transpose(0, 2, 1))
    return turned, spread(grid.scale), spread(grid.zero_point)
