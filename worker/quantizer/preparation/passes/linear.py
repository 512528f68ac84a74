"""A MatMul takes in the bias behind it."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import Reason
from worker.quantizer.graph.rewriting import (
    Editor,
    Rewrite,
    only_reader,
    other_operand,
    rank_of,
    rewrites,
    static_shape,
)
from worker.quantizer.graph.values import is_constant, is_float32, node_name


@rewrites("MatMul", what="MatMul + Add pairs became Gemm")
def matmul_add_to_gemm(matmul: ir.Node, editor: Editor) -> Rewrite | Reason | None:
    """MatMul of two matrices and Add -> Gemm, which keeps the MatMul's name: users know the layer by it."""
    left, right = matmul.inputs
    if rank_of(left) != 2 or rank_of(right) != 2:
        return None
    add = only_reader(matmul.outputs[0], "Add")
    bias = other_operand(add, matmul.outputs[0]) if add is not None else None
    if add is None or bias is None or not is_constant(bias) or not is_float32(left) or not is_float32(bias):
        return None
    if not _is_bias(bias, right, left):
        return None
    gemm = editor.node("Gemm", [left, right, bias], node_name(matmul))
    return Rewrite([matmul, add], [gemm], [(add.outputs[0], gemm.outputs[0])])


def _is_bias(bias: ir.Value, right: ir.Value | None, left: ir.Value | None) -> bool:
    """True if ``bias`` broadcasts to the product's shape for sure; it must not widen it."""
    shape = static_shape(bias)
    if shape is None or len(shape) > 2:
        return False
    rows = left.shape[0] if left is not None and left.shape is not None else None
    columns = right.shape[1] if right is not None and right.shape is not None else None
    wanted = (rows, columns)[2 - len(shape) :]
    return all(mine == 1 or mine == length for mine, length in zip(shape, wanted, strict=True))
