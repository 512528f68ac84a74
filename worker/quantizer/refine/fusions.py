"""Transposes that onnxruntime 1.31 must not find in float16.

It fuses a Transpose that moves the first axis to the place before the last, or to the end, with the MatMul that reads
it; where the other factor has another rank, and a Cast to float32 lies between, it then reads beyond a shape, and the
process dies (matmul_transpose_fusion.cc). Where the Transpose is float32, no Cast lies there.
"""

from __future__ import annotations

import onnx_ir as ir

from worker.quantizer.graph.rewriting import rank_of
from worker.quantizer.graph.values import node_name

_BETWEEN = ("Cast", "Identity")


def fatal_transposes(graph: ir.Graph) -> set[str]:
    """Names of such nodes of the main graph: a MatMul's operand is one of them, or several are merged into one."""
    found: set[str] = set()
    for node in graph:
        if node.op_type == "MatMul":
            for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
                found.update(node_name(transpose) for transpose in _fatal(value, rank_of(other)))
    return found


def _fatal(value: ir.Value | None, other_rank: int | None) -> list[ir.Node]:
    """Those that follow one another before a factor, as far back as they do such a thing together."""
    fatal, chain, together = list[ir.Node](), list[ir.Node](), list[int]()
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type == "Transpose":
            chain.append(maker)
            order = _order(maker)
            together = [order[axis] for axis in together] if len(together) == len(order) else order
            if _moves_first(together) and other_rank != len(together):
                fatal = list(chain)
        elif maker.op_type not in _BETWEEN:
            break
        value = maker.inputs[0]
    return fatal


def _order(transpose: ir.Node) -> list[int]:
    given = transpose.attributes.get("perm")
    return list(given.as_ints()) if given is not None else list(reversed(range(rank_of(transpose.inputs[0]) or 0)))


def _moves_first(order: list[int]) -> bool:
    rank = len(order)
    return rank > 2 and order in ([*range(1, rank - 1), 0, rank - 1], [*range(1, rank), 0])
