"""What else is added to a layer's result before anything reads it, as at the end of a residual block.

The quantized network adds the layer's result to a shortcut that is off already. A layer that is solved for the sum
takes up a part of that error, as far as its own inputs tell of it; one that is solved for its result alone hands it on
from block to block.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from worker.quantizer.graph.values import is_constant, users


@dataclass(frozen=True)
class Sum:
    """An Add that reads a layer's result, and nothing else does.

    Attributes:
        other: what is added.
        result: the sum.
    """

    other: ir.Value
    result: ir.Value


def sum_behind(node: ir.Node) -> Sum | None:
    """The sum of the node's result and an activation of the same shape; constants may be added before.

    None: others read the result too, it passes something else before, or its shape is not known to be that of the
    other operand.
    """
    value = node.outputs[0]
    while len(readers := users(value)) == 1 and not value.is_graph_output():
        reader = readers[0]
        if reader.op_type != "Add" or reader.domain not in ("", "ai.onnx") or len(reader.inputs) != 2:
            return None
        first, second = reader.inputs
        other = second if first is value else first
        if other is None or other is value:
            return None
        if not is_constant(other):
            return Sum(other, reader.outputs[0])
        value = reader.outputs[0]
    return None
