"""How much a network computes for a sample, told by the shapes of its graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod

import onnx_ir as ir

from service.contracts.model import ASSUMED_LENGTH, MOST_MATRIX_KINDS, MatrixKind, Work
from worker.quantizer.graph.values import input_of, is_constant
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, RECURRENT

_FLOAT_BYTES = 4
# Shapes may claim anything; whoever reads JSON may have no longer integers.
_MOST = 2**63 - 1
# As onnx's shape inference names axes.
_MADE_UP = "unk__"


def work_of(graph: ir.Graph) -> Work | None:
    """What one sample takes; None if no shape is known.

    An axis without a size counts as one if it is a tensor's first, else as ``ASSUMED_LENGTH``. Nodes of sub-graphs are
    not counted: how often they run depends on the values.

    Args:
        graph: prepared, with shapes.
    """
    nodes = list(graph)
    sizes = _sizes(nodes)
    if not sizes:
        return None
    return Work(
        multiply_adds=min(sum(map(multiply_adds, nodes)), _MOST),
        activation_bytes=min(_FLOAT_BYTES * sum(sizes), _MOST),
        largest_activation_bytes=min(_FLOAT_BYTES * max(sizes), _MOST),
        nodes=len(nodes),
        matrices=matrix_kinds(nodes),
    )


def matrices(nodes: Iterable[ir.Node]) -> Iterator[tuple[int, int, int]]:
    """Groups, outputs per group and inputs per group of every linear node with a constant weight that has elements."""
    for node in nodes:
        weight = node.inputs[1] if node.op_type in ("Conv", *MATRIX_PRODUCTS) and len(node.inputs) > 1 else None
        if weight is None or not is_constant(weight) or weight.shape is None or len(weight.shape) < 2:
            continue
        dims = [int(dim) for dim in weight.shape.numpy()]
        groups = node.attributes.get_int("group", 1) if node.op_type == "Conv" else 1
        if groups < 1 or prod(dims) < 1:
            continue
        if node.op_type == "Conv":
            yield groups, max(dims[0] // groups, 1), prod(dims[1:])
        elif node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1:
            yield 1, dims[0], dims[1]
        else:
            yield 1, dims[-1], dims[-2]


def matrix_kinds(nodes: Iterable[ir.Node]) -> tuple[MatrixKind, ...]:
    """Shapes of the linear nodes with constant weights, each once with how often it comes: layers are repeated."""
    counts = Counter(matrices(nodes))
    return tuple(
        MatrixKind(groups=groups, outputs=outputs, inputs=inputs, count=count)
        for (groups, outputs, inputs), count in sorted(counts.items())[:MOST_MATRIX_KINDS]
    )


def multiply_adds(node: ir.Node) -> int:
    """Multiplications of one sample, 0 for operators that are no products."""
    taken, given = _dims(input_of(node, 0)), _dims(node.outputs[0])
    weight = _dims(input_of(node, 1), batched=False)
    if taken is None or weight is None:
        return 0
    if node.op_type == "Conv" and given is not None:
        return prod(given) * prod(weight[1:])
    if node.op_type == "ConvTranspose":
        return prod(taken) * prod(weight[1:])
    if node.op_type in MATRIX_PRODUCTS and given is not None and taken:
        return prod(given) * taken[0 if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1 else -1]
    if node.op_type in RECURRENT and taken:
        recurrent = _dims(input_of(node, 2), batched=False) or []
        return taken[0] * (prod(weight) + prod(recurrent))
    return 0


def _sizes(nodes: Iterable[ir.Node]) -> list[int]:
    """Elements of all results; one whose axes nobody knows counts as the largest of what it was made of."""
    found: dict[ir.Value, int] = {}
    sizes = []
    for node in nodes:
        made_of = [_known_size(value, found) for value in node.inputs if value is not None and not is_constant(value)]
        largest = max((size for size in made_of if size is not None), default=None)
        for value in node.outputs:
            dims = _dims(value)
            if dims is None:
                continue
            found[value] = prod(dims) if largest is None or not _is_made_up(value) else largest
            sizes.append(found[value])
    return sizes


def _known_size(value: ir.Value, found: Mapping[ir.Value, int]) -> int | None:
    if value in found:
        return found[value]
    dims = _dims(value)
    return None if dims is None else prod(dims)


def _is_made_up(value: ir.Value | None) -> bool:
    """True if shape inference knows no more of an axis than that it is there."""
    shape = () if value is None or value.shape is None else value.shape
    return any(not isinstance(axis, int) and str(axis).startswith(_MADE_UP) for axis in shape)


def _dims(value: ir.Value | None, *, batched: bool = True) -> list[int] | None:
    """Sizes of the axes for one sample; None where not even their number is known."""
    if value is None or value.shape is None:
        return None
    return [
        dim if isinstance(dim, int) else (1 if axis == 0 and batched else ASSUMED_LENGTH)
        for axis, dim in enumerate(value.shape)
    ]
