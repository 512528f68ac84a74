"""Qualcomm's QNN: the HTP runs the whole network on uint8 or uint16 activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.rules.grids import per_tensor_matmul, unsigned_activations
from worker.quantizer.plan.targets.onnxruntime import FLOAT_CHAINS, FLOAT_MIXED_HEADS, LOSSLESS, common_reasons
from worker.quantizer.plan.types import Decision, Role, RuleContext, Stage, Target, rule

_ARITHMETIC = ("Add", "Sub", "Mul", "Min", "Max", "Concat")
_UNARY = (
    "AveragePool",
    "Clip",
    "Elu",
    "Gelu",
    "GlobalAveragePool",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "PRelu",
    "ReduceMean",
    "Relu",
    "Resize",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Swish",
    "Tanh",
)

# (operator, type): scale and zero point, by onnxruntime's get_qnn_qdq_config.
_FIXED = {
    ("Sigmoid", "uint16"): (2.0**-16, 0),
    ("Sigmoid", "int16"): (2.0**-15, 0),
    ("Tanh", "uint16"): (2.0**-15, 2**15),
    ("Tanh", "int16"): (2.0**-15, 0),
}


def _fixed_sigmoid_tanh(context: RuleContext) -> list[Decision]:
    """16-bit results of Sigmoid and Tanh get the one grid that QNN takes."""
    moved, made = {}, []
    for node in context.graph:
        name = node.outputs[0].name or ""
        entry = context.plan.activations.get(name)
        grid = entry.quantization if entry is not None else None
        if entry is None or not isinstance(grid, IntegerGrid) or (node.op_type, grid.dtype) not in _FIXED:
            continue
        scale, zero_point = _FIXED[node.op_type, grid.dtype]
        fixed = replace(
            grid,
            scale=np.asarray(scale, np.float32),
            zero_point=np.asarray(zero_point, grid.zero_point.dtype),
            symmetric=False,
        )
        if (float(grid.scale), int(grid.zero_point)) != (scale, zero_point):
            moved[entry.source] = fixed
            what = f"scale {float(grid.scale):.3g} -> {scale:.3g}, zero_point {int(grid.zero_point)} -> {zero_point}"
            made.append(Decision("fixed_sigmoid_tanh", name, what, "QNN takes 16-bit results on this grid only"))
    Parameters(context.graph, context.plan).move(sources=moved)
    return made


QNN = Target(
    name="qnn",
    roles={
        **dict.fromkeys(LINEAR, Role.LINEAR),
        **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
        **dict.fromkeys(_UNARY, Role.UNARY),
        **dict.fromkeys(LOSSLESS, Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip"}),
    takes_in=frozenset({*LINEAR, "Add", "Sub", "Mul"}),
    lossless=frozenset(LOSSLESS),
    reasons={op: reason for op, reason in common_reasons("qnn").items() if op not in _UNARY},
    rules=(
        FLOAT_MIXED_HEADS,
        FLOAT_CHAINS,
        rule("unsigned_activations", Stage.SPECS, unsigned_activations),
        rule("per_tensor_matmul", Stage.SPECS, per_tensor_matmul),
        rule("fixed_sigmoid_tanh", Stage.GRIDS, _fixed_sigmoid_tanh),
    ),
    whole=True,
)
