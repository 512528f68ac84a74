"""Which values can never be negative, told from the operators that made them."""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.values import DEFAULT_DOMAINS, constant
from worker.quantizer.ops.record import Sign
from worker.quantizer.ops.table import operator


class Signs:
    """Learns node after node, in topological order; about what it was not told it claims nothing."""

    def __init__(self) -> None:
        self._known: set[ir.Value] = set()

    def never_negative(self, value: ir.Value | None) -> bool:
        """True if no element of ``value`` can be negative, whatever the model is fed."""
        array = constant(value)
        if array is not None:
            return array.dtype.kind != "O" and not (array < 0).any()
        return value in self._known

    def learn(self, node: ir.Node) -> None:
        """Judge the results of ``node`` by its operands."""
        if node.domain in DEFAULT_DOMAINS and self._judge(node):
            self._known.update(node.outputs)

    def _judge(self, node: ir.Node) -> bool:
        op_type, sign = node.op_type, operator(node.op_type).sign
        if sign is Sign.NEVER_NEGATIVE:
            return True
        operands = [value for value in node.inputs if value is not None]
        if sign is Sign.AS_FIRST:
            return self.never_negative(node.inputs[0])
        if sign is Sign.AS_ALL:
            return all(map(self.never_negative, operands))
        if sign is Sign.AS_ANY:
            return any(map(self.never_negative, operands))
        if op_type == "Clip":
            low = node.inputs[1] if len(node.inputs) > 1 else None
            return self.never_negative(node.inputs[0]) or (low is not None and self.never_negative(low))
        if op_type == "Pad":
            fill = node.inputs[2] if len(node.inputs) > 2 else None
            return self.never_negative(node.inputs[0]) and (fill is None or self.never_negative(fill))
        return False
