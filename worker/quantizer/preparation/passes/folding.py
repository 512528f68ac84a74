"""What computing a constant beforehand would cost, told from the operands alone, and how much of that is done.

A few hundred bytes can ask for a chain of products of 8192 x 8192 matrices, or for a tensor of gigabytes. What is
beyond the budget stays in the graph as it is: the runtime computes it where a job needs it, within that job's limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import DEFAULT_DOMAINS, node_name
from worker.quantizer.ops.table import operator

BEYOND_BUDGET = declare(
    "beyond-folding-budget", "to compute it beforehand would take more time or memory than all constants may"
)
# All constants together: some seconds of one core, and memory beside that of the weights.
MOST_FLOP = 1 << 35
FREE_BYTES, BYTES_PER_WEIGHT_BYTE = 256 << 20, 4
_FLOP_PER_SLOW_ELEMENT = 100_000
_GROWTH_OF_OTHERS = 8
# Operands that a shape may depend on have few elements.
_MOST_VALUES = 1024


class FoldingBudget:
    """Says of each node whether it is computed beforehand; to be asked once per node, in order.

    Args:
        opsets: versions by domain.
        weight_bytes: of the model.

    Attributes:
        left_alone: nodes beyond the budget.
    """

    def __init__(self, opsets: Mapping[str, int], *, weight_bytes: int) -> None:
        self._opsets = opsets
        self._flop_left = MOST_FLOP
        self._bytes_left = FREE_BYTES + BYTES_PER_WEIGHT_BYTE * weight_bytes
        self.left_alone: dict[str, Reason] = {}

    def should_fold(self, node: ir.Node) -> bool | None:
        """False for a node beyond the budget; None leaves it to the folder's own rules.

        Args:
            node: all its inputs are constants.
        """
        cost = self._cost(node)
        if cost is not None:
            flop, size_bytes = cost
            if flop <= self._flop_left and size_bytes <= self._bytes_left:
                self._flop_left -= flop
                self._bytes_left -= size_bytes
                return None
        self.left_alone[node_name(node)] = BEYOND_BUDGET()
        return False

    def _cost(self, node: ir.Node) -> tuple[int, int] | None:
        """FLOP and bytes of the outputs; None: they cannot be told."""
        operands = [value.const_value for value in node.inputs if value is not None and value.const_value is not None]
        taken = sum(tensor.size for tensor in operands)
        shape = self._output_shape(node)
        if shape is None:
            if operator(node.op_type).grows_by_values or node.domain not in DEFAULT_DOMAINS:
                return None
            made = _GROWTH_OF_OTHERS * taken
        else:
            made = math.prod(shape)
        item_bytes = max((tensor.dtype.itemsize for tensor in operands), default=4)
        return int(_flop(node, operands, taken, made)), int(made * max(item_bytes, 1))

    def _output_shape(self, node: ir.Node) -> tuple[int, ...] | None:
        """Of the first output, by the operator's own rule; what the file declares may be a lie."""
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        given = {value.name: value.const_value for value in node.inputs if value is not None and value.name}
        try:
            schema = onnx.defs.get_schema(node.op_type, self._opsets.get(domain, 1), domain)
            types = {
                name: onnx.helper.make_tensor_type_proto(int(tensor.dtype), tensor.shape.numpy())
                for name, tensor in given.items()
                if tensor is not None
            }
            values = {
                name: ir.serde.serialize_tensor(tensor)
                for name, tensor in given.items()
                if tensor is not None and tensor.size <= _MOST_VALUES
            }
            found = onnx.shape_inference.infer_node_outputs(schema, ir.serde.serialize_node(node), types, values)
        except (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, RuntimeError, ValueError, TypeError):
            return None
        kind = found.get(node.outputs[0].name or "")
        if kind is None or not kind.tensor_type.HasField("shape"):
            return None
        dims = [axis.dim_value if axis.HasField("dim_value") else -1 for axis in kind.tensor_type.shape.dim]
        return tuple(dims) if all(axis >= 0 for axis in dims) else None


def _flop(node: ir.Node, operands: list[ir.TensorProtocol], taken: int, made: int) -> float:
    """Multiplications and additions, or what takes as long."""
    shapes = [tensor.shape.numpy() for tensor in operands]
    kind = node.op_type
    if operator(kind).slow_reference:
        return _FLOP_PER_SLOW_ELEMENT * float(taken + made)
    if kind in ("MatMul", "MatMulInteger") and shapes[0]:
        return 2.0 * made * shapes[0][-1]
    if kind == "Gemm" and len(shapes[0]) == 2:
        transposed = node.attributes.get("transA")
        inner = shapes[0][0] if transposed is not None and transposed.value else shapes[0][1]
        return 2.0 * made * inner
    if kind in ("Conv", "ConvInteger") and len(shapes) > 1:
        return 2.0 * made * float(np.prod(shapes[1][1:], dtype=float))
    if kind in ("ConvTranspose", "Einsum", "Det") or kind.startswith("Attention"):
        return 2.0 * math.prod(float(tensor.size) for tensor in operands)
    return float(taken + made)
