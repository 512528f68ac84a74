"""Some of the patches that a layer sees, and what the float network makes of them.

A layer at the end of a residual block is solved for the sum that its result goes into, where nothing reads the result
before. The quantized network adds it to a shortcut that is off already: a layer that is solved for the sum takes up a
part of that error, as far as its own inputs tell of it; one that is solved for its result alone hands it on from block
to block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from worker.quantizer.finetune.moments.arrays import matmul
from worker.quantizer.graph.values import is_constant, users
from worker.quantizer.layerwise import Visit
from worker.quantizer.ops.linear import LinearNode


@dataclass(frozen=True)
class Patches:
    """Input patches of the quantized network beside outputs of the float network, at the same positions.

    Attributes:
        x: float32 [groups, inputs, n].
        y: float32 [groups, outputs, n], before the activation function.
        beside: what the quantized network adds to the layer's result, laid out like ``y``, where ``y`` is made for the
            sum of both; None: nothing.
    """

    x: np.ndarray
    y: np.ndarray
    beside: np.ndarray | None = None


def sample_patches(
    visit: Visit,
    linear: LinearNode,
    matrix: np.ndarray,
    bias: np.ndarray,
    *,
    wanted: int,
    seed: int,
    quantized_share: float = 1.0,
    beside: str | None = None,
) -> Patches:
    """About ``wanted`` patches, drawn evenly from all samples without replacement.

    Args:
        visit: of the node.
        linear: the node.
        matrix: float32 [groups, outputs, inputs], the float weight.
        bias: float32 [groups, outputs], the float bias.
        wanted: how many.
        seed: of the choice.
        quantized_share: of the elements of x; the others are the float network's, at random (Wei et al. 2022, QDrop).
        beside: a tensor that waits and is added to the result: ``y`` is what makes the sum that of the float network.
    """
    groups, outputs, inputs = linear.matrix_shape
    samples = visit.samples
    quotas = [-(-wanted * part.valid // samples) for part in visit.parts]
    x = np.empty((groups, inputs, sum(quotas)), np.float32)
    y = np.empty((groups, outputs, sum(quotas)), np.float32)
    added = None if beside is None else np.empty_like(y)
    done = 0
    random = np.random.default_rng(seed)
    for part, quota in zip(visit.parts, quotas, strict=True):
        floats = visit.x(part)
        positions = linear.positions(floats)
        chosen = np.arange(positions)
        if quota < positions:
            chosen = np.sort(random.choice(positions, quota, replace=False))
        to = slice(done, done + len(chosen))
        exact, mask = linear.patches(floats, chosen)
        inside = np.True_ if mask is None else mask
        exact = exact * inside
        matmul(matrix, exact, out=y[:, :, to])
        if beside is not None and added is not None:
            added[:, :, to] = linear.results(visit.tensor(beside, part, quantized=True), chosen)
            y[:, :, to] += linear.results(visit.tensor(beside, part, quantized=False), chosen) - added[:, :, to]
        stored, grid = visit.x_stored(part)
        found, _ = linear.patches(stored, chosen)
        np.multiply(found if grid is None else grid.dequantize(found), inside, out=x[:, :, to])
        if quantized_share < 1.0:
            np.copyto(x[:, :, to], exact, where=random.random(exact.shape, np.float32) >= quantized_share)
        done = to.stop
    x, y = x[:, :, :done], y[:, :, :done]
    y += bias[:, :, None]
    return Patches(x, y, None if added is None else added[:, :, :done])


@dataclass(frozen=True)
class ResidualAdd:
    """An Add that reads a layer's result, and nothing else does.

    Attributes:
        other: what is added.
        result: the sum.
    """

    other: ir.Value
    result: ir.Value


def residual_add(node: ir.Node) -> ResidualAdd | None:
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
            return ResidualAdd(other, reader.outputs[0])
        value = reader.outputs[0]
    return None
